// SPDX-License-Identifier: GPL-2.0-only
//! Dispatch queues (kernel/sched/ext.c): the pCPUs' local ones, the global one, and the scheduler's own, each either FIFO or ordered by virtual time.

use crate::events::Event;
use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::tree::Tree;

use super::task::Queue;
use super::Ext;

pub const DSQ_GLOBAL: u64 = 0x8000_0000_0000_0001;
pub const DSQ_LOCAL: u64 = 0x8000_0000_0000_0002;
pub const DSQ_LOCAL_ON: u64 = 0xC000_0000_0000_0000;
pub const ENQ_WAKEUP: u64 = 1;
pub const ENQ_HEAD: u64 = 1 << 4;
pub const ENQ_PREEMPT: u64 = 1 << 32;
pub const ENQ_REENQ: u64 = 1 << 40;
/// The kernel's own mark for insertion by virtual time.
pub const ENQ_PRIQ: u64 = 1 << 57;

/// One of the scheduler's own queues.
#[derive(Default)]
pub struct Dsq {
    pub tasks: Tree,
    /// Counts insertions, so that a walk can skip what came after it began.
    pub seq: u64,
    /// What the queued tasks were inserted by; a queue takes one kind at a time.
    by_vtime: bool,
}

impl Ext {
    /// The number of the scheduler's queue with this name.
    pub(super) fn dsq_index(&self, id: u64) -> Option<u32> {
        // A scheduler names its queues from 0 on, as a rule; then no search is needed.
        match self.dsq_names.get(id as usize) {
            Some(name) if *name == id && id < u64::from(u32::MAX) => Some(id as u32),
            _ => self.dsq_names.iter().position(|name| *name == id).map(|at| at as u32),
        }
    }

    /// A waiting or running task's pCPU is another one from now on.
    pub(super) fn set_cpu(&mut self, core: &mut Core, id: TaskId, cpu: CpuId) {
        let from = core.task(id).cpu;
        if from != cpu && self.tasks[id.index()].is_queued() {
            self.cpus[from.index()].running -= 1;
            self.cpus[cpu.index()].running += 1;
        }
        core.set_task_cpu(id, cpu);
    }

    /// Carry out what the scheduler decided for a task that is being enqueued.
    pub(super) fn insert(&mut self, core: &mut Core, id: TaskId, dsq: u64, flags: u64) {
        if dsq == DSQ_LOCAL {
            self.insert_local(core, core.task(id).cpu, id, flags);
        } else if dsq == DSQ_GLOBAL {
            self.insert_global(id);
        } else if dsq & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
            let cpu = (dsq & 0xffff_ffff) as u32;
            if cpu as usize >= core.cpus.len() {
                return self.insert_refused(core, id, format!("invalid CPU {cpu} in SCX_DSQ_LOCAL_ON"));
            }
            match self.can_move_to(core, id, CpuId(cpu)) {
                Ok(true) => {
                    self.set_cpu(core, id, CpuId(cpu));
                    self.insert_local(core, CpuId(cpu), id, flags);
                }
                Ok(false) => self.insert_global(id),
                Err(reason) => self.insert_refused(core, id, reason),
            }
        } else {
            self.insert_user(core, id, dsq, flags);
        }
    }

    /// The kernel ejects the scheduler, and the task goes where the kernel would put it.
    pub(super) fn insert_refused(&mut self, core: &mut Core, id: TaskId, reason: String) {
        core.fail(crate::SimError::Refused { at_ns: core.now_ns, op: "enqueue", reason });
        self.insert_global(id);
    }

    pub(super) fn insert_local(&mut self, core: &mut Core, cpu: CpuId, id: TaskId, flags: u64) {
        let local = &mut self.cpus[cpu.index()].local;
        if flags & (ENQ_HEAD | ENQ_PREEMPT) != 0 {
            local.push_front(id);
        } else {
            local.push_back(id);
        }
        self.tasks[id.index()].queue = Some(Queue::Local(cpu.index()));
        let target = core.cpu(cpu);
        if !target.online {
            core.events.push(core.now_ns + core.machine.costs.ipi_ns, Event::Push(cpu));
        } else if !target.picking {
            match target.curr {
                None => core.resched(cpu),
                Some(curr) if flags & ENQ_PREEMPT != 0 && curr != id => {
                    self.tasks[curr.index()].set_slice(0);
                    core.resched(cpu);
                }
                Some(_) => {}
            }
        }
    }

    pub(super) fn insert_global(&mut self, id: TaskId) {
        self.global.push_back(id);
        self.tasks[id.index()].queue = Some(Queue::Global);
    }

    pub(super) fn insert_user(&mut self, core: &mut Core, id: TaskId, name: u64, flags: u64) {
        let by_vtime = flags & ENQ_PRIQ != 0;
        let Some(index) = self.dsq_index(name) else {
            return self.insert_refused(core, id, format!("non-existent DSQ {name:#x}"));
        };
        let dsq = &mut self.dsqs[index as usize];
        if !dsq.tasks.is_empty() && dsq.by_vtime != by_vtime {
            return self.insert_refused(core, id, format!("DSQ {name:#x} used both as FIFO and by vtime"));
        }
        dsq.by_vtime = by_vtime;
        dsq.seq += 1;
        let task = &mut self.tasks[id.index()];
        // Virtual time wraps; as signed numbers it is in order around any present.
        let key = if by_vtime {
            (task.vtime as i64, dsq.seq)
        } else if flags & (ENQ_HEAD | ENQ_PREEMPT) != 0 {
            (-(dsq.seq as i64), 0)
        } else {
            (dsq.seq as i64, 0)
        };
        self.forest.insert(&mut dsq.tasks, id.0, key, 0);
        task.queue = Some(Queue::User(index));
        task.dsq_seq = dsq.seq;
    }

    /// Take a task out of the queue where it waits.
    pub(super) fn unqueue(&mut self, id: TaskId) {
        match self.tasks[id.index()].queue.take() {
            Some(Queue::Local(cpu)) => {
                let local = &mut self.cpus[cpu].local;
                if local.front() == Some(&id) {
                    local.pop_front();
                } else {
                    local.retain(|other| *other != id);
                }
            }
            Some(Queue::Global) => self.global.retain(|other| *other != id),
            Some(Queue::User(dsq)) => self.forest.remove(&mut self.dsqs[dsq as usize].tasks, id.0),
            None => {}
        }
    }

    /// May the scheduler move a waiting task to this other pCPU? `Ok(false)`: not now; an error ejects the scheduler (task_can_run_on_remote_rq()).
    pub(super) fn can_move_to(&self, core: &Core, id: TaskId, cpu: CpuId) -> Result<bool, String> {
        let task = core.task(id);
        if task.cpu == cpu {
            return Ok(true);
        }
        if task.migration_disabled {
            let from = task.cpu.0;
            return Err(format!("cannot move migration disabled {id:?} from CPU {from} to {}", cpu.0));
        }
        if !task.may_use(cpu) {
            return Err(format!("SCX_DSQ_LOCAL[_ON] target CPU {} not allowed for {id:?}", cpu.0));
        }
        Ok(core.cpu(cpu).online)
    }

    /// Move a waiting task to a pCPU's local queue.
    pub(super) fn move_to_local(&mut self, core: &mut Core, id: TaskId, cpu: CpuId, flags: u64) {
        self.unqueue(id);
        self.set_cpu(core, id, cpu);
        self.insert_local(core, cpu, id, flags);
    }

    /// Move the first task of a queue that can run on this pCPU to its local queue (consume_dispatch_q()).
    pub(super) fn consume(&mut self, core: &mut Core, from: Queue, cpu: CpuId) -> bool {
        let can = |id: &TaskId| self.can_move_to(core, *id, cpu) == Ok(true);
        let found = match from {
            Queue::Global => self.global.iter().copied().find(can),
            Queue::User(dsq) => self.forest.iter(&self.dsqs[dsq as usize].tasks).map(TaskId).find(can),
            Queue::Local(_) => None,
        };
        if let Some(id) = found {
            self.move_to_local(core, id, cpu, 0);
        }
        found.is_some()
    }
}
