// SPDX-License-Identifier: GPL-2.0-only
//! Load balancing: a pCPU that goes idle pulls a task (`newidle_balance()`), and every busy one evens out its scheduling domains now and then
//! (`load_balance()`, `sched_balance_rq()`). Domains: the core's threads, the cores of a cache, the socket, the machine. Simpler than the kernel's:
//! every pCPU balances for itself, running tasks are not pushed, and how busy a pCPU is is said by who is runnable there (no utilization). What an idle one
//! does is in `idle.rs`.

use crate::cpuset::CpuSet;
use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::time::{Ns, MS};

use super::newidle::{Idling, MIGRATION_COST_NS};
use super::{BusyBalance, Fair};

/// imbalance_pct of a cache's domain: 17 % more load elsewhere is imbalance.
pub(crate) const IMBALANCE_PERCENT: u64 = 117;
/// busy_factor: a busy pCPU balances that much less often than every ms for each of its domain's pCPUs, and twice as seldom as long as all is balanced.
const BUSY_FACTOR: Ns = 16;
pub(super) const LEVELS: usize = 4;
/// The domain of a core's threads (SD_SHARE_CPUCAPACITY).
const SMT: usize = 0;
/// The first domain whose pCPUs do not share a cache.
const BEYOND_CACHE: usize = 2;
/// cache_nice_tries by domain, other sockets being other NUMA nodes: after more failures than that hot tasks are moved, too.
const HOT_FAILURES: [u32; LEVELS] = [0, 1, 1, 2];
/// SCHED_CAPACITY_SCALE: one pCPU.
const CAPACITY: u64 = 1024;
/// How often a busy pCPU brings the averages of queues without tasks up to date: as often as it balances with one other.
const FORGET_NS: Ns = 2 * MS * BUSY_FACTOR;
/// ... and, for all pCPUs that idle, whoever ticks first (`nohz.next_blocked`, LOAD_AVG_PERIOD).
const FORGET_IDLE_NS: Ns = 32 * MS;
/// sched_nr_migrate
const MOVES_MAX: usize = 32;

/// What a pCPU remembers of a domain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Domain {
    /// When it is balanced next (sd->last_balance and sd->balance_interval).
    pub next_jiffy: u64,
    /// How many times in a row nothing could be moved (nr_balance_failed).
    pub failed: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Balance {
    /// By pCPU and domain.
    pub(super) domains: Vec<[Domain; LEVELS]>,
    /// By pCPU: when queues without tasks are looked at next.
    forget_ns: Vec<Ns>,
    /// When those of idle pCPUs are.
    forget_idle_ns: Ns,
    /// By pCPU.
    pub idling: Vec<Idling>,
    /// By pCPU: it idles, and was told by that one that somebody waits there (NOHZ_BALANCE_KICK).
    pub(super) kicked: Vec<Option<CpuId>>,
    /// pCPUs with more than one task (rd->overload).
    pub overloaded: CpuSet,
    /// Room for tasks and pCPUs that are looked at.
    pub(super) scratch: Vec<TaskId>,
    pub(super) scratch_cpus: CpuSet,
}

impl Balance {
    pub fn resize(&mut self, core: &Core) {
        let cpus = core.cpus.len();
        self.domains = vec![[Domain::default(); LEVELS]; cpus];
        self.forget_ns = vec![0; cpus];
        let pcpus = domains(core, CpuId(0)).iter().flatten().map(|(_, size)| *size).sum();
        self.idling = core.machine.all().map(|cpu| Idling::of_cpu(core, cpu, pcpus)).collect();
        self.kicked = vec![None; cpus];
    }

    /// Somebody runs there.
    pub fn runs(&mut self, now_ns: Ns, cpu: CpuId) {
        self.idling[cpu.index()].ends(now_ns, false);
    }
}

/// The domains of a pCPU, small to large: first pCPU and size. Those of one pCPU, or as large as the one before, are none.
pub(super) fn domains(core: &Core, cpu: CpuId) -> [Option<(u32, u32)>; LEVELS] {
    let (per_cache, per_socket) = core.machine.spans();
    let sizes = [core.machine.threads_per_core(), per_cache, per_socket, core.cpus.len() as u32];
    std::array::from_fn(|level| {
        let (size, below) = (sizes[level], if level == 0 { 1 } else { sizes[level - 1] });
        (size > below).then(|| (cpu.0 / size * size, size))
    })
}

/// get_sd_balance_interval() of a busy CPU: after how many ticks it looks again, on a host or in a guest.
pub(crate) fn busy_interval_ticks(cpus: Ns, balanced: bool, tick_ns: Ns) -> Ns {
    let factor = if balanced { 2 * BUSY_FACTOR } else { BUSY_FACTOR };
    (cpus * MS * factor).div_ceil(tick_ns).saturating_sub(1).max(1)
}

/// Who is there to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Find {
    /// Nobody may go there (LBF_ALL_PINNED).
    Nobody,
    /// None of those who may: it runs, is hot, or too large.
    NotNow,
    Task(TaskId),
}

/// In what an imbalance is counted (`enum migration_type`).
#[derive(Clone, Copy, Debug)]
enum By {
    Load,
    /// The part of a pCPU's time that they are runnable.
    Time,
    Number,
}

impl Fair {
    /// Tasks that wait there, and could be moved if nothing forbids it.
    pub(super) fn waiting_count(&self, core: &Core, cpu: CpuId) -> u32 {
        self.tasks_on(cpu).saturating_sub(u32::from(core.cpu(cpu).curr.is_some()))
    }

    /// The overloaded pCPU with most load, of those where somebody waits and somebody may come from; the nearest after `cpu` of equals.
    fn busiest(&mut self, core: &Core, cpu: CpuId, level: usize, domain: (u32, u32)) -> Option<CpuId> {
        let (first, size) = domain;
        let mut found: Option<(u64, u32, CpuId)> = None;
        for step in 1..size {
            let other = CpuId(first + (cpu.0 - first + step) % size);
            if self.waiting_count(core, other) == 0 || !self.is_overloaded(other) {
                continue;
            }
            let (tasks, load) = (self.tasks_on(other), self.cpu_load(other));
            if found.is_none_or(|(most_load, most, _)| (load, tasks) > (most_load, most))
                && self.candidate(core, other, cpu, level, |_, _| true) != Find::Nobody
            {
                found = Some((load, tasks, other));
            }
        }
        found.map(|(_, _, cpu)| cpu)
    }

    /// `detach_task()` and `attach_task()`: it may preempt, also if it is new and never ran (it does not come with WF_FORK).
    pub(super) fn move_task(&mut self, core: &mut Core, task: TaskId, to: CpuId) {
        // What both runners have had counts in the averages by which it leaves and comes (update_curr()).
        let from = core.task(task).cpu;
        self.charge(core, from);
        self.charge(core, to);
        self.dequeue_task(core, task, false);
        core.set_task_cpu(task, to);
        self.enqueue_task(core, task, false);
        self.hrtick_update(core, to);
        self.check_preempt(core, task, false);
    }

    /// `can_migrate_task()`'s first part: may it go there, and not to wait for becoming eligible, unless something has failed before? (6.14 and
    /// later; here whenever there is EEVDF.)
    fn may_move(&self, core: &Core, task: TaskId, to: CpuId, failed: u32) -> bool {
        // task_is_ineligible_on_dst_cpu()
        let waits = || {
            let others = match self.flat {
                true => self.nr_running(to),
                false => self.known_queue(self.group_of(core, task), to).map_or(0, |rq| self.rq(rq).nr),
            };
            others > 0 && !self.is_eligible(self.of_task[task.index()])
        };
        core.can_run_on(task, to) && !(self.eevdf && failed == 0 && waits())
    }

    /// `task_hot()`
    fn is_hot(&self, core: &Core, task: TaskId, to: CpuId, level: usize) -> bool {
        let id = self.of_task[task.index()];
        let entity = self.entity(id);
        let (ran_ns, is_next) = (entity.exec_start_ns, self.rq(entity.home).next == Some(id));
        let just_ran = ran_ns > 0 && core.now_ns - ran_ns < MIGRATION_COST_NS;
        level != SMT && (just_ran || is_next && self.nr_running(to) > 0)
    }

    /// Who has waited longest of those that may be moved and that fit.
    pub(super) fn candidate(
        &mut self,
        core: &Core,
        from: CpuId,
        to: CpuId,
        level: usize,
        fits: impl Fn(&Self, TaskId) -> bool,
    ) -> Find {
        let failed = self.balance.domains[to.index()][level].failed;
        let mut scratch = std::mem::take(&mut self.balance.scratch);
        self.waiting_on(from, &mut scratch);
        // Who runs does not go, but it might.
        let mut found = match core.cpu(from).curr.filter(|curr| self.may_move(core, *curr, to, failed)) {
            Some(_) => Find::NotNow,
            None => Find::Nobody,
        };
        let mut first = None;
        for task in scratch.iter().copied().filter(|task| self.may_move(core, *task, to, failed)) {
            let order = (core.task(task).waits_since_ns, task);
            let is_cold = failed > HOT_FAILURES[level] || !self.is_hot(core, task, to, level);
            if is_cold && first.is_none_or(|first| order < first) && fits(self, task) {
                first = Some(order);
                found = Find::Task(task);
            }
            found = if found == Find::Nobody { Find::NotNow } else { found };
        }
        self.balance.scratch = scratch;
        found
    }

    /// The tick's part: `sched_balance_domains()`.
    pub(super) fn periodic_balance(&mut self, core: &mut Core, cpu: CpuId) {
        if core.now_ns >= self.balance.forget_ns[cpu.index()] {
            self.balance.forget_ns[cpu.index()] = core.now_ns + FORGET_NS;
            self.update_blocked(cpu);
        }
        if core.now_ns >= self.balance.forget_idle_ns {
            self.balance.forget_idle_ns = core.now_ns + FORGET_IDLE_NS;
            core.idle.iter().for_each(|idle| self.update_blocked(idle));
        }
        if !self.config.balance {
            return;
        }
        self.kick_idle(core, cpu);
        if !self.config.periodic_balance {
            return;
        }
        let jiffy = core.now_ns / self.tick_ns;
        for (level, domain) in domains(core, cpu).into_iter().enumerate() {
            let due = self.balance.domains[cpu.index()][level].next_jiffy <= jiffy;
            let Some((first, size)) = domain.filter(|_| due) else { continue };
            let balanced = self.balance_domain(core, cpu, level, (first, size));
            // Of the pCPUs that are online.
            let online = core.online.around(first, size, CpuId(first)).count() as Ns;
            let interval = self.busy_interval_ticks(online, balanced);
            self.balance.domains[cpu.index()][level].next_jiffy = jiffy + interval;
        }
    }

    /// After how many ticks a busy pCPU looks again.
    fn busy_interval_ticks(&self, pcpus: Ns, balanced: bool) -> Ns {
        let ms = match self.config.busy_balance {
            BusyBalance::Often => return busy_interval_ticks(pcpus, balanced, self.tick_ns),
            BusyBalance::Seldom => 32 * pcpus * if balanced { 2 } else { 1 },
            BusyBalance::Fixed => 64 * if balanced { 4 } else { 1 },
        };
        (ms * MS).div_ceil(self.tick_ns).max(1)
    }

    /// `group_classify()` of a pCPU: is more to be done there than it can do (`group_overloaded`)?
    fn is_overloaded(&self, cpu: CpuId) -> bool {
        self.nr_running(cpu) > 1 && self.is_full(cpu)
    }

    /// Not `group_has_capacity()`.
    fn is_full(&self, cpu: CpuId) -> bool {
        self.nr_running(cpu) > 0 && self.rq(cpu.0).avg.runnable * IMBALANCE_PERCENT > CAPACITY * 100
    }

    /// `sched_balance_rq()` of a busy pCPU, with every pCPU as a group of its own: from the busiest, up to the average of all, and never beyond. Return
    /// true if all is balanced.
    fn balance_domain(&mut self, core: &mut Core, cpu: CpuId, level: usize, domain: (u32, u32)) -> bool {
        let is_calm = self.balance.overloaded.is_empty();
        let found = if is_calm { None } else { self.busiest(core, cpu, level, domain) };
        let imbalance = found.and_then(|busiest| self.imbalance(core, cpu, level, domain, busiest));
        let (Some(busiest), Some((by, imbalance))) = (found, imbalance) else {
            self.balance.domains[cpu.index()][level].failed = 0;
            return true;
        };
        self.detach_tasks(core, cpu, level, busiest, by, imbalance);
        false
    }

    /// `calculate_imbalance()`, and of sched_balance_find_src_group() whether there is one.
    fn imbalance(
        &self,
        core: &Core,
        cpu: CpuId,
        level: usize,
        domain: (u32, u32),
        busiest: CpuId,
    ) -> Option<(By, u64)> {
        let (first, size) = domain;
        if !self.is_full(cpu) {
            if level >= BEYOND_CACHE {
                // As much as there is time for.
                return Some((By::Time, CAPACITY.saturating_sub(self.rq(cpu.0).avg.runnable)));
            }
            // sibling_imbalance(): since 6.6 a busy pCPU with time to spare takes nothing from those that share its cache. Before, it evened out numbers.
            let more = self.nr_running(busiest).saturating_sub(self.nr_running(cpu));
            return Some((By::Number, u64::from(more / 2))).filter(|_| !self.eevdf && more > 1);
        }
        let online = core.online.around(first, size, CpuId(first));
        let (total, pcpus) = online.fold((0, 0), |(load, n), other| (load + self.cpu_load(other), n + 1));
        let (here, there, average) = (self.cpu_load(cpu), self.cpu_load(busiest), total / pcpus.max(1));
        if here >= average
            || there <= average
            || self.is_overloaded(cpu) && there * 100 <= here * self.config.imbalance_percent
        {
            return None;
        }
        Some((By::Load, (there - average).min(average - here)))
    }

    /// `detach_tasks()`: as long as there is an imbalance; after failures larger ones are moved, too.
    fn detach_tasks(
        &mut self,
        core: &mut Core,
        cpu: CpuId,
        level: usize,
        busiest: CpuId,
        by: By,
        imbalance: u64,
    ) {
        let failed = self.balance.domains[cpu.index()][level].failed;
        let size_of = |fair: &Self, task: TaskId| match by {
            By::Load => fair.h_load(task).max(1),
            By::Time => fair.entity(fair.of_task[task.index()]).avg.runnable.min(CAPACITY),
            By::Number => 1,
        };
        let mut left = imbalance as i64;
        let mut moved = 0;
        while left > 0 && moved < MOVES_MAX {
            let fits = |fair: &Self, task: TaskId| size_of(fair, task) >> failed.min(63) <= left as u64;
            let Find::Task(task) = self.candidate(core, busiest, cpu, level, fits) else { break };
            left -= size_of(self, task) as i64;
            self.move_task(core, task, cpu);
            moved += 1;
        }
        self.balance.domains[cpu.index()][level].failed = if moved > 0 { 0 } else { failed + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::BusyBalance::{Fixed, Often, Seldom};
    use super::*;
    use crate::class::fair::{FairConfig, Variant};

    #[test]
    fn busy_pcpus_balance_less_often_in_older_kernels() {
        let ticks = |busy_balance, balanced| {
            let mut fair = Fair::new(FairConfig { busy_balance, ..FairConfig::of(Variant::Cfs) });
            fair.tick_ns = 4 * MS;
            fair.busy_interval_ticks(4, balanced)
        };
        let found = [Fixed, Seldom, Often].map(|of| [ticks(of, false), ticks(of, true)]);
        assert_eq!(found, [[16, 64], [32, 64], [15, 31]]);
    }
}
