// SPDX-License-Identifier: GPL-2.0-only
//! Load balancing: a pCPU that goes idle pulls a task (`newidle_balance()`), and every busy one evens out its scheduling domains now and then
//! (`load_balance()`, `sched_balance_rq()`). Domains: the core's threads, the cores of a cache, the socket, the machine. Simpler than the kernel's:
//! every pCPU balances for itself, running tasks are not pushed, and how busy a pCPU is is said by who is runnable there (no utilization).

use crate::cpuset::CpuSet;
use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::time::{Ns, MS};

use super::newidle::{Idling, MIGRATION_COST_NS};
use super::Fair;

/// imbalance_pct of a cache's domain: 17 % more load elsewhere is imbalance.
pub(super) const IMBALANCE_PERCENT: u64 = 117;
/// busy_factor: a busy pCPU balances that much less often than every ms for each of its domain's pCPUs, and twice as seldom as long as all is balanced.
const BUSY_FACTOR: Ns = 16;
pub(super) const LEVELS: usize = 4;
/// The first domain whose pCPUs do not share a cache.
const BEYOND_CACHE: usize = 2;
/// cache_nice_tries: after more failures than that hot tasks are moved, too.
const HOT_FAILURES: u32 = 1;
/// SCHED_CAPACITY_SCALE: one pCPU.
const CAPACITY: u64 = 1024;
/// How often a busy pCPU brings the averages of queues without tasks up to date: as often as it balances with one other.
const FORGET_NS: Ns = 2 * MS * BUSY_FACTOR;
/// sched_nr_migrate
const MOVES_MAX: usize = 32;
/// Overloaded pCPUs of a domain that a pCPU going idle looks at: the kernel stops when looking has cost as much as idling lasts on average.
const LOOKS_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub struct Balance {
    /// By pCPU and domain: when next, and whether it was balanced then (sd->balance_interval).
    next_ns: Vec<[Ns; LEVELS]>,
    balanced: Vec<[bool; LEVELS]>,
    /// By pCPU: when queues without tasks are looked at next.
    forget_ns: Vec<Ns>,
    /// By pCPU and domain: how many times in a row nothing could be moved (nr_balance_failed).
    failed: Vec<[u32; LEVELS]>,
    /// By pCPU.
    pub idling: Vec<Idling>,
    /// By pCPU: it idles, and was told that somebody waits elsewhere (NOHZ_BALANCE_KICK).
    kicked: Vec<bool>,
    /// pCPUs with more than one task (rd->overload).
    pub overloaded: CpuSet,
    scratch: Vec<TaskId>,
}

impl Balance {
    pub fn resize(&mut self, cpus: usize, seed: u64) {
        self.next_ns = vec![[0; LEVELS]; cpus];
        self.balanced = vec![[false; LEVELS]; cpus];
        self.failed = vec![[0; LEVELS]; cpus];
        self.forget_ns = vec![0; cpus];
        self.idling = (0..cpus).map(|cpu| Idling::new(seed, CpuId::from(cpu))).collect();
        self.kicked = vec![false; cpus];
    }

    /// Somebody runs there.
    pub fn runs(&mut self, now_ns: Ns, cpu: CpuId) {
        self.kicked[cpu.index()] = false;
        self.idling[cpu.index()].ends(now_ns, false);
    }
}

/// The domains of a pCPU, small to large: first pCPU and size. Those of one pCPU, or as large as the one before, are none.
fn domains(core: &Core, cpu: CpuId) -> [Option<(u32, u32)>; LEVELS] {
    let (per_cache, per_socket) = core.machine.spans();
    let sizes = [core.machine.threads_per_core(), per_cache, per_socket, core.cpus.len() as u32];
    std::array::from_fn(|level| {
        let (size, below) = (sizes[level], if level == 0 { 1 } else { sizes[level - 1] });
        (size > below).then(|| (cpu.0 / size * size, size))
    })
}

impl Fair {
    /// Tasks that wait there, and could be moved if nothing forbids it.
    fn waiting_count(&self, core: &Core, cpu: CpuId) -> u32 {
        self.tasks_on(cpu).saturating_sub(u32::from(core.cpu(cpu).curr.is_some()))
    }

    /// The pCPU with most tasks, of those where somebody waits; the nearest after `cpu` of equals.
    fn busiest(&self, core: &Core, cpu: CpuId, domain: (u32, u32)) -> Option<CpuId> {
        let (first, size) = domain;
        let others = (1..size).map(|step| CpuId(first + (cpu.0 - first + step) % size));
        let mut found: Option<(u32, u64, CpuId)> = None;
        for other in others.filter(|other| self.waiting_count(core, *other) > 0) {
            let (tasks, load) = (self.tasks_on(other), self.cpu_load(other));
            if found.is_none_or(|(most, most_load, _)| (load, tasks) > (most_load, most)) {
                found = Some((tasks, load, other));
            }
        }
        found.map(|(_, _, cpu)| cpu)
    }

    /// `detach_task()` and `attach_task()`: it may preempt, also if it is new and never ran (it does not come with WF_FORK).
    fn move_task(&mut self, core: &mut Core, task: TaskId, to: CpuId) {
        self.dequeue_task(core, task, false);
        core.set_task_cpu(task, to);
        self.enqueue_task(core, task, false);
        self.hrtick_update(core, to);
        self.check_preempt(core, task, false);
    }

    /// `can_migrate_task()`: not if it is hot, nor where it would have to wait to be eligible, unless that has failed before.
    fn can_move(&self, core: &Core, task: TaskId, to: CpuId, failed: u32) -> bool {
        let id = self.of_task[task.index()];
        let waits = self.eevdf && failed == 0 && self.tasks_on(to) > 0 && !self.is_eligible(id);
        let ran_ns = self.entity(id).exec_start_ns;
        let hot = ran_ns > 0 && core.now_ns - ran_ns < MIGRATION_COST_NS && failed <= HOT_FAILURES;
        core.can_run_on(task, to) && !waits && !hot
    }

    /// Who has waited longest of those that may be moved, and whose load is no more than that.
    fn candidate(&mut self, core: &Core, from: CpuId, to: CpuId, load_max: u64, failed: u32) -> Option<TaskId> {
        let mut scratch = std::mem::take(&mut self.balance.scratch);
        self.waiting_on(from, &mut scratch);
        let movable = scratch
            .iter()
            .filter(|task| self.can_move(core, **task, to, failed) && self.h_load(**task) <= load_max);
        let found = movable.min_by_key(|task| (core.task(**task).waits_since_ns, **task)).copied();
        self.balance.scratch = scratch;
        found
    }

    /// Nothing to do here: take one task from elsewhere, if it seems worth looking for one or another pCPU has asked for it
    /// (`nohz_idle_balance()`). Return true if there is something now.
    pub(super) fn newidle_balance(&mut self, core: &mut Core, cpu: CpuId) -> bool {
        let kicked = std::mem::take(&mut self.balance.kicked[cpu.index()]);
        if !self.config.balance || !core.cpu(cpu).online {
            return false;
        }
        self.balance.idling[cpu.index()].begins(core.now_ns);
        let (rule, now_ns) = (self.config.newidle, core.now_ns);
        let is_long = |fair: &Self, pcpus| kicked || fair.balance.idling[cpu.index()].is_long(core, pcpus, rule);
        let domains = domains(core, cpu);
        let first_size = domains.iter().flatten().map(|(_, size)| *size).next().unwrap_or(0);
        if self.balance.overloaded.is_empty() || !is_long(self, first_size) {
            return false;
        }
        self.update_blocked(cpu);
        let mut looked = 0;
        for (level, domain) in domains.into_iter().enumerate() {
            let Some((first, size)) = domain else { continue };
            if !is_long(self, looked + size) {
                break;
            }
            let counts = match kicked {
                true => 1,
                false => match self.balance.idling[cpu.index()].dice(now_ns, level, rule) {
                    Some(counts) => counts,
                    None => continue,
                },
            };
            looked += size;
            let found = self.busiest_movable(core, cpu, level, first, size);
            if kicked {
                self.failed(cpu, level, found.is_some());
            } else {
                let success = if found.is_some() { counts } else { 0 };
                self.balance.idling[cpu.index()].count(now_ns, level, success, rule);
            }
            if let Some(task) = found {
                self.balance.idling[cpu.index()].ends(now_ns, true);
                self.move_task(core, task, cpu);
                return true;
            }
        }
        false
    }

    /// Who would come to an idle pCPU from the busiest of a domain's pCPUs of which somebody may come (LBF_ALL_PINNED). A lone task that waits for its
    /// pCPU to wake is not overload.
    fn busiest_movable(&mut self, core: &Core, cpu: CpuId, level: usize, first: u32, size: u32) -> Option<TaskId> {
        let failed = self.balance.failed[cpu.index()][level];
        let mut found: Option<(u64, TaskId)> = None;
        let mut looks = [cpu; LOOKS_MAX];
        for (look, other) in looks.iter_mut().zip(self.balance.overloaded.around(first, size, cpu)) {
            *look = other;
        }
        for other in looks.into_iter().filter(|other| *other != cpu) {
            let load = self.cpu_load(other);
            if found.is_some_and(|(most, _)| most >= load) {
                continue;
            }
            if let Some(task) = self.candidate(core, other, cpu, u64::MAX, failed) {
                found = Some((load, task));
            }
        }
        found.map(|(_, task)| task)
    }

    fn failed(&mut self, cpu: CpuId, level: usize, moved: bool) {
        let failed = &mut self.balance.failed[cpu.index()][level];
        *failed = if moved { 0 } else { *failed + 1 };
    }

    /// Who waits here, and could run on a pCPU that idles: wake that one, the next in number (`nohz_balancer_kick()`).
    fn kick_idle(&mut self, core: &mut Core, cpu: CpuId) {
        if self.waiting_count(core, cpu) == 0 || core.idle.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.balance.scratch);
        self.waiting_on(cpu, &mut waiting);
        let mut idle = core.idle.clone();
        for task in &waiting {
            let found = match &core.task(*task).allowed {
                _ if core.task(*task).is_pinned() => None,
                Some(allowed) => idle.first_in_both(allowed, cpu),
                None => idle.first_in_both(&core.online, cpu),
            };
            if let Some(found) = found {
                idle.remove(found);
                self.balance.kicked[found.index()] = true;
                core.resched(found);
            }
        }
        self.balance.scratch = waiting;
    }

    /// The tick's part: `sched_balance_domains()`.
    pub(super) fn periodic_balance(&mut self, core: &mut Core, cpu: CpuId) {
        if core.now_ns >= self.balance.forget_ns[cpu.index()] {
            self.balance.forget_ns[cpu.index()] = core.now_ns + FORGET_NS;
            self.update_blocked(cpu);
        }
        if !self.config.balance || self.balance.overloaded.is_empty() {
            return;
        }
        self.kick_idle(core, cpu);
        if !self.config.periodic_balance {
            return;
        }
        for (level, domain) in domains(core, cpu).into_iter().enumerate() {
            let Some(domain) = domain.filter(|_| core.now_ns >= self.balance.next_ns[cpu.index()][level])
            else {
                continue;
            };
            self.balance.balanced[cpu.index()][level] = false;
            self.balance_domain(core, cpu, level, domain);
            // get_sd_balance_interval()
            let factor = if self.balance.balanced[cpu.index()][level] { 2 * BUSY_FACTOR } else { BUSY_FACTOR };
            let interval_ns = (Ns::from(domain.1) * MS * factor).saturating_sub(self.tick_ns);
            self.balance.next_ns[cpu.index()][level] = core.now_ns + interval_ns;
        }
    }

    /// `group_classify()` of a pCPU: is more to be done there than it can do (`group_overloaded`)?
    fn is_overloaded(&self, cpu: CpuId) -> bool {
        self.nr_running(cpu) > 1 && self.is_full(cpu)
    }

    /// Not `group_has_capacity()`.
    fn is_full(&self, cpu: CpuId) -> bool {
        self.nr_running(cpu) > 0 && self.rq(cpu.0).avg.runnable * IMBALANCE_PERCENT > CAPACITY * 100
    }

    /// As much as there is time for (migrate_util), from another cache's pCPU; after failures a task that needs more than that.
    fn fill(&mut self, core: &mut Core, cpu: CpuId, level: usize, busiest: CpuId) {
        let failed = self.balance.failed[cpu.index()][level];
        let spare = CAPACITY.saturating_sub(self.rq(cpu.0).avg.runnable) << failed.min(8);
        let found = self.candidate(core, busiest, cpu, u64::MAX, failed);
        let found = found.filter(|task| {
            let avg = &self.entity(self.of_task[task.index()]).avg;
            avg.runnable.min(CAPACITY) <= spare
        });
        if let Some(task) = found {
            self.move_task(core, task, cpu);
        }
        self.failed(cpu, level, found.is_some());
    }

    /// `sched_balance_rq()` of a busy pCPU, with every pCPU as a group of its own: from the busiest, up to the average of all, and never beyond.
    fn balance_domain(&mut self, core: &mut Core, cpu: CpuId, level: usize, domain: (u32, u32)) {
        let (first, size) = domain;
        let balanced = |fair: &mut Self| {
            fair.balance.failed[cpu.index()][level] = 0;
            fair.balance.balanced[cpu.index()][level] = true;
        };
        let Some(busiest) = self.busiest(core, cpu, domain).filter(|busiest| self.is_overloaded(*busiest)) else {
            return balanced(self);
        };
        if !self.is_full(cpu) {
            if level < BEYOND_CACHE {
                // A busy pCPU with time to spare takes nothing from those that share its cache (sibling_imbalance()).
                return balanced(self);
            }
            return self.fill(core, cpu, level, busiest);
        }
        let total: u64 = (first..first + size).map(|other| self.cpu_load(CpuId(other))).sum();
        let average = total / u64::from(size);
        let (here, there) = (self.cpu_load(cpu), self.cpu_load(busiest));
        if here >= average
            || there <= average
            || self.is_overloaded(cpu) && there * 100 <= here * IMBALANCE_PERCENT
        {
            return balanced(self);
        }
        // calculate_imbalance(), detach_tasks(): after failures larger ones are moved, too.
        let mut imbalance = (there - average).min(average - here) as i64;
        for moved in 0..MOVES_MAX {
            let failed = self.balance.failed[cpu.index()][level];
            let load_max = (imbalance.max(0) as u64) << failed.min(8);
            match self.candidate(core, busiest, cpu, load_max, failed).filter(|_| imbalance > 0) {
                Some(task) => {
                    imbalance -= self.h_load(task).max(1) as i64;
                    self.move_task(core, task, cpu);
                }
                None => {
                    self.failed(cpu, level, moved > 0);
                    break;
                }
            }
        }
    }
}
