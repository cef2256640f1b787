// SPDX-License-Identifier: GPL-2.0-only
//! cgroups: a group has an entity and a queue on each pCPU; its weight is divided among them by the load that it has there.

use crate::host::Core;
use crate::ids::{CpuId, GroupId, TaskId};

use super::queue::{Entity, Rq};
use super::{Fair, NICE_0};

const NONE: u32 = u32::MAX;
/// MIN_SHARES
const SHARES_MIN: u64 = 2;

/// `struct task_group`. The root has no entities, and the pCPUs' root queues are its queues.
#[derive(Clone, Debug)]
pub struct TaskGroup {
    parent: Option<GroupId>,
    shares: u64,
    /// The load of its queues on all pCPUs.
    pub load: u64,
    /// By pCPU; made when they are needed first.
    queues: Vec<u32>,
}

/// cpu.weight 100 is the weight of nice 0 (sched_weight_from_cgroup()).
fn shares_of(weight: u32) -> u64 {
    (u64::from(weight) * NICE_0 / 100).max(SHARES_MIN)
}

impl Fair {
    pub(super) fn add_group(&mut self, core: &Core, group: GroupId) {
        let known = &core.groups[group.index()];
        let queues = match known.parent {
            Some(_) => vec![NONE; core.cpus.len()],
            None => (0..core.cpus.len() as u32).collect(),
        };
        self.groups.push(TaskGroup {
            parent: known.parent,
            shares: shares_of(known.weight),
            load: 0,
            queues,
        });
    }

    /// The queue of a group on a pCPU.
    pub(super) fn queue_of(&mut self, group: GroupId, cpu: CpuId) -> u32 {
        let known = self.groups[group.index()].queues[cpu.index()];
        if known != NONE {
            return known;
        }
        let parent = self.groups[group.index()].parent.unwrap_or(GroupId(0));
        let above = self.queue_of(parent, cpu);
        let rq = self.queues.len() as u32;
        let shares = self.groups[group.index()].shares;
        let owner = self.new_entity(Entity::new(None, Some(rq), above, shares));
        self.queues.push(Rq::new(cpu, group, Some(owner)));
        self.groups[group.index()].queues[cpu.index()] = rq;
        rq
    }

    /// `update_cfs_group()` and `calc_group_shares()`, with present loads.
    pub(super) fn update_group(&mut self, id: u32) {
        let Some(mine) = self.entity(id).my_rq else { return };
        let rq = self.rq(mine);
        let group = &self.groups[rq.group.index()];
        if rq.load == 0 {
            return;
        }
        let share = u128::from(group.shares) * u128::from(rq.load) / u128::from(group.load.max(1));
        let shares = (share as u64).clamp(SHARES_MIN, group.shares);
        self.reweight_entity(id, shares);
    }

    pub(super) fn set_shares(&mut self, core: &Core, group: GroupId) {
        self.groups[group.index()].shares = shares_of(core.groups[group.index()].weight);
        for cpu in 0..core.cpus.len() {
            let rq = self.groups[group.index()].queues[cpu];
            if rq == NONE {
                continue;
            }
            if let Some(owner) = self.rq(rq).owner {
                self.update_group(owner);
            }
        }
    }

    /// `enqueue_task_fair()`
    pub(super) fn enqueue_task(&mut self, core: &Core, task: TaskId, mut woken: bool) {
        let known = core.task(task);
        let (mut at, mut rq) = (self.of_task[task.index()], self.queue_of(known.group, known.cpu));
        if self.entity(at).delayed && self.entity(at).rq != rq {
            self.finish_delayed(at);
        }
        let root = known.cpu.index();
        loop {
            self.update_group(at);
            if self.entity(at).delayed {
                self.requeue_delayed(at);
            } else if !self.entity(at).on_rq {
                self.enqueue_entity(at, rq, woken);
            }
            self.rq_mut(rq).tasks += 1;
            let Some(owner) = self.rq(rq).owner else { break };
            at = owner;
            rq = self.entity(owner).rq;
            woken = true;
        }
        if self.queues[root].tasks == 2 {
            self.balance.overloaded.insert(known.cpu);
        }
    }

    /// `dequeue_task_fair()`. `sleeps`: it may have to stay for a while.
    pub(super) fn dequeue_task(&mut self, core: &Core, task: TaskId, sleeps: bool) {
        let root = core.task(task).cpu.index();
        let (mut at, mut gone) = (self.of_task[task.index()], true);
        loop {
            let rq = self.entity(at).rq;
            if gone && sleeps && self.delays(at) {
                self.entity_mut(at).delayed = true;
                gone = false;
            } else if gone {
                self.dequeue_entity(at);
            } else {
                self.update_group(at);
            }
            self.rq_mut(rq).tasks -= 1;
            gone = gone && self.rq(rq).nr == 0;
            let Some(owner) = self.rq(rq).owner else { break };
            at = owner;
        }
        if self.queues[root].tasks == 1 {
            self.balance.overloaded.remove(CpuId::from(root));
        }
    }

    /// A task's part of its pCPU's load: `task_h_load()`.
    pub(super) fn h_load(&self, task: TaskId) -> u64 {
        let id = self.of_task[task.index()];
        let (mut load, mut at) = (u128::from(self.entity(id).weight), id);
        while let Some(owner) = self.parent(at) {
            let inside = self.rq(self.entity(at).rq).load.max(1);
            load = load * u128::from(self.entity(owner).weight) / u128::from(inside);
            at = owner;
        }
        load as u64
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
