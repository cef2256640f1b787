// SPDX-License-Identifier: GPL-2.0-only
//! The functions of the kernel that the scheduler calls: each one's rules, then the model. They never panic, which could not cross C:
//! what the kernel would refuse is noted, and ends the world when the operation returns.

use std::ffi::c_char;
use std::ptr;

use crate::dsq::{Dsq, DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PRIQ};
use crate::ffi::{Cgroup, CpuMask, DsqIter, TaskStruct};
use crate::ops::{with_world, OpKind};
use crate::task::Queue;
use crate::verdicts::{ITER_HAS_SLICE, ITER_REV};

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const KICK_IDLE: u64 = 1;

type TaskPtr = *mut TaskStruct;

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
