// SPDX-License-Identifier: GPL-2.0-only
//! All that the probe knows at one moment. Counters only grow; what happened is the difference of two samples.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counters::Counters;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Seconds since 1970.
    pub time_s: f64,
    /// The clock that the counters are of.
    pub clock_ns: u64,
    /// pCPUs that are online.
    pub pcpus: u32,
    /// Time that pCPUs were idle since the first sample, all together.
    pub idle_ns: u64,
    /// Switches of all threads.
    pub switches: u64,
    /// Who schedules: `eevdf`, `fair` or a sched_ext scheduler's name.
    pub scheduler: String,
    pub kernel: String,
    /// Counters that cannot be counted on this host, and figures of VMs that are not known.
    pub missing: Vec<String>,
    /// Why; and vCPUs that are not followed.
    pub notes: Vec<String>,
    pub vms: Vec<Vm>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vm {
    pub name: String,
    pub pid: i32,
    /// Tells a VM from another that has its name, or had its process number.
    pub id: u64,
    /// Figures that are not known of this VM; see `notes`.
    pub missing: Vec<String>,
    /// Its cgroup's `cpu.weight`, times those above it, of 100 each.
    pub weight: f64,
    /// Time in which `cpu.max` of its cgroups kept vCPUs from running.
    pub throttled_ns: u64,
    /// Of n vCPUs that ran or waited on one pCPU, n - 1 count.
    pub stacked_ns: u64,
    /// Siblings' ready times differ by so much now, and at most so far.
    pub skew_ns: u64,
    pub skew_max_ns: u64,
    /// Its due less what its vCPUs got: now, at its most and its least.
    pub lag_ns: i64,
    pub lag_behind_ns: i64,
    pub lag_ahead_ns: i64,
    /// The most exits in one spin, and spins by how many exits they had: 1, 2, 3-4, 5-8, and so on.
    pub ple_chain_max: u64,
    pub ple_chain_lengths: Vec<u64>,
    /// The longest time that one of its vCPUs waited.
    pub wait_max_ns: u64,
    /// Sums over its vCPUs, those that are gone included.
    pub total: Counters,
    /// By the number of a vCPU, what those threads have counted that serve it no more.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gone: BTreeMap<u32, Counters>,
    /// Its vCPUs' threads, mostly one of each.
    pub vcpus: Vec<Vcpu>,
}

impl Vm {
    /// The counters of each vCPU, by its number. A VMM may run a vCPU on several threads in turn, all of which
    /// are there; it is one vCPU all the same. Each thread has counted its own turns alone, so the vCPU's are
    /// their sum, with those of threads that are gone. The latest thread's would lack what was before, and go
    /// back whenever another one takes over. A vCPU that has no thread now is not there.
    pub fn by_vcpu(&self) -> BTreeMap<u32, Counters> {
        let mut sums = by_vcpu(self.vcpus.iter().map(|thread| (thread.vcpu, &thread.counters)));
        for (vcpu, sum) in &mut sums {
            if let Some(gone) = self.gone.get(vcpu) {
                sum.add(gone);
            }
        }
        sums
    }
}

/// The same of threads that each say whose they are.
pub fn by_vcpu<'a>(threads: impl Iterator<Item = (u32, &'a Counters)>) -> BTreeMap<u32, Counters> {
    let mut sums: BTreeMap<u32, Counters> = BTreeMap::new();
    threads.for_each(|(vcpu, counters)| sums.entry(vcpu).or_default().add(counters));
    sums
}

/// By how much siblings' ready times differ.
pub fn skew_ns(siblings: &BTreeMap<u32, Counters>) -> u64 {
    let ready = || siblings.values().map(|counters| counters.ready_ns);
    ready().max().unwrap_or(0) - ready().min().unwrap_or(0)
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vcpu {
    pub vcpu: u32,
    pub tid: u32,
    pub state: State,
    /// Where it runs or waits, or did last.
    pub pcpu: u32,
    #[serde(flatten)]
    pub counters: Counters,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    #[default]
    Unknown,
    Running,
    Ready,
    Preempted,
    Halted,
    Blocked,
}

impl State {
    /// On the screen.
    pub fn name(self) -> &'static str {
        match self {
            State::Unknown => "?",
            State::Running => "runs",
            State::Ready => "ready",
            State::Preempted => "preempted",
            State::Halted => "halted",
            State::Blocked => "blocked",
        }
    }
}
