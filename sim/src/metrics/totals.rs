// SPDX-License-Identifier: GPL-2.0-only
//! The host's side of the figures as they are reported; docs/metrics.md defines each.

use std::collections::BTreeMap;

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
    /// Its vCPUs' threads slept: a simulated one does so only when its guest has halted it.
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
    pub program_starts: Vec<ProgramTotals>,
    pub program_ends: Vec<ProgramTotals>,
}

/// A program of a VM begins or has ended: what the host and the VM had counted till then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramTotals {
    pub vm: u32,
    pub program: u32,
    pub at_ns: Ns,
    /// Of each VM.
    pub cpu_ns: Vec<Ns>,
    pub busy_ns: Ns,
    /// Of the host's threads, as its figures have them.
    pub migrations: u64,
    pub migrations_llc: u64,
    pub migrations_node: u64,
    /// Of the program's VM, as its figures have them.
    pub ready_ns: Ns,
    pub ipis_taken: BTreeMap<u8, u64>,
    /// What its vCPUs' time went to, by VM; of the program's alone where there are many.
    pub vms: BTreeMap<u32, VmCounts>,
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
