// SPDX-License-Identifier: GPL-2.0-only
//! What the host asks of a scheduling class. The hooks are those of the kernel's `struct sched_class`, called in its order.

use crate::events::Event;
use crate::ids::{CpuId, GroupId, TaskId, VmId};
use crate::metrics::window::Counters;
use crate::time::Ns;

use super::Core;

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
    /// The time after which `slice_end` is to be called for the turn that begins now, to the ns: when the timer comes.
    fn exact_slice_ns(&self, _core: &Core, _cpu: CpuId) -> Option<Ns> {
        None
    }
    fn slice_end(&mut self, _core: &mut Core, _cpu: CpuId) {}
    /// Does it do anything at ticks?
    fn has_ticks(&self) -> bool {
        true
    }
    /// What its programs take for each task that is put on a pCPU.
    fn programs_ns(&self, _core: &Core) -> Ns {
        0
    }
    /// Events of the class's own: [`Event::Watchdog`], [`Event::ClassTimer`], which says itself on which pCPU it is.
    fn event(&mut self, _core: &mut Core, _event: Event) {}

    /// sched_yield().
    fn yield_now(&mut self, core: &mut Core, task: TaskId);
    /// `yield_to_task()`: `to` waits, `from` runs. Return true if `to` will run.
    fn yield_to(&mut self, _core: &mut Core, _from: TaskId, _to: TaskId) -> bool {
        false
    }
    /// Can a program be attached to pause-loop exits?
    fn has_spin_program(&self) -> bool {
        false
    }
    /// A pause-loop exit of a running vCPU. Return true if a program is attached there that can be
    /// preempted.
    fn on_spin(&mut self, _core: &mut Core, _task: TaskId, _in_kernel: bool) -> bool {
        false
    }
    /// KVM has put a vCPU whose thread is being switched out: whoever has attached a program there.
    fn vcpu_put(&mut self, _core: &mut Core, _task: TaskId) {}
    /// KVM delivers an interrupt from running vCPU `from` to vCPU `to`.
    fn on_irq(&mut self, _core: &mut Core, _from: TaskId, _to: TaskId, _called: bool) {}
    /// It has delivered all that `from` sends at once.
    fn on_irqs_sent(&mut self, _core: &mut Core, _from: TaskId) {}
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

    /// It keeps a VM's quota itself: nobody else is to hold its threads.
    fn has_quotas(&self) -> bool {
        false
    }
    /// It gives way to the fair class when it has done what the kernel ejects a scheduler for.
    fn falls_back(&self) -> bool {
        false
    }
    /// Do that: everybody is queued nowhere then.
    fn fall_back(&mut self, _core: &mut Core) {}

    /// The kernel's code on `core.this_cpu` has ended, interrupts are on: what was put off until then.
    fn finish(&mut self, _core: &mut Core) {}
}
