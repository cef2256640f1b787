// SPDX-License-Identifier: GPL-2.0-only
//! EEVDF of Linux 7.3: all tasks of a pCPU compete in one queue, whatever their cgroups. What a task competes with is its own weight's part of its group's,
//! of that group's part of its parent's, and so on; the groups' queues only count who is there. A sleeper that pays, or a pause to wait for one's turn, is the
//! task's alone, where before a whole group was late or early.

use crate::time::quotient;

use super::loads::SHARES_MIN;
use super::{Fair, NICE_0};

impl Fair {
    /// `__calc_prop_weight()` of every level.
    pub(super) fn weight_in_all(&self, id: u32) -> u64 {
        let (mut at, mut weight) = (id, u128::from(NICE_0));
        loop {
            let entity = self.entity(at);
            let rq = self.rq(entity.home);
            let of = if rq.owner.is_some() { rq.load.max(1) } else { NICE_0 };
            weight = quotient(weight * u128::from(entity.share), of).max(u128::from(SHARES_MIN));
            match rq.owner {
                Some(owner) => at = owner,
                None => return weight as u64,
            }
        }
    }

    /// `enqueue_task_fair()` and `enqueue_hierarchy()`
    pub(super) fn enqueue_flat(&mut self, id: u32, home: u32, woken: bool) {
        if self.entity(id).delayed {
            self.update_load(id);
            self.requeue_delayed(id);
            self.count_runnable(id, true);
            return;
        }
        let (mut at, mut queue) = (id, home);
        loop {
            if self.entity(at).on_rq {
                self.update_load(at);
                self.update_group(at);
            } else {
                self.join(at, queue);
            }
            self.rq_mut(queue).tasks += 1;
            let Some(owner) = self.rq(queue).owner else { break };
            at = owner;
            queue = self.entity(owner).home;
        }
        let weight = self.weight_in_all(id);
        self.reweigh(id, weight, false);
        self.compete(id, queue, woken);
    }

    /// `__dequeue_task()`
    pub(super) fn dequeue_flat(&mut self, id: u32, sleeps: bool, stays: bool) {
        self.clear_buddies(id);
        self.update_entity_lag(id);
        if sleeps && stays && self.delays(id) {
            self.update_load(id);
            self.set_delayed(id);
            self.count_runnable(id, false);
            return;
        }
        let rq = self.entity(id).rq;
        self.stop_competing(id, sleeps);
        self.leave_all(id, 1);
        self.update_min_vruntime(rq);
    }

    /// set_delayed(), clear_delayed(): it is still there, but not runnable.
    fn count_runnable(&mut self, id: u32, add: bool) {
        let mut at = Some(id);
        while let Some(id) = at {
            let home = self.entity(id).home;
            let rq = self.rq_mut(home);
            rq.tasks = if add { rq.tasks + 1 } else { rq.tasks - 1 };
            at = rq.owner;
        }
    }

    /// `dequeue_hierarchy()`: it leaves its group's queue, and the groups above that are empty then leave theirs. `runnable`: 1 if it still counted
    /// as that, 0 if it slept and had to pay.
    pub(super) fn leave_all(&mut self, id: u32, runnable: u32) {
        self.leave(id);
        let mut at = self.entity(id).home;
        self.rq_mut(at).tasks -= runnable;
        while let Some(owner) = self.rq(at).owner {
            if self.rq(at).load == 0 {
                self.leave(owner);
            } else {
                self.update_load(owner);
                self.update_group(owner);
            }
            at = self.entity(owner).home;
            self.rq_mut(at).tasks -= runnable;
        }
    }
}
