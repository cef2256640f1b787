// SPDX-License-Identifier: GPL-2.0-only
//! CFS, in detail that of Linux 6.1: sleeper credit, slices by weight, wake-up preemption, buddies.

use crate::host::Core;
use crate::ids::CpuId;
use crate::time::Ns;

use super::{calc_delta_fair, Fair};

impl Fair {
    /// `place_entity()`: START_DEBIT for a new task, GENTLE_FAIR_SLEEPERS for a sleeper. (`task_fork_fair()` places the new one in its parent's queue, and
    /// not before the parent; nobody here has a parent.)
    pub(super) fn cfs_place(&mut self, id: u32) {
        let entity = self.entity(id);
        let mut vruntime = self.rq(entity.rq).min_vruntime;
        if entity.new {
            vruntime += calc_delta_fair(self.sched_slice(id), entity.weight);
        } else {
            vruntime -= (self.config.latency_ns / 2) as i64;
        }
        let entity = self.entity_mut(id);
        entity.vruntime = if entity.new { vruntime } else { entity.vruntime.max(vruntime) };
    }

    /// `sched_slice()`: its part, by weight at every level, of a period that grows with the number of tasks (ALT_PERIOD, BASE_SLICE).
    pub(super) fn sched_slice(&self, id: u32) -> Ns {
        let entity = self.entity(id);
        let root = self.rq(entity.rq).cpu.index();
        // Whoever is new is not counted there yet.
        let count = Ns::from(self.queues[root].tasks) + Ns::from(entity.new);
        let latency_count = self.config.latency_ns / self.config.slice_ns;
        let mut slice_ns =
            if count > latency_count { count * self.config.slice_ns } else { self.config.latency_ns };
        let mut at = Some(id);
        while let Some(id) = at {
            let entity = self.entity(id);
            let load = self.rq(entity.rq).load + if entity.on_rq { 0 } else { entity.weight };
            slice_ns = (u128::from(slice_ns) * u128::from(entity.weight) / u128::from(load.max(1))) as Ns;
            at = self.parent(id);
        }
        slice_ns.max(self.config.slice_ns)
    }

    /// `check_preempt_tick()` of every level.
    pub(super) fn cfs_tick(&mut self, core: &mut Core, cpu: CpuId) {
        let Some(curr) = core.cpu(cpu).curr else { return };
        let mut at = Some(self.of_task[curr.index()]);
        while let Some(id) = at {
            if self.rq(self.entity(id).rq).nr > 1 {
                self.check_preempt_tick(core, cpu, id);
            }
            at = self.parent(id);
        }
    }

    fn check_preempt_tick(&mut self, core: &mut Core, cpu: CpuId, id: u32) {
        let ideal_ns = self.sched_slice(id).min(self.config.latency_ns);
        let entity = self.entity(id);
        let (ran_ns, rq) = (entity.exec_ns - entity.prev_exec_ns, entity.rq);
        if ran_ns > ideal_ns {
            core.resched(cpu);
            // The others deserve it, whatever the buddies.
            self.clear_buddies(rq, id);
            return;
        }
        if ran_ns < self.config.slice_ns {
            return;
        }
        let Some(first) = self.forest.first(&self.rq(rq).tree) else { return };
        if self.entity(id).vruntime - self.entity(first).vruntime > ideal_ns as i64 {
            core.resched(cpu);
        }
    }

    /// `wakeup_preempt_entity()`: is `other` so far behind `curr` that it should run now?
    fn is_far_behind(&self, curr: u32, other: u32) -> Option<bool> {
        let distance = self.entity(curr).vruntime - self.entity(other).vruntime;
        if distance <= 0 {
            return None;
        }
        let granularity = calc_delta_fair(self.config.wakeup_granularity_ns, self.entity(other).weight);
        Some(distance > granularity)
    }

    pub(super) fn cfs_wakeup_preempts(&mut self, curr: u32, woken: u32) -> bool {
        let preempts = self.is_far_behind(curr, woken) == Some(true);
        if preempts {
            let rq = self.entity(woken).rq;
            if self.rq(rq).next.is_none() {
                self.set_buddy(woken, |rq| &mut rq.next);
            }
            // LAST_BUDDY: whoever is preempted gets back before others, if it is not too unfair.
            let cpu = self.rq(rq).cpu.index();
            let many = self.config.latency_ns / self.config.slice_ns;
            if Ns::from(self.queues[cpu].tasks) >= many && self.entity(curr).task.is_some() {
                self.set_buddy(curr, |rq| &mut rq.last);
            }
        }
        preempts
    }

    /// `pick_next_entity()`
    pub(super) fn cfs_pick(&self, rq: u32, curr: Option<u32>) -> Option<u32> {
        let rq = self.rq(rq);
        let in_tree = self.forest.first(&rq.tree);
        let before = |a: u32, b: u32| self.entity(a).vruntime < self.entity(b).vruntime;
        let left = match (in_tree, curr) {
            (None, only) => only?,
            (Some(first), Some(curr)) if before(curr, first) => curr,
            (Some(first), _) => first,
        };
        let mut picked = left;
        let close = |id: u32| self.is_far_behind(id, left) != Some(true);
        if rq.skip == Some(left) {
            let second = if Some(left) == curr {
                in_tree
            } else {
                let next = self.forest.next(left);
                match (next, curr) {
                    (None, curr) => curr,
                    (Some(next), Some(curr)) if before(curr, next) => Some(curr),
                    (next, _) => next,
                }
            };
            picked = second.filter(|id| close(*id)).unwrap_or(left);
        }
        let buddy = |buddy: Option<u32>| buddy.filter(|id| close(*id));
        Some(buddy(rq.next).or(buddy(rq.last)).unwrap_or(picked))
    }
}
