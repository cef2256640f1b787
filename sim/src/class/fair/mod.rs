// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's fair class (kernel/sched/fair.c) in both forms: CFS (2.6.34 to 6.5) and EEVDF (6.6 and later).

use serde::{Deserialize, Serialize};

use crate::host::{Core, State};
use crate::ids::{CpuId, TaskId};
use crate::time::Ns;

use super::{Class, Dequeue, Enqueue};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// 2.6.34 to 6.5.
    Cfs,
    /// 6.6 to 6.18.
    Eevdf,
    /// 6.19 and later: a task that yields forfeits its virtual time up to its deadline.
    EevdfForfeit,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FairConfig {
    pub variant: Variant,
    /// Base slice (EEVDF) or minimum granularity (CFS); 0: the kernel's, which grows with the number of pCPUs.
    pub slice_ns: Ns,
}

impl Default for FairConfig {
    fn default() -> Self {
        Self { variant: Variant::EevdfForfeit, slice_ns: 0 }
    }
}

pub struct Fair {
    _config: FairConfig,
    queues: Vec<Vec<TaskId>>,
}

impl Fair {
    pub fn new(config: FairConfig) -> Self {
        Self { _config: config, queues: Vec::new() }
    }
}

// A stand-in until the class is there: first in, first out, a tick long.
impl Class for Fair {
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
