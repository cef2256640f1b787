// SPDX-License-Identifier: GPL-2.0-only
//! Calls into the scheduler. One at a time; what the kernel would refuse meanwhile ends the world with the reason.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::ffi::{self, TaskStruct};
use crate::task::TaskId;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    SelectCpu,
    Enqueue,
    Dispatch,
    Tick,
    Running,
    Stopping,
    Quiescent,
    Yield,
    InitTask,
    ExitTask,
    CgroupInit,
    CgroupMove,
    CgroupSetWeight,
    CpuOnline,
    CpuOffline,
    Init,
    Exit,
    /// A tracing program, not an operation.
    Tracing,
}

impl OpKind {
    /// Operations that hold no run queue's lock.
    pub fn is_unlocked(self) -> bool {
        use OpKind::*;
        matches!(self, InitTask | CgroupInit | CgroupSetWeight | CpuOnline | CpuOffline | Init | Exit)
    }
}

pub struct Op {
    pub kind: OpKind,
    /// The tasks that the operation is about: their run queues are locked for it.
    pub subjects: Vec<TaskId>,
}

/// The world that the scheduler's calls mean. Set only while the scheduler runs.
static CURRENT: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());

/// For the functions that the scheduler calls.
pub fn with_world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    let world = CURRENT.load(Ordering::Relaxed);
    assert!(!world.is_null(), "the scheduler runs outside of an operation");
    // SAFETY: set by call() from a unique reference that is not used before the scheduler returns; the scheduler calls from the same
    // thread, and no such function calls the scheduler again.
    f(unsafe { &mut *world })
}

impl World {
    pub(crate) fn op<R>(&mut self, kind: OpKind, subjects: &[TaskId], f: impl FnOnce(&ffi::Ops) -> R) -> R {
        self.call(kind, subjects, || {
            // SAFETY: a constant of the scheduler: its table of operations.
            f(unsafe { &ffi::cohort_ops })
        })
    }

    pub(crate) fn call<R>(&mut self, kind: OpKind, subjects: &[TaskId], f: impl FnOnce() -> R) -> R {
        assert!(self.op.is_none(), "{kind:?} inside another operation");
        let current = self.current();
        self.op = Some(Op { kind, subjects: subjects.to_vec() });
        self.prologue(current, 1);
        CURRENT.store(self, Ordering::Relaxed);
        let result = f();
        CURRENT.store(ptr::null_mut(), Ordering::Relaxed);
        self.prologue(current, 0);
        self.op = None;
        if let Some(reason) = self.refused.take() {
            panic!(
                "at {} ns, in {kind:?} of {subjects:?}: the kernel ejects the scheduler: {reason}",
                self.now_ns
            );
        }
        result
    }

    /// What the BPF prologue (1) and epilogue (0) do to the task that runs on the executing pCPU.
    fn prologue(&mut self, current: Option<TaskId>, disabled: u16) {
        if let (Some(id), true) = (current, self.config.preempt_rcu) {
            let task = self.task_mut(id);
            task.kern_mut().migration_disabled = u16::from(task.migration_disabled) + disabled;
        }
    }

    /// The task that the executing pCPU runs.
    pub(crate) fn current(&self) -> Option<TaskId> {
        self.cpus[self.this_cpu].curr
    }

    pub(crate) fn pointer(&self, id: Option<TaskId>) -> *mut TaskStruct {
        id.map_or(ptr::null_mut(), |id| self.task(id).ptr())
    }

    /// The scheduler did what the kernel does not allow. The first reason counts.
    pub(crate) fn refuse(&mut self, reason: impl Into<String>) {
        self.refused.get_or_insert_with(|| reason.into());
    }

    /// May the present operation call functions of a group that is open to these? Refuse if not.
    pub(crate) fn may(&mut self, function: &str, kinds: &[OpKind], unlocked: bool) -> bool {
        let Some(kind) = self.op.as_ref().map(|op| op.kind) else { return false };
        let allowed = kinds.contains(&kind) || unlocked && kind.is_unlocked();
        if !allowed {
            self.refuse(format!("{function} in {kind:?}"));
        }
        allowed
    }
}
