// SPDX-License-Identifier: GPL-2.0-only
//! The host's state, shared by the scheduling core and the class.

use std::collections::VecDeque;

use crate::cpuset::CpuSet;
use crate::error::SimError;
use crate::events::{Event, EventQueue};
use crate::ids::{CpuId, GroupId, TaskId};
use crate::machine::{Machine, MachineConfig, Pace};
use crate::metrics::window::Programs;
use crate::observe::{Observers, What};
use crate::rng::{Rng, Stream};
use crate::time::{Ns, Speed};

use super::recent::Recent;
use super::schedule::Switch;
use super::task::{State, Task};
use super::vcpu::Vm;

/// A pCPU and what the kernel keeps in its `struct rq` for every class.
#[derive(Clone, Debug)]
pub struct Cpu {
    pub curr: Option<TaskId>,
    /// Whose data are in its caches; kept where that matters ([`Machine::loses_to_others`]).
    pub(super) recent: Recent,
    pub online: bool,
    /// A higher class has it: real-time, deadline, the stopper. The class modelled runs nothing there.
    pub taken: bool,
    /// ... the stopper, for a moment.
    pub by_stopper: bool,
    /// TIF_NEED_RESCHED
    pub needs_resched: bool,
    /// TIF_NEED_RESCHED_LAZY
    pub needs_resched_lazy: bool,
    /// Since when its schedule() is put off for a lock's holder.
    pub put_off_since_ns: Option<Ns>,
    /// It is choosing who runs next: whoever is queued now is seen.
    pub picking: bool,
    /// The running task is charged up to here.
    pub charged_ns: Ns,
    /// When the running body's own work begins or began.
    pub from_ns: Ns,
    pub speed: Speed,
    /// Its runner does nothing but wait in a loop. Known only where its core's other threads feel it.
    pub(super) spins: bool,
    /// Counts switches, so that an event of an earlier turn is known as such.
    pub turn: u32,
    pub turn_since_ns: Ns,
    pub tick_armed: bool,
    /// How late its ticks come.
    pub(crate) jitter: Rng,
    pub busy_ns: Ns,
    pub idle_ns: Ns,
    pub idle_since_ns: Ns,
    pub switches: u64,
}

impl Cpu {
    /// Somebody runs there, if only of a higher class.
    pub fn is_busy(&self) -> bool {
        self.curr.is_some() || self.taken
    }

    /// What the other threads of its core feel of it.
    pub(super) fn pace(&self) -> Option<Pace> {
        self.is_busy().then_some(if self.spins { Pace::Spins } else { Pace::Works })
    }
}

/// A cgroup with the cpu controller.
#[derive(Clone, Debug)]
pub struct Group {
    pub parent: Option<GroupId>,
    /// cpu.weight: 1 to 10000, 100 is the default.
    pub weight: u32,
    pub bandwidth: Bandwidth,
    /// cpu.idle
    pub idle: bool,
    /// It is gone; its number is not given again.
    pub removed: bool,
}

/// cpu.max and cpu.max.burst, as sched_ext is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    pub period_us: u64,
    /// [`NO_QUOTA`]: "max".
    pub quota_us: u64,
    pub burst_us: u64,
}

/// The kernel's RUNTIME_INF.
pub const NO_QUOTA: u64 = u64::MAX;

impl Default for Bandwidth {
    fn default() -> Self {
        Self { period_us: 100_000, quota_us: NO_QUOTA, burst_us: 0 }
    }
}

impl Group {
    pub(crate) fn new(parent: Option<GroupId>, weight: u32, bandwidth: Bandwidth) -> Self {
        Self { parent, weight, bandwidth, idle: false, removed: false }
    }
}

pub struct Core {
    pub now_ns: Ns,
    pub machine: Machine,
    pub cpus: Vec<Cpu>,
    pub tasks: Vec<Task>,
    pub groups: Vec<Group>,
    pub vms: Vec<Vm>,
    pub online: CpuSet,
    /// pCPUs that run nobody.
    pub idle: CpuSet,
    pub events: EventQueue,
    pub observers: Observers,
    pub programs: Programs,
    /// When the run ends, though there are events beyond.
    pub(crate) stop_ns: Ns,
    /// Once all programs have ended, the run ends with the whole of such a span of time in which the last one did; 0: it goes on.
    pub stop_span_ns: Ns,
    pub seed: u64,
    /// The pCPU that executes the present kernel code.
    pub this_cpu: CpuId,
    /// Are asked to schedule at this very instant, in this order.
    pub(crate) pending: VecDeque<CpuId>,
    /// Switches made outside of schedule(), of which the bodies are still to be told.
    pub(crate) notices: VecDeque<Switch>,
    /// pCPUs of which the other threads of their cores feel something else than before.
    pub(crate) paces: VecDeque<CpuId>,
    pub(crate) error: Option<SimError>,
    /// Why the ext class was left for the fair one, if it was.
    pub ejected: Option<SimError>,
    /// While a body hears of an event, which is then all that is to be done at this instant: to when the run goes on. Otherwise 0.
    pub(crate) alone_until_ns: Ns,
    /// Schedules at this instant.
    pub(crate) in_instant: u64,
    /// Events handled, and an end to runs that would never end by themselves: how many at most.
    pub(crate) handled: u64,
    pub events_max: u64,
    /// Picks and switches made: what speed is measured in.
    pub decisions: u64,
}

impl Core {
    pub fn new(config: &MachineConfig, seed: u64) -> Result<Self, SimError> {
        let machine = Machine::new(config)?;
        let cpu = Cpu {
            curr: None,
            recent: Recent::new(),
            online: true,
            taken: false,
            by_stopper: false,
            needs_resched: false,
            needs_resched_lazy: false,
            put_off_since_ns: None,
            picking: false,
            charged_ns: 0,
            from_ns: 0,
            speed: Speed::FULL,
            spins: false,
            turn: 0,
            turn_since_ns: 0,
            tick_armed: false,
            jitter: Rng::derive(seed, Stream::Host, 0),
            busy_ns: 0,
            idle_ns: 0,
            idle_since_ns: 0,
            switches: 0,
        };
        Ok(Self {
            now_ns: 0,
            cpus: machine
                .all()
                .map(|id| Cpu { jitter: Rng::derive(seed, Stream::Host, 1 + u64::from(id.0)), ..cpu.clone() })
                .collect(),
            online: CpuSet::first(machine.cpus()),
            idle: CpuSet::first(machine.cpus()),
            machine,
            tasks: Vec::new(),
            groups: vec![Group::new(None, 100, Bandwidth::default())],
            vms: Vec::new(),
            events: EventQueue::default(),
            observers: Observers::default(),
            programs: Programs::default(),
            stop_ns: Ns::MAX,
            stop_span_ns: 0,
            seed,
            this_cpu: CpuId(0),
            pending: VecDeque::new(),
            notices: VecDeque::new(),
            paces: VecDeque::new(),
            error: None,
            ejected: None,
            alone_until_ns: 0,
            in_instant: 0,
            handled: 0,
            events_max: u64::MAX,
            decisions: 0,
        })
    }

    /// It is the time of an event.
    pub(crate) fn reaches(&mut self, at_ns: Ns) {
        if at_ns != self.now_ns {
            self.in_instant = 0;
        }
        self.now_ns = at_ns;
        self.handled += 1;
    }

    /// The body that hears of an event sets a timer for later: if that would be the next event, let its time come at once, and return true. All is then as
    /// if the body had returned, nothing had been left to do, and it had heard of the timer.
    pub(crate) fn passes(&mut self, at_ns: Ns) -> bool {
        let settled = self.pending.is_empty() && self.notices.is_empty() && self.paces.is_empty();
        let within = at_ns > self.now_ns && at_ns <= self.alone_until_ns.min(self.stop_ns);
        if !settled || !within || self.error.is_some() || self.handled >= self.events_max {
            return false;
        }
        // At the same time, who was made before comes first.
        if self.events.next_ns().is_some_and(|next_ns| next_ns <= at_ns) {
            return false;
        }
        self.events.count();
        self.reaches(at_ns);
        true
    }

    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }

    pub fn task_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id.index()]
    }

    pub fn cpu(&self, id: CpuId) -> &Cpu {
        &self.cpus[id.index()]
    }

    pub fn cpu_mut(&mut self, id: CpuId) -> &mut Cpu {
        &mut self.cpus[id.index()]
    }

    /// May the task run there now?
    pub fn can_run_on(&self, task: TaskId, cpu: CpuId) -> bool {
        let task = self.task(task);
        self.cpu(cpu).online && if task.migration_disabled { task.cpu == cpu } else { task.may_use(cpu) }
    }

    /// Make a pCPU schedule: this one when the present code has ended, another when the interrupt has got there.
    pub fn resched(&mut self, cpu: CpuId) {
        let target = &mut self.cpus[cpu.index()];
        // Who has it will not be preempted; when it goes the pCPU schedules anyway.
        if target.needs_resched || target.taken {
            return;
        }
        target.needs_resched = true;
        let mut delay_ns = if cpu == self.this_cpu { 0 } else { self.machine.ipi_ns(self.this_cpu, cpu) };
        if target.curr.is_none() {
            delay_ns += self.machine.costs.idle_exit_ns;
        }
        if delay_ns == 0 {
            self.pending.push_back(cpu);
        } else {
            self.events.push(self.now_ns + delay_ns, Event::Resched(cpu));
        }
    }

    /// Who runs there blocks or yields: the pCPU schedules when the present code has ended. What was asked for before may be an interrupt under way, or put off
    /// for a lock's holder.
    pub(super) fn resched_self(&mut self, cpu: CpuId) {
        self.this_cpu = cpu;
        if self.cpu(cpu).needs_resched && !self.pending.contains(&cpu) {
            self.pending.push_back(cpu);
        }
        self.resched(cpu);
    }

    /// `resched_curr_lazy()`: make a pCPU schedule when what it runs next leaves the kernel for user mode or a guest. No interrupt is sent for that: of
    /// another pCPU that is when it does so by itself, or at its tick. This one is in the kernel now.
    pub fn resched_lazy(&mut self, cpu: CpuId) {
        let here = cpu == self.this_cpu;
        let target = &mut self.cpus[cpu.index()];
        if here || target.curr.is_none() {
            self.resched(cpu);
        } else {
            target.needs_resched_lazy = true;
        }
    }

    /// The pCPU's kernel code has ended. Return true if a lazy wish to schedule has waited for that.
    pub(super) fn leaves_kernel(&mut self, cpu: CpuId) -> bool {
        let lazy = std::mem::take(&mut self.cpus[cpu.index()].needs_resched_lazy);
        if lazy {
            self.this_cpu = cpu;
            self.resched(cpu);
        }
        lazy
    }

    /// Account the running task's time up to now. Returns what was added. Called by the class's `update_curr()`, once.
    pub fn charge(&mut self, cpu: CpuId) -> Ns {
        let state = &mut self.cpus[cpu.index()];
        let delta_ns = self.now_ns - state.charged_ns;
        state.charged_ns = self.now_ns;
        let Some(curr) = state.curr else { return 0 };
        state.busy_ns += delta_ns;
        self.tasks[curr.index()].run_ns += delta_ns;
        delta_ns
    }

    /// A waiting or sleeping task is another pCPU's from now on.
    pub fn set_task_cpu(&mut self, id: TaskId, to: CpuId) {
        let task = &mut self.tasks[id.index()];
        let from = std::mem::replace(&mut task.cpu, to);
        // Where a new task begins is no migration.
        let begins = task.state == State::Asleep && task.warm_on.is_none();
        if from != to && !begins {
            task.migrations += 1;
            self.observers.tell(self.now_ns, || What::Migrate { task: id, from, to });
        }
    }

    /// Set a pCPU's next tick: all pCPUs' have the same beat.
    pub(crate) fn arm_tick(&mut self, cpu: CpuId) {
        let (tick_ns, jitter_ns) = (self.machine.costs.tick_ns, self.machine.costs.tick_jitter_ns);
        let state = &mut self.cpus[cpu.index()];
        state.tick_armed = true;
        let late_ns = if jitter_ns == 0 { 0 } else { state.jitter.below(jitter_ns + 1) };
        self.events.push((self.now_ns / tick_ns + 1) * tick_ns + late_ns, Event::Tick(cpu));
    }

    /// The simulation cannot go on. The first reason counts.
    pub fn fail(&mut self, error: SimError) {
        self.error.get_or_insert(error);
    }

    /// How many levels a group is below the root.
    pub fn group_level(&self, group: GroupId) -> u32 {
        let mut level = 0;
        let mut at = self.groups[group.index()].parent;
        while let Some(parent) = at {
            level += 1;
            at = self.groups[parent.index()].parent;
        }
        level
    }

    /// All tasks that wait for or have a pCPU.
    pub fn runnable(&self) -> impl Iterator<Item = TaskId> + '_ {
        let queued = |(index, task): (usize, &Task)| task.is_queued().then(|| TaskId::from(index));
        self.tasks.iter().enumerate().filter_map(queued)
    }

    pub(crate) fn starts_to_wait(&mut self, id: TaskId) {
        let now_ns = self.now_ns;
        let task = self.task_mut(id);
        task.state = State::Waiting;
        task.waits_since_ns = now_ns;
    }
}
