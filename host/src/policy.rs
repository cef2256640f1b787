// SPDX-License-Identifier: GPL-2.0-only
//! Policies: what the command line says, and the values that the scheduler gets. Timing is in timing.rs.
//!
//! A policy is a preset: one choice per axis. Each axis has its own flag, which overrides the preset. Both come from the tables of bpf/policies.h.

use std::fmt;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::bpf::types::rodata;
use crate::say::Failure;
use crate::sbco::Alpha;
use crate::together::Chosen;
use crate::{intf, policies};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Where the wake-up finds it best
    Any,
    /// Never on a pCPU where a sibling runs or waits, while there is another
    Balance,
}

/// What a pause-loop exit does; the kinds add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boost(u32);

impl Boost {
    pub const OFF: Boost = Boost(0);
    pub const IPI: Boost = Boost(intf::BOOST_IPI);

    /// These kinds and those.
    pub fn and(self, other: Boost) -> Boost {
        Boost(self.0 | other.0)
    }

    pub fn includes(self, other: Boost) -> bool {
        self.0 & other.0 == other.0
    }

    /// Who boosts somebody; the other kinds say how.
    const WHO: u32 = intf::BOOST_CANDIDATE | intf::BOOST_ANY_MODE | intf::BOOST_IPI;

    const NAMES: [(&'static str, u32); 5] = [
        ("candidate", intf::BOOST_CANDIDATE),
        ("any-mode", intf::BOOST_ANY_MODE),
        ("unfair", intf::BOOST_UNFAIR),
        ("migrate", intf::BOOST_MIGRATE),
        ("ipi", intf::BOOST_IPI),
    ];

    fn parse(text: &str) -> Result<Boost, String> {
        let allowed = || {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            format!("allowed: off, or some of {}, separated by commas", names.join(", "))
        };
        if text == "off" {
            return Ok(Boost::OFF);
        }
        let mut bits = 0;
        for word in text.split(',').map(str::trim) {
            let found = Self::NAMES.iter().find(|(name, _)| *name == word);
            bits |= found.ok_or_else(|| format!("no kind of boost is named {word:?}; {}", allowed()))?.1;
        }
        if bits & Self::WHO == 0 {
            return Err("this alone boosts nobody; add candidate, any-mode or ipi".to_string());
        }
        Ok(Boost(bits))
    }
}

impl fmt::Display for Boost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("off");
        }
        let names: Vec<_> =
            Self::NAMES.iter().filter(|(_, bit)| self.0 & bit != 0).map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

/// One of a table of policies.h: its place there is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub number: usize,
    name: &'static str,
}

/// A table of two columns: names, and what they mean.
type Table = &'static [[&'static str; 2]];

impl Choice {
    fn of(table: Table, name: &str) -> Option<Choice> {
        let number = table.iter().position(|row| row[0] == name)?;
        Some(Choice { number, name: table[number][0] })
    }
}

/// What clap offers: the names of a table, with what they mean.
fn names<const N: usize>(table: &'static [[&'static str; N]]) -> PossibleValuesParser {
    PossibleValuesParser::new(table.iter().map(|row| PossibleValue::new(row[0]).help(row[N - 1])))
}

fn choice_of(table: Table) -> impl TypedValueParser<Value = Choice> {
    // clap has refused names that are not there.
    names(table).map(move |name| Choice::of(table, &name).unwrap_or(Choice { number: 0, name: table[0][0] }))
}

/// What of two vCPUs counts as communication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// One sends the other an interrupt
    #[default]
    Interrupts,
    /// Both touch the same page, which is made to fault now and then
    Faults,
    Both,
}

impl Traffic {
    pub fn is_of_interrupts(self) -> bool {
        self != Self::Faults
    }

    pub fn is_of_faults(self) -> bool {
        self != Self::Interrupts
    }
}

const FAULTS_DEFAULT: u64 = 5_000;

/// The policy and its axes.
#[derive(Args, Clone, Debug)]
pub struct PolicyArgs {
    /// Preset of the axes below
    #[arg(long, value_name = "NAME", value_parser = names(policies::PRESETS), default_value = policies::PRESETS[0][0])]
    pub policy: String,

    /// Where vCPUs are queued [default: by the policy]
    #[arg(long, value_enum, value_name = "HOW")]
    placement: Option<Placement>,

    /// Who deserves the pCPU [default: by the policy]
    #[arg(long, value_name = "HOW", value_parser = choice_of(policies::ORDERS))]
    order: Option<Choice>,

    /// Which of a VM's vCPUs run at the same time [default: by the policy]
    #[arg(long, value_name = "HOW", value_parser = choice_of(policies::GANGS))]
    gang: Option<Choice>,

    /// What a pause-loop exit does [default: by the policy; boost where --boost has kinds]
    #[arg(long, value_name = "WHAT", value_parser = choice_of(policies::SPINS))]
    spin: Option<Choice>,

    /// Kinds of --spin boost: off, or some of candidate, any-mode, unfair, migrate, ipi [default: by the policy]
    ///
    /// candidate: the sibling that KVM offers runs next. any-mode: the scheduler chooses a waiting sibling itself, also one preempted in user
    /// mode. unfair: the boosted vCPU runs although it is not its turn; its VM is charged. migrate: if who runs where it waits deserves that pCPU more, it comes to the spinner's.
    /// ipi: a sibling that a Linux guest calls by an IPI (as for a TLB flush) while it has no pCPU runs next, before the caller spins.
    #[arg(long, value_name = "LIST", value_parser = Boost::parse)]
    boost: Option<Boost>,

    /// Who may not lose its pCPU at once [default: by the policy]
    #[arg(long, value_name = "WHOM", value_parser = choice_of(policies::GUARDS))]
    guard: Option<Choice>,

    /// With --order sbco: from what distance on siblings are brought together, as part of the queue's length [default: 2/3]
    #[arg(long, value_name = "PART")]
    pub sbco_alpha: Option<Alpha>,

    /// With --gang partial: which vCPUs run together, a line per VM, as in `web: 0-3 4,5`; read again when it changes
    ///
    /// NAME: SET SET, or NAME: all. A VM is called as in the statistics; * is every VM that has no line of its own. A vCPU that is not named runs for
    /// itself.
    #[arg(long, value_name = "FILE")]
    pub sets: Option<PathBuf>,

    /// With --gang partial-auto: a set is split where a part depends so many times more on itself than the whole does [1..100]
    #[arg(long, value_name = "T", value_parser = parse_split, default_value_t = cohort_sets::SPLIT_DEFAULT)]
    pub split: f64,

    /// With --gang partial-auto: what counts as communication [default: interrupts]
    #[arg(long, value_enum, value_name = "WHAT")]
    traffic: Option<Traffic>,

    /// With --traffic faults or both: so many page faults a second are provoked in each VM [100..1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=1_000_000), default_value_t = FAULTS_DEFAULT)]
    faults_per_s: u64,

    /// Which flags of `cohort run` the command line has, without their dashes: a default is told from the same value given.
    #[arg(skip)]
    pub given: Vec<String>,
}

pub fn parse_split(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(split) if (1.0..=100.0).contains(&split) => Ok(split),
        _ => Err("allowed: numbers from 1 to 100".to_string()),
    }
}

/// A choice for every axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes {
    pub placement: Placement,
    pub order: Choice,
    pub gang: Choice,
    pub spin: Choice,
    pub boost: Boost,
    pub guard: Choice,
}

impl Axes {
    /// The axes of a preset; None if there is none of that name, or its line names what is in no table.
    pub fn of_preset(name: &str) -> Option<Axes> {
        let [_, placement, order, gang, spin, boost, guard, _] =
            *policies::PRESETS.iter().find(|row| row[0] == name)?;
        Some(Axes {
            placement: Placement::from_str(placement, false).ok()?,
            order: Choice::of(policies::ORDERS, order)?,
            gang: Choice::of(policies::GANGS, gang)?,
            spin: Choice::of(policies::SPINS, spin)?,
            boost: Boost::parse(boost).ok()?,
            guard: Choice::of(policies::GUARDS, guard)?,
        })
    }
}

impl PolicyArgs {
    /// What counts as communication, if sets are to be found.
    pub fn traffic(&self) -> Traffic {
        self.traffic.unwrap_or_default()
    }

    /// So many faults may be provoked in each VM every second; None: none.
    pub fn faults_per_s(&self) -> Option<u64> {
        self.traffic().is_of_faults().then_some(self.faults_per_s)
    }

    /// What the policy boosts besides where KVM catches no vCPU that spins. Who names the kinds of boost gets these.
    pub fn uncaught(&self, axes: &Axes) -> Result<Boost, Failure> {
        let row = policies::UNCAUGHT.iter().find(|row| row[0] == self.policy);
        let Some([_, boost, _]) = row.filter(|_| self.boost.is_none() && axes.spin.name == "boost") else {
            return Ok(Boost::OFF);
        };
        Boost::parse(boost).map_err(|why| Failure::refused(format!("{boost:?} in policies.h: {why}")))
    }

    /// The preset's axes, each overridden by its flag. Kinds of boost are for --spin boost, so that naming some chooses it.
    pub fn axes(&self) -> Result<Axes, Failure> {
        let preset = Axes::of_preset(&self.policy).ok_or_else(|| {
            Failure::refused(format!("--policy {}: its line in policies.h is wrong", self.policy))
        })?;
        let boosting =
            |boost: Boost| Choice::of(policies::SPINS, if boost == Boost::OFF { "off" } else { "boost" });
        let spin = self.spin.or(self.boost.and_then(boosting)).unwrap_or(preset.spin);
        let axes = Axes {
            placement: self.placement.unwrap_or(preset.placement),
            order: self.order.unwrap_or(preset.order),
            gang: self.gang.unwrap_or(preset.gang),
            boost: self.boost.unwrap_or(if spin.name == "boost" { preset.boost } else { Boost::OFF }),
            spin,
            guard: self.guard.unwrap_or(preset.guard),
        };
        let given: Vec<_> = self.given.iter().map(String::as_str).collect();
        match axes.refusal(self.traffic(), &given) {
            Some(line) => Err(Failure::refused(line)),
            None => Ok(axes),
        }
    }
}

impl Axes {
    /// The name of the order.
    pub fn order(&self) -> &'static str {
        self.order.name
    }

    /// The name of the gang.
    pub fn gang(&self) -> &'static str {
        self.gang.name
    }

    /// Each axis by its flag, with its value as that is written.
    fn words(&self) -> [(&'static str, String); 6] {
        let placement = self.placement.to_possible_value().map(|v| v.get_name().to_string());
        [
            ("placement", placement.unwrap_or_default()),
            ("order", self.order.name.to_string()),
            ("gang", self.gang.name.to_string()),
            ("spin", self.spin.name.to_string()),
            ("boost", self.boost.to_string()),
            ("guard", self.guard.name.to_string()),
        ]
    }

    fn asked<T>(&self, traffic: Traffic, given: &[&str], ask: impl FnOnce(Chosen) -> T) -> T {
        let (words, traffic) = (self.words(), traffic.to_possible_value());
        let mut axes: Vec<_> = words.iter().map(|(axis, value)| (*axis, value.as_str())).collect();
        axes.extend(traffic.as_ref().map(|value| ("traffic", value.get_name())));
        ask(Chosen { axes: &axes, given })
    }

    /// What clap cannot express: what does not go together, of the axes, what counts as communication, and the flags that are given.
    fn refusal(&self, traffic: Traffic, given: &[&str]) -> Option<String> {
        self.asked(traffic, given, |chosen| chosen.refusal())
    }

    /// Would that flag, named without its dashes, change nothing?
    pub fn is_idle(&self, flag: &str) -> bool {
        self.asked(Traffic::default(), &[], |chosen| chosen.is_idle(flag))
    }

    /// Is there a guard, which must hear how vCPUs lose their pCPUs?
    pub fn guards(&self) -> bool {
        self.guard.name != "off"
    }

    /// Is a sibling boosted that is called by an IPI, so that the scheduler must hear of those?
    pub fn boosts_called(&self) -> bool {
        self.boost.0 & intf::BOOST_IPI != 0
    }

    pub fn apply(&self, knobs: &mut rodata) {
        knobs.placement = match self.placement {
            Placement::Any => intf::PLACEMENT_ANY,
            Placement::Balance => intf::PLACEMENT_BALANCE,
        };
        knobs.order = self.order.number as u32;
        knobs.gang = self.gang.number as u32;
        knobs.spin = self.spin.number as u32;
        knobs.guard = self.guard.number as u32;
        knobs.boost = self.boost.0;
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(_, placement), ..] = self.words();
        let Axes { order, gang, spin, boost, guard, .. } = self;
        write!(f, "placement {placement}, order {}, gang {}, spin {}", order.name, gang.name, spin.name)?;
        if *boost != Boost::OFF {
            write!(f, " ({boost})")?;
        }
        write!(f, ", guard {}", guard.name)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn no_knobs() -> rodata {
        // SAFETY: rodata is integers only, for which all zeroes is a valid value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn boost_kinds_add_up() {
        assert_eq!(Boost::parse("candidate,migrate"), Ok(Boost(intf::BOOST_CANDIDATE | intf::BOOST_MIGRATE)));
        assert_eq!(Boost::parse("candidate,any-mode,unfair,migrate"), Ok(Boost(15)));
        assert_eq!(Boost::parse("off"), Ok(Boost::OFF));
    }

    #[test]
    fn unknown_boost_names_what_is_allowed() {
        for wrong in ["", "on", "off,candidate", "candidate,,migrate", "Candidate"] {
            let error = Boost::parse(wrong).expect_err(wrong);
            assert!(
                error.contains("allowed: off, or some of candidate, any-mode, unfair, migrate, ipi"),
                "{error}"
            );
        }
    }

    #[test]
    fn boost_that_boosts_nobody_is_refused() {
        for wrong in ["unfair", "migrate", "unfair,migrate"] {
            assert!(Boost::parse(wrong).expect_err(wrong).contains("add candidate, any-mode or ipi"));
        }
    }

    #[test]
    fn boost_prints_as_it_is_written() {
        for text in ["off", "candidate", "any-mode,unfair", "candidate,any-mode,unfair,migrate"] {
            assert_eq!(Boost::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_preset_is_made_of_what_the_tables_have() {
        for preset in policies::PRESETS {
            let axes = Axes::of_preset(preset[0]).unwrap_or_else(|| panic!("{preset:?}"));
            assert_eq!(axes.refusal(Traffic::default(), &["policy"]), None, "{preset:?}");
        }
    }

    #[test]
    fn axes_reach_the_scheduler() {
        let mut knobs = no_knobs();
        Axes::of_preset("cohort").unwrap().apply(&mut knobs);
        assert_eq!((knobs.placement, knobs.order, knobs.gang, knobs.spin, knobs.boost), (1, 0, 1, 1, 11));
        Axes::of_preset("vtime").unwrap().apply(&mut knobs);
        assert_eq!((knobs.placement, knobs.order, knobs.gang, knobs.spin, knobs.boost), (0, 1, 0, 0, 0));
    }

    #[test]
    fn the_user_guide_has_what_goes_together() {
        let guide = include_str!("../../docs/cohort.md");
        for row in policies::NEEDS {
            let [what, needs, why] = row.map(|term| term.replace('|', " or "));
            let row = format!("| `{what}` | `{needs}` | {why} |");
            assert!(guide.contains(&row), "docs/cohort.md lacks {row}");
        }
    }

    #[test]
    fn the_user_guide_has_the_presets_as_they_are() {
        let guide = include_str!("../../docs/cohort.md");
        for [name, placement, order, gang, spin, boost, guard, what] in policies::PRESETS {
            let row = format!("| `{name}` | `{placement}` | `{order}` | `{gang}` | `{spin}` | `{boost}` | `{guard}` | {what} |");
            assert!(guide.contains(&row), "docs/cohort.md lacks {row}");
        }
        for (flag, table) in [
            ("order", policies::ORDERS),
            ("gang", policies::GANGS),
            ("spin", policies::SPINS),
            ("guard", policies::GUARDS),
        ] {
            for [name, _] in table {
                assert!(
                    guide.contains(&format!("`--{flag} {name}`")),
                    "docs/cohort.md lacks `--{flag} {name}`"
                );
            }
        }
    }
}
