// SPDX-License-Identifier: GPL-2.0-only
//! CFS, in detail that of Linux 6.1: sleeper credit, slices by weight, wake-up preemption, buddies.

use crate::host::Core;
use crate::ids::CpuId;
use crate::time::{quotient, Ns};

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

    /// `sched_nr_latency`: how many have their least turns within the latency.
    fn nr_latency(&self) -> Ns {
        self.config.latency_ns.div_ceil(self.config.slice_ns)
    }

    /// `sched_slice()`: its part, by weight at every level, of a period that grows with the number of tasks (ALT_PERIOD, BASE_SLICE).
    pub(super) fn sched_slice(&self, id: u32) -> Ns {
        let entity = self.entity(id);
        let root = self.rq(entity.rq).cpu.index();
        // Whoever is new is not counted there yet.
        let count = Ns::from(self.queues[root].tasks) + Ns::from(entity.new);
        let mut slice_ns =
            if count > self.nr_latency() { count * self.config.slice_ns } else { self.config.latency_ns };
        let mut at = Some(id);
        while let Some(id) = at {
            let entity = self.entity(id);
            let load = self.rq(entity.rq).load + if entity.on_rq { 0 } else { entity.weight };
            slice_ns = quotient(u128::from(slice_ns) * u128::from(entity.weight), load.max(1)) as Ns;
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
        let most_ns = if self.config.limits_turns { self.config.latency_ns } else { Ns::MAX };
        let ideal_ns = self.sched_slice(id).min(most_ns);
        let entity = self.entity(id);
        let (ran_ns, rq) = (entity.exec_ns - entity.prev_exec_ns, entity.rq);
        if ran_ns > ideal_ns {
            core.resched(cpu);
            // The others deserve it, whatever the buddies.
            self.clear_buddies(id);
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

    /// The end of `check_preempt_wakeup()`: the two are in one queue.
    pub(super) fn cfs_wakeup_preempts(&mut self, curr: u32, woken: u32) -> bool {
        let preempts = self.is_far_behind(curr, woken) == Some(true);
        if preempts {
            if self.config.buddy_hints {
                self.set_buddy(woken, |rq| &mut rq.next);
            }
            // LAST_BUDDY: whoever is preempted gets back before others of a long queue, if it is not too unfair.
            let queued = self.rq(self.entity(curr).rq).nr;
            if Ns::from(queued) >= self.nr_latency() && self.entity(curr).task.is_some() {
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
        Some(rq.boosted.or(buddy(rq.next)).or(buddy(rq.last)).unwrap_or(picked))
    }
}

#[cfg(test)]
mod tests {
    use crate::class::fair::{Fair, FairConfig, Variant};
    use crate::class::AnyClass;
    use crate::host::TaskSpec;
    use crate::ids::{CpuId, GroupId};
    use crate::machine::MachineConfig;
    use crate::time::MS;
    use crate::Host;

    /// One pCPU, so many tasks of nice 0 and last one of this weight. Nobody runs.
    fn beside_others(config: FairConfig, others: usize, weight: u32) -> (Host, u32) {
        let mut host =
            Host::new(&MachineConfig::ideal(1), AnyClass::Fair(Fair::new(config)), 1).expect("a host");
        let specs = [vec![TaskSpec::default(); others], vec![TaskSpec { weight, ..TaskSpec::default() }]];
        let tasks = specs.concat().into_iter().map(|spec| host.spawn(spec)).collect::<Vec<_>>();
        for task in &tasks {
            host.wake(*task, None);
        }
        let AnyClass::Fair(class) = &host.class else { panic!("a fair class") };
        let last = class.of_task[others];
        (host, last)
    }

    #[test]
    fn no_turn_is_longer_than_the_latency_since_6_3() {
        let is_over = |limits_turns, ran_ns| {
            let config = FairConfig { limits_turns, ..FairConfig::of(Variant::Cfs) };
            let (mut host, heavy) = beside_others(config, 15, 30 * 1024);
            host.core.cpu_mut(CpuId(0)).needs_resched = false;
            let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
            // Of 16 times 0.75 ms it has two thirds.
            assert_eq!(class.sched_slice(heavy), 8 * MS);
            class.entity_mut(heavy).exec_ns = ran_ns;
            class.check_preempt_tick(&mut host.core, CpuId(0), heavy);
            host.core.cpu(CpuId(0)).needs_resched
        };
        assert_eq!([6 * MS, 7 * MS].map(|ran_ns| is_over(true, ran_ns)), [false, true]);
        assert_eq!([6 * MS, 7 * MS, 9 * MS].map(|ran_ns| is_over(false, ran_ns)), [false, false, true]);
    }

    #[test]
    fn the_last_least_turn_need_not_fit_the_latency() {
        let config = FairConfig { latency_ns: 10 * MS, slice_ns: 3 * MS, ..FairConfig::of(Variant::Cfs) };
        let (host, heavy) = beside_others(config, 3, 3 * 1024);
        let AnyClass::Fair(class) = &host.class else { panic!("a fair class") };
        // Half of it; five would have half of 15 ms.
        assert_eq!(class.sched_slice(heavy), 5 * MS);
    }

    /// Ten tasks, of which the first so many are in a group: the second preempts the first while the third is to be picked next. Who is marked in the group's
    /// queue then: to be picked next, and to come back.
    fn buddies(buddy_hints: bool, in_group: usize) -> [Option<usize>; 2] {
        let config = FairConfig { buddy_hints, ..FairConfig::of(Variant::Cfs) };
        let mut host =
            Host::new(&MachineConfig::ideal(1), AnyClass::Fair(Fair::new(config)), 1).expect("a host");
        let group = host.new_group(GroupId(0), 100);
        let groups = [vec![group; in_group], vec![GroupId(0); 10 - in_group]].concat();
        let tasks: Vec<_> = groups
            .iter()
            .map(|group| host.spawn(TaskSpec { group: *group, ..TaskSpec::default() }))
            .collect();
        for task in &tasks {
            host.wake(*task, None);
        }
        let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
        let ids: Vec<u32> = tasks.iter().map(|task| class.of_task[task.index()]).collect();
        for (id, vruntime) in [(ids[0], 10_000_000), (ids[1], 0)] {
            class.tree_remove(id);
            class.entity_mut(id).vruntime = vruntime;
            class.tree_insert(id);
        }
        class.set_buddy(ids[2], |rq| &mut rq.next);
        assert!(class.cfs_wakeup_preempts(ids[0], ids[1]));
        let rq = class.rq(class.entity(ids[0]).rq);
        [rq.next, rq.last].map(|buddy| ids.iter().position(|id| Some(*id) == buddy))
    }

    #[test]
    fn who_preempts_is_next_and_who_is_preempted_in_a_long_queue_of_its_own_comes_back() {
        assert_eq!(buddies(true, 3), [Some(1), None], "ten on the pCPU, but three in the runner's queue");
        assert_eq!(buddies(true, 8), [Some(1), Some(0)]);
        assert_eq!(buddies(false, 3), [Some(2), None], "before 3.0");
    }
}
