// SPDX-License-Identifier: GPL-2.0-only
//! Calls into the scheduler. One at a time in a thread; what the kernel would refuse meanwhile ends the simulation with the reason.

use std::cell::Cell;
use std::ptr;

use crate::error::SimError;
use crate::host::Core;
use crate::ids::TaskId;

use super::costs::Cost;
use super::ffi::{self, TaskStruct};
use super::Ext;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    SelectCpu,
    Enqueue,
    Dispatch,
    Tick,
    Running,
    Stopping,
    Quiescent,
    Disable,
    SetCpumask,
    CpuAcquire,
    CpuRelease,
    Yield,
    InitTask,
    ExitTask,
    CgroupInit,
    CgroupExit,
    CgroupMove,
    CgroupSetWeight,
    CgroupSetBandwidth,
    CgroupSetIdle,
    CpuOnline,
    CpuOffline,
    Init,
    Exit,
    /// A timer's callback.
    Timer,
    /// Tracing programs, no operations: at a pause-loop exit, and in the middle of a switch, with the run queue locked.
    Tracing,
    SchedSwitch,
    /// Look-ups from outside.
    UserSpace,
}

pub const KINDS: usize = OpKind::UserSpace as usize + 1;

impl OpKind {
    /// Operations that hold no run queue's lock.
    pub fn is_unlocked(self) -> bool {
        use OpKind::*;
        matches!(
            self,
            InitTask
                | CgroupInit
                | CgroupExit
                | CgroupSetWeight
                | CgroupSetBandwidth
                | CgroupSetIdle
                | CpuOnline
                | CpuOffline
                | Init
                | Exit
                | Timer
        )
    }

    pub fn name(self) -> &'static str {
        use OpKind::*;
        match self {
            SelectCpu => "select_cpu",
            Enqueue => "enqueue",
            Dispatch => "dispatch",
            Tick => "tick",
            Running => "running",
            Stopping => "stopping",
            Quiescent => "quiescent",
            Disable => "disable",
            SetCpumask => "set_cpumask",
            CpuAcquire => "cpu_acquire",
            CpuRelease => "cpu_release",
            Yield => "yield",
            InitTask => "init_task",
            ExitTask => "exit_task",
            CgroupInit => "cgroup_init",
            CgroupExit => "cgroup_exit",
            CgroupMove => "cgroup_move",
            CgroupSetWeight => "cgroup_set_weight",
            CgroupSetBandwidth => "cgroup_set_bandwidth",
            CgroupSetIdle => "cgroup_set_idle",
            CpuOnline => "cpu_online",
            CpuOffline => "cpu_offline",
            Init => "init",
            Exit => "exit",
            Timer => "timer",
            Tracing => "tracing",
            SchedSwitch => "sched_switch",
            UserSpace => "user space",
        }
    }
}

/// The operation in progress.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub kind: OpKind,
    /// The tasks that the operation is about: their run queues are locked for it.
    pub subjects: [Option<TaskId>; 2],
}

/// The simulation that the scheduler's calls mean.
#[derive(Clone, Copy)]
struct Current {
    core: *mut Core,
    ext: *mut Ext,
}

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current { core: ptr::null_mut(), ext: ptr::null_mut() }) };
}

/// For the functions that the scheduler calls.
pub fn with<R>(f: impl FnOnce(&mut Core, &mut Ext) -> R) -> R {
    let current = CURRENT.get();
    assert!(!current.core.is_null(), "the scheduler runs outside of an operation");
    // SAFETY: set by call() from unique references that are not used before the scheduler returns; the scheduler calls from the same thread,
    // and no such function calls the scheduler again.
    unsafe { f(&mut *current.core, &mut *current.ext) }
}

/// The same, and count it.
pub fn counted<R>(cost: Cost, f: impl FnOnce(&mut Core, &mut Ext) -> R) -> R {
    with(|core, ext| {
        if let Some(op) = ext.op {
            ext.costs.add(op.kind, cost, 1);
        }
        f(core, ext)
    })
}

pub const NOBODY: [Option<TaskId>; 2] = [None, None];

pub const fn one(id: TaskId) -> [Option<TaskId>; 2] {
    [Some(id), None]
}

impl Ext {
    pub(super) fn op<R>(
        &mut self,
        core: &mut Core,
        kind: OpKind,
        subjects: [Option<TaskId>; 2],
        f: impl FnOnce(&ffi::Ops) -> R,
    ) -> R {
        let ops = self.ops;
        self.call(core, kind, subjects, || f(ops))
    }

    pub(super) fn call<R>(
        &mut self,
        core: &mut Core,
        kind: OpKind,
        subjects: [Option<TaskId>; 2],
        f: impl FnOnce() -> R,
    ) -> R {
        debug_assert!(self.op.is_none(), "{kind:?} inside another operation");
        // Outside of a run (setting up, looking at the results) the thread has no or another simulation's variables.
        let visitor = !self.resident.get();
        if visitor {
            self.image.borrow_mut().swap();
        }
        let current = self.current(core);
        self.op = Some(Op { kind, subjects });
        self.prologue(core, current, 1);
        // SAFETY: variables of this thread's. No call changes the pCPU that executes.
        unsafe { ffi::native_enter(self.maps.epoch(), core.this_cpu.index() as u64) };
        CURRENT.set(Current { core, ext: self });
        let result = f();
        CURRENT.set(Current { core: ptr::null_mut(), ext: ptr::null_mut() });
        self.prologue(core, current, 0);
        self.op = None;
        self.costs.add(kind, Cost::Calls, 1);
        // SAFETY: counters of this thread's.
        unsafe {
            self.costs.add(kind, Cost::Atomic, ffi::native_take_atomics());
            self.costs.add(kind, Cost::Array, ffi::native_take_array_lookups());
        }
        if visitor {
            self.image.borrow_mut().swap();
        }
        if let Some(reason) = self.refused.take() {
            core.fail(SimError::Refused { at_ns: core.now_ns, op: kind.name(), reason });
        }
        result
    }

    /// What the BPF prologue (1) and epilogue (0) do to the task that runs on the executing pCPU.
    fn prologue(&mut self, core: &Core, current: Option<TaskId>, disabled: u16) {
        if let (Some(id), true) = (current, self.config.preempt_rcu) {
            let really = u16::from(core.task(id).migration_disabled);
            self.tasks[id.index()].kern_mut().kern.migration_disabled = really + disabled;
        }
    }

    pub(super) fn pointer(&self, id: Option<TaskId>) -> *mut TaskStruct {
        id.map_or(ptr::null_mut(), |id| self.tasks[id.index()].ptr())
    }

    /// The scheduler did what the kernel does not allow. The first reason counts.
    pub(super) fn refuse(&mut self, reason: impl Into<String>) {
        self.refused.get_or_insert_with(|| reason.into());
    }

    /// May the present operation call functions of a group that is open to these? Refuse if not.
    pub(super) fn may(&mut self, function: &str, kinds: &[OpKind], unlocked: bool) -> bool {
        let Some(kind) = self.op.map(|op| op.kind) else { return false };
        let allowed = kinds.contains(&kind) || unlocked && kind.is_unlocked();
        if !allowed {
            self.refuse(format!("{function} in {}", kind.name()));
        }
        allowed
    }
}
