// SPDX-License-Identifier: GPL-2.0-only
//! Which choices and flags go together: the list NEEDS of policies.h. The program `cohort` includes this file as well, and Python asks it through the simulator's
//! module, so that all three refuse the same in the same words.

use crate::policies::NEEDS;

/// What the command line chose. Names are without their dashes.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// Each axis with the value that it has in the end, and so `traffic`.
    pub axes: &'a [(&'a str, &'a str)],
    /// The flags that are given, those of axes too.
    pub given: &'a [&'a str],
}

/// `--flag`, `--axis a|b`, `--axis other than a|b`, or one of these after `given`.
#[derive(Clone, Copy, Debug)]
struct Term<'a> {
    flag: &'a str,
    /// None: it is given, whatever its value.
    values: Option<&'a str>,
    other_than: bool,
    must_be_given: bool,
}

impl<'a> Term<'a> {
    fn of(text: &'a str) -> Self {
        let (text, must_be_given) = match text.strip_prefix("given ") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (flag, values) = text.split_once(' ').map_or((text, None), |(flag, rest)| (flag, Some(rest)));
        let others = values.and_then(|values| values.strip_prefix("other than "));
        Self {
            flag: flag.trim_start_matches('-'),
            values: others.or(values),
            other_than: others.is_some(),
            must_be_given,
        }
    }

    fn holds(self, chosen: Chosen) -> bool {
        let Some(wanted) = self.values else { return chosen.given.contains(&self.flag) };
        // --boost has several at once.
        let mut has = chosen.value(self.flag).split(',');
        has.any(|value| wanted.split('|').any(|one| one == value)) != self.other_than
            && (!self.must_be_given || chosen.given.contains(&self.flag))
    }

    /// As what is missing.
    fn wanted(self, chosen: Chosen) -> String {
        let Some(values) = self.values else { return format!("--{}", self.flag) };
        let other = if self.other_than { "other than " } else { "" };
        let values = values.replace('|', " or ");
        format!("--{} {other}{values} (it is {})", self.flag, chosen.value(self.flag))
    }

    /// As what is there.
    fn there(self, chosen: Chosen) -> String {
        match self.values {
            None => format!("--{}", self.flag),
            Some(_) => format!("--{} {}", self.flag, chosen.value(self.flag)),
        }
    }
}

impl Chosen<'_> {
    fn value(&self, axis: &str) -> &str {
        self.axes.iter().find(|(name, _)| *name == axis).map_or("", |(_, value)| *value)
    }

    /// What does not go together, as one line with the reason; None: all does.
    pub fn refusal(&self) -> Option<String> {
        NEEDS.iter().find_map(|[what, needs, why]| {
            let what = Term::of(what);
            // Dashes that go with the separator are not missed.
            let mut needed = needs.split(" or --").map(Term::of);
            if !what.holds(*self) || needed.clone().any(|term| term.holds(*self)) {
                return None;
            }
            let first = needed.next().map(|term| term.wanted(*self)).unwrap_or_default();
            let others = needed.map(|term| format!(", or {}", term.wanted(*self))).collect::<String>();
            Some(format!("{} needs {first}{others}: {why}", what.there(*self)))
        })
    }

    /// Would that flag change nothing, beside these axes?
    pub fn is_idle(&self, flag: &str) -> bool {
        Chosen { given: &[flag], ..*self }.refusal().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::{GANGS, GUARDS, ORDERS, PRESETS, SPINS};

    const COHORT: [(&str, &str); 6] = [
        ("placement", "balance"),
        ("order", "vm"),
        ("gang", "aligned"),
        ("spin", "boost"),
        ("boost", "candidate,any-mode,migrate"),
        ("guard", "off"),
    ];

    /// The default's axes, some of them changed.
    fn changed(axes: &[(&'static str, &'static str)], given: &[&str]) -> Option<String> {
        let mut all = COHORT;
        for (name, value) in axes {
            all.iter_mut().find(|(axis, _)| axis == name).expect("an axis").1 = value;
        }
        Chosen { axes: &all, given }.refusal()
    }

    #[test]
    fn every_preset_goes_together() {
        for row in PRESETS {
            let axes: Vec<_> = COHORT.iter().map(|(axis, _)| *axis).zip(row[1..7].iter().copied()).collect();
            assert_eq!(Chosen { axes: &axes, given: &["policy"] }.refusal(), None, "{}", row[0]);
        }
    }

    #[test]
    fn a_refusal_says_what_is_needed_what_is_there_and_why() {
        assert_eq!(
            changed(&[("order", "task")], &[]).unwrap(),
            "--gang aligned needs --order vm or sbco or credit or sedf (it is task): tasks that are scheduled each for itself have no turn together"
        );
        assert_eq!(
            changed(&[("gang", "off"), ("spin", "yield"), ("boost", "off")], &["boost-slice-us"]).unwrap(),
            "--boost-slice-us needs --spin boost or prefer (it is yield), or --gang aligned (it is off): nothing else lends a part of a turn"
        );
        assert!(changed(&[("boost", "off")], &[])
            .unwrap()
            .starts_with("--spin boost needs --boost other than off (it is off): "));
    }

    #[test]
    fn what_is_given_is_told_from_what_the_preset_says() {
        let partial = [("gang", "partial"), ("spin", "off"), ("boost", "off")];
        assert_eq!(changed(&partial, &["policy"]), None);
        assert!(changed(&partial, &["gang"]).unwrap().starts_with("--gang partial needs --sets: "));
        assert_eq!(changed(&partial, &["gang", "sets"]), None);
    }

    #[test]
    fn one_of_several_values_is_enough() {
        let xen = |boost| changed(&[("order", "credit"), ("boost", boost)], &["lag-us"]);
        assert_eq!(xen("candidate,unfair"), None);
        assert!(xen("candidate").is_some());
        let chosen = Chosen { axes: &COHORT, given: &["lag-us"] };
        assert!(chosen.is_idle("skew-us") && !chosen.is_idle("boost-slice-us"));
    }

    /// A typing error in the list would make a row that refuses nothing, or everything.
    #[test]
    fn every_row_names_flags_and_values_that_there_are() {
        let flags = [
            "sets",
            "split",
            "sbco-alpha",
            "skew-us",
            "guard-grace-us",
            "guard-keep-us",
            "boost-slice-us",
            "slice-us",
        ];
        let flags = [&flags[..], &["lag-us", "wakeup-gran-us", "traffic", "faults-per-s"]].concat();
        let of = |table: &[[&'static str; 2]]| table.iter().map(|row| row[0]).collect::<Vec<_>>();
        let known = |axis: &str| match axis {
            "placement" => vec!["any", "balance"],
            "boost" => vec!["off", "candidate", "any-mode", "unfair", "migrate", "ipi"],
            "traffic" => vec!["interrupts", "faults", "both"],
            "order" => of(ORDERS),
            "gang" => of(GANGS),
            "spin" => of(SPINS),
            "guard" => of(GUARDS),
            _ => Vec::new(),
        };
        for [what, needs, why] in NEEDS {
            assert!(!why.is_empty());
            for term in std::iter::once(*what).chain(needs.split(" or --")).map(Term::of) {
                match term.values {
                    None => assert!(flags.contains(&term.flag), "{what}: {term:?}"),
                    Some(values) => {
                        assert!(
                            values.split('|').all(|one| known(term.flag).contains(&one)),
                            "{what}: {term:?}"
                        )
                    }
                }
            }
        }
    }
}
