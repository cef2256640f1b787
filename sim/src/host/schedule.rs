// SPDX-License-Identifier: GPL-2.0-only
//! The steps of `__schedule()` of kernel/sched/core.c, and the events that lead to it.

use crate::body::Run;
use crate::events::Event;
use crate::ids::{CpuId, TaskId};
use crate::observe::{Stop, What};
use crate::time::Speed;

use super::class::{Class, Dequeue};
use super::task::State;
use super::Host;

/// What a call of schedule() changed; the bodies are told.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    pub cpu: CpuId,
    pub prev: Option<(TaskId, Stop)>,
    pub next: Option<(TaskId, Run)>,
}

impl<C: Class> Host<C> {
    /// The next pCPU that is to schedule at this instant.
    pub(crate) fn next_pending(&mut self) -> Option<CpuId> {
        self.core.pending.pop_front()
    }

    /// `__schedule()`. `None`: everything stays as it is.
    pub(crate) fn schedule(&mut self, cpu: CpuId) -> Option<Switch> {
        let at = cpu.index();
        if !self.core.cpus[at].needs_resched {
            return None;
        }
        self.core.this_cpu = cpu;
        let prev = self.core.cpus[at].curr;
        if let Some(until_ns) = prev.and_then(|id| self.put_off_until_ns(cpu, id)) {
            self.core.events.push(until_ns, Event::Resched(cpu));
            return None;
        }
        self.core.cpus[at].put_off_since_ns = None;
        if let Some(id) = prev {
            self.narrow(id, true);
        }
        let mut why = Stop::Preempted;
        if let Some(id) = prev {
            self.class.update_curr(&mut self.core, cpu);
            if self.core.task(id).leaving {
                why = self.leave(id);
            }
        }
        self.core.cpus[at].picking = true;
        let next = self.class.pick(&mut self.core, cpu, prev);
        self.core.cpus[at].picking = false;
        // What asked for this schedule(), or asked again meanwhile, has been heard.
        self.core.cpus[at].needs_resched = false;
        self.core.cpus[at].needs_resched_lazy = false;
        self.core.decisions += 1;
        let switch = if next == prev { None } else { Some(self.switch(cpu, prev, why, next)) };
        self.class.finish(&mut self.core);
        switch
    }

    /// The running task has called `block()` or `exit()`.
    pub(super) fn leave(&mut self, id: TaskId) -> Stop {
        self.core.task_mut(id).leaving = false;
        self.class.dequeue(&mut self.core, id, Dequeue::Sleep);
        let task = self.core.task_mut(id);
        if task.exiting {
            task.state = State::Dead;
            Stop::Exited
        } else {
            task.state = State::Asleep;
            Stop::Blocked
        }
    }

    /// `context_switch()` and what belongs to it.
    pub(super) fn switch(
        &mut self,
        cpu: CpuId,
        prev: Option<TaskId>,
        why: Stop,
        next: Option<TaskId>,
    ) -> Switch {
        let (at, now_ns) = (cpu.index(), self.core.now_ns);
        if let Some(id) = prev {
            let left_ns = self.core.cpus[at].from_ns.saturating_sub(now_ns);
            let task = self.core.task_mut(id);
            task.refill_left_ns = task.refill_left_ns.min(left_ns);
            if why == Stop::Preempted {
                self.class.put_prev(&mut self.core, cpu, id);
                self.core.starts_to_wait(id);
            }
        }
        if let Some(id) = next {
            self.class.set_next(&mut self.core, cpu, id);
        }
        self.class.switched(&mut self.core, cpu, prev, next);

        let core = &mut self.core;
        let state = &mut core.cpus[at];
        state.curr = next;
        state.charged_ns = now_ns;
        state.turn = state.turn.wrapping_add(1);
        let began_ns = std::mem::replace(&mut state.turn_since_ns, now_ns);
        state.switches += 1;
        let spun = std::mem::replace(&mut state.spins, false);
        if prev.is_none() {
            state.idle_ns += now_ns - state.idle_since_ns;
            core.idle.remove(cpu);
        }
        if next.is_none() {
            state.idle_since_ns = now_ns;
            if !state.taken {
                core.idle.insert(cpu);
            }
        }
        core.observers.tell(now_ns, || What::Switch { cpu, prev, why, next });
        if let Some(id) = prev.filter(|_| core.machine.loses_to_others()) {
            let (task, state) = (&mut core.tasks[id.index()], &mut core.cpus[at]);
            task.turn_ns = now_ns - began_ns;
            state.recent.leaves(core.machine.whose(task.tgid, id), state.busy_ns);
        }
        // Between busy and idle the change is told of with the switch.
        if spun && next.is_some() {
            core.paces.push_back(cpu);
        }

        if let Some(id) = prev {
            self.vcpu_sched_out(id);
            if why == Stop::Exited {
                self.class.task_dead(&mut self.core, id);
            }
        }
        let run = next.map(|id| (id, self.begin_turn(cpu, id)));
        Switch { cpu, prev: prev.map(|id| (id, why)), next: run }
    }

    /// The task has the pCPU: what it costs before its own work begins, and the ticks.
    fn begin_turn(&mut self, cpu: CpuId, id: TaskId) -> Run {
        let switch_ns = self.core.machine.costs.context_switch_ns + self.class.programs_ns(&self.core);
        let core = &mut self.core;
        let now_ns = core.now_ns;
        let task = &mut core.tasks[id.index()];
        let waited_ns = now_ns - task.waits_since_ns;
        task.state = State::Running;
        task.wait_ns += waited_ns;
        task.wait_max_ns = task.wait_max_ns.max(waited_ns);
        task.switches += 1;
        if let Some(from) = task.warm_on.filter(|from| *from != cpu) {
            task.refill_left_ns = task.refill_left_ns.max(core.machine.refill_ns(from, cpu));
        }
        task.warm_on = Some(cpu);
        let state = &mut core.cpus[cpu.index()];
        if core.machine.loses_to_others() {
            let others_ns = state.recent.others_ns(core.machine.whose(task.tgid, id), state.busy_ns);
            let after_other_ns =
                core.machine.refill_after_other_ns(task.footprint_per_mille, task.turn_ns, others_ns);
            task.refill_left_ns = task.refill_left_ns.max(after_other_ns);
        }
        let from_ns = now_ns + switch_ns + task.refill_left_ns;
        state.from_ns = from_ns;
        if !state.tick_armed && self.class.has_ticks() {
            core.arm_tick(cpu);
        }
        if let Some(slice_ns) = self.class.exact_slice_ns(&self.core, cpu) {
            let turn = self.core.cpus[cpu.index()].turn;
            self.core.events.push(now_ns + slice_ns, Event::SliceEnd { cpu, turn });
        }
        self.vcpu_sched_in(id);
        let speed = self.speed_of(cpu);
        self.core.cpus[cpu.index()].speed = speed;
        Run { cpu, from_ns, speed }
    }

    /// How fast this pCPU works, given what its core's other threads do.
    fn speed_of(&self, cpu: CpuId) -> Speed {
        let machine = &self.core.machine;
        if machine.threads_per_core() == 1 {
            return Speed::FULL;
        }
        let others = machine.core_of(cpu).filter(|other| *other != cpu);
        machine.speed_beside(others.filter_map(|other| self.core.cpu(other).pace()))
    }

    /// The runner of `cpu` only waits in a loop, or does not: if that is new, its core's other threads feel it at this instant. To be told where
    /// [`crate::machine::Machine::feels_spinners`].
    pub(crate) fn runner_spins(&mut self, cpu: CpuId, runner: TaskId, spins: bool) {
        let state = self.core.cpu_mut(cpu);
        // Its body may be the last to hear that it has lost the pCPU.
        if state.curr == Some(runner) && state.spins != spins {
            state.spins = spins;
            self.core.paces.push_back(cpu);
        }
    }

    /// After `cpu` began or ceased to work or to spin: the running tasks of the core's other threads whose speed that changes. There are no more than the
    /// core has threads.
    pub(crate) fn changed_speed(&mut self, cpu: CpuId, other: CpuId) -> Option<(TaskId, Run)> {
        if other == cpu {
            return None;
        }
        let speed = self.speed_of(other);
        let now_ns = self.core.now_ns;
        let state = self.core.cpu_mut(other);
        let task = state.curr.filter(|_| state.speed != speed)?;
        state.speed = speed;
        state.from_ns = state.from_ns.max(now_ns);
        let from_ns = state.from_ns;
        self.core.observers.tell(now_ns, || What::Speed { cpu: other, full: speed == Speed::FULL });
        Some((task, Run { cpu: other, from_ns, speed }))
    }

    /// Events that are the host's own.
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Tick(cpu) => self.tick(cpu),
            Event::Resched(cpu) => {
                if self.core.cpu(cpu).needs_resched {
                    self.core.pending.push_back(cpu);
                }
            }
            Event::SliceEnd { cpu, turn } => {
                if self.core.cpu(cpu).turn == turn {
                    self.on_cpu(cpu, |host| {
                        host.class.update_curr(&mut host.core, cpu);
                        host.class.slice_end(&mut host.core, cpu);
                    });
                }
            }
            Event::Migrate(task) => self.stopper_moves(task),
            Event::Push(cpu) => self.push_away(cpu),
            Event::Watchdog => self.class.event(&mut self.core, event),
            Event::ClassTimer { .. } => {
                self.class.event(&mut self.core, event);
                self.class.finish(&mut self.core);
            }
            Event::Interrupt { .. } | Event::Body { .. } => {}
        }
    }

    /// Kernel code on a pCPU. When it ends interrupts are on again, and the kicks asked for meanwhile go out; on the way out a lazy wish to schedule is heard
    /// (exit_to_user_mode_loop(), xfer_to_guest_mode_work(), and at the tick sched_tick()).
    pub(crate) fn on_cpu<R>(&mut self, cpu: CpuId, f: impl FnOnce(&mut Self) -> R) -> R {
        self.core.this_cpu = cpu;
        let result = f(self);
        self.class.finish(&mut self.core);
        self.core.leaves_kernel(cpu);
        result
    }

    /// `scheduler_tick()`. An idle pCPU's tick stops (NO_HZ_IDLE) and begins anew with the next task, at the same beat.
    fn tick(&mut self, cpu: CpuId) {
        if self.core.cpu(cpu).curr.is_none() {
            self.core.cpu_mut(cpu).tick_armed = false;
            return;
        }
        self.on_cpu(cpu, |host| host.class.tick(&mut host.core, cpu));
        self.core.arm_tick(cpu);
    }
}
