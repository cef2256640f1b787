// SPDX-License-Identifier: GPL-2.0-only
//! Balancing between a guest's vCPUs, as if all shared a cache: one that goes idle looks for a task if that seems worth it (sched_balance_newidle()), a busy
//! one evens out now and then (sched_balance_domains()), and one on which tasks wait tells one that idles at its tick (nohz_balancer_kick()). After
//! kernel/sched/fair.c, as the host's (class/fair/balance.rs, idle.rs, newidle.rs): a task moves only if it has not run a moment ago, and only up to the
//! average.

use crate::class::fair::{busy_interval_ticks, IMBALANCE_PERCENT};
use crate::time::Ns;
use crate::Host;

use super::task::Task;
use super::vm::Vm;

/// cache_nice_tries: after more failures than that hot tasks move, too.
const HOT_FAILURES: u32 = 1;

/// Who is there to be moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Find {
    Nobody,
    /// On that vCPU, tasks that have run a moment ago, or more than is to be moved.
    NotNow(usize),
    /// From that vCPU, that task.
    Task(usize, u32),
}

/// What a vCPU from which a task was taken was to do before: a vCPU, and whether it was to switch at once.
pub(super) type Taken = Option<(usize, bool)>;

impl Vm {
    /// Nothing to do here: take a task from elsewhere, if it seems worth looking for one, or another vCPU has asked for it.
    pub(super) fn balance_newidle(&mut self, host: &Host, v: usize) -> Taken {
        let now_ns = host.now_ns();
        let (vcpus, rule) = (self.cpus.len(), self.guest.newidle);
        let cost_ns = vcpus as Ns * self.guest.costs.newidle_vcpu_ns;
        // ttwu_pending: it will have something to do.
        if !self.cpus[v].wakelist.is_empty() {
            return None;
        }
        // Who was told, and got something to do before it looked, does not look when that ends.
        let was_idle = self.is_idle_task(self.cpus[v].current);
        let kicked = std::mem::take(&mut self.cpus[v].kicked) && was_idle;
        let mut counts = 1;
        if !kicked {
            self.cpus[v].idling.begins(now_ns);
            // rd->overload
            if !(0..vcpus).any(|other| self.load(other) > 1) {
                return None;
            }
            let idling = &mut self.cpus[v].idling;
            if !idling.is_long(cost_ns, rule) {
                return None;
            }
            counts = idling.dice(now_ns, 0, rule)?;
        }
        let found = self.find(host, v, 1);
        let taken = self.move_found(host, v, found, kicked);
        if !kicked {
            let idling = &mut self.cpus[v].idling;
            idling.count(now_ns, 0, if taken.is_some() { counts } else { 0 }, rule);
            if taken.is_some() {
                // It has not idled.
                idling.ends(now_ns, true);
            }
        }
        taken
    }

    /// At the tick of a busy vCPU.
    pub(super) fn balance_busy(&mut self, host: &Host, v: usize) -> Taken {
        let (now_ns, vcpus) = (host.now_ns(), self.cpus.len());
        if vcpus < 2 || now_ns < self.cpus[v].balance_ns {
            return None;
        }
        let mine = self.load(v);
        let mut found = self.find(host, v, mine);
        if let Find::Task(from, _) | Find::NotNow(from) = found {
            // calculate_imbalance(): in tasks, times the number of vCPUs. A task that is more than that moves after failures (shr_bound()).
            let all: usize = (0..vcpus).map(|other| self.load(other)).sum();
            let most = self.load(from);
            let imbalance = (most * vcpus).saturating_sub(all).min(all.saturating_sub(mine * vcpus));
            if imbalance == 0 || mine > 1 && most as u64 * 100 <= mine as u64 * IMBALANCE_PERCENT {
                found = Find::Nobody;
            } else if vcpus >> self.cpus[v].failed.min(31) > imbalance {
                found = Find::NotNow(from);
            }
        }
        let tick_ns = self.guest.tick_ns;
        let ticks = busy_interval_ticks(vcpus as Ns, found == Find::Nobody, tick_ns);
        // Between two ticks: it is due at the tick, however late that comes.
        self.cpus[v].balance_ns = now_ns + ticks * tick_ns - tick_ns / 2;
        self.move_found(host, v, found, true)
    }

    /// After the tick of a vCPU on which tasks wait that may move: tell the first one that idles, without a tick of its own (find_new_ilb()). Being preempted is
    /// no matter.
    pub(super) fn kick_idle(&mut self, v: usize) {
        if self.is_idle_task(self.cpus[v].current) || !self.has_movable(v) {
            return;
        }
        let idles = |other: &usize| *other != v && self.is_idle(*other) && !self.cpus[*other].tick.is_armed();
        if let Some(other) = (0..self.cpus.len()).find(idles) {
            let was_urgent = self.cpus[other].urgent;
            self.cpus[other].kicked = true;
            self.wants(other);
            self.tell_if_urgent(v, other, was_urgent);
        }
    }

    /// At the tick of a vCPU that idles and still has one.
    pub(super) fn idle_tick(&mut self, v: usize) {
        if (0..self.cpus.len()).any(|other| self.load(other) > 1) {
            self.cpus[v].kicked = true;
            self.wants(v);
        }
    }

    /// Of the vCPU with most tasks, more than `more_than`, of which one may move: the first that is not hot. One where only pinned tasks wait is passed over,
    /// whatever its load (LBF_ALL_PINNED).
    fn find(&self, host: &Host, v: usize, more_than: usize) -> Find {
        let failed = self.cpus[v].failed;
        let counts = |other: &usize| *other != v && self.load(*other) > more_than && self.has_movable(*other);
        let others = (0..self.cpus.len()).filter(counts);
        let Some(busiest) = others.max_by_key(|other| (self.load(*other), std::cmp::Reverse(*other))) else {
            return Find::Nobody;
        };
        let clock_ns = self.clock_ns(host, busiest);
        let is_cold = |task: &Task| {
            let just_ran =
                task.ran_ns > 0 && clock_ns.saturating_sub(task.ran_ns) < self.guest.migration_cost_ns;
            failed > HOT_FAILURES || !just_ran
        };
        let mut waiting = self.cpus[busiest].queue.iter();
        let cold = waiting.find(|task| {
            let task = &self.tasks[*task as usize];
            is_movable(task) && is_cold(task)
        });
        cold.map_or(Find::NotNow(busiest), |task| Find::Task(busiest, task))
    }

    /// Does somebody wait there who may move?
    fn has_movable(&self, v: usize) -> bool {
        self.cpus[v].queue.iter().any(|task| is_movable(&self.tasks[task as usize]))
    }

    /// Move who was found. `counts`: failures are counted, unless it is a vCPU that goes idle: that happens too often.
    fn move_found(&mut self, host: &Host, v: usize, found: Find, counts: bool) -> Taken {
        let Find::Task(from, task) = found else {
            let failed = &mut self.cpus[v].failed;
            *failed = if found == Find::Nobody { 0 } else { *failed + u32::from(counts) };
            return None;
        };
        self.cpus[v].failed = 0;
        let was_urgent = self.cpus[from].urgent;
        self.charge(host, from);
        self.take(task, from);
        if !self.is_eevdf() {
            self.cfs_move(task, from, v);
        }
        if self.put(task, v) {
            self.wants(v);
        }
        self.counters.steals += 1;
        Some((from, was_urgent))
    }
}

fn is_movable(task: &Task) -> bool {
    task.pin.is_none() && !task.delayed
}
