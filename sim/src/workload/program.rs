// SPDX-License-Identifier: GPL-2.0-only
//! A program as its file says it. [`super::code`] makes of it what a VM executes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dist::{Dist, Span};

/// How many tasks a program may have.
pub const TASKS_MAX: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    #[serde(default)]
    pub title: String,
    /// The whole program so many times over, each with objects of its own.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub copies: u32,
    /// How much of the TLB and private caches it uses, in thousandths of what is usual: what its vCPUs lose when others have had their pCPUs.
    #[serde(default = "usual", skip_serializing_if = "is_usual")]
    pub footprint_per_mille: u32,
    #[serde(default)]
    pub metric: Metric,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pipes: BTreeMap<String, PipeSpec>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub barriers: BTreeMap<String, BarrierSpec>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutexes: BTreeMap<String, MutexSpec>,
    #[serde(rename = "thread")]
    pub threads: Vec<Thread>,
}

/// Which figure the program gives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Metric {
    /// How long it took.
    #[default]
    Elapsed,
    /// Units of work per second.
    Rate {
        /// The name of the `done` steps that count.
        done: String,
        /// What one counts for in the figure.
        #[serde(default = "one_f64")]
        value: f64,
        #[serde(default)]
        unit: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeSpec {
    /// Messages that fit.
    pub capacity: u32,
    /// Blocked senders are woken when so few are left; a pipe: capacity - 1, a socket: a quarter.
    #[serde(default)]
    pub low_water: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BarrierSpec {
    /// Tasks that meet there; by default, all that have a step with it.
    #[serde(default)]
    pub parties: Option<u32>,
    /// Who spins there executes PAUSE.
    #[serde(default)]
    pub pause: bool,
    /// ... so often, because the loop does other things too; without, as often as the processor can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_every: Option<Span>,
    /// Whoever has spun for as long as its step says goes on alone, as if it had never come.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gives_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutexSpec {
    /// One of the kernel's own (mutex, rw_semaphore): who waits spins while its owner runs.
    #[serde(default)]
    pub spins: bool,
}

/// Tasks that do the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    pub name: String,
    #[serde(default)]
    pub count: Count,
    /// Each has an address space of its own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub process: bool,
    /// Nobody waits for it to end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub background: bool,
    /// Task i stays on vCPU i.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pin: bool,
    /// All of its tasks stay on this vCPU, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    #[serde(default)]
    pub times: Times,
    /// `times` is of all its tasks together: whoever has done a round takes the next one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub share: bool,
    /// ... likewise, but each has its part of them from the beginning.
    #[serde(default, skip_serializing_if = "is_false")]
    pub divide: bool,
    /// What each does once, before its rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<Step>,
    pub steps: Vec<Step>,
}

/// How many tasks: a number, or as many as there are vCPUs, and more or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Fixed(u32),
    /// Per vCPU, plus.
    PerVcpu(i32),
}

/// How many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Fixed(u64),
    Forever,
}

/// One step. In names of objects, `{i}` is the task's number among those of its thread, and `{i+1}` the next one's; after the last comes 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Step {
    /// In user mode.
    Compute(Dist),
    /// In kernel mode.
    Kernel(Dist),
    /// A spin lock of the kernel. `irqs_off`: who waits for it or holds it takes no interrupts (spin_lock_irqsave()).
    Lock {
        name: String,
        hold: Dist,
        #[serde(default, skip_serializing_if = "is_false")]
        irqs_off: bool,
    },
    Acquire(String),
    Release(String),
    /// Acquire a mutex, do these, release it.
    Mutex {
        name: String,
        steps: Vec<Step>,
    },
    /// Change page tables and flush; `freed`: page tables too are freed.
    Shootdown {
        #[serde(default = "one")]
        pages: u32,
        #[serde(default)]
        freed: bool,
    },
    /// Touch memory: who uses the same name shares its pages. It takes no time, except where KVM has been made to drop them (`--traffic faults`).
    Touch {
        name: String,
        #[serde(default = "one")]
        pages: u32,
    },
    /// Wait for the others, spinning for so long first.
    Barrier {
        name: String,
        #[serde(default)]
        spin: Spin,
    },
    Send(String),
    Recv(String),
    Wait(String),
    /// ... for a signal that came after the task's own last one.
    WaitOther(String),
    Signal(String),
    Broadcast(String),
    /// A request to a device, which takes this after the VMM's thread has worked on it.
    Io {
        device: Dist,
        #[serde(default)]
        host: Dist,
    },
    Sleep(Dist),
    /// Sleep until so long after the last time.
    Period(Span),
    Yield {},
    /// Call a function on all other vCPUs, or those that run this program, and wait for their answers.
    Call {
        #[serde(default)]
        same_space: bool,
    },
    /// A unit of work is complete.
    Done(String),
    Repeat {
        times: Times,
        steps: Vec<Step>,
    },
}

/// How long to spin before sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    #[default]
    Not,
    For(Span),
    Forever,
}

impl Default for Count {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

fn one() -> u32 {
    1
}

fn usual() -> u32 {
    1000
}

fn is_usual(n: &u32) -> bool {
    *n == 1000
}

fn one_f64() -> f64 {
    1.0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

fn is_false(b: &bool) -> bool {
    !b
}

impl Count {
    pub fn of(self, vcpus: u32) -> u32 {
        match self {
            Self::Fixed(n) => n,
            Self::PerVcpu(more) => vcpus.saturating_add_signed(more),
        }
    }
}
