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
    pub stacked_ns: Ns,
    pub skew_max_ns: Ns,
    pub lag_behind_ns: Option<Ns>,
    pub lag_ahead_ns: Option<Ns>,
    pub switches: u64,
    pub migrations: u64,
    pub preemptions: u64,
    pub preemptions_kernel: u64,
    pub preemptions_holder: u64,
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
}
