// SPDX-License-Identifier: GPL-2.0-only
//! Load balancing: a pCPU that goes idle pulls a task (`newidle_balance()`), and every busy one evens out its scheduling domains now and then
//! (`load_balance()`, `sched_balance_rq()`). Domains: the core's threads, the cores of a cache, the socket, the machine. Simpler than the kernel's:
//! every pCPU balances for itself, running tasks are not pushed, and no task is too hot to move.

use crate::cpuset::CpuSet;
use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::time::{Ns, MS};

use super::Fair;

/// imbalance_pct of a cache's domain: 17 % more load elsewhere is imbalance.
pub(super) const IMBALANCE_PERCENT: u64 = 117;
/// busy_factor: a busy pCPU balances that much less often than its domain's number of pCPUs in ms.
const BUSY_FACTOR: Ns = 16;
const LEVELS: usize = 4;
/// How often a busy pCPU brings the averages of queues without tasks up to date: as often as it balances with one other.
const FORGET_NS: Ns = 2 * MS * BUSY_FACTOR;
/// sched_nr_migrate
const MOVES_MAX: usize = 32;
/// Overloaded pCPUs of a domain that a pCPU going idle looks at: the kernel stops when looking has cost as much as idling lasts on average.
const LOOKS_MAX: usize = 32;

#[derive(Clone, Debug, Default)]
pub struct Balance {
    /// By pCPU and domain: when next.
    next_ns: Vec<[Ns; LEVELS]>,
    /// By pCPU: when queues without tasks are looked at next.
    forget_ns: Vec<Ns>,
    /// By pCPU: how many times in a row nothing could be moved (nr_balance_failed).
    failed: Vec<u32>,
    /// pCPUs with more than one task (rd->overload).
    pub overloaded: CpuSet,
    scratch: Vec<TaskId>,
}

impl Balance {
    pub fn resize(&mut self, cpus: usize) {
        self.next_ns = vec![[0; LEVELS]; cpus];
        self.failed = vec![0; cpus];
        self.forget_ns = vec![0; cpus];
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

    /// Who has waited longest of those that may be moved, and whose load is no more than that.
    fn candidate(&mut self, core: &Core, from: CpuId, to: CpuId, load_max: u64) -> Option<TaskId> {
        let mut scratch = std::mem::take(&mut self.balance.scratch);
        self.waiting_on(from, &mut scratch);
        let movable =
            scratch.iter().filter(|task| core.can_run_on(**task, to) && self.h_load(**task) <= load_max);
        let found = movable.min_by_key(|task| (core.task(**task).waits_since_ns, **task)).copied();
        self.balance.scratch = scratch;
        found
    }

    /// Nothing to do here: take one task from elsewhere. Return true if there is something now.
    pub(super) fn newidle_balance(&mut self, core: &mut Core, cpu: CpuId) -> bool {
        if !self.config.balance || self.balance.overloaded.is_empty() || !core.cpu(cpu).online {
            return false;
        }
        self.update_blocked(cpu);
        for (first, size) in domains(core, cpu).into_iter().flatten() {
            // The busiest of which somebody may come here (LBF_ALL_PINNED). A lone task that waits for its pCPU to wake is not overload.
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
                if let Some(task) = self.candidate(core, other, cpu, u64::MAX) {
                    found = Some((load, task));
                }
            }
            if let Some((_, task)) = found {
                self.move_task(core, task, cpu);
                return true;
            }
        }
        false
    }

    /// Somebody waits here, and a pCPU that could take it idles: wake that one, the next in number (`nohz_balancer_kick()`).
    fn kick_idle(&mut self, core: &mut Core, cpu: CpuId) {
        if self.waiting_count(core, cpu) == 0 || core.idle.is_empty() {
            return;
        }
        let mut scratch = std::mem::take(&mut self.balance.scratch);
        self.waiting_on(cpu, &mut scratch);
        let idle_for = |task: &TaskId| match &core.task(*task).allowed {
            _ if core.task(*task).is_pinned() => None,
            Some(allowed) => core.idle.first_in_both(allowed, cpu),
            None => core.idle.first_in_both(&core.online, cpu),
        };
        let found = scratch.iter().find_map(idle_for);
        self.balance.scratch = scratch;
        if let Some(idle) = found {
            core.resched(idle);
        }
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
            self.balance.next_ns[cpu.index()][level] = core.now_ns + Ns::from(domain.1) * MS * BUSY_FACTOR;
            self.balance_domain(core, cpu, domain);
        }
    }

    /// `sched_balance_rq()` with every pCPU as a group of its own: from the busiest, up to the average of all, and never beyond.
    fn balance_domain(&mut self, core: &mut Core, cpu: CpuId, domain: (u32, u32)) {
        let Some(busiest) = self.busiest(core, cpu, domain) else { return };
        let (first, size) = domain;
        let total: u64 = (first..first + size).map(|other| self.cpu_load(CpuId(other))).sum();
        let average = total / u64::from(size);
        let (here, there) = (self.cpu_load(cpu), self.cpu_load(busiest));
        let is_overloaded = |cpu: CpuId| self.tasks_on(cpu) > 1;
        if !is_overloaded(busiest)
            || here >= average
            || there <= average
            || is_overloaded(cpu) && there * 100 <= here * IMBALANCE_PERCENT
        {
            return;
        }
        // calculate_imbalance(), detach_tasks(): after failures larger ones are moved, too.
        let mut imbalance = (there - average).min(average - here) as i64;
        for moved in 0..MOVES_MAX {
            let failed = self.balance.failed[cpu.index()].min(8);
            let load_max = (imbalance.max(0) as u64) << failed;
            match self.candidate(core, busiest, cpu, load_max).filter(|_| imbalance > 0) {
                Some(task) => {
                    imbalance -= self.h_load(task).max(1) as i64;
                    self.move_task(core, task, cpu);
                    self.balance.failed[cpu.index()] = 0;
                }
                None => {
                    self.balance.failed[cpu.index()] += u32::from(moved == 0);
                    break;
                }
            }
        }
    }
}
