// SPDX-License-Identifier: GPL-2.0-only
//! Who keeps which average of load, and what a group's part on a pCPU weighs because of it: `update_load_avg()`, `update_tg_load_avg()`,
//! `update_cfs_group()` of kernel/sched/fair.c. A task that changes queues takes its average along at once; the kernel puts some of that off.

use crate::ids::{CpuId, TaskId};
use crate::time::{quotient, Ns, MS};

use super::pelt::Average;
use super::queue::load_of;
use super::{Fair, GroupWeight};

/// MIN_SHARES
pub const SHARES_MIN: u64 = 2;

impl Fair {
    /// `update_load_avg()`, before anything about the entity changes.
    pub(super) fn update_load(&mut self, id: u32) {
        let entity = &self.entities[id as usize];
        let home = entity.home;
        if entity.attached != Some(home) {
            self.attach(id);
            return;
        }
        self.advance_entity(id);
        if self.advance_queue(home) {
            self.tell_group(home);
        }
    }

    /// `__update_load_avg_se()`, and what is to count from now on: of a group, those that are runnable in it now (`se_update_runnable()`).
    fn advance_entity(&mut self, id: u32) {
        let now_ns = self.now_ns;
        let entity = &mut self.entities[id as usize];
        let runnable = match entity.my_rq {
            Some(_) => entity.runnable,
            None => u32::from(entity.on_rq && !entity.delayed),
        };
        if entity.avg.advance(now_ns, u64::from(entity.on_rq), u64::from(runnable)) {
            entity.avg.average(load_of(entity.share));
        }
        if let Some(mine) = entity.my_rq {
            entity.runnable = self.queues[mine as usize].tasks;
        }
    }

    /// `update_cfs_rq_load_avg()`
    fn advance_queue(&mut self, rq: u32) -> bool {
        let now_ns = self.now_ns;
        let rq = self.rq_mut(rq);
        let changed = rq.avg.advance(now_ns, load_of(rq.load), u64::from(rq.tasks));
        if changed {
            rq.avg.average(1);
        }
        changed
    }

    /// `attach_entity_load_avg()`, and `detach_entity_load_avg()` from where it was.
    fn attach(&mut self, id: u32) {
        let entity = &self.entities[id as usize];
        let (home, weight) = (entity.home, load_of(entity.share));
        match entity.attached {
            Some(old) => self.detach(id, old),
            // Groups begin with nothing.
            None if entity.task.is_some() => {
                let start = Average::start(weight, &self.rq(home).avg);
                self.entities[id as usize].avg = start;
            }
            None => {}
        }
        self.advance_queue(home);
        let entity = &mut self.entities[id as usize];
        let queue = &mut self.queues[home as usize].avg;
        entity.avg.align(queue, weight);
        queue.add(&entity.avg, weight);
        entity.attached = Some(home);
        let load_sum = entity.avg.load_sum as i64;
        self.tell_group(home);
        self.propagate(home, load_sum);
    }

    fn detach(&mut self, id: u32, old: u32) {
        let now_ns = self.now_ns;
        self.advance_queue(old);
        let entity = &mut self.entities[id as usize];
        let weight = load_of(entity.share);
        if entity.avg.advance(now_ns, 0, 0) {
            entity.avg.average(weight);
        }
        let gone = entity.avg;
        self.queues[old as usize].avg.take(&gone, weight);
        self.tell_group(old);
        self.propagate(old, -(gone.load_sum as i64));
    }

    /// `propagate_entity_load_avg()`: what came to a queue, or left it, its group's entities above have or have lost as well. `delta`: in the sum of the
    /// time that it was runnable; with more than two levels the kernel passes on what came, this what of it counted.
    fn propagate(&mut self, from: u32, mut delta: i64) {
        let mut at = from;
        while let Some(owner) = self.rq(at).owner {
            let home = self.entity(owner).home;
            self.advance_entity(owner);
            self.advance_queue(home);
            let below = self.rq(at).avg;
            let queued = load_of(self.rq(at).load);
            let entity = &mut self.entities[owner as usize];
            let queue = &mut self.queues[home as usize].avg;
            let weight = load_of(entity.share);
            if entity.attached.is_none() {
                // A group begins with nothing.
                entity.avg = Average::default();
                entity.avg.align(queue, weight);
                entity.attached = Some(home);
            }
            queue.take(&entity.avg, weight);
            let (divider, old) = (queue.divider(), entity.avg.load_sum);
            entity.avg.runnable = below.runnable;
            entity.avg.runnable_sum = below.runnable * divider;
            entity.avg.load_sum = match delta >= 0 {
                true => (old + delta as u64).min(divider),
                // As if all in it were equally runnable.
                false => old.min(below.load_sum.checked_div(queued).unwrap_or(0)),
            };
            entity.avg.load = weight * entity.avg.load_sum / divider;
            delta = entity.avg.load_sum as i64 - old as i64;
            queue.add(&entity.avg, weight);
            self.tell_group(home);
            at = home;
        }
    }

    /// A sleeper's average, up to now: `sync_entity_load_avg()`.
    pub(super) fn forget(&mut self, now_ns: Ns, task: TaskId) {
        let entity = &mut self.entities[self.of_task[task.index()] as usize];
        if entity.attached.is_some() && !entity.on_rq && entity.avg.advance(now_ns, 0, 0) {
            entity.avg.average(load_of(entity.share));
        }
    }

    /// `update_tg_load_avg()`: at most once a ms, and not for little.
    fn tell_group(&mut self, rq: u32) {
        let now_ns = self.now_ns;
        let rq = &mut self.queues[rq as usize];
        if rq.owner.is_none() || !self.online.has(rq.cpu) || now_ns - rq.told_ns < MS && rq.told_ns != 0 {
            return;
        }
        let differs = |told: u64, now: u64| told.abs_diff(now) > told / 64;
        if differs(rq.told_load, rq.avg.load) || differs(rq.told_runnable, rq.avg.runnable) {
            let group = &mut self.groups[rq.group.index()];
            group.load_avg = group.load_avg + rq.avg.load - rq.told_load;
            group.runnable_avg = group.runnable_avg + rq.avg.runnable - rq.told_runnable;
            (rq.told_load, rq.told_runnable, rq.told_ns) = (rq.avg.load, rq.avg.runnable, now_ns);
        }
    }

    /// `clear_tg_offline_cfs_rqs()`: a pCPU that goes offline is no part of a group's averages.
    pub(super) fn untell_groups(&mut self, cpu: CpuId) {
        for id in self.group_queues[cpu.index()].clone() {
            let rq = &mut self.queues[id as usize];
            let group = &mut self.groups[rq.group.index()];
            group.load_avg -= std::mem::take(&mut rq.told_load);
            group.runnable_avg -= std::mem::take(&mut rq.told_runnable);
            rq.told_ns = 0;
        }
    }

    /// `update_blocked_averages()`: queues in which nobody is forget, too. One that has nothing left to forget is not looked at any more until somebody is in
    /// it again.
    pub(super) fn update_blocked(&mut self, cpu: CpuId) {
        if self.rq(cpu.0).load == 0 {
            self.advance_queue(cpu.0);
        }
        let mut queues = std::mem::take(&mut self.group_queues[cpu.index()]);
        // Children come after their parents.
        for id in queues.iter().rev().copied() {
            let rq = self.rq(id);
            let is_told = rq.told_load == 0 && rq.told_runnable == 0;
            if rq.load > 0 || rq.avg.is_decayed() && is_told {
                continue;
            }
            if rq.avg.is_decayed() {
                self.tell_group(id);
            }
            if self.advance_queue(id) {
                self.tell_group(id);
            }
            if let Some(owner) = self.rq(id).owner {
                self.update_load(owner);
            }
        }
        queues.retain(|id| {
            let rq = &mut self.queues[*id as usize];
            rq.on_list = !rq.is_forgotten();
            rq.on_list
        });
        self.group_queues[cpu.index()] = queues;
    }

    /// `update_cfs_group()`: what a group weighs on a pCPU. An empty one keeps its weight (DELAY_DEQUEUE).
    pub(super) fn update_group(&mut self, id: u32) {
        let Some(mine) = self.entity(id).my_rq else { return };
        let rq = self.rq(mine);
        if rq.load == 0 {
            return;
        }
        let group = &self.groups[rq.group.index()];
        let part = |shares: u64| {
            let load = load_of(rq.load).max(rq.avg.load);
            let whole = group.load_avg - rq.told_load + load;
            let part = quotient(u128::from(shares) * u128::from(load), whole.max(1));
            (part as u64).clamp(SHARES_MIN, shares)
        };
        let share = match self.config.group_weight {
            GroupWeight::Present => {
                let share = quotient(u128::from(group.shares) * u128::from(rq.load), group.load.max(1));
                (share as u64).clamp(SHARES_MIN, group.shares)
            }
            GroupWeight::Smp | GroupWeight::Auto => part(group.shares),
            GroupWeight::Concur => {
                let tasks = (group.runnable_avg >> 10).min(self.online.len() as u64).max(1);
                part(group.shares * tasks)
            }
        };
        self.set_share(id, share);
    }

    /// A task's part of its pCPU's load: `task_h_load()`.
    pub(super) fn h_load(&self, task: TaskId) -> u64 {
        let mut entity = self.entity(self.of_task[task.index()]);
        let mut load = u128::from(entity.avg.load);
        while let Some(owner) = self.rq(entity.home).owner {
            let inside = self.rq(entity.home).avg.load + 1;
            entity = self.entity(owner);
            load = quotient(load * u128::from(entity.avg.load), inside);
        }
        load as u64
    }

    /// `cpu_load()`: sleepers included, as far as they are not forgotten; in older kernels `weighted_cpuload()`.
    pub(super) fn cpu_load(&self, cpu: CpuId) -> u64 {
        let rq = self.rq(cpu.0);
        if self.config.sleepers_weigh {
            rq.avg.load
        } else {
            load_of(rq.load)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::bodies::{Program, Simple};
    use crate::class::fair::{FairConfig, Variant};
    use crate::class::AnyClass;
    use crate::host::{Host, TaskSpec};
    use crate::ids::GroupId;
    use crate::machine::MachineConfig;
    use crate::Simulation;

    use super::*;

    #[test]
    fn groups_that_are_forgotten_are_not_looked_at_until_somebody_is_back() {
        let class = AnyClass::Fair(Fair::new(FairConfig::of(Variant::EevdfForfeit)));
        let host = Host::new(&MachineConfig::ideal(1), class, 1).unwrap();
        let mut s = Simulation::new(host, Simple::default());
        // Its ticks are those at which others are forgotten.
        let busy = s.host.spawn(TaskSpec::default());
        s.bodies.add(busy, Program::Busy);
        let outer = s.host.new_group(GroupId(0), 100);
        let group = s.host.new_group(outer, 100);
        let task = s.host.spawn(TaskSpec { group, ..TaskSpec::default() });
        s.bodies.add(task, Program::OnDemand { run_ns: 5 * MS });
        s.host.wake(busy, None);
        let listed = |s: &Simulation<Simple>| {
            let AnyClass::Fair(fair) = &s.host.class else { panic!("it is the fair class") };
            let groups = fair.group_queues[0].iter().map(|rq| fair.rq(*rq).group);
            let told: u64 = fair.groups.iter().map(|group| group.load_avg + group.runnable_avg).sum();
            (groups.collect::<Vec<_>>(), told > 0)
        };
        assert_eq!(listed(&s), (Vec::new(), false));
        for round in 0..3 {
            let since_ns = round * 10_000 * MS;
            s.host.wake(task, None);
            s.run_until(since_ns + 100 * MS).unwrap();
            assert_eq!(listed(&s), (vec![outer, group], true));
            s.run_until(since_ns + 10_000 * MS).unwrap();
            assert_eq!(listed(&s), (Vec::new(), false));
        }
    }

    #[test]
    fn who_sleeps_was_no_load_in_older_kernels() {
        for sleepers_weigh in [true, false] {
            let config = FairConfig { sleepers_weigh, ..FairConfig::of(Variant::Cfs) };
            let host = Host::new(&MachineConfig::ideal(1), AnyClass::Fair(Fair::new(config)), 1).unwrap();
            let mut s = Simulation::new(host, Simple::default());
            let task = s.host.spawn(TaskSpec::default());
            s.bodies.add(task, Program::OnDemand { run_ns: 300 * MS });
            s.host.wake(task, None);
            let load = |s: &Simulation<Simple>| {
                let AnyClass::Fair(fair) = &s.host.class else { panic!("it is the fair class") };
                fair.cpu_load(CpuId(0))
            };
            s.run_until(299 * MS).unwrap();
            assert!(load(&s) > 900, "{}", load(&s));
            s.run_until(301 * MS).unwrap();
            assert_eq!(load(&s) > 900, sleepers_weigh, "{}", load(&s));
        }
    }
}
