// SPDX-License-Identifier: GPL-2.0-only
//! EEVDF between the tasks of a vCPU, which all weigh the same: among those that are not ahead of the average, the earliest virtual deadline
//! (kernel/sched/fair.c since 6.6).
//!
//! What a task is behind or ahead is kept while it sleeps (PLACE_LAG). Where steal time counts as run time, whoever had the vCPU when that lost its pCPU is
//! ahead by a turn of the host's; so tasks that pass work to each other are woken one by one instead of finding much of it.

use crate::time::Ns;

use super::config::Scheduler;
use super::task::State;
use super::vm::Vm;

impl Vm {
    pub(super) fn is_eevdf(&self) -> bool {
        self.guest.scheduler != Scheduler::Cfs
    }

    /// The running task, if it competes: one that sleeps does so until it has left its vCPU.
    fn competing(&self, v: usize) -> Option<u32> {
        let current = self.cpus[v].current;
        (!self.is_idle_task(current) && self.tasks[current as usize].on_rq).then_some(current)
    }

    /// Of all that compete, `curr` included: the sum of their virtual run times, and how many there are.
    fn sums(&self, v: usize, curr: Option<u32>) -> (Ns, u64) {
        let queue = &self.cpus[v].queue;
        let own_ns = curr.map_or(0, |task| self.tasks[task as usize].vruntime_ns);
        (queue.sum_ns() + own_ns, queue.len() as u64 + u64::from(curr.is_some()))
    }

    /// avg_vruntime()
    fn average_ns(&self, v: usize, curr: Option<u32>) -> Ns {
        let (sum_ns, count) = self.sums(v, curr);
        sum_ns.checked_div(count).unwrap_or(self.cpus[v].min_vruntime_ns)
    }

    /// entity_eligible(): not ahead of the average.
    fn is_eligible(&self, v: usize, curr: Option<u32>, task: u32) -> bool {
        let (sum_ns, count) = self.sums(v, curr);
        self.tasks[task as usize].vruntime_ns * count <= sum_ns
    }

    /// update_entity_lag(): remembered while it does not compete. Who stays queued to pay loses no lag by that, and gains none (DELAY_ZERO). Return true if
    /// it is not where its virtual run time says.
    fn remember_lag(&mut self, v: usize, curr: Option<u32>, task: u32) -> bool {
        let limit_ns = match self.guest.lag_by_tick {
            true => self.guest.slice_ns + self.guest.tick_ns,
            false => (2 * self.guest.slice_ns).max(self.guest.tick_ns),
        } as i64;
        let average_ns = self.average_ns(v, curr) as i64;
        let known = &mut self.tasks[task as usize];
        let mut ahead_ns = (known.vruntime_ns as i64 - average_ns).clamp(-limit_ns, limit_ns);
        if known.delayed {
            ahead_ns = ahead_ns.min(known.ahead_ns).max(0);
        }
        known.ahead_ns = ahead_ns;
        average_ns + ahead_ns != known.vruntime_ns as i64
    }

    /// place_entity(): at the average, with the lag that it left with; inflated, because its own coming moves the average. Who only moves keeps what is left
    /// of its slice.
    fn place(&mut self, v: usize, task: u32) {
        let curr = self.competing(v);
        let (_, count) = self.sums(v, curr);
        let average_ns = self.average_ns(v, curr);
        let slice_ns = self.guest.slice_ns;
        let known = &mut self.tasks[task as usize];
        let ahead_ns = match count as i64 {
            0 => 0,
            count => known.ahead_ns * (count + 1) / count,
        };
        known.vruntime_ns = average_ns.saturating_add_signed(ahead_ns);
        known.deadline_ns = known.vruntime_ns + known.left_ns.take().unwrap_or(slice_ns);
    }

    /// It competes on that vCPU from now on.
    pub(super) fn eevdf_join(&mut self, v: usize, task: u32) {
        self.place(v, task);
        self.cpus[v].queue.insert(self.tasks[task as usize].vruntime_ns, task);
    }

    /// A waiting task moves to another vCPU.
    pub(super) fn eevdf_move_off(&mut self, v: usize, task: u32) {
        self.remember_lag(v, self.competing(v), task);
        let known = &mut self.tasks[task as usize];
        known.left_ns = Some(known.deadline_ns.saturating_sub(known.vruntime_ns));
        self.cpus[v].queue.remove(known.vruntime_ns, task);
    }

    /// The running task has run so long: update_curr() and update_deadline().
    pub(super) fn eevdf_ran(&mut self, v: usize, delta_ns: Ns) {
        let slice_ns = self.guest.slice_ns;
        let task = &mut self.tasks[self.cpus[v].current as usize];
        task.vruntime_ns += delta_ns;
        self.cpus[v].ran_ns += delta_ns;
        if task.vruntime_ns >= task.deadline_ns {
            task.deadline_ns = task.vruntime_ns + slice_ns;
        }
        let is_over = task.vruntime_ns >= self.cpus[v].protected_until_ns;
        let average_ns = self.average_ns(v, self.competing(v));
        let cpu = &mut self.cpus[v];
        cpu.min_vruntime_ns = average_ns;
        if is_over && !cpu.queue.is_empty() {
            self.wants(v);
        }
    }

    /// pick_eevdf()
    fn pick(&self, v: usize, curr: Option<u32>) -> Option<u32> {
        let cpu = &self.cpus[v];
        let known = |task: u32| &self.tasks[task as usize];
        let mine = curr.filter(|task| cpu.queue.is_empty() || self.is_eligible(v, curr, *task));
        if mine.is_some_and(|task| known(task).vruntime_ns < cpu.protected_until_ns) {
            return mine;
        }
        let (sum_ns, count) = self.sums(v, curr);
        let eligible = cpu.queue.iter().take_while(|task| known(*task).vruntime_ns * count <= sum_ns);
        let best = eligible.min_by_key(|task| known(*task).deadline_ns);
        match (mine, best) {
            (Some(mine), Some(best)) if known(mine).deadline_ns < known(best).deadline_ns => Some(mine),
            (mine, None) => mine.or_else(|| cpu.queue.iter().next()),
            (_, best) => best,
        }
    }

    /// Does a task that has come preempt the one that runs? (wakeup_preempt_fair()) Since 7.1 a sleeper that would be picked has paid and leaves.
    pub(super) fn eevdf_preempts(&mut self, v: usize, task: u32) -> bool {
        loop {
            let curr = self.competing(v);
            match self.pick(v, curr) {
                Some(sleeper) if self.tasks[sleeper as usize].delayed && self.guest.paid_leave => {
                    self.leave_late(v, curr, sleeper);
                }
                picked => return picked == Some(task),
            }
        }
    }

    /// It has paid for what it was ahead, and leaves (finish_delayed_dequeue_entity()).
    fn leave_late(&mut self, v: usize, curr: Option<u32>, task: u32) {
        self.remember_lag(v, curr, task);
        let known = &mut self.tasks[task as usize];
        known.delayed = false;
        known.on_rq = false;
        self.cpus[v].queue.remove(known.vruntime_ns, task);
        self.cpus[v].delayed -= 1;
    }

    /// It wakes before it has paid (requeue_delayed_entity()).
    pub(super) fn eevdf_requeue(&mut self, v: usize, task: u32) {
        let moved = self.remember_lag(v, self.competing(v), task);
        self.tasks[task as usize].delayed = false;
        self.cpus[v].delayed -= 1;
        if moved {
            self.cpus[v].queue.remove(self.tasks[task as usize].vruntime_ns, task);
            self.eevdf_join(v, task);
        }
    }

    /// The running task is no longer the one that runs: it waits, sleeps, or, ahead of the others, stays queued until it has paid (DELAY_DEQUEUE). Return it
    /// if it goes on, since its slice is not over and it is not ahead (RUN_TO_PARITY).
    pub(super) fn eevdf_put_prev(&mut self, v: usize) -> Option<u32> {
        let prev = self.competing(v)?;
        let eligible = self.is_eligible(v, Some(prev), prev);
        let known = &self.tasks[prev as usize];
        let (state, vruntime_ns) = (known.state, known.vruntime_ns);
        if state == State::Runnable {
            if eligible && vruntime_ns < self.cpus[v].protected_until_ns {
                return Some(prev);
            }
            self.cpus[v].queue.insert(vruntime_ns, prev);
            return None;
        }
        self.remember_lag(v, Some(prev), prev);
        let stays = self.guest.scheduler == Scheduler::EevdfDelay && state == State::Sleeping && !eligible;
        let known = &mut self.tasks[prev as usize];
        known.delayed = stays;
        known.on_rq = stays;
        if stays {
            self.cpus[v].queue.insert(vruntime_ns, prev);
            self.cpus[v].delayed += 1;
        }
        None
    }

    /// Take who runs next out of the queue. Nobody is on the vCPU.
    pub(super) fn eevdf_take_next(&mut self, v: usize) -> Option<u32> {
        loop {
            let next = self.pick(v, None)?;
            if self.tasks[next as usize].delayed {
                self.leave_late(v, None, next);
                continue;
            }
            self.cpus[v].queue.remove(self.tasks[next as usize].vruntime_ns, next);
            return Some(next);
        }
    }

    /// sched_yield(): another slice, behind the first; since 6.19 the rest of that is forfeited, and who is ahead already changes nothing.
    pub(super) fn eevdf_yield(&mut self, v: usize) {
        let Some(task) = self.competing(v) else { return };
        let forfeits = self.guest.yield_forfeits;
        if forfeits && !self.is_eligible(v, Some(task), task) {
            return;
        }
        let slice_ns = self.guest.slice_ns;
        let known = &mut self.tasks[task as usize];
        if forfeits {
            known.vruntime_ns = known.deadline_ns;
        }
        known.deadline_ns += slice_ns;
        self.cpus[v].protected_until_ns = known.vruntime_ns;
    }
}
