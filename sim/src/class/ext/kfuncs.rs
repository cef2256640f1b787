// SPDX-License-Identifier: GPL-2.0-only
//! The functions of the kernel that the scheduler calls: each one's rules, then the model. They never panic, which could not cross C:
//! what the kernel would refuse is noted, and ends the simulation when the operation returns.

use std::ffi::c_char;
use std::ptr;

use crate::ids::TaskId;

use super::cgroup::cgroup_at;
use super::costs::Cost;
use super::dsq::{Dsq, DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PRIQ};
use super::ffi::{Cgroup, CpuMask, DsqIter, TaskStruct};
use super::ops::{counted, with, OpKind};
use super::task::Queue;
use super::verdicts::{task_at, ITER_HAS_SLICE, ITER_HAS_VTIME};
use super::Ext;

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const KICK_IDLE: u64 = 1;

type TaskPtr = *mut TaskStruct;

#[no_mangle]
pub extern "C" fn scx_bpf_create_dsq(dsq: u64, _node: i32) -> i32 {
    with(|_, ext| {
        // It sleeps.
        let timer = ext.op.is_some_and(|op| op.kind == OpKind::Timer);
        if !ext.may("scx_bpf_create_dsq", &[], !timer) || ext.dsq_index(dsq).is_some() {
            return -EEXIST;
        }
        ext.dsq_names.push(dsq);
        ext.dsqs.push(Dsq::default());
        0
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_insert(p: TaskPtr, dsq: u64, slice: u64, flags: u64) {
    counted(Cost::DsqInsert, |_, ext| ext.insert_verdict(p, dsq, slice, flags));
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_insert_vtime(p: TaskPtr, dsq: u64, slice: u64, vtime: u64, flags: u64) {
    counted(Cost::DsqInsertVtime, |_, ext| {
        match task_at(p).map(|id| &mut ext.tasks[id.index()]) {
            Some(task) if task.queue.is_none() => task.vtime = vtime,
            _ => ext.refuse("dsq_vtime of a queued task changed"),
        }
        ext.insert_verdict(p, dsq, slice, flags | ENQ_PRIQ);
    });
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move_to_local(dsq: u64) -> bool {
    counted(Cost::DsqMoveToLocal, |core, ext| {
        if !ext.may("scx_bpf_dsq_move_to_local", &[OpKind::Dispatch], false) {
            return false;
        }
        let Some(index) = ext.dsq_index(dsq) else {
            ext.refuse(format!("invalid DSQ ID {dsq:#x}"));
            return false;
        };
        let cpu = core.this_cpu;
        ext.consume(core, Queue::User(index), cpu)
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move(iter: &mut DsqIter, p: TaskPtr, dsq: u64, flags: u64) -> bool {
    counted(Cost::DsqMove, |core, ext| ext.dsq_move(core, iter, p, dsq, flags))
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move_vtime(iter: &mut DsqIter, p: TaskPtr, dsq: u64, flags: u64) -> bool {
    counted(Cost::DsqMoveVtime, |core, ext| ext.dsq_move(core, iter, p, dsq, flags | ENQ_PRIQ))
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move_set_vtime(iter: &mut DsqIter, vtime: u64) {
    with(|_, ext| ext.may("scx_bpf_dsq_move_set_vtime", &[OpKind::Dispatch], true));
    iter.flags |= ITER_HAS_VTIME;
    iter.vtime = vtime;
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_move_set_slice(iter: &mut DsqIter, slice: u64) {
    with(|_, ext| ext.may("scx_bpf_dsq_move_set_slice", &[OpKind::Dispatch], true));
    iter.flags |= ITER_HAS_SLICE;
    iter.slice = slice;
}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_nr_queued(dsq: u64) -> i32 {
    counted(Cost::DsqNrQueued, |core, ext| match dsq {
        DSQ_LOCAL => ext.cpus[core.this_cpu.index()].local.len() as i32,
        on if on & DSQ_LOCAL_ON == DSQ_LOCAL_ON => {
            ext.cpu_of(on as i32).map_or(-ENOENT, |cpu| ext.cpus[cpu.index()].local.len() as i32)
        }
        user => ext.dsq_index(user).map_or(-ENOENT, |index| ext.dsqs[index as usize].tasks.len() as i32),
    })
}

#[no_mangle]
pub extern "C" fn bpf_iter_scx_dsq_new(iter: &mut DsqIter, dsq: u64, flags: u64) -> i32 {
    // next() is called even if this failed: over a queue that does not exist, which ends at once.
    *iter = DsqIter { dsq: u32::MAX, ..DsqIter::default() };
    counted(Cost::IterNew, |_, ext| match ext.iter_new(dsq, flags) {
        Some(new) => {
            *iter = new;
            0
        }
        None => -ENOENT,
    })
}

#[no_mangle]
pub extern "C" fn bpf_iter_scx_dsq_next(iter: &mut DsqIter) -> TaskPtr {
    counted(Cost::IterNext, |_, ext| {
        let found = ext.iter_next(iter);
        ext.pointer(found)
    })
}

#[no_mangle]
pub extern "C" fn bpf_iter_scx_dsq_destroy(_iter: &mut DsqIter) {}

#[no_mangle]
pub extern "C" fn scx_bpf_dsq_peek(dsq: u64) -> TaskPtr {
    counted(Cost::DsqPeek, |_, ext| {
        if dsq & (1 << 63) != 0 {
            ext.refuse(format!("invalid DSQ ID {dsq:#x}"));
        }
        let found = ext.dsq_index(dsq).and_then(|index| ext.forest.first(&ext.dsqs[index as usize].tasks));
        ext.pointer(found.map(TaskId))
    })
}

/// # Safety
/// `is_idle` is writable.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_select_cpu_dfl(
    p: TaskPtr,
    prev_cpu: i32,
    flags: u64,
    is_idle: *mut bool,
) -> i32 {
    let found = counted(Cost::SelectCpuDfl, |core, ext| {
        if !ext.may("scx_bpf_select_cpu_dfl", &[OpKind::SelectCpu, OpKind::Enqueue], true) {
            return None;
        }
        let prev_cpu = ext.cpu_of(prev_cpu)?;
        ext.select_cpu_dfl(core, task_at(p)?, prev_cpu, flags)
    });
    // SAFETY: the caller's promise.
    unsafe { *is_idle = found.is_some() };
    found.map_or(prev_cpu, |cpu| cpu.0 as i32)
}

/// # Safety
/// `allowed` is a mask of the model's.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_pick_idle_cpu(allowed: *const CpuMask, _flags: u64) -> i32 {
    // SAFETY: the caller's promise.
    let allowed = unsafe { &*allowed };
    counted(Cost::PickIdleCpu, |core, ext| {
        let found = ext.first_idle(core, |cpu| allowed.has(cpu.index()));
        found.filter(|cpu| ext.claim_idle(*cpu)).map_or(-EBUSY, |cpu| cpu.0 as i32)
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_test_and_clear_cpu_idle(cpu: i32) -> bool {
    counted(Cost::TestAndClearIdle, |_, ext| ext.cpu_of(cpu).is_some_and(|cpu| ext.claim_idle(cpu)))
}

#[no_mangle]
pub extern "C" fn scx_bpf_kick_cpu(cpu: i32, flags: u64) {
    counted(Cost::KickCpu, |core, ext| {
        let Some(cpu) = ext.cpu_of(cpu) else { return };
        if flags & KICK_IDLE != 0 && flags != KICK_IDLE {
            return ext.refuse("PREEMPT/WAIT cannot be used with SCX_KICK_IDLE");
        }
        // Forgotten at once where somebody runs (can_skip_idle_kick()), but for the pCPU whose lock the operation holds. Otherwise whether it idles is
        // asked when the kick goes out: by then this pCPU may.
        let subject = ext.op.and_then(|op| op.subjects[0]);
        let locked = subject.map_or(core.this_cpu, |id| core.task(id).cpu);
        if flags & KICK_IDLE == 0 || cpu == locked || !core.cpu(cpu).is_busy() {
            ext.kicks.push_back((cpu, flags));
        }
    });
}

#[no_mangle]
pub extern "C" fn scx_bpf_task_cpu(p: *const TaskStruct) -> i32 {
    counted(Cost::TaskCpu, |core, _| task_at(p).map_or(0, |id| core.task(id).cpu.0 as i32))
}

#[no_mangle]
pub extern "C" fn scx_bpf_get_online_cpumask() -> *const CpuMask {
    counted(Cost::GetMask, |core, ext| {
        *ext.online_mask = CpuMask::of(&core.online);
        &raw const *ext.online_mask
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_put_cpumask(_mask: *const CpuMask) {}

#[no_mangle]
pub extern "C" fn scx_bpf_get_idle_cpumask() -> *const CpuMask {
    counted(Cost::GetMask, |_, ext| {
        *ext.idle_mask = CpuMask::of(&ext.idle);
        &raw const *ext.idle_mask
    })
}

#[no_mangle]
pub extern "C" fn scx_bpf_put_idle_cpumask(_mask: *const CpuMask) {}

/// The scheduler calls the newer form where both exist.
#[no_mangle]
pub extern "C" fn scx_bpf_reenqueue_local___v1() -> u32 {
    scx_bpf_reenqueue_local___v2___compat();
    0
}

#[no_mangle]
pub extern "C" fn scx_bpf_reenqueue_local___v2___compat() {
    counted(Cost::Reenqueue, |core, ext| ext.reenqueues.push_back(core.this_cpu));
}

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
    counted(Cost::SetSlice, |_, ext| match &mut ext.arriving {
        Some((id, later)) if task_at(p) == Some(*id) => *later = Some(slice),
        // SAFETY: the caller's promise.
        _ => unsafe { (*p).scx.slice = slice },
    });
    true
}

#[no_mangle]
pub extern "C" fn scx_bpf_now() -> u64 {
    counted(Cost::Now, |core, ext| ext.clock_ns(core))
}

#[no_mangle]
pub extern "C" fn bpf_ktime_get_ns() -> u64 {
    counted(Cost::Ktime, |core, ext| ext.ktime_ns(core))
}

#[no_mangle]
pub extern "C" fn scx_bpf_task_cgroup(p: TaskPtr) -> *mut Cgroup {
    counted(Cost::TaskCgroup, |core, ext| {
        let id = task_at(p).filter(|id| ext.op.is_some_and(|op| op.subjects.contains(&Some(*id))));
        if id.is_none() {
            ext.refuse("scx_bpf_task_cgroup of a task that the operation is not about");
        }
        let group = id.map_or(0, |id| core.task(id).group.index());
        ext.cgroups[group].ptr()
    })
}

/// # Safety
/// `fmt` is a C string.
#[no_mangle]
pub unsafe extern "C" fn scx_bpf_error_bstr(fmt: *const c_char, _data: *const u64, _len: u32) {
    // SAFETY: the caller's promise.
    let text = unsafe { std::ffi::CStr::from_ptr(fmt) }.to_string_lossy().into_owned();
    with(|_, ext| ext.refuse(text));
}

#[no_mangle]
pub extern "C" fn bpf_get_prandom_u32() -> u32 {
    counted(Cost::Random, |_, ext| ext.random.next_u64() as u32)
}

#[no_mangle]
pub extern "C" fn bpf_get_smp_processor_id() -> u32 {
    with(|core, _| core.this_cpu.0)
}

#[no_mangle]
pub extern "C" fn bpf_get_current_task_btf() -> TaskPtr {
    with(|core, ext| match ext.current(core) {
        Some(id) => ext.tasks[id.index()].ptr(),
        None => ext.other_task(Ext::other_on(core, core.this_cpu)),
    })
}

#[no_mangle]
pub extern "C" fn bpf_task_from_pid(pid: i32) -> TaskPtr {
    counted(Cost::TaskFromPid, |core, ext| {
        let id = ext.task_by_pid(core, pid);
        ext.pointer(id)
    })
}

#[no_mangle]
pub extern "C" fn bpf_task_release(_p: TaskPtr) {}

#[no_mangle]
pub extern "C" fn bpf_cgroup_ancestor(cgroup: *mut Cgroup, level: i32) -> *mut Cgroup {
    counted(Cost::CgroupAncestor, |core, ext| {
        let mut at = cgroup_at(cgroup);
        while let Some(group) = at.filter(|group| core.group_level(*group) as i32 > level) {
            at = core.groups[group.index()].parent;
        }
        let found = at.filter(|group| core.group_level(*group) as i32 == level);
        found.map_or(ptr::null_mut(), |group| ext.cgroups[group.index()].ptr())
    })
}

#[no_mangle]
pub extern "C" fn bpf_cgroup_release(_cgroup: *mut Cgroup) {}

#[no_mangle]
pub extern "C" fn bpf_rcu_read_lock() {}

#[no_mangle]
pub extern "C" fn bpf_rcu_read_unlock() {}
