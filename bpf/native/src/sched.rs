// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's scheduling core and sched_ext's part of it: which operation is called when, in the order of Linux 6.18 to 7.3.
//!
//! The facts that decide most: a slice is only looked at by ticks and when the pCPU schedules for another reason; ops.dispatch() runs before
//! the leaving task's ops.stopping() and ops.enqueue(), and those before the next one's ops.running(); a task that goes on sees none of these.

use crate::dsq::{ENQ_HEAD, ENQ_WAKEUP};
use crate::ops::OpKind;
use crate::task::{Queue, State, TaskId, FOREVER, PF_EXITING};
use crate::world::{Event, World};

pub const SLICE_DEFAULT_NS: u64 = 20_000_000;
const WAKE_TTWU: u64 = 8;
pub(crate) const DEQ_SLEEP: u64 = 1;
const KICK_IDLE: u64 = 1;
const KICK_PREEMPT: u64 = 2;
/// What do_exit() costs before the last schedule().
const EXIT_NS: u64 = 50_000;

impl World {
    /// Do something on a pCPU; when it is done interrupts are on again, and the kicks asked for meanwhile go out.
    pub(crate) fn on_cpu<R>(&mut self, cpu: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.this_cpu, cpu);
        let result = f(self);
        self.deliver_kicks();
        self.this_cpu = before;
        result
    }

    pub(crate) fn deliver_kicks(&mut self) {
        while let Some((cpu, flags)) = self.kicks.pop_front() {
            let target = &self.cpus[cpu];
            if !target.online && cpu != self.this_cpu || flags & KICK_IDLE != 0 && target.curr.is_some() {
                continue;
            }
            if let (true, Some(curr)) = (flags & KICK_PREEMPT != 0, target.curr) {
                self.task_mut(curr).set_slice(0);
            }
            self.resched(cpu);
        }
    }

    /// Make a pCPU schedule: this one at once, another when the interrupt has got there.
    pub(crate) fn resched(&mut self, cpu: usize) {
        if !self.cpus[cpu].needs_resched {
            self.cpus[cpu].needs_resched = true;
            let delay_ns = if cpu == self.this_cpu { 0 } else { self.config.ipi_ns };
            self.after(delay_ns, Event::Resched(cpu));
        }
    }

    /// Charge the running task for what it has run.
    pub(crate) fn update_curr(&mut self, cpu: usize) {
        let state = &mut self.cpus[cpu];
        let delta_ns = self.now_ns - state.exec_start_ns;
        state.exec_start_ns = self.now_ns;
        if let Some(id) = state.curr {
            state.busy_ns += delta_ns;
            self.task_mut(id).used(delta_ns);
        }
    }

    pub(crate) fn tick(&mut self) {
        for cpu in 0..self.cpus.len() {
            let Some(curr) = self.cpus[cpu].curr else { continue };
            self.on_cpu(cpu, |w| {
                w.update_curr(cpu);
                let p = w.task(curr).ptr();
                w.op(OpKind::Tick, &[curr], |ops| ops.tick.map(|tick| tick(p)));
                if w.task(curr).slice() == 0 {
                    w.resched(cpu);
                }
            });
        }
        self.watchdog();
        self.after(self.config.tick_ns, Event::Tick);
    }

    pub(crate) fn schedule(&mut self, cpu: usize) {
        self.on_cpu(cpu, |w| w.schedule_here(cpu));
    }

    fn schedule_here(&mut self, cpu: usize) {
        self.cpus[cpu].needs_resched = false;
        let prev = self.cpus[cpu].curr;
        if let Some(id) = prev {
            self.update_curr(cpu);
            if self.task(id).state != State::Runnable {
                self.dequeue(id, DEQ_SLEEP, false);
            }
        }
        let next = self.pick(cpu, prev);
        if next == prev {
            // An idle pCPU that finds nothing is idle again, whoever had claimed it.
            self.cpus[cpu].idle = next.is_none() && self.cpus[cpu].online;
            return;
        }
        if let Some(id) = prev {
            self.put_prev(id);
        }
        if let Some(id) = next {
            self.set_next(id);
        }
        self.cpus[cpu].curr = next;
        self.cpus[cpu].idle = next.is_none() && self.cpus[cpu].online;
        self.cpus[cpu].exec_start_ns = self.now_ns;
        if let Some(id) = prev {
            self.sched_out(id);
            if self.task(id).state == State::Dead {
                self.bury(id);
            }
        }
        if let Some(id) = next {
            self.sched_in(id);
        }
    }

    fn pick(&mut self, cpu: usize, prev: Option<TaskId>) -> Option<TaskId> {
        self.cpus[cpu].in_balance = true;
        let keep = self.balance(cpu, prev);
        self.cpus[cpu].in_balance = false;
        let next = if keep { prev } else { self.cpus[cpu].local.front().copied() };
        if let Some(id) = next.filter(|id| self.task(*id).slice() == 0) {
            self.task_mut(id).set_slice(SLICE_DEFAULT_NS);
        }
        next
    }

    /// See that there is something to run. Return true if that is the task that has been running.
    fn balance(&mut self, cpu: usize, prev: Option<TaskId>) -> bool {
        if prev.is_some_and(|id| self.task(id).is_queued() && self.task(id).slice() > 0) {
            return true;
        }
        if !self.cpus[cpu].local.is_empty() || self.consume(Queue::Global, cpu) {
            return false;
        }
        if self.cpus[cpu].online {
            let p = self.pointer(prev);
            self.op(OpKind::Dispatch, &[], |ops| ops.dispatch.map(|dispatch| dispatch(cpu as i32, p)));
            if prev.is_some_and(|id| self.task(id).is_queued() && self.task(id).slice() > 0) {
                return true;
            }
            if !self.cpus[cpu].local.is_empty() || self.consume(Queue::Global, cpu) {
                return false;
            }
        }
        prev.is_some_and(|id| self.task(id).is_queued())
    }

    /// The task leaves the pCPU for another one, or has stopped.
    pub(crate) fn put_prev(&mut self, id: TaskId) {
        if !self.task(id).is_queued() {
            return;
        }
        let p = self.task(id).ptr();
        self.op(OpKind::Stopping, &[id], |ops| ops.stopping.map(|stopping| stopping(p, true)));
        self.task_mut(id).waits_since_ns = self.now_ns;
        if self.task(id).slice() > 0 {
            let cpu = self.task(id).cpu;
            self.insert_local(cpu, id, ENQ_HEAD);
        } else {
            self.do_enqueue(id, 0);
        }
    }

    fn set_next(&mut self, id: TaskId) {
        self.unqueue(id);
        let p = self.task(id).ptr();
        self.op(OpKind::Running, &[id], |ops| ops.running.map(|running| running(p)));
        let now_ns = self.now_ns;
        let task = self.task_mut(id);
        task.turn += 1;
        task.wait_max_ns = task.wait_max_ns.max(now_ns - task.waits_since_ns);
        if task.wants_exit && !task.is_exiting() {
            task.kern_mut().flags |= PF_EXITING;
            task.burst_left_ns = EXIT_NS;
        } else if task.wants_sleep {
            task.burst_left_ns = 0;
        }
        if task.burst_left_ns != FOREVER {
            let (left_ns, end) = (task.burst_left_ns, Event::BurstEnd(id, task.turn));
            self.after(left_ns, end);
        }
    }

    /// The running task stops: it sleeps, or it is the end of it.
    pub(crate) fn block(&mut self, id: TaskId) {
        let task = self.task_mut(id);
        task.wants_sleep = false;
        task.state = if task.is_exiting() { State::Dead } else { State::Asleep };
        let cpu = task.cpu;
        let sleep_ns = task.sleep_ns.filter(|_| task.state == State::Asleep);
        self.schedule(cpu);
        if let Some(ns) = sleep_ns {
            self.after(ns, Event::Wake(id));
        }
    }

    /// Let a task sleep as soon as it runs.
    pub fn sleep(&mut self, id: TaskId) {
        if self.is_running(id) && !self.task(id).is_exiting() {
            self.block(id);
        } else {
            self.task_mut(id).wants_sleep = true;
        }
    }

    pub fn wake(&mut self, id: TaskId) {
        self.task_mut(id).wants_sleep = false;
        if self.task(id).state != State::Asleep {
            return;
        }
        let prev_cpu = self.task(id).cpu;
        let here = if self.cpus[prev_cpu].online { prev_cpu } else { self.online_cpu() };
        self.on_cpu(here, |w| w.wake_here(id, prev_cpu));
    }

    fn wake_here(&mut self, id: TaskId, prev_cpu: usize) {
        let now_ns = self.now_ns;
        let task = self.task_mut(id);
        task.state = State::Runnable;
        task.waits_since_ns = now_ns;
        task.next_burst();
        let cpu = if task.kern().nr_cpus_allowed > 1 && !task.migration_disabled {
            let p = task.ptr();
            let selected = self.op(OpKind::SelectCpu, &[id], |ops| {
                ops.select_cpu.map_or(prev_cpu as i32, |select| select(p, prev_cpu as i32, WAKE_TTWU))
            });
            assert!(
                (0..self.cpus.len() as i32).contains(&selected),
                "invalid CPU {selected} from ops.select_cpu()"
            );
            selected as usize
        } else {
            (0..self.cpus.len()).find(|cpu| self.task(id).allowed(*cpu)).unwrap_or(prev_cpu)
        };
        let cpu =
            if self.task(id).allowed(cpu) && self.cpus[cpu].online { cpu } else { self.fallback_cpu(id) };
        self.task_mut(id).cpu = cpu;
        self.vcpu_woken(id);
        self.enqueue(id, ENQ_WAKEUP);
        if self.cpus[cpu].curr.is_none() {
            self.resched(cpu);
        }
    }

    /// Where the kernel puts a task for which there is no pCPU any more; its affinity gives way if it must.
    pub(crate) fn fallback_cpu(&mut self, id: TaskId) -> usize {
        let usable = |w: &Self, cpu: &usize| w.cpus[*cpu].online && w.task(id).allowed(*cpu);
        let found = (0..self.cpus.len()).find(|cpu| usable(self, cpu));
        found.unwrap_or_else(|| {
            let everywhere = crate::ffi::CpuMask::of(0..self.cpus.len());
            self.task_mut(id).set_mask(everywhere);
            self.online_cpu()
        })
    }

    pub(crate) fn online_cpu(&self) -> usize {
        self.cpus.iter().position(|cpu| cpu.online).expect("the last pCPU does not go offline")
    }

    pub(crate) fn enqueue(&mut self, id: TaskId, flags: u64) {
        self.task_mut(id).set_queued(true);
        self.do_enqueue(id, flags);
    }

    pub(crate) fn do_enqueue(&mut self, id: TaskId, flags: u64) {
        let cpu = self.task(id).cpu;
        if self.cpus[cpu].online && self.task(id).verdict.is_none() {
            let task = self.task(id);
            if !task.is_exiting() && !task.migration_disabled {
                let p = task.ptr();
                self.op(OpKind::Enqueue, &[id], |ops| ops.enqueue.map(|enqueue| enqueue(p, flags)));
                assert!(self.task(id).verdict.is_some(), "ops.enqueue() inserted {id:?} nowhere");
            }
        }
        match self.task_mut(id).verdict.take().filter(|_| self.cpus[cpu].online) {
            Some((dsq, verdict_flags)) => self.insert(id, dsq, verdict_flags | flags),
            None => {
                // Not shown to the scheduler: going offline, exiting, or with migration disabled.
                self.task_mut(id).set_slice(SLICE_DEFAULT_NS);
                self.insert_local(cpu, id, flags);
            }
        }
    }

    pub(crate) fn dequeue(&mut self, id: TaskId, flags: u64, migrating: bool) {
        let p = self.task(id).ptr();
        if self.is_running(id) {
            self.update_curr(self.task(id).cpu);
            self.op(OpKind::Stopping, &[id], |ops| ops.stopping.map(|stopping| stopping(p, false)));
        }
        if !migrating {
            self.op(OpKind::Quiescent, &[id], |ops| ops.quiescent.map(|quiescent| quiescent(p, flags)));
        }
        self.task_mut(id).set_queued(false);
        self.task_mut(id).verdict = None;
        self.unqueue(id);
    }
}
