// SPDX-License-Identifier: GPL-2.0-only
//! What a recording says beside its events: JSON, at the file's begin what is known then, at its end the rest.

use serde::{Deserialize, Serialize};

/// At the begin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub version: String,
    /// Seconds since 1970.
    pub time_s: f64,
    /// The events' clock then.
    pub clock_ns: u64,
    pub kernel: String,
    pub machine: String,
    /// The kernel's own, `fair`, or the name of a sched_ext scheduler.
    pub scheduler: String,
    /// By number, those that are online.
    pub pcpus: Vec<Pcpu>,
    /// Counters that could not be counted on that host, and why.
    #[serde(default)]
    pub missing: Vec<String>,
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pcpu {
    pub cpu: u32,
    pub core: u32,
    pub llc: u32,
    pub node: u32,
}

/// At the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub clock_ns: u64,
    /// Events for which the ring buffer had no room.
    pub dropped: u64,
    /// Events that newer ones have replaced, because the file may not grow further.
    pub overwritten: u64,
    /// The slots that the file has: the number of the first, and how many.
    #[serde(default)]
    pub slots: (u64, u64),
    pub scheduler: String,
    pub vms: Vec<VmAbout>,
    /// Slots that nobody is known to have from a time on, until `vms` has an owner: the slot, and that time.
    #[serde(default)]
    pub unowned: Vec<(u16, u64)>,
    /// What the probe itself has counted, as a line of `cohort top --batch --json`.
    #[serde(default)]
    pub counted: serde_json::Value,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmAbout {
    pub name: String,
    pub pid: u32,
    /// cpu.weight, 100 for the kernel's default at each level of the cgroup's path.
    pub weight: f64,
    /// cpu.max: µs of CPU time in each period of so many µs.
    #[serde(default)]
    pub quota_us: Option<(u64, u64)>,
    pub vcpus: Vec<VcpuAbout>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuAbout {
    /// What events call it, from this time on.
    pub slot: u16,
    pub from_ns: u64,
    pub vcpu: u32,
    pub tid: u32,
    /// pCPUs that it may use; empty: all; None: not known, as of a thread that was gone or hidden.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Vec<u32>>,
}
