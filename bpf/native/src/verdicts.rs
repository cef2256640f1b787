// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler may ask of its tasks and queues, and what comes of it.

use crate::dsq::{DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PRIQ};
use crate::ffi::{DsqIter, TaskStruct};
use crate::ops::OpKind;
use crate::task::{Queue, TaskId};
use crate::world::World;

/// Walk a queue backwards.
pub const ITER_REV: u64 = 1 << 16;
/// The kernel's own mark: scx_bpf_dsq_move_set_slice() was called.
pub const ITER_HAS_SLICE: u64 = 1 << 30;
/// Flags that sched_ext keeps for itself.
const ENQ_INTERNAL: u64 = 0xff00_0000_0000_0000;

impl World {
    pub(crate) fn cpu_of(&mut self, cpu: i32) -> Option<usize> {
        let found = usize::try_from(cpu).ok().filter(|cpu| *cpu < self.cpus.len());
        if found.is_none() {
            self.refuse(format!("invalid CPU {cpu}"));
        }
        found
    }

    pub(crate) fn claim_idle(&mut self, cpu: usize) -> bool {
        std::mem::take(&mut self.cpus[cpu].idle)
    }

    pub(crate) fn insert_verdict(&mut self, p: *mut TaskStruct, dsq: u64, slice: u64, flags: u64) {
        if !self.may("scx_bpf_dsq_insert", &[OpKind::SelectCpu, OpKind::Enqueue, OpKind::Dispatch], false) {
            return;
        }
        let Some(id) = self.task_at(p) else { return self.refuse("dsq_insert: no such task") };
        if flags & ENQ_INTERNAL & !ENQ_PRIQ != 0 {
            self.refuse(format!("invalid enq_flags {flags:#x}"));
        }
        if dsq & (1 << 63) != 0 && flags & ENQ_PRIQ != 0 {
            self.refuse("cannot use vtime ordering for built-in DSQs");
        }
        if dsq & (1 << 63) == 0 && !self.dsqs.contains_key(&dsq) {
            self.refuse(format!("non-existent DSQ {dsq:#x}"));
        }
        let Some(op) = &self.op else { return };
        if op.kind == OpKind::Dispatch {
            // A task that is in a queue already is none the dispatch could insert; the kernel ignores it.
            return;
        }
        if op.subjects != [id] {
            return self
                .refuse(format!("scheduling for {:?} but trying to direct-dispatch {id:?}", op.subjects));
        }
        if self.task(id).verdict.is_some() {
            return self.refuse(format!("{id:?} already direct-dispatched"));
        }
        let task = self.task_mut(id);
        task.set_slice(if slice > 0 { slice } else { task.slice().max(1) });
        task.verdict = Some((dsq, flags));
    }

    pub(crate) fn dsq_move(&mut self, iter: &mut DsqIter, p: *mut TaskStruct, dsq: u64, flags: u64) -> bool {
        let slice = (iter.flags & ITER_HAS_SLICE != 0).then_some(iter.slice);
        iter.flags &= !ITER_HAS_SLICE;
        if !self.may("scx_bpf_dsq_move", &[OpKind::Dispatch], true) {
            return false;
        }
        let Some(id) = self.task_at(p) else { return false };
        if self.task(id).queue != Some(Queue::User(iter.dsq)) || self.task(id).dsq_seq > iter.seq {
            return false;
        }
        if let Some(slice) = slice {
            self.task_mut(id).set_slice(slice);
        }
        let cpu = match dsq {
            DSQ_LOCAL => self.this_cpu,
            on if on & DSQ_LOCAL_ON == DSQ_LOCAL_ON && ((on & 0xffff_ffff) as usize) < self.cpus.len() => {
                (on & 0xffff_ffff) as usize
            }
            other => {
                self.refuse(format!("the model does not move tasks to DSQ {other:#x}"));
                return false;
            }
        };
        match self.can_move_to(id, cpu) {
            Ok(true) => self.move_to_local(id, cpu, flags),
            Ok(false) => {
                self.unqueue(id);
                self.insert_global(id);
            }
            Err(reason) => self.refuse(reason),
        }
        true
    }

    /// The next task of a walk, forwards or backwards; what came after the walk began is not part of it.
    pub(crate) fn iter_next(&mut self, iter: &mut DsqIter) -> Option<TaskId> {
        let dsq = self.dsqs.get(&iter.dsq)?;
        let reverse = iter.flags & ITER_REV != 0;
        let place = |id: &TaskId| dsq.tasks.iter().position(|other| other == id);
        let mut walk: Vec<TaskId> = match iter.last.checked_sub(1).map(|last| TaskId(last as usize)) {
            None if reverse => dsq.tasks.iter().rev().copied().collect(),
            None => dsq.tasks.clone(),
            // The task returned last may have been moved away; then the walk goes on at where it was.
            Some(last) if reverse => {
                dsq.tasks[..place(&last).unwrap_or(iter.index as usize)].iter().rev().copied().collect()
            }
            Some(last) => dsq.tasks[place(&last).map_or(iter.index as usize, |at| at + 1)..].to_vec(),
        };
        walk.retain(|id| self.task(*id).dsq_seq <= iter.seq);
        let found = walk.first().copied();
        iter.last = found.map_or(0, |id| id.0 as u64 + 1);
        iter.index = found.and_then(|id| place(&id)).map_or(iter.index, |at| at as u64);
        found
    }

    pub(crate) fn select_cpu_dfl(&mut self, id: TaskId, prev_cpu: usize) -> Option<usize> {
        let task = self.task(id);
        let allowed: Vec<usize> = (0..self.cpus.len()).filter(|cpu| task.allowed(*cpu)).collect();
        let prev_only = task.kern().nr_cpus_allowed == 1 || task.migration_disabled;
        if allowed.contains(&prev_cpu) && self.claim_idle(prev_cpu) {
            return Some(prev_cpu);
        }
        allowed.into_iter().find(|cpu| !prev_only && self.claim_idle(*cpu))
    }
}
