// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext in software: it runs the scheduler of `bpf/`, compiled natively, and is to it what the kernel's kernel/sched/ext.c is. Which operation is
//! called when, and in which order, is that of Linux 6.18 to 7.3. What the model leaves out, a host may do; what it does, a host could do.
//!
//! The facts that decide most: a slice is only looked at by ticks and when the pCPU schedules for another reason; ops.dispatch() runs before
//! the leaving task's ops.stopping() and ops.enqueue(), and those before the next one's ops.running(); a task that goes on sees none of these.

mod cgroup;
mod class;
mod costs;
mod dsq;
mod ffi;
mod image;
mod kfuncs;
mod map_calls;
mod maps;
#[cfg(test)]
mod moments;
#[cfg(test)]
mod moves;
mod ops;
mod peek;
#[cfg(test)]
mod preempted;
#[cfg(test)]
mod queues;
#[cfg(test)]
mod refusals;
mod sets;
#[cfg(test)]
mod small;
mod task;
mod timers;
mod verdicts;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ptr;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::error::SimError;
use crate::host::{Core, State, Task, TaskSpec};
use crate::ids::{CpuId, TaskId};
use crate::machine::MachineConfig;
use crate::rng::{Rng, Stream};
use crate::time::{Ns, SEC};
use crate::tree::Forest;

use self::cgroup::ExtCgroup;
use self::dsq::Dsq;
use self::image::Image;
use self::maps::Maps;
use self::ops::Op;
use self::task::{ExtTask, Opaque, Vcpu};
use self::timers::Timers;

pub use self::costs::{Cost, Costs};
pub use self::ops::OpKind;
pub use self::peek::{PeekEntity, PeekExit, PeekSbco, PeekStats, PeekTask, PeekVm};
pub use self::sets::{wrong_with, SetsTeller, Traffic};
pub use self::task::Queue;

/// The scheduler's clock when the simulation starts: to it, a time of 0 means "never".
pub const BOOT_NS: Ns = 1_000_000_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExtConfig {
    /// The scheduler's knobs by their names in bpf/state.h; those not named keep their defaults.
    pub knobs: BTreeMap<String, u64>,
    /// CLOCK_MONOTONIC is this far ahead of the scheduler's clock; on most hosts it is behind.
    pub ktime_ahead_ns: i64,
    /// By how much the clock of each pCPU is ahead, less than a second; empty: all agree. On hosts they differ by as much as a tick, since
    /// scx_bpf_now() is only as new as the pCPU's last event.
    pub cpu_skew_ns: Vec<i64>,
    /// Whether the scheduler hears of higher classes by its program on sched_switch, if it has one, as since 6.19; otherwise by ops.cpu_release()
    /// and ops.cpu_acquire(). The loader chooses.
    pub sched_switch: bool,
    /// The BPF prologue disables the current task's migration: every kernel before 6.18, later those with CONFIG_PREEMPT_RCU.
    pub preempt_rcu: bool,
    /// Wake-ups say that the waker is about to sleep, as those by pipes and sockets do.
    pub wakes_sync: bool,
    /// Until then no timer can be started, as where the kernel has no memory for it.
    pub no_timers_until_ns: Ns,
    /// Sets of vCPUs for gang partial, as in the file of `cohort run --sets`.
    pub sets: String,
    /// For gang partial-auto, as `cohort run --split`: how many times more a part must depend on itself than the whole does to be a set of its own.
    pub split: f64,
    /// For gang partial-auto, as `cohort run --traffic`.
    pub traffic: Traffic,
    /// A scheduler that does what the kernel refuses is ejected, and the fair class goes on, as on a host; otherwise the run ends with the reason.
    pub fall_back: bool,
}

impl Default for ExtConfig {
    fn default() -> Self {
        Self {
            knobs: BTreeMap::new(),
            ktime_ahead_ns: -50_000_000,
            cpu_skew_ns: Vec::new(),
            sched_switch: true,
            preempt_rcu: true,
            wakes_sync: false,
            no_timers_until_ns: 0,
            sets: String::new(),
            split: cohort_sets::SPLIT_DEFAULT,
            traffic: Traffic::default(),
            fall_back: false,
        }
    }
}

/// A task that is none of the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Other {
    #[default]
    Idle,
    RealTime,
    Stopper,
}

/// A pCPU, as sched_ext has it.
#[derive(Default)]
struct ExtCpu {
    local: VecDeque<TaskId>,
    /// Tasks that run or wait there (`rq->nr_running`).
    running: u32,
    /// A higher class has taken it from a task: ops.cpu_release() was called, ops.cpu_acquire() was not yet.
    released: bool,
    /// What was chosen last is nobody.
    goes_idle: bool,
    /// Which of the other tasks has it, or had it until now.
    other: Other,
}

/// See [`super::AnyClass::enter`]. Ends with the run, and gives the thread's variables back.
pub struct Entered {
    image: Rc<RefCell<Image>>,
    resident: Rc<Cell<bool>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.resident.set(false);
        self.image.borrow_mut().swap();
    }
}

pub struct Ext {
    config: ExtConfig,
    /// The scheduler's operations; a test brings its own.
    ops: &'static ffi::Ops,
    /// The scheduler's variables, while they are not the thread's.
    image: Rc<RefCell<Image>>,
    /// They are the thread's now.
    resident: Rc<Cell<bool>>,
    cpus: Vec<ExtCpu>,
    /// The kernel's idle mask: a bit is taken away by whoever claims the pCPU.
    idle: CpuSet,
    tasks: Vec<ExtTask>,
    /// The idle task, a real-time one and the stopper, wherever one of them runs.
    others: Option<Box<[ExtTask; 3]>>,
    on_switch: Option<ffi::OnSwitch>,
    /// The scheduler has a guard, and hears of vCPUs that KVM puts.
    guards: bool,
    /// Who is being switched out, while a program hears of that.
    leaving: Option<TaskId>,
    /// Who is being given a pCPU, while ops.running hears of that: it is not the current task yet, so 7.3 writes down what slice it is to have, and gives it
    /// that after the operation (`p->scx.slice_oob`).
    arriving: Option<(TaskId, Option<u64>)>,
    /// The scheduler counts who communicates.
    finds_sets: bool,
    /// It hears of interrupts between vCPUs: to count them, or to boost who is called. The loader chooses.
    watches_irqs: bool,
    /// ... and of when they have been delivered: for the latter.
    watches_calls: bool,
    dsqs: Vec<Dsq>,
    dsq_names: Vec<u64>,
    forest: Forest,
    global: VecDeque<TaskId>,
    vms: Vec<Opaque>,
    /// In the kernel their memory would still be there to be read, whatever it holds.
    freed_vcpus: Vec<Vcpu>,
    cgroups: Vec<ExtCgroup>,
    maps: Box<Maps>,
    op: Option<Op>,
    refused: Option<String>,
    kicks: VecDeque<(CpuId, u64)>,
    /// pCPUs whose local queue is to be put through ops.enqueue().
    reenqueues: VecDeque<CpuId>,
    timers: Box<Timers>,
    random: Rng,
    costs: Costs,
    online_mask: Box<ffi::CpuMask>,
    /// As the scheduler sees it.
    idle_mask: Box<ffi::CpuMask>,
}

impl Ext {
    pub fn new(config: ExtConfig, machine: &MachineConfig) -> Result<Self, SimError> {
        let cpus = crate::machine::Machine::new(machine)?.cpus();
        if cpus > ffi::MASK_CPUS {
            let max = ffi::MASK_CPUS;
            return Err(SimError::Config(format!(
                "machine: has {cpus} pCPUs; allowed with the ext class: 1 to {max}"
            )));
        }
        let mut knobs = config.knobs.clone();
        knobs.insert("nr_cpus".into(), cpus as u64);
        // SAFETY: asks the linker.
        let on_switch = config.sched_switch.then(|| unsafe { ffi::native_on_switch() }).flatten();
        let finds_sets = sets::finds_sets(&config);
        let irqs_are_traffic = finds_sets && config.traffic != Traffic::Faults;
        knobs.insert("irqs_are_traffic".into(), irqs_are_traffic.into());
        let image = Image::fresh(&knobs)?;
        // The scheduler divides by it. In the kernel that gives 0; in a process it is a signal that ends everything.
        if image.get("slice_ns") == Some(0) {
            return Err(SimError::Config("policy.knobs.slice_ns: is 0; allowed: 1 or more".into()));
        }
        if let Some(skew_ns) = config.cpu_skew_ns.iter().find(|skew_ns| skew_ns.unsigned_abs() >= SEC) {
            let text = format!("policy.cpu_skew_ns: {skew_ns} is not allowed: must be less than a second");
            return Err(SimError::Config(text));
        }
        let watches_calls = image.get("boost").is_some_and(|boost| boost & ffi::BOOST_IPI != 0);
        let watches_irqs = irqs_are_traffic || watches_calls;
        Ok(Self {
            guards: image.get("guard").is_some_and(|guard| guard != 0),
            leaving: None,
            arriving: None,
            image: Rc::new(RefCell::new(image)),
            resident: Rc::default(),
            // SAFETY: a constant of the scheduler.
            ops: unsafe { &ffi::cohort_ops },
            cpus: (0..cpus).map(|_| ExtCpu::default()).collect(),
            idle: CpuSet::first(cpus),
            config,
            tasks: Vec::new(),
            others: None,
            on_switch,
            finds_sets,
            watches_irqs,
            watches_calls,
            dsqs: Vec::new(),
            dsq_names: Vec::new(),
            forest: Forest::default(),
            global: VecDeque::new(),
            vms: Vec::new(),
            freed_vcpus: Vec::new(),
            cgroups: Vec::new(),
            maps: Box::new(Maps::new(cpus)),
            op: None,
            refused: None,
            kicks: VecDeque::new(),
            reenqueues: VecDeque::new(),
            timers: Box::default(),
            random: Rng::derive(0, Stream::Host, 0),
            costs: Costs::default(),
            online_mask: Box::new(ffi::CpuMask::first(cpus)),
            idle_mask: Box::new(ffi::CpuMask::first(cpus)),
        })
    }

    /// While the guard lives, this thread's copy of the scheduler's variables is this simulation's.
    pub fn enter(&mut self) -> Entered {
        debug_assert!(!self.resident.get());
        self.image.borrow_mut().swap();
        self.resident.set(true);
        Entered { image: Rc::clone(&self.image), resident: Rc::clone(&self.resident) }
    }

    /// A knob's value in this simulation.
    pub fn knob(&self, name: &str) -> Option<u64> {
        debug_assert!(!self.resident.get());
        self.image.borrow().get(name)
    }

    pub fn falls_back(&self) -> bool {
        self.config.fall_back
    }

    /// What the scheduler has cost so far.
    pub fn costs(&self) -> Costs {
        self.costs.clone()
    }

    pub fn queue_of(&self, id: TaskId) -> Option<Queue> {
        self.tasks[id.index()].queue
    }

    fn task_by_pid(&self, core: &Core, pid: i32) -> Option<TaskId> {
        let id = TaskId(u32::try_from(pid).ok()?.checked_sub(task::PID_FIRST)?);
        core.tasks.get(id.index()).filter(|task| task.state != State::Dead).map(|_| id)
    }

    /// scx_bpf_now() on the executing pCPU.
    fn clock_ns(&self, core: &Core) -> Ns {
        let skew_ns = self.config.cpu_skew_ns.get(core.this_cpu.index()).copied().unwrap_or(0);
        (core.now_ns + BOOT_NS).wrapping_add_signed(skew_ns)
    }

    /// CLOCK_MONOTONIC there.
    fn ktime_ns(&self, core: &Core) -> Ns {
        self.clock_ns(core).wrapping_add_signed(self.config.ktime_ahead_ns)
    }

    fn make_other_tasks(&mut self) {
        let make = |id, pid, prio| {
            let task = Task::new(TaskSpec::default(), 0, CpuId(0));
            let mut made = ExtTask::new(TaskId(id), &task, pid, self.cpus.len());
            made.kern_mut().kern.prio = prio;
            made
        };
        let idle = make(task::ID_IDLE, 0, task::PRIO_IDLE);
        let higher = make(task::ID_RT, task::PID_RT, task::PRIO_RT);
        let mut stopper = make(task::ID_STOPPER, task::PID_STOPPER, 0);
        stopper.kern_mut().kern.flags |= task::PF_KTHREAD;
        self.others = Some(Box::new([idle, higher, stopper]));
    }

    fn other_task(&self, which: Other) -> *mut ffi::TaskStruct {
        self.others.as_ref().map_or(ptr::null_mut(), |others| others[which as usize].ptr())
    }

    /// The current task of the executing pCPU. In the middle of a switch that is still the one that leaves.
    fn current(&self, core: &Core) -> Option<TaskId> {
        self.leaving.or(core.cpu(core.this_cpu).curr)
    }

    /// Who has the pCPU if no task of ours does.
    fn other_on(core: &Core, cpu: CpuId) -> Other {
        match core.cpu(cpu) {
            state if !state.taken => Other::Idle,
            state if state.by_stopper => Other::Stopper,
            _ => Other::RealTime,
        }
    }
}
