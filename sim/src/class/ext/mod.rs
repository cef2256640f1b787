// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext in software: it runs the scheduler of `bpf/`, compiled natively.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::host::{Core, State};
use crate::ids::{CpuId, TaskId};

use super::{Class, Dequeue, Enqueue};


#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExtConfig {
    /// The scheduler's knobs by their names in bpf/state.h; those not named keep their defaults.
    pub knobs: BTreeMap<String, u64>,
}


pub struct Ext {
    _config: ExtConfig,
    queues: Vec<Vec<TaskId>>,
}

impl Ext {
    pub fn new(config: ExtConfig) -> Self {
        Self { _config: config, queues: Vec::new() }
    }
}

// A stand-in until the class is there: first in, first out, a tick long.
impl Class for Ext {
    fn init(&mut self, core: &mut Core) {
        self.queues = vec![Vec::new(); core.cpus.len()];
    }
    fn select_cpu(&mut self, core: &mut Core, task: TaskId, prev: CpuId, _why: Enqueue) -> CpuId {
        let free = core.idle.iter().find(|cpu| !core.cpu(*cpu).needs_resched && core.can_run_on(task, *cpu));
        free.unwrap_or(prev)
    }
    fn enqueue(&mut self, core: &mut Core, task: TaskId, why: Enqueue) {
        if why != Enqueue::RestoreRunning {
            self.queues[core.task(task).cpu.index()].push(task);
        }
    }
    fn dequeue(&mut self, core: &mut Core, task: TaskId, _why: Dequeue) {
        self.queues[core.task(task).cpu.index()].retain(|other| *other != task);
    }
    fn preempt_wakeup(&mut self, _core: &mut Core, _task: TaskId) {}
    fn update_curr(&mut self, core: &mut Core, cpu: CpuId) {
        core.charge(cpu);
    }
    fn pick(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> Option<TaskId> {
        let goes_on = prev.filter(|id| core.task(*id).state == State::Running);
        self.queues[cpu.index()].first().copied().or(goes_on)
    }
    fn put_prev(&mut self, _core: &mut Core, cpu: CpuId, prev: TaskId) {
        self.queues[cpu.index()].push(prev);
    }
    fn set_next(&mut self, _core: &mut Core, cpu: CpuId, next: TaskId) {
        self.queues[cpu.index()].retain(|other| *other != next);
    }
    fn tick(&mut self, core: &mut Core, cpu: CpuId) {
        core.charge(cpu);
        core.resched(cpu);
    }
    fn yield_now(&mut self, _core: &mut Core, _task: TaskId) {}
    fn queue_len(&self, cpu: CpuId) -> u32 {
        self.queues[cpu.index()].len() as u32 + 1
    }
    fn first_waiting(&self, _core: &Core, cpu: CpuId) -> Option<TaskId> {
        self.queues[cpu.index()].first().copied()
    }
}

/// See [`super::AnyClass::enter`].
pub struct Entered;

impl Ext {
    pub fn enter(&mut self) -> Entered {
        Entered
    }
}
