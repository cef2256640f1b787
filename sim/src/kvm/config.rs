// SPDX-License-Identifier: GPL-2.0-only
//! KVM's knobs and what its work takes.

use serde::{Deserialize, Serialize};

use crate::error::SimError;
use crate::time::Ns;

/// The KVM of one VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvmConfig {
    pub ple: Ple,
    pub wells: Wells,
    /// The longest that KVM's host puts off a preemption for a lock that the guest has announced (`guest.lock_hint_ns`).
    pub lock_hint_max_ns: Ns,
    /// What a cycle of the windows is.
    pub tsc_mhz: u32,
    /// kvm_vcpu_on_spin() from 6.13 to 6.18.2 stored the number of tries as the last boosted vCPU instead of its index (7e513617da71, fixed by 32bd348be3fa).
    pub on_spin_bug: bool,
    /// It yields to who was woken and waits as well (`vcpu->ready`, d73eb57b80b9, since 5.3), not only to who was preempted.
    pub yields_to_woken: bool,
    /// If who spins does so in kernel mode, it asks of those that were preempted only who was in kernel mode too (199b5763d329, since 4.14).
    pub asks_kernel_only: bool,
    /// ... or has an interrupt waiting, where the APIC is virtualized (52acd22faa1a, since 5.13).
    pub asks_interrupted: bool,
    pub ipi: Ipi,
    pub halt_poll: HaltPoll,
    /// KVM_FEATURE_STEAL_TIME: the guest sees its steal time and which of its vCPUs are preempted.
    pub steal_time: bool,
    /// ... the latter since KVM of 4.10.
    pub tells_preempted: bool,
    /// ... and until 5.18 it says so of each that has no pCPU, also of one that halts or is in the middle of an exit (kvm_arch_vcpu_put()).
    pub tells_always: bool,
    /// KVM_FEATURE_PV_SCHED_YIELD: who calls a preempted vCPU yields to it. Off in QEMU's named CPU models.
    pub sched_yield: bool,
    /// kvm_sched_yield() yields to nobody while its pCPU has no other task (single_task_running(), since 5.13).
    pub lone_yields_not: bool,
    /// KVM_HC_KICK_CPU goes on as KVM_HC_SCHED_YIELD does (since 5.4).
    pub kick_yields: bool,
    pub costs: KvmCosts,
}

impl Default for KvmConfig {
    fn default() -> Self {
        Self {
            ple: Ple::default(),
            wells: Wells::default(),
            lock_hint_max_ns: 1_000_000,
            tsc_mhz: 2_500,
            on_spin_bug: false,
            yields_to_woken: true,
            asks_kernel_only: true,
            asks_interrupted: true,
            ipi: Ipi::Trapped,
            halt_poll: HaltPoll::default(),
            steal_time: true,
            tells_preempted: true,
            tells_always: false,
            sched_yield: false,
            lone_yields_not: true,
            kick_yields: true,
            costs: KvmCosts::default(),
        }
    }
}

/// When the processor ends a loop of PAUSE instructions with an exit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ple {
    pub mode: PleMode,
    /// PAUSE instructions further apart are no loop (`ple_gap`, `pause_filter_thresh`). 0: however far apart, as where a filter has no threshold.
    pub gap_cycles: u32,
    /// From one PAUSE to the next in the kernel's loops, and in those of programs that do not say.
    pub pause_cycles: u32,
    /// A loop longer than this exits (`ple_window`). 1: at every PAUSE, as where the emulator knows the intercept but no filter.
    pub window_cycles: u32,
    /// AMD's filter counts instead: after so many PAUSEs it exits (`pause_filter_count`). 0: it does not count.
    pub window_pauses: u32,
    /// At each exit the vCPU's window grows: times this, or plus this if it is not below the window that it began with (`ple_window_grow`); 0 or 1: it does
    /// not.
    pub grow: u32,
    /// When the thread was scheduled out the window shrinks likewise; 0: back to the beginning (`ple_window_shrink`).
    pub shrink: u32,
    /// What it grows to at most; of PAUSEs 65535, because the field has 16 bits.
    pub window_max_cycles: u32,
}

impl Default for Ple {
    /// VMX (arch/x86/kvm/vmx/vmx.c).
    fn default() -> Self {
        Self {
            mode: PleMode::Kernel,
            gap_cycles: 128,
            // 140 cycles of a Skylake's core at 3.5 GHz, where the TSC has 2.5: the gap of 41 of Linux before 4.18 was too short for that.
            pause_cycles: 100,
            window_cycles: 4_096,
            window_pauses: 0,
            grow: 2,
            shrink: 0,
            window_max_cycles: u32::MAX,
        }
    }
}

/// KVM_SVM_DEFAULT_PLE_WINDOW_MAX
const PAUSES_MAX: u32 = 65_535;

impl Ple {
    /// The window that a vCPU begins with, in cycles or PAUSEs.
    pub fn window(&self) -> u32 {
        if self.window_pauses > 0 {
            self.window_pauses
        } else {
            self.window_cycles
        }
    }

    pub fn window_max(&self) -> u32 {
        if self.window_pauses > 0 {
            PAUSES_MAX
        } else {
            self.window_max_cycles
        }
    }
}

/// Hardware spin detection (Wells et al., PACT'06): who stores less than so often in so many committed instructions makes no progress. The exit is that of a
/// pause loop, but comes in any mode, with PAUSE or without. No processor has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wells {
    /// N; 0: there is no such thing.
    pub instructions: u32,
    /// k. A loop that waits stores nothing, all other code often enough: 1 or more finds all loops, 0 none.
    pub stores: u32,
    /// How many instructions such a loop commits in a microsecond.
    pub instructions_per_us: u32,
}

impl Default for Wells {
    fn default() -> Self {
        Self { instructions: 0, stores: 1, instructions_per_us: 1_000 }
    }
}

impl Wells {
    /// After how long a loop is found.
    pub fn window_ns(&self) -> Option<Ns> {
        if self.instructions == 0 || self.stores == 0 {
            return None;
        }
        Some((Ns::from(self.instructions) * 1_000 / Ns::from(self.instructions_per_us)).max(1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PleMode {
    Off,
    /// Intel: at CPL 0 only.
    Kernel,
    /// AMD: in any mode.
    Any,
}

/// How an interrupt gets from one vCPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ipi {
    /// The sender exits, and a running receiver too: no APIC virtualization.
    Trapped,
    /// The sender exits; a running receiver gets it without an exit (APICv with posted interrupts).
    Posted,
    /// Neither exits if the receiver runs (IPI virtualization, AVIC).
    Virtualized,
}

/// Halt polling: kvm.halt_poll_ns and its relatives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HaltPoll {
    /// The most that a vCPU polls before its thread blocks; 0: it does not.
    pub max_ns: Ns,
    pub grow: u32,
    pub grow_start_ns: Ns,
    /// A halt that was too long divides the time by this; 0, as before 6.11: it ends polling.
    pub shrink: u32,
}

impl Default for HaltPoll {
    /// KVM_HALT_POLL_NS_DEFAULT of x86, and virt/kvm/kvm_main.c.
    fn default() -> Self {
        Self { max_ns: 200_000, grow: 2, grow_start_ns: 10_000, shrink: 2 }
    }
}

/// What KVM does between exit and entry; these two themselves are the machine's costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvmCosts {
    /// kvm_vcpu_on_spin() without what the yield itself takes: a walk over the VM's vCPUs.
    pub on_spin_ns: Ns,
    /// Emulating a write to the interrupt command register that reaches one vCPU.
    pub icr_ns: Ns,
    /// ... for each one more; and a request for each vCPU whose TLB is flushed by hypercall while it is in guest mode. A write to the host's own APIC.
    pub send_ns: Ns,
    pub hypercall_ns: Ns,
    /// Setting the guest's timer: an exit for the MSR, an hrtimer of the host.
    pub timer_ns: Ns,
    /// Emulating HLT, up to polling or blocking.
    pub halt_ns: Ns,
    /// The way of a request to a device: ioeventfd.
    pub io_ns: Ns,
    /// Flushing a vCPU's TLB in KVM (INVVPID, a new ASID).
    pub flush_ns: Ns,
    /// Mapping a page that the VMM has. An estimate.
    pub fault_ns: Ns,
}

impl Default for KvmCosts {
    // Orders of magnitude from kvm-unit-tests' vmexit.flat on current x86 servers, beyond the cost of a null exit (cpuid).
    fn default() -> Self {
        Self {
            on_spin_ns: 300,
            icr_ns: 400,
            send_ns: 100,
            hypercall_ns: 100,
            timer_ns: 300,
            halt_ns: 300,
            io_ns: 800,
            flush_ns: 300,
            fault_ns: 1_000,
        }
    }
}

impl KvmCosts {
    pub fn free() -> Self {
        Self {
            on_spin_ns: 0,
            icr_ns: 0,
            send_ns: 0,
            hypercall_ns: 0,
            timer_ns: 0,
            halt_ns: 0,
            io_ns: 0,
            flush_ns: 0,
            fault_ns: 0,
        }
    }
}

impl KvmConfig {
    /// Everything free, no pause-loop exits, no polling, interrupts without exits: for schedules computed by hand. A cycle is a nanosecond.
    pub fn ideal() -> Self {
        Self {
            ple: Ple { mode: PleMode::Off, ..Ple::default() },
            tsc_mhz: 1_000,
            ipi: Ipi::Virtualized,
            halt_poll: HaltPoll { max_ns: 0, ..HaltPoll::default() },
            costs: KvmCosts::free(),
            ..Self::default()
        }
    }

    /// `field` is the path of this configuration, for messages.
    pub fn check(&self, field: &str) -> Result<(), SimError> {
        let refuse = |name: &str, value: u64, allowed: &str| {
            Err(SimError::Config(format!("{field}.{name}: is {value}; allowed: {allowed}")))
        };
        if self.tsc_mhz == 0 {
            return refuse("tsc_mhz", 0, "1 or more");
        }
        if self.ple.window_cycles == 0 {
            return refuse("ple.window_cycles", 0, "1 or more");
        }
        if self.ple.pause_cycles == 0 {
            return refuse("ple.pause_cycles", 0, "1 or more");
        }
        if self.ple.window_pauses > PAUSES_MAX {
            return refuse("ple.window_pauses", u64::from(self.ple.window_pauses), "0 to 65535");
        }
        if self.ple.window_max_cycles < self.ple.window_cycles {
            let max = u64::from(self.ple.window_max_cycles);
            return refuse("ple.window_max_cycles", max, "ple.window_cycles or more");
        }
        if self.wells.instructions_per_us == 0 {
            return refuse("wells.instructions_per_us", 0, "1 or more");
        }
        if self.lock_hint_max_ns > 1_000_000_000 {
            return refuse("lock_hint_max_ns", self.lock_hint_max_ns, "0 to 1000000000");
        }
        if self.halt_poll.max_ns > 1_000_000_000 {
            return refuse("halt_poll.max_ns", self.halt_poll.max_ns, "0 to 1000000000");
        }
        let costs = &self.costs;
        for (name, value) in [
            ("costs.on_spin_ns", costs.on_spin_ns),
            ("costs.icr_ns", costs.icr_ns),
            ("costs.send_ns", costs.send_ns),
            ("costs.hypercall_ns", costs.hypercall_ns),
            ("costs.timer_ns", costs.timer_ns),
            ("costs.halt_ns", costs.halt_ns),
            ("costs.io_ns", costs.io_ns),
            ("costs.flush_ns", costs.flush_ns),
            ("costs.fault_ns", costs.fault_ns),
        ] {
            if value > 1_000_000_000 {
                return refuse(name, value, "0 to 1000000000");
            }
        }
        Ok(())
    }

    /// After how long a loop exits that executes a PAUSE so often (0: as often as the kernel's), with this window. `None`: it is no loop to the processor. At
    /// least 1, so that time passes.
    pub fn window_ns(&self, window: u32, every_ns: Ns) -> Option<Ns> {
        let mhz = u128::from(self.tsc_mhz);
        // In thousandths of a cycle: ns times MHz.
        let every = match every_ns {
            0 => u128::from(self.ple.pause_cycles) * 1_000,
            _ => u128::from(every_ns) * mhz,
        };
        if self.ple.gap_cycles > 0 && every > u128::from(self.ple.gap_cycles) * 1_000 {
            return None;
        }
        let each = if self.ple.window_pauses > 0 { every } else { 1_000 };
        let ns = u128::from(window) * each / mhz;
        Some((ns.min(u128::from(Ns::MAX >> 16)) as Ns).max(1))
    }
}
