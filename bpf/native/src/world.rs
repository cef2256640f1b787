// SPDX-License-Identifier: GPL-2.0-only
//! The world: pCPUs, tasks, VMs and cgroups, a clock, and the events to come. Integer nanoseconds; events at the same time happen in the
//! order in which they were made.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ptr::NonNull;

use crate::dsq::Dsq;
use crate::ffi;
use crate::image::{Image, Knobs};
use crate::kvm::Vm;
use crate::maps::Maps;
use crate::ops::{Op, OpKind};
use crate::task::{Spec, State, Task, TaskId};

/// How a world differs from the usual one.
#[derive(Clone, Debug)]
pub struct Config {
    pub cpus: usize,
    pub knobs: Knobs,
    /// HZ=250.
    pub tick_ns: u64,
    /// From a reschedule request until the other pCPU acts on it.
    pub ipi_ns: u64,
    /// CLOCK_MONOTONIC is this far ahead of the scheduler's clock; on most hosts it is behind.
    pub ktime_ahead_ns: i64,
    /// The BPF prologue disables the current task's migration: every kernel before 6.18, later those with CONFIG_PREEMPT_RCU.
    pub preempt_rcu: bool,
}

impl Config {
    pub fn cpus(cpus: usize) -> Self {
        Self {
            cpus,
            knobs: Knobs::default(),
            tick_ns: 4_000_000,
            ipi_ns: 2_000,
            ktime_ahead_ns: -50_000_000,
            preempt_rcu: true,
        }
    }
}

#[derive(Default)]
pub struct Cpu {
    pub online: bool,
    pub curr: Option<TaskId>,
    pub local: VecDeque<TaskId>,
    /// Its bit in the kernel's idle mask.
    pub idle: bool,
    pub(crate) needs_resched: bool,
    pub(crate) in_balance: bool,
    pub(crate) exec_start_ns: u64,
    pub busy_ns: u64,
}

pub struct CgroupState {
    pub(crate) kern: NonNull<ffi::Cgroup>,
    pub(crate) parent: Option<usize>,
    pub(crate) weight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Tick,
    Resched(usize),
    /// The task has run for as long as it wanted to, in this turn of it.
    BurstEnd(TaskId, u64),
    Wake(TaskId),
    /// The stopper thread moves a task off a pCPU that it may no longer use.
    Migrate(TaskId),
    /// A pCPU that is going offline hands on what it was given.
    Push(usize),
    /// A vCPU goes on with its pause-loop exit.
    Spin(TaskId),
}

pub struct World {
    pub config: Config,
    pub now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_made: u64,
    pub cpus: Vec<Cpu>,
    pub tasks: Vec<Task>,
    pub(crate) global: VecDeque<TaskId>,
    pub(crate) dsqs: BTreeMap<u64, Dsq>,
    pub(crate) vms: Vec<Vm>,
    pub(crate) cgroups: Vec<CgroupState>,
    pub(crate) maps: Maps,
    /// The pCPU that executes now.
    pub(crate) this_cpu: usize,
    pub(crate) op: Option<Op>,
    pub(crate) refused: Option<String>,
    pub(crate) kicks: VecDeque<(usize, u64)>,
    pub(crate) idle_task: Task,
    pub(crate) online_mask: Box<ffi::CpuMask>,
    /// Let go last.
    _image: Image,
}

const PID_FIRST: i32 = 100;

impl World {
    pub fn new(config: Config) -> Self {
        let image = Image::fresh(&config.knobs, config.cpus);
        let mut world = Self {
            now_ns: 1_000_000_000,
            events: BinaryHeap::new(),
            events_made: 0,
            cpus: (0..config.cpus).map(|_| Cpu { online: true, idle: true, ..Cpu::default() }).collect(),
            tasks: Vec::new(),
            global: VecDeque::new(),
            dsqs: BTreeMap::new(),
            vms: Vec::new(),
            cgroups: Vec::new(),
            maps: Maps::new(config.cpus),
            this_cpu: 0,
            op: None,
            refused: None,
            kicks: VecDeque::new(),
            idle_task: Task::new(&Spec::busy(), 0, config.cpus),
            online_mask: Box::new(ffi::CpuMask::of(0..config.cpus)),
            config,
            _image: image,
        };
        // SAFETY: a constant of peek.c.
        let vms_max = unsafe { ffi::native_max_vms };
        world.maps.resize(&raw const ffi::vm_on_cpu as usize, vms_max * world.config.cpus as u32);
        let err = world.op(OpKind::Init, &[], |ops| ops.init.map_or(0, |init| init()));
        assert_eq!(err, 0, "ops.init failed");
        world.new_cgroup_state(None, 100);
        world.after(world.config.tick_ns, Event::Tick);
        world
    }

    /// Make a task; it wakes at once.
    pub fn spawn(&mut self, spec: Spec) -> TaskId {
        let id = TaskId(self.tasks.len());
        let spec = match spec.vcpu {
            Some(vcpu) if spec.tgid.is_none() => Spec { tgid: Some(self.vms[vcpu.vm].tgid), ..spec },
            _ => spec,
        };
        self.tasks.push(Task::new(&spec, PID_FIRST + id.0 as i32, self.cpus.len()));
        self.init_task(id);
        self.wake(id);
        id
    }

    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.0]
    }

    pub(crate) fn task_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id.0]
    }

    /// The task that the scheduler means by this pointer.
    pub(crate) fn task_at(&self, p: *const ffi::TaskStruct) -> Option<TaskId> {
        if p.is_null() {
            return None;
        }
        // SAFETY: the scheduler has its tasks from the model, which frees them with the world.
        let pid = unsafe { (*p).pid };
        let id = TaskId(usize::try_from(pid - PID_FIRST).ok()?);
        self.tasks.get(id.0).filter(|task| std::ptr::eq(task.ptr(), p)).map(|_| id)
    }

    pub(crate) fn task_by_pid(&self, pid: i32) -> Option<TaskId> {
        let id = TaskId(usize::try_from(pid - PID_FIRST).ok()?);
        self.tasks.get(id.0).filter(|task| task.state != State::Dead).map(|_| id)
    }

    pub fn is_running(&self, id: TaskId) -> bool {
        self.cpus.get(self.task(id).cpu).is_some_and(|cpu| cpu.curr == Some(id))
    }

    pub(crate) fn after(&mut self, delay_ns: u64, event: Event) {
        self.events.push(Reverse((self.now_ns + delay_ns, self.events_made, event)));
        self.events_made += 1;
    }

    /// Let time pass.
    pub fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(Reverse((at, _, _))) = self.events.peek() {
            if *at > until {
                break;
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now_ns = at;
            self.handle(event);
        }
        self.now_ns = until;
        for cpu in 0..self.cpus.len() {
            self.update_curr(cpu);
        }
    }

    /// Let pass what is already on its way between pCPUs.
    pub fn settle(&mut self) {
        self.run(8 * self.config.ipi_ns);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Resched(cpu) => {
                if self.cpus[cpu].needs_resched {
                    self.schedule(cpu);
                }
            }
            Event::BurstEnd(id, turn) => {
                if self.is_running(id) && self.task(id).turn == turn {
                    self.block(id);
                }
            }
            Event::Wake(id) => self.wake(id),
            Event::Migrate(id) => self.stopper_moves(id),
            Event::Push(cpu) => self.push_away(cpu),
            Event::Spin(id) => self.pause_goes_on(id),
        }
    }
}
