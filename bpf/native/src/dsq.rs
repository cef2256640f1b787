// SPDX-License-Identifier: GPL-2.0-only
//! Dispatch queues: the pCPUs' local ones, the global one, and the scheduler's own, each either FIFO or ordered by virtual time.

use crate::task::{Queue, TaskId};
use crate::world::{Event, World};

pub const DSQ_GLOBAL: u64 = 0x8000_0000_0000_0001;
pub const DSQ_LOCAL: u64 = 0x8000_0000_0000_0002;
pub const DSQ_LOCAL_ON: u64 = 0xC000_0000_0000_0000;
pub const ENQ_WAKEUP: u64 = 1;
pub const ENQ_HEAD: u64 = 1 << 4;
pub const ENQ_PREEMPT: u64 = 1 << 32;
/// The kernel's own mark for insertion by virtual time.
pub const ENQ_PRIQ: u64 = 1 << 57;

#[derive(Default)]
pub struct Dsq {
    pub tasks: Vec<TaskId>,
    /// Counts insertions, so that a walk can skip what came after it began.
    pub seq: u64,
    /// What the queued tasks were inserted by; a queue takes one kind at a time.
    by_vtime: bool,
}

/// Both wrap.
fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

impl World {
    /// Carry out what the scheduler decided for a task that is being enqueued.
    pub(crate) fn insert(&mut self, id: TaskId, dsq: u64, flags: u64) {
        if dsq == DSQ_LOCAL {
            self.insert_local(self.task(id).cpu, id, flags);
        } else if dsq == DSQ_GLOBAL {
            self.insert_global(id);
        } else if dsq & DSQ_LOCAL_ON == DSQ_LOCAL_ON {
            let cpu = (dsq & 0xffff_ffff) as usize;
            assert!(cpu < self.cpus.len(), "invalid CPU {cpu} in SCX_DSQ_LOCAL_ON");
            match self.can_move_to(id, cpu) {
                Ok(true) => {
                    self.task_mut(id).cpu = cpu;
                    self.insert_local(cpu, id, flags);
                }
                Ok(false) => self.insert_global(id),
                Err(reason) => panic!("at {} ns: the kernel ejects the scheduler: {reason}", self.now_ns),
            }
        } else {
            self.insert_user(id, dsq, flags);
        }
    }

    pub(crate) fn insert_local(&mut self, cpu: usize, id: TaskId, flags: u64) {
        let local = &mut self.cpus[cpu].local;
        if flags & (ENQ_HEAD | ENQ_PREEMPT) != 0 {
            local.push_front(id)
        } else {
            local.push_back(id)
        }
        self.task_mut(id).queue = Some(Queue::Local(cpu));
        if !self.cpus[cpu].online {
            self.after(self.config.ipi_ns, Event::Push(cpu));
            return;
        }
        if self.cpus[cpu].in_balance {
            return;
        }
        match self.cpus[cpu].curr {
            None => self.resched(cpu),
            Some(curr) if flags & ENQ_PREEMPT != 0 && curr != id => {
                self.task_mut(curr).set_slice(0);
                self.resched(cpu);
            }
            Some(_) => {}
        }
    }

    pub(crate) fn insert_global(&mut self, id: TaskId) {
        self.global.push_back(id);
        self.task_mut(id).queue = Some(Queue::Global);
    }

    fn insert_user(&mut self, id: TaskId, dsq_id: u64, flags: u64) {
        let vtime = self.task(id).vtime;
        let by_vtime = flags & ENQ_PRIQ != 0;
        let dsq = self.dsqs.get(&dsq_id).unwrap_or_else(|| panic!("non-existent DSQ {dsq_id:#x}"));
        assert!(
            dsq.tasks.is_empty() || dsq.by_vtime == by_vtime,
            "DSQ {dsq_id:#x} used both as FIFO and by vtime"
        );
        let at = if by_vtime {
            dsq.tasks
                .iter()
                .position(|other| before(vtime, self.task(*other).vtime))
                .unwrap_or(dsq.tasks.len())
        } else if flags & (ENQ_HEAD | ENQ_PREEMPT) != 0 {
            0
        } else {
            dsq.tasks.len()
        };
        let Some(dsq) = self.dsqs.get_mut(&dsq_id) else { return };
        dsq.by_vtime = by_vtime;
        dsq.seq += 1;
        dsq.tasks.insert(at, id);
        let seq = dsq.seq;
        let task = self.task_mut(id);
        task.queue = Some(Queue::User(dsq_id));
        task.dsq_seq = seq;
    }

    /// Take a task out of the queue where it waits.
    pub(crate) fn unqueue(&mut self, id: TaskId) {
        match self.task_mut(id).queue.take() {
            Some(Queue::Local(cpu)) => self.cpus[cpu].local.retain(|other| *other != id),
            Some(Queue::Global) => self.global.retain(|other| *other != id),
            Some(Queue::User(dsq)) => {
                if let Some(dsq) = self.dsqs.get_mut(&dsq) {
                    dsq.tasks.retain(|other| *other != id);
                }
            }
            None => {}
        }
    }

    /// May the scheduler move a waiting task to this other pCPU? `Ok(false)`: not now; an error ejects the scheduler.
    pub(crate) fn can_move_to(&self, id: TaskId, cpu: usize) -> Result<bool, String> {
        let task = self.task(id);
        if task.cpu == cpu {
            return Ok(true);
        }
        let from = task.cpu;
        if task.migration_disabled {
            return Err(format!("cannot move migration disabled {id:?} from CPU {from} to {cpu}"));
        }
        if !task.allowed(cpu) {
            return Err(format!("SCX_DSQ_LOCAL[_ON] target CPU {cpu} not allowed for {id:?}"));
        }
        Ok(self.cpus[cpu].online)
    }

    /// Move a waiting task to a pCPU's local queue.
    pub(crate) fn move_to_local(&mut self, id: TaskId, cpu: usize, flags: u64) {
        self.unqueue(id);
        self.task_mut(id).cpu = cpu;
        self.insert_local(cpu, id, flags);
    }

    /// Move the first task of a queue that can run on this pCPU to its local queue.
    pub(crate) fn consume(&mut self, from: Queue, cpu: usize) -> bool {
        let tasks: Vec<TaskId> = match from {
            Queue::Global => self.global.iter().copied().collect(),
            Queue::User(dsq) => self.dsqs.get(&dsq).map(|dsq| dsq.tasks.clone()).unwrap_or_default(),
            Queue::Local(_) => Vec::new(),
        };
        let found = tasks.into_iter().find(|id| self.can_move_to(*id, cpu) == Ok(true));
        if let Some(id) = found {
            self.move_to_local(id, cpu, 0);
        }
        found.is_some()
    }
}
