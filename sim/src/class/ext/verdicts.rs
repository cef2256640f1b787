// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler may ask of its tasks and queues, and what comes of it.

use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::machine::Distance;
use crate::tree::Key;

use super::class::WAKE_SYNC;
use super::dsq::{DSQ_GLOBAL, DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PRIQ};
use super::ffi::{DsqIter, TaskStruct};
use super::ops::{one, OpKind};
use super::task::{KernTask, Queue, ID_STOPPER};
use super::Ext;

/// Walk a queue backwards.
pub const ITER_REV: u32 = 1 << 16;
/// The kernel's own marks: scx_bpf_dsq_move_set_slice() or _vtime() was called.
pub const ITER_HAS_SLICE: u32 = 1 << 30;
pub const ITER_HAS_VTIME: u32 = 1 << 31;
/// Flags that sched_ext keeps for itself.
const ENQ_INTERNAL: u64 = 0xff00_0000_0000_0000;

/// The task that the scheduler means by this pointer.
pub fn task_at(p: *const TaskStruct) -> Option<TaskId> {
    // SAFETY: the scheduler has its tasks from the model, where each is the first field of a KernTask that lives as long as the simulation.
    let id = (!p.is_null()).then(|| unsafe { (*p.cast::<KernTask>()).id });
    // Not the idle task, nor one of another class.
    id.filter(|id| id.0 < ID_STOPPER)
}

/// Was the task queued after the walk began? (u32_before())
fn comes_after(task: u64, walk: u32) -> bool {
    (task as u32).wrapping_sub(walk) as i32 > 0
}

impl Ext {
    pub(super) fn cpu_of(&mut self, cpu: i32) -> Option<CpuId> {
        let found = u32::try_from(cpu).ok().filter(|cpu| (*cpu as usize) < self.cpus.len()).map(CpuId);
        if found.is_none() {
            self.refuse(format!("invalid CPU {cpu}"));
        }
        found
    }

    pub(super) fn claim_idle(&mut self, cpu: CpuId) -> bool {
        let idle = self.idle.has(cpu);
        self.idle.remove(cpu);
        // The scheduler may be looking at it.
        self.idle_mask.0[cpu.index() / 64] &= !(1 << (cpu.index() % 64));
        idle
    }

    pub(super) fn insert_verdict(&mut self, p: *mut TaskStruct, dsq: u64, slice: u64, flags: u64) {
        if !self.may("scx_bpf_dsq_insert", &[OpKind::SelectCpu, OpKind::Enqueue, OpKind::Dispatch], false) {
            return;
        }
        let Some(id) = task_at(p) else { return self.refuse("dsq_insert: no such task") };
        if flags & ENQ_INTERNAL & !ENQ_PRIQ != 0 {
            self.refuse(format!("invalid enq_flags {flags:#x}"));
        }
        if dsq & (1 << 63) != 0 && flags & ENQ_PRIQ != 0 {
            self.refuse("cannot use vtime ordering for built-in DSQs");
        }
        if dsq & (1 << 63) == 0 && self.dsq_index(dsq).is_none() {
            self.refuse(format!("non-existent DSQ {dsq:#x}"));
        }
        let Some(op) = self.op else { return };
        if op.kind == OpKind::Dispatch {
            // A task that is in a queue already is none the dispatch could insert; the kernel ignores it.
            return;
        }
        if op.subjects != one(id) {
            let about = op.subjects;
            return self.refuse(format!("scheduling for {about:?} but trying to direct-dispatch {id:?}"));
        }
        if self.tasks[id.index()].verdict.is_some() {
            return self.refuse(format!("{id:?} already direct-dispatched"));
        }
        let task = &mut self.tasks[id.index()];
        task.set_slice(if slice > 0 { slice } else { task.slice().max(1) });
        task.verdict = Some((dsq, flags));
    }

    pub(super) fn dsq_move(
        &mut self,
        core: &mut Core,
        iter: &mut DsqIter,
        p: *mut TaskStruct,
        dsq: u64,
        flags: u64,
    ) -> bool {
        let slice = (iter.flags & ITER_HAS_SLICE != 0).then_some(iter.slice);
        let vtime = (iter.flags & ITER_HAS_VTIME != 0).then_some(iter.vtime);
        iter.flags &= !(ITER_HAS_SLICE | ITER_HAS_VTIME);
        if !self.may("scx_bpf_dsq_move", &[OpKind::Dispatch], true) {
            return false;
        }
        if flags & ENQ_INTERNAL & !ENQ_PRIQ != 0 {
            self.refuse(format!("invalid enq_flags {flags:#x}"));
            return false;
        }
        if dsq & (1 << 63) != 0 && flags & ENQ_PRIQ != 0 {
            self.refuse("cannot use vtime ordering for built-in DSQs");
            return false;
        }
        let Some(id) = task_at(p) else { return false };
        let task = &mut self.tasks[id.index()];
        if task.queue != Some(Queue::User(iter.dsq)) || comes_after(task.dsq_seq, iter.seq) {
            return false;
        }
        if let Some(slice) = slice {
            task.set_slice(slice);
        }
        if let Some(vtime) = vtime {
            task.vtime = vtime;
        }
        let cpu = match dsq {
            DSQ_LOCAL => core.this_cpu,
            DSQ_GLOBAL => {
                self.unqueue(id);
                self.insert_global(id);
                return true;
            }
            on if on & DSQ_LOCAL_ON == DSQ_LOCAL_ON && ((on & 0xffff_ffff) as usize) < core.cpus.len() => {
                CpuId((on & 0xffff_ffff) as u32)
            }
            user if self.dsq_index(user).is_some() => {
                // It stays the same pCPU's, as far as the kernel is concerned.
                self.unqueue(id);
                self.insert_user(core, id, user, flags);
                return true;
            }
            other => {
                self.refuse(format!("non-existent DSQ {other:#x}"));
                return false;
            }
        };
        match self.can_move_to(core, id, cpu) {
            Ok(true) => self.move_to_local(core, id, cpu, flags),
            Ok(false) => {
                self.unqueue(id);
                self.insert_global(id);
            }
            Err(reason) => self.refuse(reason),
        }
        true
    }

    pub(super) fn iter_new(&mut self, dsq: u64, flags: u64) -> Option<DsqIter> {
        let index = self.dsq_index(dsq).filter(|_| flags & !u64::from(ITER_REV) == 0)?;
        let seq = self.dsqs[index as usize].seq as u32;
        Some(DsqIter { dsq: index, seq, flags: flags as u32, ..DsqIter::default() })
    }

    /// The next task of a walk, forwards or backwards; what came after the walk began is not part of it.
    pub(super) fn iter_next(&self, iter: &mut DsqIter) -> Option<TaskId> {
        let dsq = self.dsqs.get(iter.dsq as usize)?;
        let backwards = iter.flags & ITER_REV != 0;
        let step = |id: u32| if backwards { self.forest.prev(id) } else { self.forest.next(id) };
        let mut at = match iter.last.checked_sub(1) {
            None if backwards => self.forest.last(&dsq.tasks),
            None => self.forest.first(&dsq.tasks),
            Some(last) if self.is_at(last, iter.dsq, iter.key) => step(last),
            // It has been moved away; the walk goes on at where it was.
            Some(_) => self.forest.seek(&dsq.tasks, iter.key, backwards),
        };
        while let Some(id) = at.filter(|id| comes_after(self.tasks[*id as usize].dsq_seq, iter.seq)) {
            at = step(id);
        }
        let found = at?;
        iter.last = found + 1;
        iter.key = self.forest.key(found);
        Some(TaskId(found))
    }

    fn is_at(&self, id: u32, dsq: u32, key: Key) -> bool {
        self.tasks[id as usize].queue == Some(Queue::User(dsq)) && self.forest.key(id) == key
    }

    /// Do all threads of this pCPU's core idle (`idle_smts`)?
    fn idles_whole(&self, core: &Core, cpu: CpuId) -> bool {
        core.machine.core_of(cpu).all(|thread| self.idle.has(thread) || !core.cpu(thread).online)
    }

    /// The first pCPU that idles with all of its core, of those that pass; none where cores have one thread.
    fn first_whole(&self, core: &Core, may: impl Fn(CpuId) -> bool) -> Option<CpuId> {
        if core.machine.threads_per_core() == 1 {
            return None;
        }
        self.idle.iter().find(|cpu| may(*cpu) && self.idles_whole(core, *cpu))
    }

    /// pick_idle_cpu_in_node(): a whole core first. The kernel goes on behind the one that it found last (cpumask_any_and_distribute()); here it is always the
    /// first one.
    pub(super) fn first_idle(&self, core: &Core, may: impl Fn(CpuId) -> bool) -> Option<CpuId> {
        self.first_whole(core, &may).or_else(|| self.idle.iter().find(|cpu| may(*cpu)))
    }

    /// scx_select_cpu_dfl(), without its preferences among caches and nodes. With SCX_WAKE_SYNC the waker's pCPU counts as idle, as long as any is.
    pub(super) fn select_cpu_dfl(
        &mut self,
        core: &Core,
        id: TaskId,
        prev: CpuId,
        flags: u64,
    ) -> Option<CpuId> {
        let task = core.task(id);
        let may_stay = task.may_use(prev);
        if task.is_pinned() {
            return Some(prev).filter(|_| may_stay && self.claim_idle(prev));
        }
        let here = core.this_cpu;
        if flags & WAKE_SYNC != 0 {
            let is_near = core.machine.distance(here, prev) <= Distance::Cache;
            if is_near && may_stay && self.claim_idle(prev) {
                return Some(prev);
            }
            let is_free = self.cpus[here.index()].local.is_empty() && !self.idle.is_empty();
            if is_free && task.may_use(here) {
                self.claim_idle(here);
                return Some(here);
            }
        }
        let has_threads = core.machine.threads_per_core() > 1;
        let stays_whole = has_threads && may_stay && self.idles_whole(core, prev);
        if !stays_whole {
            if let Some(found) = self.first_whole(core, |cpu| task.may_use(cpu)) {
                self.claim_idle(found);
                return Some(found);
            }
        }
        if may_stay && self.claim_idle(prev) {
            return Some(prev);
        }
        if has_threads {
            let mut threads = core.machine.core_of(prev);
            if let Some(found) = threads.find(|cpu| task.may_use(*cpu) && self.idle.has(*cpu)) {
                self.claim_idle(found);
                return Some(found);
            }
        }
        let found = match &task.allowed {
            None => self.idle.iter().next(),
            Some(allowed) => self.idle.first_in_both(allowed, CpuId(0)),
        };
        found.filter(|cpu| self.claim_idle(*cpu))
    }
}
