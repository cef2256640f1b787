// SPDX-License-Identifier: GPL-2.0-only
//! Policies: what the command line says, and the values that the scheduler gets. Timing is in timing.rs.
//!
//! A policy is a preset: one choice per axis. Each axis has its own flag, which overrides the preset.

use std::fmt;

use clap::{Args, ValueEnum};

use crate::bpf::types::rodata;
use crate::intf;
use crate::say::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Everything that keeps a VM's vCPUs moving together: balance, fair between VMs, all boosts
    Cohort,
    /// Siblings on different pCPUs, nothing else: virtual run time per task
    Balance,
    /// Weighted fair queueing per task, to compare with
    Vtime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Where the wake-up finds it best
    Any,
    /// Never on a pCPU where a sibling runs or waits, while there is another
    Balance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fair {
    /// CPU time is shared by VMs and host tasks, and within a VM by its vCPUs
    Vm,
    /// CPU time is shared by threads: a VM with more vCPUs gets more
    Task,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Gang {
    /// Each pCPU chooses for itself
    Off,
    /// When a VM's turn starts, its waiting vCPUs are started on other pCPUs as well
    Aligned,
}

/// What a pause-loop exit does; the kinds add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boost(u32);

impl Boost {
    pub const OFF: Boost = Boost(0);
    pub const ALL: Boost =
        Boost(intf::BOOST_CANDIDATE | intf::BOOST_ANY_MODE | intf::BOOST_UNFAIR | intf::BOOST_MIGRATE);

    const NAMES: [(&'static str, u32); 4] = [
        ("candidate", intf::BOOST_CANDIDATE),
        ("any-mode", intf::BOOST_ANY_MODE),
        ("unfair", intf::BOOST_UNFAIR),
        ("migrate", intf::BOOST_MIGRATE),
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
        if bits & (intf::BOOST_CANDIDATE | intf::BOOST_ANY_MODE) == 0 {
            return Err("this alone boosts nobody; add candidate, any-mode or both".to_string());
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

/// The policy and its axes.
#[derive(Args, Clone, Debug)]
pub struct PolicyArgs {
    /// Preset of the axes below
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Policy::Cohort)]
    pub policy: Policy,

    /// Where vCPUs are queued [default: by the policy]
    #[arg(long, value_enum, value_name = "HOW")]
    placement: Option<Placement>,

    /// Between whom CPU time is shared fairly [default: by the policy]
    #[arg(long, value_enum, value_name = "WHOM")]
    fair: Option<Fair>,

    /// Whether a VM's vCPUs take their turns at the same time [default: by the policy]
    #[arg(long, value_enum, value_name = "HOW")]
    gang: Option<Gang>,

    /// What a pause-loop exit does: off, or some of candidate, any-mode, unfair, migrate [default: by the policy]
    ///
    /// candidate: the sibling that KVM offers runs next. any-mode: the scheduler chooses a waiting sibling itself, also one preempted in user
    /// mode. unfair: the boosted vCPU runs although it is not its turn; its VM is charged. migrate: it may come from another pCPU's queue.
    #[arg(long, value_name = "LIST", value_parser = Boost::parse)]
    boost: Option<Boost>,
}

/// A choice for every axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes {
    pub placement: Placement,
    pub fair: Fair,
    pub gang: Gang,
    pub boost: Boost,
}

impl Policy {
    pub fn axes(self) -> Axes {
        let (placement, fair, gang, boost) = match self {
            Policy::Cohort => (Placement::Balance, Fair::Vm, Gang::Off, Boost::ALL),
            Policy::Balance => (Placement::Balance, Fair::Task, Gang::Off, Boost::OFF),
            Policy::Vtime => (Placement::Any, Fair::Task, Gang::Off, Boost::OFF),
        };
        Axes { placement, fair, gang, boost }
    }

    pub fn name(self) -> String {
        value_name(self)
    }
}

impl PolicyArgs {
    pub fn axes(&self) -> Axes {
        let preset = self.policy.axes();
        Axes {
            placement: self.placement.unwrap_or(preset.placement),
            fair: self.fair.unwrap_or(preset.fair),
            gang: self.gang.unwrap_or(preset.gang),
            boost: self.boost.unwrap_or(preset.boost),
        }
    }

    /// What clap cannot express: axes that do not go together.
    pub fn validate(&self) -> Result<(), Failure> {
        let axes = self.axes();
        if axes.gang == Gang::Aligned && axes.fair == Fair::Task {
            return Err(Failure::refused("--gang aligned needs --fair vm: tasks that are scheduled each for itself have no turn together"));
        }
        Ok(())
    }
}

impl Axes {
    pub fn apply(&self, knobs: &mut rodata) {
        knobs.placement = match self.placement {
            Placement::Any => intf::PLACEMENT_ANY,
            Placement::Balance => intf::PLACEMENT_BALANCE,
        };
        knobs.fair = match self.fair {
            Fair::Task => intf::FAIR_TASK,
            Fair::Vm => intf::FAIR_VM,
        };
        knobs.gang = match self.gang {
            Gang::Off => intf::GANG_OFF,
            Gang::Aligned => intf::GANG_ALIGNED,
        };
        knobs.boost = self.boost.0;
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (placement, fair, gang) =
            (value_name(self.placement), value_name(self.fair), value_name(self.gang));
        write!(f, "placement {placement}, fair {fair}, gang {gang}, boost {}", self.boost)
    }
}

/// A value as it is written on the command line.
fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
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
        assert_eq!(Boost::parse("candidate,any-mode,unfair,migrate"), Ok(Boost::ALL));
        assert_eq!(Boost::parse("off"), Ok(Boost::OFF));
    }

    #[test]
    fn unknown_boost_names_what_is_allowed() {
        for wrong in ["", "on", "off,candidate", "candidate,,migrate", "Candidate"] {
            let error = Boost::parse(wrong).expect_err(wrong);
            assert!(
                error.contains("allowed: off, or some of candidate, any-mode, unfair, migrate"),
                "{error}"
            );
        }
    }

    #[test]
    fn boost_that_boosts_nobody_is_refused() {
        for wrong in ["unfair", "migrate", "unfair,migrate"] {
            assert!(Boost::parse(wrong).expect_err(wrong).contains("add candidate, any-mode or both"));
        }
    }

    #[test]
    fn boost_prints_as_it_is_written() {
        for text in ["off", "candidate", "any-mode,unfair", "candidate,any-mode,unfair,migrate"] {
            assert_eq!(Boost::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn axes_reach_the_scheduler() {
        let mut knobs = no_knobs();
        Axes { placement: Placement::Balance, fair: Fair::Vm, gang: Gang::Aligned, boost: Boost::ALL }
            .apply(&mut knobs);
        assert_eq!(
            (knobs.placement, knobs.fair, knobs.gang, knobs.boost),
            (intf::PLACEMENT_BALANCE, intf::FAIR_VM, intf::GANG_ALIGNED, 15)
        );
        Axes { placement: Placement::Any, fair: Fair::Task, gang: Gang::Off, boost: Boost::OFF }
            .apply(&mut knobs);
        assert_eq!(
            (knobs.placement, knobs.fair, knobs.gang, knobs.boost),
            (intf::PLACEMENT_ANY, intf::FAIR_TASK, intf::GANG_OFF, 0)
        );
    }

    #[test]
    fn the_user_guide_has_the_presets_as_they_are() {
        let guide = include_str!("../../docs/cohort.md");
        let presets = Policy::value_variants().iter().map(|policy| policy.axes());
        let [cohort, balance, vtime] = presets.collect::<Vec<_>>().try_into().unwrap();
        let row = |flag: &str, name: fn(Axes) -> String| {
            let row = format!("| `{flag}` | `{}` | `{}` | `{}` |", name(cohort), name(balance), name(vtime));
            assert!(guide.contains(&row), "docs/cohort.md lacks {row}");
        };
        row("--placement", |axes| value_name(axes.placement));
        row("--fair", |axes| value_name(axes.fair));
        row("--gang", |axes| value_name(axes.gang));
        row("--boost", |axes| axes.boost.to_string());
    }
}
