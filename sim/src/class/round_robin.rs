// SPDX-License-Identifier: GPL-2.0-only
//! First in, first out, with slices of random length that end exactly: the shape that every simulator can run, and the M/M/c queue's discipline.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::SimError;
use crate::events::Event;
use crate::host::{Core, State};
use crate::ids::{CpuId, TaskId};
use crate::rng::{Rng, Stream};
use crate::time::Ns;

use super::{Class, Dequeue, Enqueue};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRobinConfig {
    /// Slices are drawn evenly between these, in steps of 1 us.
    pub slice_min_ns: Ns,
    pub slice_max_ns: Ns,
    /// One queue for all pCPUs; otherwise one each, and a task stays where it first was.
    pub shared_queue: bool,
}

impl RoundRobinConfig {
    pub fn check(&self) -> Result<(), SimError> {
        let (min_ns, max_ns) = (self.slice_min_ns, self.slice_max_ns);
        if min_ns == 0 || min_ns > max_ns {
            let text = format!("policy.slice_min_ns: is {min_ns}; allowed: 1 to slice_max_ns ({max_ns})");
            return Err(SimError::Config(text));
        }
        Ok(())
    }
}

struct Queue {
    waiting: VecDeque<TaskId>,
    rng: Rng,
    slice_ns: Ns,
}

pub struct RoundRobin {
    config: RoundRobinConfig,
    queues: Vec<Queue>,
    lens: Vec<u32>,
}

impl RoundRobin {
    pub fn new(config: RoundRobinConfig) -> Self {
        Self { config, queues: Vec::new(), lens: Vec::new() }
    }

    fn queue_mut(&mut self, cpu: CpuId) -> &mut VecDeque<TaskId> {
        let at = if self.config.shared_queue { 0 } else { cpu.index() };
        &mut self.queues[at].waiting
    }
}

impl Class for RoundRobin {
    fn init(&mut self, core: &mut Core) {
        let queue = |cpu: CpuId| Queue {
            waiting: VecDeque::new(),
            rng: Rng::derive(core.seed, Stream::Cpu, u64::from(cpu.0)),
            slice_ns: 0,
        };
        self.queues = core.machine.all().map(queue).collect();
        self.lens = vec![0; core.cpus.len()];
    }

    fn select_cpu(&mut self, core: &mut Core, task: TaskId, prev: CpuId, _why: Enqueue) -> CpuId {
        if !self.config.shared_queue || !core.cpu(prev).is_busy() && !core.cpu(prev).needs_resched {
            return prev;
        }
        let free = core.idle.iter().find(|cpu| !core.cpu(*cpu).needs_resched && core.can_run_on(task, *cpu));
        free.unwrap_or(prev)
    }

    fn enqueue(&mut self, core: &mut Core, task: TaskId, why: Enqueue) {
        let cpu = core.task(task).cpu;
        self.lens[cpu.index()] += 1;
        if why != Enqueue::RestoreRunning {
            self.queue_mut(cpu).push_back(task);
        }
    }

    fn dequeue(&mut self, core: &mut Core, task: TaskId, _why: Dequeue) {
        let known = core.task(task);
        let (cpu, running) = (known.cpu, known.state == State::Running);
        self.lens[cpu.index()] -= 1;
        if !running {
            self.queue_mut(cpu).retain(|other| *other != task);
        }
    }

    fn preempt_wakeup(&mut self, _core: &mut Core, _task: TaskId) {}

    fn update_curr(&mut self, core: &mut Core, cpu: CpuId) {
        core.charge(cpu);
    }

    fn pick(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> Option<TaskId> {
        let goes_on = prev.filter(|id| core.task(*id).state == State::Running);
        let queue = if self.config.shared_queue { 0 } else { cpu.index() };
        let waiting = &self.queues[queue].waiting;
        // Pinned tasks are few in a shared queue, and none in a pCPU's own.
        let first = waiting.iter().position(|id| !self.config.shared_queue || core.can_run_on(*id, cpu));
        match first {
            Some(0) => self.queues[queue].waiting.front().copied(),
            Some(at) => self.queues[queue].waiting.get(at).copied(),
            None => goes_on,
        }
    }

    fn put_prev(&mut self, core: &mut Core, cpu: CpuId, prev: TaskId) {
        self.queue_mut(cpu).push_back(prev);
        if self.config.shared_queue && !core.idle.is_empty() {
            // The one that comes may be pinned here, and this one may not be.
            let free =
                core.idle.iter().find(|idle| !core.cpu(*idle).needs_resched && core.can_run_on(prev, *idle));
            if let Some(idle) = free {
                core.resched(idle);
            }
        }
    }

    fn set_next(&mut self, core: &mut Core, cpu: CpuId, next: TaskId) {
        let queue = self.queue_mut(cpu);
        if queue.front() == Some(&next) {
            queue.pop_front();
        } else {
            queue.retain(|other| *other != next);
        }
        let from = core.task(next).cpu;
        if from != cpu {
            self.lens[from.index()] -= 1;
            self.lens[cpu.index()] += 1;
            core.set_task_cpu(next, cpu);
        }
        let (min_ns, max_ns) = (self.config.slice_min_ns, self.config.slice_max_ns);
        let queue = &mut self.queues[cpu.index()];
        queue.slice_ns = min_ns + queue.rng.below((max_ns - min_ns) / 1_000 + 1) * 1_000;
    }

    fn tick(&mut self, core: &mut Core, cpu: CpuId) {
        core.charge(cpu);
    }

    fn exact_slice_ns(&self, _core: &Core, cpu: CpuId) -> Option<Ns> {
        Some(self.queues[cpu.index()].slice_ns).filter(|slice_ns| *slice_ns < Ns::MAX / 2)
    }

    fn slice_end(&mut self, core: &mut Core, cpu: CpuId) {
        let queue = if self.config.shared_queue { 0 } else { cpu.index() };
        let waits = |id: &TaskId| !self.config.shared_queue || core.can_run_on(*id, cpu);
        if !self.queues[queue].waiting.iter().any(waits) {
            // Nobody to make room for: another slice.
            let (turn, slice_ns) = (core.cpu(cpu).turn, self.queues[cpu.index()].slice_ns);
            core.events.push(core.now_ns + slice_ns, Event::SliceEnd { cpu, turn });
        } else {
            core.resched(cpu);
        }
    }

    fn yield_now(&mut self, _core: &mut Core, _task: TaskId) {}

    fn queue_len(&self, cpu: CpuId) -> u32 {
        self.lens[cpu.index()]
    }

    fn first_waiting(&self, _core: &Core, cpu: CpuId) -> Option<TaskId> {
        if self.config.shared_queue {
            return None;
        }
        self.queues[cpu.index()].waiting.front().copied()
    }
}
