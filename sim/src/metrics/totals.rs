// SPDX-License-Identifier: GPL-2.0-only
//! The host's side of the figures as they are reported; docs/metrics.md defines each.

use serde::Serialize;

use crate::time::Ns;

use super::waits::Summary;

/// A vCPU's time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VcpuTotals {
    pub run_ns: Ns,
    pub ready_ns: Ns,
    pub switches: u64,
    pub preemptions: u64,
    pub migrations: u64,
}

/// A VM's figures; docs/metrics.md.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VmTotals {
    pub cpu_ns: Ns,
    pub run_ns: Ns,
    pub ready_ns: Ns,
    pub costop_ns: Ns,
    /// Its vCPUs' threads slept: a simulated one does so when its guest has halted it, and while it is held ([`crate::guest::hold`]).
    pub halted_ns: Ns,
    pub stacked_ns: Ns,
    pub skew_max_ns: Ns,
    /// Looks at which a vCPU ran and siblings ran or waited; those at which one was farther than 2/3 of its queue.
    pub distances: u64,
    pub distances_far: u64,
    pub lag_behind_ns: Option<Ns>,
    pub lag_ahead_ns: Option<Ns>,
    pub switches: u64,
    pub migrations: u64,
    pub preemptions: u64,
    pub preemptions_kernel: u64,
    pub preemptions_holder: u64,
    /// Interrupts from siblings that came while a vCPU was preempted, and for how long these waited for it to run.
    pub ipis_preempted: u64,
    pub ipi_wait_ns: Ns,
    pub wait_after_wakeup: Summary,
    pub wait_after_preemption: Summary,
    pub wait_in_kernel: Summary,
    pub wait_as_holder: Summary,
    pub skew: Summary,
}

/// The host's figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostTotals {
    pub end_ns: Ns,
    pub pcpus: u32,
    pub busy_ns: Ns,
    pub idle_ns: Ns,
    pub switches: u64,
    pub wakeups: u64,
    pub migrations: u64,
    /// ... from one last-level cache to another, and of these to another socket.
    pub migrations_llc: u64,
    pub migrations_node: u64,
    /// By how much the VMs' lags drift apart in a second, on average.
    pub lag_spread_ns: Option<Ns>,
}

/// What grows of a VM, by the names of its figures and of the counters of `cohort top`; docs/metrics.md.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VmCounts {
    pub vcpus: u32,
    pub run_ns: Ns,
    pub ready_ns: Ns,
    pub costop_ns: Ns,
    pub halted_ns: Ns,
    pub stacked_ns: Ns,
    pub switches: u64,
    pub migrations: u64,
    pub preemptions: u64,
    /// Waits that have ended: after a wake-up, and after a preemption in kernel mode.
    pub wakeups: u64,
    pub wait_wakeup_ns: Ns,
    pub preemptions_kernel: u64,
    pub wait_kernel_ns: Ns,
    pub ipis_preempted: u64,
    pub ipi_wait_ns: Ns,
    #[serde(flatten)]
    pub guest: GuestCounts,
}

/// ... of what the guest did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuestCounts {
    pub spin_ns: Ns,
    pub ple: u64,
    pub ple_kernel: u64,
    pub ple_chains: u64,
    pub yields_asked: u64,
    pub yields_granted: u64,
    pub ipis_sent: u64,
    pub halts: u64,
    pub kicks: u64,
}

/// Of two structs of counters, what the first has more; each field must be named.
macro_rules! grown {
    ($kind:ident: $after:ident since $before:ident; $($kept:ident: $value:expr,)* ; $($field:ident,)+) => {
        $kind { $($kept: $value,)* $($field: $after.$field - $before.$field,)+ }
    };
}

impl VmCounts {
    /// By how much it has grown since.
    pub fn since(&self, before: &Self) -> Self {
        grown!(VmCounts: self since before; vcpus: self.vcpus, guest: self.guest.since(&before.guest),;
            run_ns, ready_ns, costop_ns, halted_ns, stacked_ns, switches, migrations, preemptions, wakeups,
            wait_wakeup_ns, preemptions_kernel, wait_kernel_ns, ipis_preempted, ipi_wait_ns,)
    }
}

impl GuestCounts {
    fn since(&self, before: &Self) -> Self {
        grown!(GuestCounts: self since before;;
            spin_ns, ple, ple_kernel, ple_chains, yields_asked, yields_granted, ipis_sent, halts, kicks,)
    }
}
