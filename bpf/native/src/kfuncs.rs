// SPDX-License-Identifier: GPL-2.0-only
//! The functions of the kernel that the scheduler calls: each one's rules, then the model. They never panic, which could not cross C:
//! what the kernel would refuse is noted, and ends the world when the operation returns.

use std::ffi::c_char;
use std::ptr;

use crate::dsq::{Dsq, DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PRIQ};
use crate::ffi::{Cgroup, CpuMask, DsqIter, TaskStruct};
use crate::ops::{with_world, OpKind};
use crate::task::{Queue, TaskId};
use crate::world::World;

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const KICK_IDLE: u64 = 1;
const ITER_REV: u64 = 1 << 16;
/// The kernel's own mark: scx_bpf_dsq_move_set_slice() was called.
const ITER_HAS_SLICE: u64 = 1 << 30;
/// Flags that sched_ext keeps for itself.
const ENQ_INTERNAL: u64 = 0xff00_0000_0000_0000;

type TaskPtr = *mut TaskStruct;

impl World {
    fn cpu_of(&mut self, cpu: i32) -> Option<usize> {
        let found = usize::try_from(cpu).ok().filter(|cpu| *cpu < self.cpus.len());
        if found.is_none() {
            self.refuse(format!("invalid CPU {cpu}"));
        }
        found
    }

    fn claim_idle(&mut self, cpu: usize) -> bool {
        std::mem::take(&mut self.cpus[cpu].idle)
    }

    fn insert_verdict(&mut self, p: TaskPtr, dsq: u64, slice: u64, flags: u64) {
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

    fn dsq_move(&mut self, iter: &mut DsqIter, p: TaskPtr, dsq: u64, flags: u64) -> bool {
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
    fn iter_next(&mut self, iter: &mut DsqIter) -> Option<TaskId> {
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

    fn select_cpu_dfl(&mut self, id: TaskId, prev_cpu: usize) -> Option<usize> {
        let task = self.task(id);
        let allowed: Vec<usize> = (0..self.cpus.len()).filter(|cpu| task.allowed(*cpu)).collect();
        let prev_only = task.kern().nr_cpus_allowed == 1 || task.migration_disabled;
        if allowed.contains(&prev_cpu) && self.claim_idle(prev_cpu) {
            return Some(prev_cpu);
        }
        allowed.into_iter().find(|cpu| !prev_only && self.claim_idle(*cpu))
    }
}

#[no_mangle]
pub extern "C" fn scx_bpf_create_dsq(dsq: u64, _node: i32) -> i32 {
    with_world(|w| {
        if !w.may("scx_bpf_create_dsq", &[], true) || w.dsqs.contains_key(&dsq) {
            return -EEXIST;
        }
        w.dsqs.insert(dsq, Dsq::default());
        0
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_insert(p: TaskPtr, dsq: u64, slice: u64, flags: u64) {
    with_world(|w| w.insert_verdict(p, dsq, slice, flags));
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_insert_vtime(p: TaskPtr, dsq: u64, slice: u64, vtime: u64, flags: u64) {
    with_world(|w| {
        match w.task_at(p).map(|id| w.task_mut(id)) {
            Some(task) if task.queue.is_none() => task.vtime = vtime,
            _ => w.refuse("dsq_vtime of a queued task changed"),
        }
        w.insert_verdict(p, dsq, slice, flags | ENQ_PRIQ);
    });
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move_to_local(dsq: u64) -> bool {
    with_world(|w| {
        if !w.may("scx_bpf_dsq_move_to_local", &[OpKind::Dispatch], false) {
            return false;
        }
        if !w.dsqs.contains_key(&dsq) {
            w.refuse(format!("invalid DSQ ID {dsq:#x}"));
        }
        let cpu = w.this_cpu;
        w.consume(Queue::User(dsq), cpu)
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move(iter: &mut DsqIter, p: TaskPtr, dsq: u64, flags: u64) -> bool {
    with_world(|w| w.dsq_move(iter, p, dsq, flags))
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move_set_slice(iter: &mut DsqIter, slice: u64) {
    with_world(|w| w.may("scx_bpf_dsq_move_set_slice", &[OpKind::Dispatch], true));
    iter.flags |= ITER_HAS_SLICE;
    iter.slice = slice;
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_nr_queued(dsq: u64) -> i32 {
    with_world(|w| match dsq {
        DSQ_LOCAL => w.cpus[w.this_cpu].local.len() as i32,
        on if on & DSQ_LOCAL_ON == DSQ_LOCAL_ON => {
            w.cpu_of(on as i32).map_or(-ENOENT, |cpu| w.cpus[cpu].local.len() as i32)
        }
        user => w.dsqs.get(&user).map_or(-ENOENT, |dsq| dsq.tasks.len() as i32),
    })
}

#[no_mangle]
pub extern "C" fn bpf_iter_scx_dsq_new(iter: &mut DsqIter, dsq: u64, flags: u64) -> i32 {
    let seq = with_world(|w| w.dsqs.get(&dsq).map(|dsq| dsq.seq)).filter(|_| flags & !ITER_REV == 0);
    // next() is called even if this failed: over a queue that does not exist, which ends at once.
    let dsq = if seq.is_some() { dsq } else { DSQ_LOCAL };
    *iter = DsqIter { dsq, seq: seq.unwrap_or(0), flags, index: 0, last: 0, slice: 0 };
    if seq.is_some() {
        0
    } else {
        -ENOENT
    }
}

#[no_mangle]
pub extern "C" fn bpf_iter_scx_dsq_next(iter: &mut DsqIter) -> TaskPtr {
    with_world(|w| {
        let found = w.iter_next(iter);
        w.pointer(found)
    })
}

#[no_mangle]
pub extern "C" fn bpf_iter_scx_dsq_destroy(_iter: &mut DsqIter) {}

/// # Safety
/// `is_idle` is writable.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_select_cpu_dfl(
    p: TaskPtr,
    prev_cpu: i32,
    _flags: u64,
    is_idle: *mut bool,
) -> i32 {
    let found = with_world(|w| {
        if !w.may("scx_bpf_select_cpu_dfl", &[OpKind::SelectCpu, OpKind::Enqueue], true) {
            return None;
        }
        let prev_cpu = w.cpu_of(prev_cpu)?;
        let id = w.task_at(p)?;
        w.select_cpu_dfl(id, prev_cpu)
    });
    // SAFETY: the caller's promise.
    unsafe { *is_idle = found.is_some() };
    found.map_or(prev_cpu, |cpu| cpu as i32)
}

/// # Safety
/// `allowed` is a mask of the model's.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_pick_idle_cpu(allowed: *const CpuMask, _flags: u64) -> i32 {
    // SAFETY: the caller's promise.
    let allowed = unsafe { &*allowed };
    with_world(|w| {
        (0..w.cpus.len()).find(|cpu| allowed.has(*cpu) && w.claim_idle(*cpu)).map_or(-16, |cpu| cpu as i32)
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_test_and_clear_cpu_idle(cpu: i32) -> bool {
    with_world(|w| w.cpu_of(cpu).is_some_and(|cpu| w.claim_idle(cpu)))
}

#[no_mangle]
pub extern "C" fn scx_bpf_kick_cpu(cpu: i32, flags: u64) {
    with_world(|w| {
        let Some(cpu) = w.cpu_of(cpu) else { return };
        if flags & KICK_IDLE != 0 && flags != KICK_IDLE {
            return w.refuse("PREEMPT/WAIT cannot be used with SCX_KICK_IDLE");
        }
        let busy = w.cpus[cpu].curr.is_some() && !w.cpus[cpu].in_balance;
        if flags & KICK_IDLE == 0 || !busy {
            w.kicks.push_back((cpu, flags));
        }
    });
}

#[no_mangle]
pub extern "C" fn scx_bpf_task_cpu(p: *const TaskStruct) -> i32 {
    with_world(|w| w.task_at(p).map_or(0, |id| w.task(id).cpu as i32))
}

#[no_mangle]
pub extern "C" fn scx_bpf_get_online_cpumask() -> *const CpuMask {
    with_world(|w| &raw const *w.online_mask)
}

#[no_mangle]
pub extern "C" fn scx_bpf_put_cpumask(_mask: *const CpuMask) {}

/// # Safety
/// `mask` is a mask of the model's.
#[no_mangle]
pub unsafe extern "C" fn bpf_cpumask_test_cpu(cpu: u32, mask: *const CpuMask) -> bool {
    // SAFETY: the caller's promise.
    unsafe { &*mask }.has(cpu as usize)
}

/// # Safety
/// `p` is a task of the model's.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_task_set_slice(p: TaskPtr, slice: u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*p).scx.slice = slice };
    true
}

#[no_mangle]
pub extern "C" fn scx_bpf_now() -> u64 {
    with_world(|w| w.now_ns)
}

#[no_mangle]
pub extern "C" fn bpf_ktime_get_ns() -> u64 {
    with_world(|w| w.now_ns.wrapping_add_signed(w.config.ktime_ahead_ns))
}

#[no_mangle]
pub extern "C" fn scx_bpf_task_cgroup(p: TaskPtr) -> *mut Cgroup {
    with_world(|w| {
        let id = w.task_at(p).filter(|id| w.op.as_ref().is_some_and(|op| op.subjects.contains(id)));
        if id.is_none() {
            w.refuse("scx_bpf_task_cgroup of a task that the operation is not about");
        }
        w.cgroups[id.map_or(0, |id| w.task(id).cgroup)].kern.as_ptr()
    })
}

/// # Safety
/// `fmt` is a C string.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_error_bstr(fmt: *const c_char, _data: *const u64, _len: u32) {
    // SAFETY: the caller's promise.
    let text = unsafe { std::ffi::CStr::from_ptr(fmt) }.to_string_lossy().into_owned();
    with_world(|w| w.refuse(text));
}

#[no_mangle]
pub extern "C" fn bpf_get_current_task_btf() -> TaskPtr {
    with_world(|w| w.current().map_or(w.idle_task.ptr(), |id| w.task(id).ptr()))
}

#[no_mangle]
pub extern "C" fn bpf_task_from_pid(pid: i32) -> TaskPtr {
    with_world(|w| {
        let id = w.task_by_pid(pid);
        w.pointer(id)
    })
}

#[no_mangle]
pub extern "C" fn bpf_task_release(_p: TaskPtr) {}

#[no_mangle]
pub extern "C" fn bpf_cgroup_ancestor(cgroup: *mut Cgroup, level: i32) -> *mut Cgroup {
    with_world(|w| {
        let found = w.cgroup_at(cgroup).and_then(|cgroup| w.cgroup_ancestor(cgroup, level));
        found.map_or(ptr::null_mut(), |found| w.cgroups[found].kern.as_ptr())
    })
}

#[no_mangle]
pub extern "C" fn bpf_cgroup_release(_cgroup: *mut Cgroup) {}
