// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling classes: who runs next. The hooks are those of the kernel's `struct sched_class`, called in its order.

pub mod ext;
pub mod fair;
pub mod round_robin;

use crate::error::SimError;
use crate::events::Event;
use crate::host::Core;
use crate::ids::{CpuId, GroupId, TaskId, VmId};
use crate::machine::MachineConfig;
use crate::metrics::window::Counters;
use crate::scenario::Policy;
use crate::time::Ns;

use self::ext::Ext;
use self::fair::Fair;
use self::round_robin::RoundRobin;

/// Why a task is put on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueue {
    Wakeup,
    /// Moved from another pCPU.
    Migrate,
    /// Something about it changed; it was queued before (ENQUEUE_RESTORE).
    Restore,
    /// ... and it has its pCPU all the while.
    RestoreRunning,
}

/// Why a task is taken off its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dequeue {
    Sleep,
    Migrate,
    /// Something about it changes; it comes back at once (DEQUEUE_SAVE).
    Save,
}

/// A scheduling class. In all hooks, `core.this_cpu` is the pCPU that executes. A class never changes `task.state`: the scheduling core does.
pub trait Class {
    fn init(&mut self, _core: &mut Core) {}
    fn task_new(&mut self, _core: &mut Core, _task: TaskId) {}
    /// After the last switch away from it.
    fn task_dead(&mut self, _core: &mut Core, _task: TaskId) {}
    fn group_new(&mut self, _core: &mut Core, _group: GroupId) {}
    /// No task and no group is in it any more.
    fn group_removed(&mut self, _core: &mut Core, _group: GroupId) {}
    fn group_weight_changed(&mut self, _core: &mut Core, _group: GroupId) {}
    fn group_bandwidth_changed(&mut self, _core: &mut Core, _group: GroupId) {}
    fn group_idle_changed(&mut self, _core: &mut Core, _group: GroupId) {}
    /// The task is in another group; called between dequeue and enqueue if it is queued.
    fn group_moved(&mut self, _core: &mut Core, _task: TaskId, _from: GroupId) {}
    fn affinity_changed(&mut self, _core: &mut Core, _task: TaskId) {}
    fn vm_new(&mut self, _core: &mut Core, _vm: VmId) {}
    /// `task.kvm` has changed.
    fn vcpu_changed(&mut self, _core: &mut Core, _task: TaskId) {}

    /// `select_task_rq()`: where a waking task is to be queued.
    fn select_cpu(&mut self, core: &mut Core, task: TaskId, prev: CpuId, why: Enqueue) -> CpuId;
    /// The task waits on `core.task(task).cpu` from now on.
    fn enqueue(&mut self, core: &mut Core, task: TaskId, why: Enqueue);
    /// A waiting or, with `Sleep` and `Save`, a running task leaves the queue.
    fn dequeue(&mut self, core: &mut Core, task: TaskId, why: Dequeue);
    /// `wakeup_preempt()`: the task was just queued on a pCPU that is busy; ask for a reschedule if it should run at once.
    fn preempt_wakeup(&mut self, core: &mut Core, task: TaskId);
    /// Charge the running task, if any. Calls [`Core::charge`] once.
    fn update_curr(&mut self, core: &mut Core, cpu: CpuId);
    /// Choose who runs next, pulling from elsewhere if need be; `prev` may go on if it is still queued (it did not block). The chosen one stays on the
    /// queue until `set_next`.
    fn pick(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> Option<TaskId>;
    /// `prev`, which could go on, leaves the pCPU and waits.
    fn put_prev(&mut self, core: &mut Core, cpu: CpuId, prev: TaskId);
    /// `next`, as picked, gets the pCPU. Not called if it had it before.
    fn set_next(&mut self, core: &mut Core, cpu: CpuId, next: TaskId);
    /// The pCPU goes from one task to another, both of this class; `None`: the idle task, or if `taken` one of a higher class.
    fn switched(&mut self, _core: &mut Core, _cpu: CpuId, _prev: Option<TaskId>, _next: Option<TaskId>) {}
    /// The tick of a busy pCPU. Charges the running task.
    fn tick(&mut self, core: &mut Core, cpu: CpuId);
    /// The time after which `slice_end` is to be called for the turn that begins now, exact to the ns.
    fn exact_slice_ns(&self, _core: &Core, _cpu: CpuId) -> Option<Ns> {
        None
    }
    fn slice_end(&mut self, _core: &mut Core, _cpu: CpuId) {}
    /// Does it do anything at ticks?
    fn has_ticks(&self) -> bool {
        true
    }
    /// Events of the class's own: [`Event::Watchdog`], [`Event::Balance`], [`Event::ClassTimer`], which says itself on which pCPU it is.
    fn event(&mut self, _core: &mut Core, _event: Event) {}

    /// sched_yield().
    fn yield_now(&mut self, core: &mut Core, task: TaskId);
    /// `yield_to_task()`: `to` waits, `from` runs. Return true if `to` will run.
    fn yield_to(&mut self, _core: &mut Core, _from: TaskId, _to: TaskId) -> bool {
        false
    }
    /// A pause-loop exit of a running vCPU.
    fn on_spin(&mut self, _core: &mut Core, _task: TaskId, _in_kernel: bool) {}
    /// KVM has put a vCPU whose thread is being switched out: whoever has attached a program there.
    fn vcpu_put(&mut self, _core: &mut Core, _task: TaskId) {}
    /// KVM delivers an interrupt from running vCPU `from` to vCPU `to`.
    fn on_irq(&mut self, _core: &mut Core, _from: TaskId, _to: TaskId) {}
    /// Running vCPU `task` touches a page of its VM that KVM has to map.
    fn on_fault(&mut self, _core: &mut Core, _task: TaskId, _gfn: u64) {}

    fn cpu_online(&mut self, _core: &mut Core, _cpu: CpuId) {}
    fn cpu_offline(&mut self, _core: &mut Core, _cpu: CpuId) {}

    /// Tasks that run or wait there (`rq->nr_running`).
    fn queue_len(&self, cpu: CpuId) -> u32;
    /// Somebody who waits there, for a pCPU that goes offline.
    fn first_waiting(&self, core: &Core, cpu: CpuId) -> Option<TaskId>;

    /// What its scheduler counts, by name, till now.
    fn counters(&mut self, _core: &mut Core) -> Counters {
        Counters::new()
    }

    /// The kernel's code on `core.this_cpu` has ended, interrupts are on: what was put off until then.
    fn finish(&mut self, _core: &mut Core) {}
}

/// The classes that there are. An enum, so that the calls in the hot path are direct.
pub enum AnyClass {
    RoundRobin(RoundRobin),
    Fair(Fair),
    Ext(Ext),
}

macro_rules! forward {
    ($(fn $name:ident(&mut self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)+) => {
        $(
            #[inline]
            fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
                match self {
                    Self::RoundRobin(class) => class.$name($($arg),*),
                    Self::Fair(class) => class.$name($($arg),*),
                    Self::Ext(class) => class.$name($($arg),*),
                }
            }
        )+
    };
}

impl Class for AnyClass {
    forward! {
        fn init(&mut self, core: &mut Core);
        fn task_new(&mut self, core: &mut Core, task: TaskId);
        fn task_dead(&mut self, core: &mut Core, task: TaskId);
        fn group_new(&mut self, core: &mut Core, group: GroupId);
        fn group_removed(&mut self, core: &mut Core, group: GroupId);
        fn group_weight_changed(&mut self, core: &mut Core, group: GroupId);
        fn group_bandwidth_changed(&mut self, core: &mut Core, group: GroupId);
        fn group_idle_changed(&mut self, core: &mut Core, group: GroupId);
        fn group_moved(&mut self, core: &mut Core, task: TaskId, from: GroupId);
        fn affinity_changed(&mut self, core: &mut Core, task: TaskId);
        fn vm_new(&mut self, core: &mut Core, vm: VmId);
        fn vcpu_changed(&mut self, core: &mut Core, task: TaskId);
        fn select_cpu(&mut self, core: &mut Core, task: TaskId, prev: CpuId, why: Enqueue) -> CpuId;
        fn enqueue(&mut self, core: &mut Core, task: TaskId, why: Enqueue);
        fn dequeue(&mut self, core: &mut Core, task: TaskId, why: Dequeue);
        fn preempt_wakeup(&mut self, core: &mut Core, task: TaskId);
        fn update_curr(&mut self, core: &mut Core, cpu: CpuId);
        fn pick(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> Option<TaskId>;
        fn put_prev(&mut self, core: &mut Core, cpu: CpuId, prev: TaskId);
        fn set_next(&mut self, core: &mut Core, cpu: CpuId, next: TaskId);
        fn switched(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>, next: Option<TaskId>);
        fn tick(&mut self, core: &mut Core, cpu: CpuId);
        fn slice_end(&mut self, core: &mut Core, cpu: CpuId);
        fn event(&mut self, core: &mut Core, event: Event);
        fn yield_now(&mut self, core: &mut Core, task: TaskId);
        fn yield_to(&mut self, core: &mut Core, from: TaskId, to: TaskId) -> bool;
        fn on_spin(&mut self, core: &mut Core, task: TaskId, in_kernel: bool);
        fn vcpu_put(&mut self, core: &mut Core, task: TaskId);
        fn on_irq(&mut self, core: &mut Core, from: TaskId, to: TaskId);
        fn on_fault(&mut self, core: &mut Core, task: TaskId, gfn: u64);
        fn cpu_online(&mut self, core: &mut Core, cpu: CpuId);
        fn cpu_offline(&mut self, core: &mut Core, cpu: CpuId);
        fn counters(&mut self, core: &mut Core) -> Counters;
        fn finish(&mut self, core: &mut Core);
    }

    fn exact_slice_ns(&self, core: &Core, cpu: CpuId) -> Option<Ns> {
        match self {
            Self::RoundRobin(class) => class.exact_slice_ns(core, cpu),
            Self::Fair(class) => class.exact_slice_ns(core, cpu),
            Self::Ext(_) => None,
        }
    }

    fn has_ticks(&self) -> bool {
        !matches!(self, Self::RoundRobin(_))
    }

    fn queue_len(&self, cpu: CpuId) -> u32 {
        match self {
            Self::RoundRobin(class) => class.queue_len(cpu),
            Self::Fair(class) => class.queue_len(cpu),
            Self::Ext(class) => class.queue_len(cpu),
        }
    }

    fn first_waiting(&self, core: &Core, cpu: CpuId) -> Option<TaskId> {
        match self {
            Self::RoundRobin(class) => class.first_waiting(core, cpu),
            Self::Fair(class) => class.first_waiting(core, cpu),
            Self::Ext(class) => class.first_waiting(core, cpu),
        }
    }
}

impl AnyClass {
    /// The class that a scenario asks for.
    pub fn new(policy: &Policy, machine: &MachineConfig) -> Result<Self, SimError> {
        Ok(match policy {
            Policy::RoundRobin(config) => {
                config.check()?;
                Self::RoundRobin(RoundRobin::new(config.clone()))
            }
            Policy::Fair(config) => Self::Fair(Fair::new(config.clone())),
            Policy::Ext(config) => Self::Ext(Ext::new(config.clone(), machine)?),
        })
    }

    /// While the guard lives, this thread's copy of the variables of `bpf/` is this simulation's. Nothing for other classes.
    pub fn enter(&mut self) -> Option<ext::Entered> {
        match self {
            Self::Ext(class) => Some(class.enter()),
            _ => None,
        }
    }
}
