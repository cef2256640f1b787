// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler is to do, and what of a host that depends on.

use tracing::info;

use crate::audit::uncaught;
use crate::checks::Host;
use crate::kernel_ops;
use crate::policy::{Axes, Boost, Traffic};
use crate::probe::{Kernel, Point};
use crate::say::Failure;
use crate::sbco::Alpha;
use crate::timing::Timing;

/// What the scheduler is to do.
#[derive(Clone, Debug)]
pub struct Config {
    pub policy: String,
    pub axes: Axes,
    /// Kinds of boost besides, where KVM catches no vCPU that spins.
    pub uncaught: Boost,
    pub sbco_alpha: Option<Alpha>,
    /// With gang partial-auto.
    pub traffic: Traffic,
    pub timing: Timing,
    pub verbose: u8,
}

impl Config {
    /// The same as this place needs it.
    pub fn at(&self, place: &Place) -> Config {
        let mut config = self.clone();
        if let Some(why) = place.uncaught.as_ref().filter(|_| self.uncaught != Boost::OFF) {
            config.axes.boost = self.axes.boost.and(self.uncaught);
            info!("KVM catches no vCPU that spins ({why} is 0): boosting {} as well", self.uncaught);
        }
        config
    }

    pub fn finds_sets(&self) -> bool {
        self.axes.gang() == "partial-auto"
    }

    /// Are interrupts between vCPUs communication, from which sets are found?
    pub fn irqs_are_traffic(&self) -> bool {
        self.finds_sets() && self.traffic.is_of_interrupts()
    }
}

/// Where KVM gives a vCPU an interrupt.
pub const IRQ_TRACEPOINT: &str = "kvm_apic_accept_irq";
/// Where it maps a page that a vCPU has touched.
const FAULT_FUNCTION: &str = "kvm_tdp_mmu_map";

/// What this host looks like, as far as loading depends on it.
#[derive(Clone, Debug)]
pub struct Place {
    /// 1 + the highest possible CPU number.
    pub nr_cpus: u32,
    /// KVM is there, so its functions can be watched.
    pub kvm: bool,
    /// Its tracepoint of interrupts is there.
    pub sees_irqs: bool,
    /// Why faults on guests' pages cannot be seen.
    pub sees_no_faults: Option<String>,
    /// The parameter by which KVM catches no vCPU that spins.
    pub uncaught: Option<String>,
    /// The operations of its kernel's sched_ext, if that is known.
    pub ops: Option<kernel_ops::Names>,
}

impl Place {
    pub fn of(host: &Host) -> Result<Place, Failure> {
        let kvm = host.kvm_is_live();
        let tells =
            |tracepoint| Kernel::running().is_some_and(|kernel| kernel.has(Point::Tracepoint(tracepoint)));
        let sees_no_faults = match Kernel::running() {
            Some(kernel) if kernel.has(Point::Function(FAULT_FUNCTION)) => host.no_tdp_mmu(),
            _ => Some(format!("this kernel has no function {FAULT_FUNCTION}")),
        };
        Ok(Place {
            nr_cpus: host.cpus().map_err(Failure::refused)?,
            kvm,
            sees_irqs: kvm && tells(IRQ_TRACEPOINT),
            sees_no_faults,
            uncaught: uncaught(host),
            ops: host.kernel_ops(),
        })
    }

    /// Has a module of KVM been loaded since, of which this place did not know?
    pub fn is_outdated(&self, config: &Config, host: &Host) -> bool {
        (!self.kvm && host.kvm_is_live())
            || (config.uncaught != Boost::OFF && self.uncaught.is_none() && uncaught(host).is_some())
    }

    /// Real-time tasks are noticed by a program on each switch, not by an operation.
    pub fn sees_switches(&self) -> bool {
        self.ops.as_ref().is_some_and(|ops| ops.contains(kernel_ops::REENQUEUE))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cli;

    pub fn config(args: &str) -> Config {
        let args = ["cohort", "run"].into_iter().chain(args.split_whitespace());
        let Ok(cli::Cli { command: cli::Command::Run(run) }) = cli::parse(args.map(Into::into)) else {
            panic!("refused")
        };
        let axes = run.policy.axes().unwrap();
        Config {
            policy: run.policy.policy.clone(),
            uncaught: run.policy.uncaught(&axes).unwrap(),
            axes,
            sbco_alpha: run.policy.sbco_alpha,
            traffic: run.policy.traffic(),
            timing: run.timing,
            verbose: 0,
        }
    }

    pub fn place() -> Place {
        Place {
            nr_cpus: 24,
            kvm: true,
            sees_irqs: true,
            sees_no_faults: None,
            uncaught: None,
            ops: Some(["enqueue".to_string()].into()),
        }
    }

    #[test]
    fn where_kvm_catches_nobody_the_default_boosts_who_is_called() {
        let not = Place { uncaught: Some("kvm_amd.pause_filter_count".to_string()), ..place() };
        for (args, more) in [
            ("", "ipi"),
            ("--slice-us 5000", "ipi"),
            ("--boost candidate", ""),
            ("--spin off", ""),
            ("--policy ple-any", ""),
            ("--policy credit", ""),
        ] {
            let config = config(args);
            let named = |config: &Config| config.axes.boost.to_string();
            assert_eq!(named(&config.at(&place())), named(&config), "{args}");
            let wanted = [named(&config).as_str(), more].join(",");
            assert_eq!(named(&config.at(&not)), wanted.trim_end_matches(','), "{args}");
        }
    }
}
