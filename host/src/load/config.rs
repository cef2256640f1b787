// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler is to do, and what of a host that depends on.

use tracing::{info, warn};

use crate::audit::{self, Spins};
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
        if let (Spins::Uncaught(why), false) = (&place.spins, self.uncaught == Boost::OFF) {
            config.axes.boost = self.axes.boost.and(self.uncaught);
            info!("KVM catches no vCPU that spins ({why} is 0): boosting {} as well", self.uncaught);
        }
        if config.boosts_nobody_called(place) {
            warn!("the processor delivers interrupts between vCPUs by itself, so nobody sees who is called: load KVM with enable_ipiv=0, or kvm_amd with avic=0");
        }
        config
    }

    /// It is to boost by calls that nobody sees there.
    fn boosts_nobody_called(&self, place: &Place) -> bool {
        place.hides_ipis && self.axes.boost.includes(Boost::IPI)
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
/// Where it has given all of them theirs to whom a vCPU sends one: through its APIC, and by hypercall.
const SENT_FUNCTIONS: [&str; 2] = ["kvm_apic_send_ipi", "kvm_pv_send_ipi"];
/// ... and a shorter way through it, which some kernels have.
const SENT_FAST_FUNCTION: &str = "kvm_x2apic_icr_write_fast";
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
    /// ... and it can be seen when they have been given to all that a vCPU sends them to.
    pub sees_irqs_sent: bool,
    /// ... one by a shorter way.
    pub sends_irqs_fast: bool,
    /// Why faults on guests' pages cannot be seen.
    pub sees_no_faults: Option<String>,
    pub spins: Spins,
    /// Interrupts between vCPUs pass KVM by.
    pub hides_ipis: bool,
    /// The operations of its kernel's sched_ext, if that is known.
    pub ops: Option<kernel_ops::Names>,
    /// Why a kernel that takes no scheduler may be one that takes none beside cpuset partitions that are isolated.
    pub isolated: Option<String>,
}

impl Place {
    pub fn of(host: &Host) -> Result<Place, Failure> {
        let kvm = host.kvm_is_live();
        // KVM may have come since the checks. Without its types no vCPU would ever be known.
        if let Some(why) = host.kvm_btf() {
            return Err(Failure::refused(why));
        }
        let tells =
            |tracepoint| Kernel::running().is_some_and(|kernel| kernel.has(Point::Tracepoint(tracepoint)));
        let has = |function| Kernel::running().is_some_and(|kernel| kernel.has(Point::Function(function)));
        let sees_no_faults = match Kernel::running() {
            Some(kernel) if kernel.has(Point::Function(FAULT_FUNCTION)) => {
                host.no_tdp_mmu().or_else(|| host.foreign_process_numbers().map(str::to_string))
            }
            _ => Some(format!("this kernel has no function {FAULT_FUNCTION}")),
        };
        Ok(Place {
            nr_cpus: host.cpus().map_err(Failure::refused)?,
            kvm,
            sees_irqs: kvm && tells(IRQ_TRACEPOINT),
            sees_irqs_sent: kvm && SENT_FUNCTIONS.into_iter().all(has),
            sends_irqs_fast: kvm && has(SENT_FAST_FUNCTION),
            sees_no_faults,
            spins: audit::spins(host),
            hides_ipis: audit::delivers_ipis(host),
            ops: host.kernel_ops(),
            isolated: host.isolated_partitions(),
        })
    }

    /// What of KVM has been loaded since, that the scheduler must be loaded for anew.
    pub fn outdated_by(&self, config: &Config, host: &Host) -> Option<&'static str> {
        if !self.kvm && host.kvm_is_live() {
            return Some("the kvm module was loaded: loading the scheduler again to see its vCPUs");
        }
        if config.uncaught == Boost::OFF {
            return None;
        }
        let is_caught = |spins: &Spins| !matches!(spins, Spins::Uncaught(_));
        match audit::spins(host) {
            Spins::Unknown => None,
            spins if is_caught(&spins) == is_caught(&self.spins) => None,
            _ => Some("KVM was loaded with another pause filter: loading the scheduler again for it"),
        }
    }

    /// Real-time tasks are noticed by a program on each switch, not by an operation.
    pub fn sees_switches(&self) -> bool {
        self.ops.as_ref().is_some_and(|ops| ops.contains(kernel_ops::REENQUEUE))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;
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
            sees_irqs_sent: true,
            sends_irqs_fast: true,
            sees_no_faults: None,
            spins: Spins::Caught,
            hides_ipis: false,
            ops: Some(["enqueue".to_string()].into()),
            isolated: None,
        }
    }

    #[test]
    fn where_kvm_catches_nobody_the_default_boosts_who_is_called() {
        let not = Place { spins: Spins::Uncaught("kvm_amd.pause_filter_count".to_string()), ..place() };
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

    #[test]
    fn calls_that_pass_kvm_by_are_known_to_boost_nobody() {
        let hidden = Place { hides_ipis: true, ..place() };
        let uncaught = Place { spins: Spins::Uncaught("kvm_intel.ple_gap".to_string()), ..hidden.clone() };
        for (args, place, blind) in [
            ("", &hidden, false),
            ("--boost candidate,ipi", &hidden, true),
            ("--boost candidate,ipi", &place(), false),
            ("", &uncaught, true),
            ("--boost candidate", &uncaught, false),
        ] {
            assert_eq!(config(args).at(place).boosts_nobody_called(place), blind, "{args}");
        }
    }

    #[test]
    fn a_kvm_that_comes_later_without_its_types_is_refused() {
        let kvm =
            |state| FakeHost::good().without("/sys/kernel/btf/kvm").file("/sys/module/kvm/initstate", state);
        assert!(!Place::of(&kvm("coming\n").host()).unwrap().kvm);
        let failure = Place::of(&kvm("live\n").host()).unwrap_err();
        assert!(
            failure.status == 2 && failure.line.contains("CONFIG_DEBUG_INFO_BTF_MODULES=y"),
            "{failure:?}"
        );
        assert!(Place::of(&FakeHost::good().host()).unwrap().kvm);
    }

    #[test]
    fn another_pause_filter_is_noticed_where_it_counts() {
        let with = |count| {
            let host = FakeHost::good();
            match count {
                Some(count) => host.file("/sys/module/kvm_amd/parameters/pause_filter_count", count),
                None => host,
            }
        };
        let (off, on, unloaded) = (with(Some("0\n")), with(Some("3000\n")), with(None));
        let at = |host: &FakeHost| Place { spins: audit::spins(&host.host()), ..place() };
        let outdated = |args: &str, was: &FakeHost, is: &FakeHost| {
            at(was).outdated_by(&config(args), &is.host()).is_some()
        };
        assert!(outdated("", &on, &off) && outdated("", &off, &on) && outdated("", &unloaded, &off));
        assert!(!outdated("", &off, &off) && !outdated("", &off, &unloaded));
        assert!(!outdated("", &unloaded, &on));
        assert!(!outdated("--policy balance", &on, &off) && !outdated("--policy balance", &off, &on));
        let kvm_came = Place { kvm: false, ..at(&on) }.outdated_by(&config("--policy balance"), &on.host());
        assert_eq!(kvm_came, Some("the kvm module was loaded: loading the scheduler again to see its vCPUs"));
    }
}
