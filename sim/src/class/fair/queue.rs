// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling entities and their queues (`struct sched_entity`, `struct cfs_rq`): what is common to CFS and EEVDF.

use crate::host::Core;
use crate::ids::{CpuId, GroupId, TaskId};
use crate::time::Ns;
use crate::tree::Tree;

use super::{Fair, NICE_0, SCALE};

/// A task, or a group's part on one pCPU.
#[derive(Clone, Debug)]
pub struct Entity {
    pub task: Option<TaskId>,
    /// Of a group: the queue of those in it.
    pub my_rq: Option<u32>,
    /// Where it is queued, or was last.
    pub rq: u32,
    pub weight: u64,
    pub vruntime: i64,
    pub deadline: i64,
    /// How far it was behind (positive) when it left; while it runs, its deadline when it was picked (RUN_TO_PARITY).
    pub vlag: i64,
    pub exec_ns: Ns,
    pub prev_exec_ns: Ns,
    pub on_rq: bool,
    /// Asleep, and still queued to pay for having run ahead (`sched_delayed`).
    pub delayed: bool,
    /// Never queued before.
    pub new: bool,
}

impl Entity {
    pub fn new(task: Option<TaskId>, my_rq: Option<u32>, rq: u32, weight: u64) -> Self {
        Self {
            task,
            my_rq,
            rq,
            weight,
            vruntime: 0,
            deadline: 0,
            vlag: 0,
            exec_ns: 0,
            prev_exec_ns: 0,
            on_rq: false,
            delayed: false,
            new: true,
        }
    }
}

/// A queue. Number n below the number of pCPUs is pCPU n's root.
#[derive(Clone, Debug)]
pub struct Rq {
    pub cpu: CpuId,
    pub group: GroupId,
    /// The group's entity, in the queue above.
    pub owner: Option<u32>,
    /// Those that wait: by virtual run time (CFS) or deadline (EEVDF).
    pub tree: Tree,
    pub curr: Option<u32>,
    /// The weights of all that are queued, `curr` included.
    pub load: u64,
    pub nr: u32,
    /// Tasks below, at any depth.
    pub tasks: u32,
    pub min_vruntime: i64,
    /// EEVDF: of those in the tree, the sums of (virtual run time - min_vruntime) * weight and of weight, weights scaled down.
    pub avg_sum: i64,
    pub avg_load: i64,
    pub next: Option<u32>,
    pub last: Option<u32>,
    pub skip: Option<u32>,
    /// Insertions, to keep equal keys in order of arrival.
    inserted: u64,
}

impl Rq {
    pub fn new(cpu: CpuId, group: GroupId, owner: Option<u32>) -> Self {
        Self {
            cpu,
            group,
            owner,
            tree: Tree::default(),
            curr: None,
            load: 0,
            nr: 0,
            tasks: 0,
            min_vruntime: 0,
            avg_sum: 0,
            avg_load: 0,
            next: None,
            last: None,
            skip: None,
            inserted: 0,
        }
    }
}

pub const fn scale_down(weight: u64) -> i64 {
    let weight = (weight >> SCALE) as i64;
    if weight < 2 {
        2
    } else {
        weight
    }
}

impl Fair {
    pub(super) fn entity(&self, id: u32) -> &Entity {
        &self.entities[id as usize]
    }

    pub(super) fn entity_mut(&mut self, id: u32) -> &mut Entity {
        &mut self.entities[id as usize]
    }

    pub(super) fn rq(&self, id: u32) -> &Rq {
        &self.queues[id as usize]
    }

    pub(super) fn rq_mut(&mut self, id: u32) -> &mut Rq {
        &mut self.queues[id as usize]
    }

    pub(super) fn new_entity(&mut self, entity: Entity) -> u32 {
        let id = self.entities.len() as u32;
        self.entities.push(entity);
        self.forest.reserve(self.entities.len());
        id
    }

    /// The entity one level up: the group's.
    pub(super) fn parent(&self, id: u32) -> Option<u32> {
        self.rq(self.entity(id).rq).owner
    }

    /// Into the tree of its queue (`__enqueue_entity()`).
    pub(super) fn tree_insert(&mut self, id: u32) {
        let entity = &self.entities[id as usize];
        let rq = &mut self.queues[entity.rq as usize];
        rq.inserted += 1;
        let key = if self.eevdf { entity.deadline } else { entity.vruntime };
        self.forest.insert(&mut rq.tree, id, (key, rq.inserted), entity.vruntime);
        if self.eevdf {
            let weight = scale_down(entity.weight);
            rq.avg_sum += (entity.vruntime - rq.min_vruntime) * weight;
            rq.avg_load += weight;
        }
    }

    /// `__dequeue_entity()`
    pub(super) fn tree_remove(&mut self, id: u32) {
        let entity = &self.entities[id as usize];
        let rq = &mut self.queues[entity.rq as usize];
        self.forest.remove(&mut rq.tree, id);
        if self.eevdf {
            let weight = scale_down(entity.weight);
            rq.avg_sum -= (entity.vruntime - rq.min_vruntime) * weight;
            rq.avg_load -= weight;
        }
    }

    pub(super) fn update_min_vruntime(&mut self, rq_id: u32) {
        let rq = &self.queues[rq_id as usize];
        let curr = rq.curr.map(|id| self.entity(id)).filter(|curr| curr.on_rq).map(|curr| curr.vruntime);
        let least = match (curr, self.forest.least(&rq.tree)) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => return,
        };
        let rq = &mut self.queues[rq_id as usize];
        let delta = least - rq.min_vruntime;
        if delta > 0 {
            rq.avg_sum -= rq.avg_load * delta;
            rq.min_vruntime = least;
        }
    }

    pub(super) fn clear_buddies(&mut self, rq: u32, id: u32) {
        let rq = self.rq_mut(rq);
        for buddy in [&mut rq.next, &mut rq.last, &mut rq.skip] {
            if *buddy == Some(id) {
                *buddy = None;
            }
        }
    }

    /// Put an entity into its queue: `enqueue_entity()`. `woken`: it comes from sleep, or is new.
    pub(super) fn enqueue_entity(&mut self, id: u32, rq_id: u32, woken: bool) {
        let old_rq = self.entity(id).rq;
        if old_rq != rq_id && !self.eevdf {
            // Virtual run times of two queues are compared by their distance from the queue's least.
            let shift = self.rq(rq_id).min_vruntime - self.rq(old_rq).min_vruntime;
            self.entity_mut(id).vruntime += shift;
        }
        self.entity_mut(id).rq = rq_id;
        if self.eevdf {
            self.eevdf_place(id);
        } else if woken {
            self.cfs_place(id);
        }
        self.entity_mut(id).new = false;
        self.account(id, true);
        if self.rq(rq_id).curr != Some(id) {
            self.tree_insert(id);
        }
        self.entity_mut(id).on_rq = true;
    }

    /// `dequeue_entity()`
    pub(super) fn dequeue_entity(&mut self, id: u32) {
        let rq_id = self.entity(id).rq;
        if self.eevdf {
            self.update_entity_lag(id);
        }
        self.clear_buddies(rq_id, id);
        if self.rq(rq_id).curr != Some(id) {
            self.tree_remove(id);
        }
        self.entity_mut(id).on_rq = false;
        self.account(id, false);
        self.update_min_vruntime(rq_id);
    }

    /// `account_entity_enqueue()` and its opposite.
    fn account(&mut self, id: u32, add: bool) {
        let (weight, rq_id) = (self.entity(id).weight, self.entity(id).rq);
        let rq = self.rq_mut(rq_id);
        if add {
            rq.load += weight;
            rq.nr += 1;
        } else {
            rq.load -= weight;
            rq.nr -= 1;
        }
        let group = rq.group.index();
        let load = &mut self.groups[group].load;
        *load = if add { *load + weight } else { *load - weight };
    }

    /// `reweight_entity()`
    pub(super) fn reweight_entity(&mut self, id: u32, weight: u64) {
        let entity = self.entity(id);
        let (old, rq_id, on_rq) = (entity.weight, entity.rq, entity.on_rq);
        if old == weight {
            return;
        }
        let is_curr = self.rq(rq_id).curr == Some(id);
        let average = if on_rq && self.eevdf { self.avg_vruntime(rq_id) } else { 0 };
        if on_rq {
            if !is_curr {
                self.tree_remove(id);
            }
            self.account(id, false);
        }
        let eevdf = self.eevdf;
        let entity = self.entity_mut(id);
        entity.weight = weight;
        if eevdf && on_rq {
            // reweight_eevdf(): the lag and what is left of the slice stay the same in real time.
            let rescale =
                |distance: i64| (i128::from(distance) * i128::from(old) / i128::from(weight)) as i64;
            let is_protected = is_curr && entity.vlag == entity.deadline;
            entity.vruntime = average - rescale(average - entity.vruntime);
            entity.deadline = average + rescale(entity.deadline - average);
            if is_protected {
                entity.vlag = entity.deadline;
            }
        } else if eevdf {
            entity.vlag = (i128::from(entity.vlag) * i128::from(old) / i128::from(weight)) as i64;
        }
        if on_rq {
            self.account(id, true);
            if !is_curr {
                self.tree_insert(id);
            }
            self.update_min_vruntime(rq_id);
        }
    }

    /// A task's weight in the kernel's scale.
    pub(super) fn weight_of(core: &Core, task: TaskId) -> u64 {
        u64::from(core.task(task).weight) * (NICE_0 >> SCALE)
    }
}
