// SPDX-License-Identifier: GPL-2.0-only
//! The guest's scheduler: a fair queue for each vCPU, and wake-ups that choose one; balancing is in `balance.rs`. After kernel/sched/{core,fair}.c, as far
//! as it matters where a task runs, for how long, which run queue's lock is taken and when a vCPU interrupts another.

use crate::observe::What;
use crate::time::Ns;
use crate::Host;

use super::config::Heeds;
use super::ops::Op;
use super::task::{State, NO_SPACE};
use super::vm::Vm;
use super::TICK;

impl Vm {
    pub(crate) fn scheduler_op(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            // The lock is taken for the task that goes, and released by the one that comes.
            Op::Schedule => {
                let switch_ns = self.guest.costs.switch_ns;
                let steps =
                    [Op::IrqOff, Op::LockRq, Op::Work(switch_ns), Op::Switch, Op::UnlockRq, Op::IrqOn];
                self.frame(v).first(&steps);
            }
            Op::Preempt => self.may_be_preempted(v),
            Op::Switch => self.switch(host, v),
            Op::Return { kernel } if self.goes_first(v, kernel) => {
                self.frame(v).first(&[Op::Schedule, Op::Return { kernel }]);
            }
            Op::Return { kernel } => {
                let task = &mut self.tasks[self.cpus[v].current as usize];
                task.frame.doing = std::mem::take(&mut task.saved);
                task.kernel = kernel;
                self.tell_mode(host, v);
            }
            Op::Wake(task) | Op::WakeSync(task) if self.tasks[task as usize].state == State::Sleeping => {
                let cpu = self.select_cpu(task, v, matches!(op, Op::WakeSync(_)));
                if self.is_left_to(cpu, v, task) {
                    let (work, cpu) = (Op::Work(self.half_wake_ns()), cpu as u32);
                    self.frame(v).first(&[Op::IrqOff, work, Op::LeaveWake { task, cpu }, Op::IrqOn]);
                    return;
                }
                let lock = self.cpus[cpu].rq_lock;
                let wake_ns = self.guest.costs.wake_ns;
                let enqueue = Op::Enqueue { task, cpu: cpu as u32 };
                let steps =
                    [Op::IrqOff, Op::Lock(lock), Op::Work(wake_ns), enqueue, Op::Unlock(lock), Op::IrqOn];
                self.frame(v).first(&steps);
            }
            Op::Enqueue { task, cpu } => self.enqueue(host, v, task, cpu),
            Op::Resched(cpu) => {
                let level = usize::from(self.cpus[v].in_irq);
                self.cpus[v].receivers[level].push_back(cpu);
                self.frame(v).first(&[Op::SendIpis(crate::kvm::vector::RESCHED)]);
            }
            _ => {}
        }
    }

    /// rq_clock_task(): without steal time if the kernel is built for that, and is told it (update_rq_clock_task()).
    pub(super) fn clock_ns(&self, host: &Host, v: usize) -> Ns {
        let leaves_out = self.guest.paravirt_time_accounting && self.kvm.steal_time;
        let steal_ns = if leaves_out { host.run_delay_ns(self.thread(v)) } else { 0 };
        host.now_ns().saturating_sub(steal_ns)
    }

    /// update_curr()
    pub(crate) fn charge(&mut self, host: &Host, v: usize) {
        let clock_ns = self.clock_ns(host, v);
        let idle = self.is_idle_task(self.cpus[v].current);
        let eevdf = self.is_eevdf();
        let cpu = &mut self.cpus[v];
        let delta_ns = clock_ns.saturating_sub(cpu.charged_ns);
        cpu.charged_ns = cpu.charged_ns.max(clock_ns);
        self.tasks[cpu.current as usize].ran_ns = clock_ns;
        if eevdf {
            if !idle {
                self.eevdf_ran(v, delta_ns);
            }
            return;
        }
        let first = cpu.queue.first_ns();
        let mut least = first;
        if !idle {
            let task = &mut self.tasks[cpu.current as usize];
            task.vruntime_ns += delta_ns;
            cpu.ran_ns += delta_ns;
            least = Some(first.map_or(task.vruntime_ns, |first| first.min(task.vruntime_ns)));
        }
        cpu.min_vruntime_ns = cpu.min_vruntime_ns.max(least.unwrap_or(0));
    }

    /// Tasks that run or wait there.
    pub(super) fn load(&self, v: usize) -> usize {
        let cpu = &self.cpus[v];
        cpu.queue.len() - cpu.delayed + usize::from(!self.is_idle_task(cpu.current))
    }

    /// available_idle_cpu(): a preempted vCPU is none, if the guest can know.
    fn is_available_idle(&self, v: usize) -> bool {
        self.is_idle(v) && !(self.guest.heeds_preempted >= Heeds::All && self.vcpus[v].seen_preempted)
    }

    /// idle_cpu()
    pub(super) fn is_idle(&self, v: usize) -> bool {
        let cpu = &self.cpus[v];
        self.is_idle_task(cpu.current) && cpu.queue.is_empty() && cpu.wakelist.is_empty()
    }

    /// select_task_rq_fair(), as if all vCPUs shared a cache: where it was, where the waker is, or an idle one. `sync`: the waker is about to sleep, and does
    /// not count.
    fn select_cpu(&self, task: u32, waker: usize, sync: bool) -> usize {
        let task = &self.tasks[task as usize];
        if let Some(pin) = task.pin {
            return pin as usize;
        }
        let prev = task.cpu as usize;
        // Who is still queued there stays (ttwu_runnable()).
        if task.delayed || self.is_available_idle(prev) {
            return prev;
        }
        let here = self.load(waker) - usize::from(sync && !self.is_idle_task(self.cpus[waker].current));
        let target = if sync && here == 0 || here < self.load(prev) { waker } else { prev };
        let vcpus = self.cpus.len();
        let idle = (0..vcpus).map(|step| (target + step) % vcpus).find(|v| self.is_available_idle(*v));
        idle.unwrap_or(target)
    }

    pub(super) fn enqueue(&mut self, host: &mut Host, v: usize, task: u32, cpu: u32) {
        let known = &mut self.tasks[task as usize];
        if known.state != State::Sleeping {
            return;
        }
        known.state = State::Runnable;
        known.frame.prefetch();
        if known.on_rq && !known.delayed {
            // It had not left its vCPU yet (ttwu_runnable()).
            return;
        }
        let to = if known.delayed { known.cpu as usize } else { cpu as usize };
        let was_urgent = self.cpus[to].urgent;
        self.charge(host, to);
        let preempts = if self.tasks[task as usize].delayed {
            self.eevdf_requeue(to, task);
            self.eevdf_preempts(to, task)
        } else {
            if !self.is_eevdf() {
                self.cfs_place_woken(task, to);
            }
            self.put(task, to)
        };
        self.arm_slice(host, to);
        if preempts {
            self.wants(to);
        }
        self.tell_if_urgent(v, to, was_urgent);
    }

    /// Put a task on a queue. Return true if it should run there at once.
    pub(crate) fn put(&mut self, task: u32, to: usize) -> bool {
        let current = self.cpus[to].current;
        let idle = self.is_idle_task(current);
        let known = &mut self.tasks[task as usize];
        if known.cpu as usize != to {
            // migrate_task_rq_fair()
            known.ran_ns = 0;
        }
        if self.is_eevdf() {
            self.eevdf_join(to, task);
            self.tasks[task as usize].on_rq = true;
            self.tasks[task as usize].cpu = to as u32;
            return idle || self.eevdf_preempts(to, task);
        }
        let current_ns = self.tasks[current as usize].vruntime_ns;
        let cpu = &mut self.cpus[to];
        let known = &mut self.tasks[task as usize];
        known.on_rq = true;
        known.cpu = to as u32;
        cpu.queue.insert(known.vruntime_ns, task);
        idle || known.vruntime_ns + self.guest.wakeup_gran_ns < current_ns
    }

    pub(super) fn take(&mut self, task: u32, from: usize) {
        if self.is_eevdf() {
            self.eevdf_move_off(from, task);
            self.tasks[task as usize].on_rq = false;
            return;
        }
        let cpu = &mut self.cpus[from];
        let known = &mut self.tasks[task as usize];
        cpu.queue.remove(known.vruntime_ns, task);
        known.on_rq = false;
    }

    /// The running task makes way. Return it if it goes on all the same.
    fn put_prev(&mut self, v: usize) -> Option<u32> {
        if self.is_eevdf() {
            return self.eevdf_put_prev(v);
        }
        let prev = self.cpus[v].current;
        if !self.is_idle_task(prev) {
            let task = &mut self.tasks[prev as usize];
            if task.state == State::Runnable {
                self.cpus[v].queue.insert(task.vruntime_ns, prev);
            } else {
                task.on_rq = false;
            }
        }
        None
    }

    fn take_next(&mut self, v: usize) -> Option<u32> {
        match self.is_eevdf() {
            true => self.eevdf_take_next(v),
            false => self.cpus[v].queue.pop_first(),
        }
    }

    fn switch(&mut self, host: &mut Host, v: usize) {
        self.charge(host, v);
        let prev = self.cpus[v].current;
        let goes_on = self.put_prev(v);
        let mut next = goes_on.or_else(|| self.take_next(v));
        let mut pulled = None;
        if next.is_none() {
            pulled = self.balance_newidle(host, v);
            next = self.take_next(v);
        }
        let next = next.unwrap_or(v as u32);
        let cpu = &mut self.cpus[v];
        cpu.need_resched = false;
        cpu.urgent = false;
        cpu.ran_ns = 0;
        cpu.current = next;
        if next != prev {
            cpu.protected_until_ns = self.tasks[next as usize].deadline_ns;
        }
        cpu.slice.cancel();
        cpu.slice_untold = false;
        self.arm_slice(host, v);
        if let Some((from, was_urgent)) = pulled {
            self.tell_if_urgent(v, from, was_urgent);
        }
        if next == prev {
            return;
        }
        self.look_at_owners();
        self.vcpus[v].loop_ends();
        let id = self.vcpus[v].id;
        let name = |task: u32| if self.is_idle_task(task) { u32::MAX } else { task };
        let (from, to) = (name(prev), name(next));
        host.tell(|| What::GuestSwitch { vcpu: id, prev: from, next: to });
        self.load_space(v, next);
        if self.is_idle_task(next) {
            if !self.guest.retains_tick && !self.guest.periodic_tick {
                self.cpus[v].tick.cancel();
            }
        } else {
            self.cpus[v].idling.ends(host.now_ns(), false);
            if self.is_idle_task(prev) {
                self.arm_tick(host, v);
            }
        }
        self.tell_mode(host, v);
    }

    /// switch_mm_irqs_off(): idle borrows the space that is loaded; one that was lazy meanwhile makes up for the flushes it was spared.
    fn load_space(&mut self, v: usize, next: u32) {
        let space = self.tasks[next as usize].space;
        if space == NO_SPACE {
            return self.space_is_lazy(v);
        }
        let flushes = self.spaces[space as usize].flushes();
        let cpu = &mut self.cpus[v];
        let stale = (cpu.space == space || cpu.left_space == space) && cpu.flushed != flushes;
        let old = std::mem::replace(&mut cpu.space, space);
        cpu.lazy = false;
        cpu.left_space = NO_SPACE;
        cpu.flushed = flushes;
        self.space_changes(v, old, space);
        if stale {
            let flush_ns = self.guest.costs.flush_ns;
            self.tasks[next as usize].frame.first(&[Op::Work(flush_ns)]);
        }
    }

    pub(crate) fn arm_tick(&mut self, host: &mut Host, v: usize) {
        let tick_ns = self.guest.tick_ns;
        if tick_ns == 0 {
            return;
        }
        let phase_ns = self.tick_phase_ns;
        let beats = (host.now_ns() + tick_ns - phase_ns) / tick_ns;
        let at_ns = beats * tick_ns + phase_ns;
        let generation = self.cpus[v].tick.arm();
        host.set_timer(at_ns, self.thread(v).0, TICK, generation);
    }

    /// scheduler_tick(), under the run queue's lock.
    pub(crate) fn tick(&mut self, host: &mut Host, v: usize) {
        // sched_tick(): who was to go at the end of his time in the kernel has had until now.
        self.cpus[v].urgent |= self.cpus[v].need_resched;
        self.charge(host, v);
        if self.is_idle_task(self.cpus[v].current) {
            self.idle_tick(v);
            if self.guest.periodic_tick {
                self.arm_tick(host, v);
            }
            return;
        }
        if let Some((from, was_urgent)) = self.balance_busy(host, v) {
            self.tell_if_urgent(v, from, was_urgent);
        }
        if self.is_slice_over(v) {
            self.wants(v);
        } else {
            self.arm_slice(host, v);
        }
        self.arm_tick(host, v);
    }

    /// sched_yield(): behind the first of those that wait. Whoever is alone on its run queue loses nothing (yield_task_fair()).
    pub(crate) fn yield_task(&mut self, host: &Host, v: usize) {
        self.charge(host, v);
        if let Some(first_ns) = self.cpus[v].queue.first_ns() {
            if self.is_eevdf() {
                self.eevdf_yield(v);
            } else {
                let task = &mut self.tasks[self.cpus[v].current as usize];
                task.vruntime_ns = task.vruntime_ns.max(first_ns + 1);
            }
        }
        self.frame(v).first(&[Op::Schedule]);
    }
}
