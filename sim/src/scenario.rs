// SPDX-License-Identifier: GPL-2.0-only
//! All that describes a run, and what comes of it. Building the bodies from it and running them is [`run`].

use serde::{Deserialize, Serialize};

use crate::class::ext::ExtConfig;
use crate::class::fair::FairConfig;
use crate::class::round_robin::RoundRobinConfig;
use crate::machine::MachineConfig;
use crate::time::Ns;

/// One run: a point of a sweep. Everything that the result depends on is in here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    pub seed: u64,
    /// The run ends then at the latest.
    pub duration_ns: Ns,
    #[serde(default)]
    pub machine: MachineConfig,
    pub policy: Policy,
    #[serde(default)]
    pub vms: Vec<VmConfig>,
    #[serde(default)]
    pub tasks: Vec<TaskConfig>,
}

/// The host's scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class", rename_all = "kebab-case")]
pub enum Policy {
    RoundRobin(RoundRobinConfig),
    Fair(FairConfig),
    Ext(ExtConfig),
}

/// A VM: its vCPUs run what `workload` says, on the guest kernel that `guest` describes, with the KVM that `kvm` describes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    pub name: String,
    pub vcpus: u32,
    /// cpu.weight of its cgroup.
    #[serde(default = "weight_default")]
    pub weight: u32,
    /// pCPUs that its vCPUs may use; empty: all.
    #[serde(default)]
    pub cpus: Vec<u32>,
}

fn weight_default() -> u32 {
    100
}

/// An ordinary process of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskConfig {
    pub name: String,
    #[serde(default)]
    pub nice: i32,
    #[serde(default)]
    pub cpus: Vec<u32>,
}

/// What came of a run, beside what the observers gathered.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    pub end_ns: Ns,
    pub events: u64,
    pub decisions: u64,
    pub tasks: Vec<TaskTotals>,
    pub cpus: Vec<CpuTotals>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskTotals {
    pub run_ns: Ns,
    pub wait_ns: Ns,
    pub wait_max_ns: Ns,
    pub switches: u64,
    pub migrations: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CpuTotals {
    pub busy_ns: Ns,
    pub idle_ns: Ns,
    pub switches: u64,
}

impl Outcome {
    /// As of now.
    pub fn of(host: &crate::Host) -> Self {
        let core = &host.core;
        let task = |t: &crate::host::Task| TaskTotals {
            run_ns: t.run_ns,
            wait_ns: t.wait_ns,
            wait_max_ns: t.wait_max_ns,
            switches: t.switches,
            migrations: t.migrations,
        };
        let cpu = |c: &crate::host::Cpu| CpuTotals { busy_ns: c.busy_ns, idle_ns: c.idle_ns, switches: c.switches };
        Self {
            end_ns: core.now_ns,
            events: core.events.made(),
            decisions: core.decisions,
            tasks: core.tasks.iter().map(task).collect(),
            cpus: core.cpus.iter().map(cpu).collect(),
        }
    }
}
