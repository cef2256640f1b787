// SPDX-License-Identifier: GPL-2.0-only
//! All that describes a run, and what comes of it. Building the bodies from it and running them is [`crate::run`].

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::class::ext::ExtConfig;
use crate::class::fair::FairConfig;
use crate::class::round_robin::RoundRobinConfig;
use crate::error::{in_plain_words, SimError};
use crate::guest::GuestConfig;
use crate::kvm::KvmConfig;
use crate::machine::{Machine, MachineConfig};
use crate::time::Ns;
use crate::workload::Workload;

/// One run: a point of a sweep. Everything that the result depends on is in here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    pub seed: u64,
    /// The run ends then at the latest.
    pub duration_ns: Ns,
    /// A run that is not over after so many events is an error: it may never be.
    #[serde(default = "events_max_default")]
    pub events_max: u64,
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

impl Policy {
    /// See [`FairConfig::groups`].
    fn has_groups(&self) -> bool {
        !matches!(self, Self::Fair(FairConfig { groups: false, .. }))
    }
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
    /// ... a list for each vCPU; empty: `cpus` for all.
    #[serde(default)]
    pub vcpu_cpus: Vec<Vec<u32>>,
    /// cpu.max of its cgroup: so much of each [`PERIOD_US`]; 0: no limit.
    #[serde(default)]
    pub quota_us: u64,
    #[serde(default)]
    pub kvm: KvmConfig,
    #[serde(default)]
    pub guest: GuestConfig,
    /// When its workload starts: the others have settled by then.
    #[serde(default)]
    pub start_ns: Ns,
    /// What it runs; without, it is booted and idle.
    #[serde(default)]
    pub workload: Option<Workload>,
    /// A program that has ended begins anew. Its figure is of the first time.
    #[serde(default)]
    pub repeat: bool,
    /// The run goes on until its program has ended once.
    #[serde(default = "yes")]
    pub measured: bool,
    /// From `start_ns` on it is paused now and then, as by SIGSTOP.
    #[serde(default)]
    pub rhythm: Option<Rhythm>,
}

/// It may run for so long and is paused for so long, in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rhythm {
    pub run_ns: Ns,
    pub pause_ns: Ns,
}

/// The period of cpu.max: the kernel's default.
pub const PERIOD_US: u64 = 100_000;
/// The kernel allows no less (min_cfs_quota_period).
const QUOTA_US_MIN: u64 = 1_000;

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            vcpus: 1,
            weight: weight_default(),
            cpus: Vec::new(),
            vcpu_cpus: Vec::new(),
            quota_us: 0,
            kvm: KvmConfig::default(),
            guest: GuestConfig::default(),
            start_ns: 0,
            workload: None,
            repeat: false,
            measured: true,
            rhythm: None,
        }
    }
}

fn weight_default() -> u32 {
    100
}

fn yes() -> bool {
    true
}

/// Some minutes of computing.
fn events_max_default() -> u64 {
    2_000_000_000
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
    /// It runs for so long and sleeps for so long, in turn; 0 and 0: it never sleeps.
    #[serde(default)]
    pub run_ns: Ns,
    #[serde(default)]
    pub sleep_ns: Ns,
    /// These are means of exponential distributions.
    #[serde(default)]
    pub random: bool,
    /// It is a thread of this VM's VMM.
    #[serde(default)]
    pub vm: Option<String>,
    /// It sleeps until then.
    #[serde(default)]
    pub start_ns: Ns,
    /// It runs once; a thread of a VM's VMM also for a microsecond at 0, so that it is not new later.
    #[serde(default)]
    pub once: bool,
}

/// Bounds of what may be asked for, so that a wrong figure costs an error and not all of the memory.
const DURATION_MAX_NS: Ns = 86_400_000_000_000;
/// An hour, for what takes or lasts some time in it.
const TIME_MAX_NS: Ns = 3_600_000_000_000;
const VCPUS_MAX: u32 = 1 << 17;
const TASKS_MAX: usize = 1 << 17;

impl Scenario {
    /// From its JSON text. What it says is still to be checked: [`Scenario::check`].
    pub fn from_json(text: &[u8]) -> Result<Self, SimError> {
        let mut json = serde_json::Deserializer::from_slice(text);
        let scenario = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let what = in_plain_words(&error.into_inner().to_string());
            // Where a field is in a text that a program wrote says nothing to who wrote a file of another kind.
            let of_field = what.split_once(" at line ").map_or(what.as_str(), |(what, _)| what);
            SimError::Config(if path == "." { what } else { format!("{path}: {of_field}") })
        })?;
        json.end().map_err(|error| SimError::Config(error.to_string()))?;
        Ok(scenario)
    }

    /// Everything that can be known to be wrong before the run; the parts check themselves when they are built.
    pub fn check(&self) -> Result<(), SimError> {
        let pcpus = Machine::new(&self.machine)?.cpus() as u32;
        let refuse = |field: &str, value: &dyn std::fmt::Display, allowed: &str| {
            Err(SimError::Config(format!("{field}: {value} is not allowed: must be {allowed}")))
        };
        if !(1..=DURATION_MAX_NS).contains(&self.duration_ns) {
            return refuse("duration_ns", &self.duration_ns, &format!("from 1 to {DURATION_MAX_NS}"));
        }
        if self.events_max == 0 {
            return refuse("events_max", &0, "1 or more");
        }
        check_times("machine.costs", &self.machine.costs)?;
        check_times("policy", &self.policy)?;
        let mut vcpus = 0u32;
        for (index, vm) in self.vms.iter().enumerate() {
            vcpus = vcpus.saturating_add(vm.vcpus);
            if vm.vcpus == 0 || vcpus > VCPUS_MAX {
                let allowed = format!("1 or more, and of all VMs together at most {VCPUS_MAX}");
                return refuse(&format!("vms[{index}].vcpus"), &vm.vcpus, &allowed);
            }
            if vm.start_ns > self.duration_ns {
                return refuse(&format!("vms[{index}].start_ns"), &vm.start_ns, "at most duration_ns");
            }
            if !(1..=10_000).contains(&vm.weight) {
                return refuse(&format!("vms[{index}].weight"), &vm.weight, "from 1 to 10000");
            }
            if !self.policy.has_groups() && vm.weight != weight_default() {
                return refuse(&format!("vms[{index}].weight"), &vm.weight, "100: no cgroup has it");
            }
            if !self.policy.has_groups() && vm.quota_us != 0 {
                return refuse(&format!("vms[{index}].quota_us"), &vm.quota_us, "0: no cgroup has it");
            }
            check_cpus(&format!("vms[{index}].cpus"), &vm.cpus, pcpus)?;
            if !vm.vcpu_cpus.is_empty() && vm.vcpu_cpus.len() != vm.vcpus as usize {
                let allowed = format!("empty, or a list for each of {} vCPUs", vm.vcpus);
                let given = format!("a list of {}", vm.vcpu_cpus.len());
                return refuse(&format!("vms[{index}].vcpu_cpus"), &given, &allowed);
            }
            for (vcpu, cpus) in vm.vcpu_cpus.iter().enumerate() {
                check_cpus(&format!("vms[{index}].vcpu_cpus[{vcpu}]"), cpus, pcpus)?;
            }
            let most_us = PERIOD_US * u64::from(pcpus);
            if vm.quota_us != 0 && !(QUOTA_US_MIN..=most_us).contains(&vm.quota_us) {
                let allowed = format!("0 for none, or from {QUOTA_US_MIN} to {most_us}");
                return refuse(&format!("vms[{index}].quota_us"), &vm.quota_us, &allowed);
            }
            for (field, ns) in vm.rhythm.iter().flat_map(|r| [("run_ns", r.run_ns), ("pause_ns", r.pause_ns)])
            {
                if !(1..=TIME_MAX_NS).contains(&ns) {
                    return refuse(
                        &format!("vms[{index}].rhythm.{field}"),
                        &ns,
                        &format!("from 1 to {TIME_MAX_NS}"),
                    );
                }
            }
        }
        if self.tasks.len() > TASKS_MAX {
            return refuse(
                "tasks",
                &format!("a list of {}", self.tasks.len()),
                &format!("at most {TASKS_MAX} long"),
            );
        }
        let names: BTreeSet<&str> = self.vms.iter().map(|vm| vm.name.as_str()).collect();
        for (index, task) in self.tasks.iter().enumerate() {
            if !(-20..=19).contains(&task.nice) {
                return refuse(&format!("tasks[{index}].nice"), &task.nice, "from -20 to 19");
            }
            check_cpus(&format!("tasks[{index}].cpus"), &task.cpus, pcpus)?;
            // After the run's end is as good as never.
            if task.start_ns > DURATION_MAX_NS {
                let allowed = format!("at most {DURATION_MAX_NS}");
                return refuse(&format!("tasks[{index}].start_ns"), &task.start_ns, &allowed);
            }
            check_times(&format!("tasks[{index}]"), &TaskConfig { start_ns: 0, ..task.clone() })?;
            if let Some(name) = task.vm.as_ref().filter(|name| !names.contains(name.as_str())) {
                return refuse(&format!("tasks[{index}].vm"), name, "the name of a VM");
            }
        }
        Ok(())
    }
}

/// Every time in a part of the scenario: no sum of those that are allowed overflows. The parts themselves know what else they need.
fn check_times(field: &str, part: &impl Serialize) -> Result<(), SimError> {
    let Ok(serde_json::Value::Object(values)) = serde_json::to_value(part) else { return Ok(()) };
    for (name, value) in values.iter().filter(|(name, _)| name.ends_with("_ns")) {
        if value.as_u64().is_some_and(|ns| ns > TIME_MAX_NS) {
            let text = format!("{field}.{name}: {value} is not allowed: must be at most {TIME_MAX_NS}");
            return Err(SimError::Config(text));
        }
    }
    Ok(())
}

fn check_cpus(field: &str, cpus: &[u32], pcpus: u32) -> Result<(), SimError> {
    match cpus.iter().find(|cpu| **cpu >= pcpus) {
        None => Ok(()),
        Some(cpu) => Err(SimError::Config(format!(
            "{field}: {cpu} is not allowed: must be from 0 to {}",
            pcpus.saturating_sub(1)
        ))),
    }
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
        let task = |(index, t): (usize, &crate::host::Task)| TaskTotals {
            run_ns: host.run_ns(index.into()),
            wait_ns: host.run_delay_ns(index.into()),
            // The present wait may be the longest.
            wait_max_ns: t.wait_max_ns.max(host.run_delay_ns(index.into()) - t.wait_ns),
            switches: t.switches,
            migrations: t.migrations,
        };
        let cpu = |(index, c): (usize, &crate::host::Cpu)| {
            let (busy_ns, idle_ns) = host.cpu_times_ns(index.into());
            CpuTotals { busy_ns, idle_ns, switches: c.switches }
        };
        Self {
            end_ns: core.now_ns,
            events: core.events.made(),
            decisions: core.decisions,
            tasks: core.tasks.iter().enumerate().map(task).collect(),
            cpus: core.cpus.iter().enumerate().map(cpu).collect(),
        }
    }
}
