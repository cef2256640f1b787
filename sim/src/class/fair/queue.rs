// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling entities and their queues (`struct sched_entity`, `struct cfs_rq`): what is common to CFS and EEVDF.

use crate::host::Core;
use crate::ids::{CpuId, GroupId, TaskId};
use crate::time::Ns;
use crate::tree::Tree;

use super::pelt::Average;
use super::{Fair, NICE_0, SCALE};

/// A task, or a group's part on one pCPU.
#[derive(Clone, Debug)]
pub struct Entity {
    pub task: Option<TaskId>,
    /// Of a group: the queue of those in it.
    pub my_rq: Option<u32>,
    /// Its cgroup's queue on its pCPU: where its load counts.
    pub home: u32,
    /// Where it competes for its turn, or did last: there, or with all others of the pCPU ([`super::Variant::EevdfFlat`]).
    pub rq: u32,
    /// `se->load.weight`: nice for a task, its part of the group's shares for a group.
    pub share: u64,
    /// What it competes with: its share, or as much of its cgroups' shares as that comes to (`se->h_load.weight`).
    pub weight: u64,
    pub avg: Average,
    /// Of a group: those that were runnable in it when `avg` was brought up to date last.
    pub runnable: u32,
    /// The queue that `avg` is a part of.
    pub attached: Option<u32>,
    pub vruntime: i64,
    pub deadline: i64,
    /// How far it was behind (positive) when it left.
    pub vlag: i64,
    /// While it runs: until then nobody takes its turn (RUN_TO_PARITY).
    pub vprot: i64,
    /// It left without sleeping: `deadline` is counted from its virtual run time (PLACE_REL_DEADLINE).
    pub rel_deadline: bool,
    /// The pCPU where it was before its last one.
    pub recent: Option<CpuId>,
    pub exec_ns: Ns,
    pub prev_exec_ns: Ns,
    /// When it was seen running last on its present pCPU; 0: not there yet (`se->exec_start`).
    pub exec_start_ns: Ns,
    pub on_rq: bool,
    /// Asleep, and still queued to pay for having run ahead (`sched_delayed`).
    pub delayed: bool,
    /// A task that was never queued before.
    pub new: bool,
}

impl Entity {
    pub fn new(task: Option<TaskId>, my_rq: Option<u32>, rq: u32, weight: u64) -> Self {
        Self {
            task,
            my_rq,
            home: rq,
            rq,
            share: weight,
            weight,
            avg: Average::default(),
            runnable: 0,
            attached: None,
            vruntime: 0,
            deadline: 0,
            vlag: 0,
            vprot: 0,
            rel_deadline: false,
            recent: None,
            exec_ns: 0,
            prev_exec_ns: 0,
            exec_start_ns: 0,
            on_rq: false,
            delayed: false,
            new: false,
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
    /// The shares of all whose home it is and that are queued, `curr` included.
    pub load: u64,
    /// How many compete here.
    pub nr: u32,
    /// Tasks below, at any depth, without those that stay queued although they sleep (`h_nr_runnable`).
    pub tasks: u32,
    pub avg: Average,
    /// Its part of its group's averages, and when that was brought up to date last (`tg_load_avg_contrib`).
    pub told_load: u64,
    pub told_runnable: u64,
    pub told_ns: Ns,
    pub min_vruntime: i64,
    /// EEVDF: of those in the tree, the sums of (virtual run time - min_vruntime) * weight and of weight, as [`Fair::average_weight`] has it. The
    /// kernel's sum has 64 bits, and counts from the average itself (`zero_vruntime`) so that it stays small. From the least virtual run time it does not:
    /// one that is behind by a slice of the least weight, 2^(22 + 20 - 1), and 100,000 of the largest, 2^27, make 2^85.
    pub avg_sum: i128,
    /// 100,000 of the largest weight, each in a group that counts as many times, make 2^60.
    pub avg_load: i64,
    pub next: Option<u32>,
    pub last: Option<u32>,
    pub skip: Option<u32>,
    /// By a yield_to() that need not be fair ([`FairConfig::unfair_boost`](super::FairConfig)).
    pub boosted: Option<u32>,
    /// Of a group's: it is in [`Fair::group_queues`].
    pub on_list: bool,
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
            avg: Average::default(),
            told_load: 0,
            told_runnable: 0,
            told_ns: 0,
            min_vruntime: 0,
            avg_sum: 0,
            avg_load: 0,
            next: None,
            last: None,
            skip: None,
            boosted: None,
            on_list: false,
            inserted: 0,
        }
    }

    /// Nobody is in it, nor is there a trace of who was.
    pub fn is_forgotten(&self) -> bool {
        let averages = self.avg.load == 0 && self.avg.runnable == 0 && self.avg.is_decayed();
        self.load == 0 && averages && self.told_load == 0 && self.told_runnable == 0
    }
}

impl Entity {
    /// Nobody takes its turn yet: `protect_slice()`.
    pub fn is_protected(&self) -> bool {
        self.vruntime < self.vprot
    }
}

/// A weight as averages of load have it: `scale_load_down()`.
pub const fn load_of(weight: u64) -> u64 {
    match weight >> SCALE {
        0 | 1 if weight > 0 => 2,
        load => load,
    }
}

/// What a weight counts in the average of virtual run times: all of it since 7.1 (`avg_vruntime_weight()`), in 1024ths and at least 2 before.
const fn average_weight(weight: u64, full: bool) -> i64 {
    match (weight >> SCALE) as i64 {
        _ if full => weight as i64,
        0 | 1 => 2,
        weight => weight,
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

    /// What an entity of this weight counts in its queue's average.
    pub(super) fn average_weight(&self, weight: u64) -> i64 {
        average_weight(weight, self.full_weights)
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
            let weight = average_weight(entity.weight, self.full_weights);
            rq.avg_sum += i128::from(entity.vruntime - rq.min_vruntime) * i128::from(weight);
            rq.avg_load += weight;
        }
    }

    /// `__dequeue_entity()`
    pub(super) fn tree_remove(&mut self, id: u32) {
        let entity = &self.entities[id as usize];
        let rq = &mut self.queues[entity.rq as usize];
        self.forest.remove(&mut rq.tree, id);
        if self.eevdf {
            let weight = average_weight(entity.weight, self.full_weights);
            rq.avg_sum -= i128::from(entity.vruntime - rq.min_vruntime) * i128::from(weight);
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
            rq.avg_sum -= i128::from(rq.avg_load) * i128::from(delta);
            rq.min_vruntime = least;
        }
    }

    /// `clear_buddies()`: nor are its groups any more, as far as that was for its sake.
    pub(super) fn clear_buddies(&mut self, id: u32) {
        const BUDDIES: [fn(&mut Rq) -> &mut Option<u32>; 4] =
            [|rq| &mut rq.next, |rq| &mut rq.last, |rq| &mut rq.skip, |rq| &mut rq.boosted];
        for buddy in BUDDIES {
            let mut at = Some(id);
            while let Some(id) = at {
                let marked = buddy(self.rq_mut(self.entity(id).rq));
                if *marked != Some(id) {
                    break;
                }
                *marked = None;
                at = self.parent(id);
            }
        }
    }

    /// A task's weight in the kernel's scale.
    pub(super) fn weight_of(core: &Core, task: TaskId) -> u64 {
        u64::from(core.task(task).weight) * (NICE_0 >> SCALE)
    }
}
