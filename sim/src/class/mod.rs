// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling classes: who runs next. What the host asks of one is in [`crate::host::class`].

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
use self::fair::{Fair, FairConfig};
use self::round_robin::RoundRobin;

pub use crate::host::class::{Class, Dequeue, Enqueue};

/// The host with one of these classes: what bodies and experiments get.
pub type Host = crate::host::Host<AnyClass>;

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
        fn on_spin(&mut self, core: &mut Core, task: TaskId, in_kernel: bool) -> bool;
        fn vcpu_put(&mut self, core: &mut Core, task: TaskId);
        fn on_irq(&mut self, core: &mut Core, from: TaskId, to: TaskId, called: bool);
        fn on_irqs_sent(&mut self, core: &mut Core, from: TaskId);
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

    fn programs_ns(&self, core: &Core) -> Ns {
        match self {
            Self::Ext(_) => core.machine.costs.bpf_switch_ns,
            Self::RoundRobin(_) | Self::Fair(_) => 0,
        }
    }

    fn has_spin_program(&self) -> bool {
        matches!(self, Self::Ext(_))
    }

    /// The scheduler of `bpf/` does, from cpu.max.
    fn has_quotas(&self) -> bool {
        matches!(self, Self::Ext(_))
    }

    fn falls_back(&self) -> bool {
        matches!(self, Self::Ext(class) if class.falls_back())
    }

    /// `scx_disable_workfn()` puts every task into the fair class.
    fn fall_back(&mut self, core: &mut Core) {
        let mut fair = Fair::new(FairConfig::default());
        fair.init(core);
        for group in 1..core.groups.len() {
            fair.group_new(core, GroupId::from(group));
        }
        for task in 0..core.tasks.len() {
            fair.task_new(core, TaskId::from(task));
        }
        *self = Self::Fair(fair);
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
