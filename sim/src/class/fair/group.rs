// SPDX-License-Identifier: GPL-2.0-only
//! cgroups: a group has an entity and a queue on each pCPU; its weight is divided among them by the load that it has there.

use crate::host::Core;
use crate::ids::{CpuId, GroupId, TaskId};

use super::loads::SHARES_MIN;
use super::queue::{Entity, Rq};
use super::{Fair, NICE_0};

/// `struct task_group`. The root has no entities, and the pCPUs' root queues are its queues.
#[derive(Clone, Debug)]
pub struct TaskGroup {
    parent: Option<GroupId>,
    pub shares: u64,
    /// The load of its queues on all pCPUs.
    pub load: u64,
    /// Averages of that and of how many are runnable, times 1024, as its queues told them last.
    pub load_avg: u64,
    pub runnable_avg: u64,
    /// pCPU and queue, by pCPU; made when they are needed first.
    queues: Vec<(u32, u32)>,
}

/// cpu.weight 100 is the weight of nice 0 (sched_weight_from_cgroup()).
fn shares_of(weight: u32) -> u64 {
    (u64::from(weight) * NICE_0 / 100).max(SHARES_MIN)
}

impl Fair {
    pub(super) fn add_group(&mut self, core: &Core, group: GroupId) {
        let known = &core.groups[group.index()];
        let queues = match known.parent {
            Some(_) => Vec::new(),
            None => (0..core.cpus.len() as u32).map(|cpu| (cpu, cpu)).collect(),
        };
        self.groups.push(TaskGroup {
            parent: known.parent,
            shares: shares_of(known.weight),
            load: 0,
            load_avg: 0,
            runnable_avg: 0,
            queues,
        });
    }

    /// The group that a task competes in.
    pub(super) fn group_of(&self, core: &Core, task: TaskId) -> GroupId {
        if self.config.groups {
            core.task(task).group
        } else {
            GroupId(0)
        }
    }

    /// The queue of a group on a pCPU.
    pub(super) fn queue_of(&mut self, group: GroupId, cpu: CpuId) -> u32 {
        let known = &self.groups[group.index()].queues;
        let at = match known.binary_search_by_key(&cpu.0, |(cpu, _)| *cpu) {
            Ok(at) => return known[at].1,
            Err(at) => at,
        };
        let parent = self.groups[group.index()].parent.unwrap_or(GroupId(0));
        let above = self.queue_of(parent, cpu);
        let rq = self.queues.len() as u32;
        let shares = self.groups[group.index()].shares;
        let owner = self.new_entity(Entity::new(None, Some(rq), above, shares));
        self.queues.push(Rq::new(cpu, group, Some(owner)));
        self.groups[group.index()].queues.insert(at, (cpu.0, rq));
        rq
    }

    /// ... if it has one already.
    pub(super) fn known_queue(&self, group: GroupId, cpu: CpuId) -> Option<u32> {
        let known = &self.groups[group.index()].queues;
        known.binary_search_by_key(&cpu.0, |(cpu, _)| *cpu).ok().map(|at| known[at].1)
    }

    pub(super) fn set_shares(&mut self, core: &Core, group: GroupId) {
        self.groups[group.index()].shares = shares_of(core.groups[group.index()].weight);
        for at in 0..self.groups[group.index()].queues.len() {
            let (_, rq) = self.groups[group.index()].queues[at];
            if let Some(owner) = self.rq(rq).owner {
                self.update_group(owner);
            }
        }
    }

    /// `enqueue_task_fair()`
    pub(super) fn enqueue_task(&mut self, core: &Core, task: TaskId, mut woken: bool) {
        let (known, group) = (core.task(task), self.group_of(core, task));
        let (mut at, mut home) = (self.of_task[task.index()], self.queue_of(group, known.cpu));
        if self.entity(at).delayed && self.entity(at).home != home {
            self.finish_delayed(at);
        }
        let root = known.cpu.index();
        if self.rq(self.entity(at).home).cpu != known.cpu {
            self.entity_mut(at).exec_start_ns = 0;
        }
        if self.flat {
            self.enqueue_flat(at, home, woken);
        } else {
            loop {
                if self.entity(at).delayed {
                    self.update_load(at);
                    self.update_group(at);
                    self.requeue_delayed(at);
                } else if self.entity(at).on_rq {
                    self.update_load(at);
                    self.update_group(at);
                } else {
                    self.join(at, home);
                    self.compete(at, home, woken);
                }
                self.rq_mut(home).tasks += 1;
                let Some(owner) = self.rq(home).owner else { break };
                at = owner;
                home = self.entity(owner).home;
                woken = true;
            }
        }
        if self.queues[root].tasks == 2 {
            self.balance.overloaded.insert(known.cpu);
        }
    }

    /// `dequeue_task_fair()`. `sleeps`: it may have to stay for a while, and so may its groups, but not who is throttled or stopped (`DEQUEUE_THROTTLE`,
    /// `DEQUEUE_SPECIAL`).
    pub(super) fn dequeue_task(&mut self, core: &Core, task: TaskId, sleeps: bool) {
        let stays = !core.task(task).held;
        let root = core.task(task).cpu.index();
        let (mut at, mut gone) = (self.of_task[task.index()], true);
        if self.flat {
            self.dequeue_flat(at, sleeps, stays);
        } else {
            loop {
                let home = self.entity(at).home;
                // A group that is empty sleeps, whatever its last task does (`flags |= DEQUEUE_SLEEP`).
                let at_sleeps = sleeps || self.entity(at).task.is_none();
                if gone && at_sleeps && stays && self.delays(at) {
                    self.clear_buddies(at);
                    self.update_load(at);
                    self.update_entity_lag(at);
                    self.set_delayed(at);
                    gone = false;
                } else if gone {
                    self.stop_competing(at, at_sleeps);
                    self.leave(at);
                    self.update_min_vruntime(home);
                    gone = self.rq(home).nr == 0;
                    if !gone && sleeps {
                        self.sleeps_within_group(home);
                    }
                } else {
                    self.update_load(at);
                    self.update_group(at);
                }
                self.rq_mut(home).tasks -= 1;
                let Some(owner) = self.rq(home).owner else { break };
                at = owner;
            }
        }
        if self.queues[root].tasks == 1 {
            self.balance.overloaded.remove(CpuId::from(root));
        }
    }

    /// Whoever goes to sleep leaves others in its group's queue: they are to be picked next, if that is fair (`set_next_buddy()` of `dequeue_entities()`).
    fn sleeps_within_group(&mut self, rq: u32) {
        if let Some(owner) = self.rq(rq).owner.filter(|_| self.config.buddy_hints) {
            self.set_buddy(owner, |rq| &mut rq.next);
        }
    }

    /// It was picked, and so has paid: off the queue now, and its groups if that leaves them empty.
    pub(super) fn finish_delayed(&mut self, id: u32) {
        if self.flat {
            self.stop_competing(id, true);
            self.leave_all(id, 0);
            self.update_min_vruntime(self.entity(id).rq);
            self.clear_delayed(id);
            return;
        }
        let mut at = id;
        loop {
            let home = self.entity(at).home;
            self.stop_competing(at, true);
            self.leave(at);
            self.update_min_vruntime(self.entity(at).rq);
            if self.entity(at).delayed {
                self.clear_delayed(at);
            }
            let Some(owner) = self.rq(home).owner else { break };
            if self.rq(home).load > 0 {
                self.sleeps_within_group(home);
                break;
            }
            if self.entity(owner).delayed {
                break;
            }
            if self.delays(owner) {
                self.update_entity_lag(owner);
                self.set_delayed(owner);
                break;
            }
            at = owner;
        }
    }

    /// Tasks that wait on a pCPU, whatever their groups.
    pub(super) fn waiting_on(&self, cpu: CpuId, found: &mut Vec<TaskId>) {
        found.clear();
        self.waiting_in(cpu.0, found);
    }

    fn waiting_in(&self, rq: u32, found: &mut Vec<TaskId>) {
        let rq = self.rq(rq);
        for id in self.forest.iter(&rq.tree).chain(rq.curr) {
            let entity = self.entity(id);
            match (entity.my_rq, entity.task) {
                (Some(mine), _) => self.waiting_in(mine, found),
                (None, Some(task)) if rq.curr != Some(id) && !entity.delayed => found.push(task),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::class::fair::{Fair, FairConfig, Variant};
    use crate::class::{AnyClass, Class as _, Dequeue};
    use crate::host::TaskSpec;
    use crate::ids::{CpuId, GroupId, TaskId};
    use crate::machine::MachineConfig;
    use crate::time::{MS, US};
    use crate::Host;

    /// One pCPU, a task, and a group of so many more, which is so far ahead of it. Nobody runs.
    fn ahead(config: FairConfig, tasks: usize, ahead_ns: u64) -> (Host, TaskId, Vec<TaskId>, u32) {
        let mut host =
            Host::new(&MachineConfig::ideal(1), AnyClass::Fair(Fair::new(config)), 1).expect("a host");
        let beside = host.spawn(TaskSpec::default());
        let group = host.new_group(GroupId(0), 100);
        let tasks: Vec<TaskId> =
            (0..tasks).map(|_| host.spawn(TaskSpec { group, ..TaskSpec::default() })).collect();
        for task in tasks.iter().chain([&beside]) {
            host.wake(*task, None);
        }
        let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
        let home = class.entity(class.of_task[tasks[0].index()]).home;
        let owner = class.rq(home).owner.expect("a group's");
        for (id, vruntime) in [(class.of_task[beside.index()], 0), (owner, ahead_ns as i64)] {
            class.tree_remove(id);
            let entity = class.entity_mut(id);
            (entity.vruntime, entity.deadline) = (vruntime, vruntime + 3_000_000);
            class.tree_insert(id);
        }
        (host, beside, tasks, owner)
    }

    /// The first of the group goes to sleep. Is the second picked, which is so far ahead?
    fn stays_in_the_group(config: FairConfig, ahead_ns: u64) -> bool {
        let (mut host, beside, tasks, _) = ahead(config, 2, ahead_ns);
        let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
        class.dequeue(&mut host.core, tasks[0], Dequeue::Sleep);
        let picked = class.pick(&mut host.core, CpuId(0), None).expect("somebody");
        assert!([beside, tasks[1]].contains(&picked));
        picked == tasks[1]
    }

    #[test]
    fn a_sleepers_group_is_picked_next_if_that_is_fair() {
        // CFS: not further ahead than the granularity, 1 ms.
        let cfs = FairConfig::of(Variant::Cfs);
        assert!(stays_in_the_group(cfs.clone(), 900 * US));
        assert!(!stays_in_the_group(cfs.clone(), 1_100 * US));
        assert!(!stays_in_the_group(FairConfig { buddy_hints: false, ..cfs }, 900 * US));
        // EEVDF: not ahead of the average. The other one came first, and has the same deadline.
        let eevdf = FairConfig::of(Variant::EevdfForfeit);
        assert!(stays_in_the_group(eevdf.clone(), 0));
        assert!(!stays_in_the_group(eevdf.clone(), 100 * US));
        assert!(!stays_in_the_group(FairConfig { pick_buddy: false, ..eevdf }, 0));
    }

    #[test]
    fn who_is_held_does_not_stay_to_pay_nor_does_its_group() {
        for held in [false, true] {
            let (mut host, _, tasks, owner) = ahead(FairConfig::of(Variant::EevdfForfeit), 1, 4 * MS);
            host.core.task_mut(tasks[0]).held = held;
            let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
            class.dequeue(&mut host.core, tasks[0], Dequeue::Sleep);
            assert_eq!((class.entity(owner).delayed, class.entity(owner).on_rq), (!held, !held));
        }
    }

    #[test]
    fn a_group_whose_last_task_is_moved_away_stays_to_pay() {
        for (delay_dequeue, ahead_ns) in [(true, 4 * MS), (true, 0), (false, 4 * MS)] {
            let config = FairConfig { delay_dequeue, ..FairConfig::of(Variant::Eevdf) };
            let (mut host, _, tasks, owner) = ahead(config, 1, ahead_ns);
            let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
            class.dequeue(&mut host.core, tasks[0], Dequeue::Migrate);
            let stays = delay_dequeue && ahead_ns > 0;
            assert_eq!((class.entity(owner).delayed, class.entity(owner).on_rq), (stays, stays));
        }
    }

    #[test]
    fn a_group_is_no_buddy_any_more_when_who_it_was_for_runs() {
        let (mut host, _, tasks, owner) = ahead(FairConfig::of(Variant::EevdfForfeit), 2, 0);
        let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
        let [other, buddy] = [0, 1].map(|at| class.of_task[tasks[at].index()]);
        let marked =
            |class: &Fair| [class.entity(buddy).rq, class.entity(owner).rq].map(|rq| class.rq(rq).next);
        class.set_buddy(buddy, |rq| &mut rq.next);
        class.clear_buddies(other);
        assert_eq!(marked(class), [Some(buddy), Some(owner)]);
        class.clear_buddies(buddy);
        assert_eq!(marked(class), [None, None]);
    }
}
