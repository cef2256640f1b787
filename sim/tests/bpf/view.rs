// SPDX-License-Identifier: GPL-2.0-only
//! What a test sees of tasks and pCPUs: copies.

use cohort_sim::class::ext;
use cohort_sim::cpuset::CpuSet;
use cohort_sim::{CpuId, VcpuId};

use crate::world::TaskId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Asleep,
    /// Running or waiting for a pCPU.
    Runnable,
    Dead,
}

/// Where a waiting task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Local(usize),
    Global,
    User(u64),
}

impl Queue {
    pub fn of(queue: ext::Queue) -> Self {
        match queue {
            ext::Queue::Local(cpu) => Self::Local(cpu),
            ext::Queue::Global => Self::Global,
            // The scheduler makes its queues in the order of their names.
            ext::Queue::User(index) => Self::User(u64::from(index)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Task {
    pub state: State,
    pub cpu: usize,
    pub queue: Option<Queue>,
    pub vcpu: Option<VcpuId>,
    pub used_ns: u64,
    pub waits_since_ns: u64,
    pub wait_ns: u64,
    /// The longest wait, one that goes on included: who never runs again has none that ended.
    pub wait_max_ns: u64,
    pub switches: u64,
    pub migration_disabled: bool,
    pub exiting: bool,
    pub kthread: bool,
    pub allowed: Option<CpuSet>,
}

impl Task {
    pub fn is_exiting(&self) -> bool {
        self.exiting
    }

    pub fn is_kthread(&self) -> bool {
        self.kthread
    }

    pub fn allowed(&self, cpu: usize) -> bool {
        self.allowed.as_ref().is_none_or(|set| set.has(CpuId::from(cpu)))
    }
}

#[derive(Clone, Debug, Default)]
pub struct Cpu {
    pub online: bool,
    /// A higher class has it.
    pub taken: bool,
    pub curr: Option<TaskId>,
    pub busy_ns: u64,
}

impl Cpu {
    /// It could run somebody, and runs nobody.
    pub fn idles(&self) -> bool {
        self.online && !self.taken && self.curr.is_none()
    }
}
