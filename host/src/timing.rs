// SPDX-License-Identifier: GPL-2.0-only
//! The timing knobs: their flags, their ranges, and which of them contradict each other.

use std::fmt;
use std::ops::RangeInclusive;

use clap::Args;

use crate::bpf::types::rodata;
use crate::intf;
use crate::say::Failure;

/// A knob, to compare with another.
pub struct Knob {
    field: &'static str,
    of: fn(&Timing) -> u64,
    default_us: u64,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.flag())
    }
}

impl Knob {
    /// The flag without its dashes.
    fn flag(&self) -> String {
        self.field.replace('_', "-")
    }

    /// The flag as if it were given, `--slice-us 16000`, even if it was not.
    fn with_value(&self, timing: &Timing) -> String {
        let us = (self.of)(timing);
        let default = if us == self.default_us { " (the default)" } else { "" };
        format!("{self} {us}{default}")
    }
}

/// Declares the timing knobs: help text, name of the flag, name in the scheduler, allowed range. All in microseconds here and in
/// nanoseconds there; the default is the scheduler's own.
macro_rules! timing_knobs {
    ($($(#[doc = $help:literal])+ $flag:ident => $knob:ident / $default:ident, $range:expr;)+) => {
        /// Timing, in microseconds.
        #[derive(Args, Clone, Debug)]
        pub struct Timing {
            $(
                $(#[doc = $help])+
                #[arg(
                    long,
                    value_name = "US",
                    default_value_t = intf::default::$default / 1000,
                    value_parser = micros($range)
                )]
                $flag: u64,
            )+
        }

        /// By the names that the scheduler's defaults have.
        mod knob {
            use super::{intf, Knob};
            $(
                #[allow(dead_code, reason = "not every knob is compared with another")]
                pub const $default: Knob = Knob {
                    field: stringify!($flag),
                    of: |timing| timing.$flag,
                    default_us: intf::default::$default / 1000,
                };
            )+
        }

        impl Timing {
            pub fn apply(&self, knobs: &mut rodata) {
                $(knobs.$knob = self.$flag * 1000;)+
            }
        }
    };
}

/// A parser for whole microseconds within a range.
fn micros(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    move |text| match text.parse() {
        Ok(us) if range.contains(&us) => Ok(us),
        _ => Err(format!("allowed: whole microseconds from {} to {}", range.start(), range.end())),
    }
}

/// A task whose VM is ahead of its share may wait ten times as long as others, and once more as long behind those that waited as well. That stays
/// 10 s below the 30 s after which the kernel's watchdog ejects a scheduler, the most that it allows.
const STARVE_US_MAX: u64 = 20_000_000 / 10 / 2;

timing_knobs! {
    /// How long a task runs before others of its rank get their turn [100..100000]
    slice_us => slice_ns / SLICE_NS, 100..=100_000;
    /// How long a boosted vCPU runs at most, if its VM's turn has less left [50..100000]
    boost_slice_us => boost_slice_ns / BOOST_SLICE_NS, 50..=100_000;
    /// How much unused virtual time a sleeper may claim when it wakes; a VM as much for each of its vCPUs [1000..1000000]
    lag_us => lag_ns / LAG_NS, 1_000..=1_000_000;
    /// After waiting this long a task runs next, whatever its rank, for 1 ms if the one that runs deserves it more; after ten times
    /// this long if its VM is ahead of its share, for a 64th of --slice-us [1000..1000000]
    starve_us => starve_ns / STARVE_NS, 1_000..=STARVE_US_MAX;
    /// By how much a woken task's virtual time must be behind the runner's to preempt it [0..100000]
    wakeup_gran_us => wakeup_gran_ns / WAKEUP_GRAN_NS, 0..=100_000;
    /// How long a vCPU that --guard spares has its pCPU back, at most twice in a row, and no longer than a turn [50..10000]
    guard_grace_us => guard_grace_ns / GUARD_GRACE_NS, 50..=10_000;
    /// How long a CPU idles for a vCPU that sleeps for a moment, if --guard keeps CPUs, and for how long such a vCPU may sleep as a rule [10..5000]
    guard_keep_us => guard_keep_ns / GUARD_KEEP_NS, 10..=5_000;
    /// Of --gang relaxed: how far a vCPU may be ahead of its slowest sibling before it waits for it [100..1000000]
    skew_us => skew_limit_ns / SKEW_LIMIT_NS, 100..=1_000_000;
}

/// The first of each pair is at most as long as the second.
pub const AT_MOST: [(Knob, Knob); 5] = [
    // Who has waited for the limit runs next, that is, after the runner's slice.
    (knob::SLICE_NS, knob::STARVE_NS),
    // A boost lends a part of a turn.
    (knob::BOOST_SLICE_NS, knob::SLICE_NS),
    // A pCPU is kept within a turn.
    (knob::GUARD_KEEP_NS, knob::SLICE_NS),
    // Else nobody who is ahead by a whole slice would be preempted: the slice ends first.
    (knob::WAKEUP_GRAN_NS, knob::SLICE_NS),
    // Else no sleeper could be far enough behind to preempt.
    (knob::WAKEUP_GRAN_NS, knob::LAG_NS),
];

impl Timing {
    /// What clap cannot express: knobs that contradict each other. One that changes nothing contradicts nothing; is_idle() knows them by their flags.
    pub fn validate(&self, is_idle: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let contradict = |(less, more): &&(Knob, Knob)| {
            (less.of)(self) > (more.of)(self) && !is_idle(&less.flag()) && !is_idle(&more.flag())
        };
        match AT_MOST.iter().find(contradict) {
            None => Ok(()),
            Some((less, more)) => Err(Failure::refused(format!(
                "{} contradicts {}: {less} must be at most {more}",
                less.with_value(self),
                more.with_value(self)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Timing {
        Timing {
            slice_us: knob::SLICE_NS.default_us,
            boost_slice_us: knob::BOOST_SLICE_NS.default_us,
            lag_us: knob::LAG_NS.default_us,
            starve_us: knob::STARVE_NS.default_us,
            wakeup_gran_us: knob::WAKEUP_GRAN_NS.default_us,
            guard_grace_us: knob::GUARD_GRACE_NS.default_us,
            guard_keep_us: knob::GUARD_KEEP_NS.default_us,
            skew_us: knob::SKEW_LIMIT_NS.default_us,
        }
    }

    #[test]
    fn defaults_do_not_contradict_each_other() {
        assert_eq!(defaults().validate(|_| false), Ok(()));
    }

    #[test]
    fn what_is_equal_is_no_contradiction() {
        let timing = Timing {
            slice_us: 1000,
            boost_slice_us: 1000,
            lag_us: 1000,
            starve_us: 1000,
            wakeup_gran_us: 1000,
            guard_grace_us: 1000,
            guard_keep_us: 1000,
            skew_us: 1000,
        };
        assert_eq!(timing.validate(|_| false), Ok(()));
    }

    #[test]
    fn a_contradiction_names_both_flags_their_values_and_what_is_allowed() {
        let refusal = |timing: Timing| timing.validate(|_| false).unwrap_err();
        let slice = refusal(Timing { slice_us: 300, ..defaults() });
        assert_eq!(slice.status, 2);
        assert_eq!(
            slice.line,
            "--boost-slice-us 400 (the default) contradicts --slice-us 300: --boost-slice-us must be at most --slice-us"
        );
        for (timing, wanted) in [
            (Timing { starve_us: 15_999, ..defaults() }, "--slice-us must be at most --starve-us"),
            (Timing { slice_us: 999, ..defaults() }, "--wakeup-gran-us must be at most --slice-us"),
            (
                Timing { wakeup_gran_us: 5000, lag_us: 4000, ..defaults() },
                "--wakeup-gran-us must be at most --lag-us",
            ),
        ] {
            let line = refusal(timing).line;
            assert!(line.ends_with(wanted) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn what_changes_nothing_contradicts_nothing() {
        let timing = Timing { slice_us: 300, wakeup_gran_us: 300, ..defaults() };
        assert!(timing.validate(|flag| flag == "guard-grace-us").is_err());
        assert_eq!(timing.validate(|flag| flag == "boost-slice-us"), Ok(()));
    }

    #[test]
    fn nobody_waits_as_long_as_the_watchdog() {
        const WATCHDOG_US: u64 = 30_000_000;
        const { assert!(STARVE_US_MAX * 10 * 2 + 10_000_000 <= WATCHDOG_US) };
    }

    #[test]
    fn the_user_guide_has_the_rules() {
        let guide = include_str!("../../docs/cohort.md");
        for (less, more) in &AT_MOST {
            let rule = format!("`{less}` ≤ `{more}`");
            assert!(guide.contains(&rule), "docs/cohort.md lacks {rule}");
        }
    }
}
