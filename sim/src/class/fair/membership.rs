// SPDX-License-Identifier: GPL-2.0-only
//! Coming and going: where an entity's load counts, where it competes, and with what weight.

use super::queue::load_of;
use super::Fair;

impl Fair {
    /// Its load counts in `home` from now on: `enqueue_entity()`.
    pub(super) fn join(&mut self, id: u32, home: u32) {
        self.entity_mut(id).home = home;
        self.update_load(id);
        self.update_group(id);
        self.account(id, true);
        self.entity_mut(id).on_rq = true;
    }

    /// Its load no longer counts: `dequeue_entity()`.
    pub(super) fn leave(&mut self, id: u32) {
        self.update_load(id);
        self.account(id, false);
        self.entity_mut(id).on_rq = false;
    }

    /// `account_entity_enqueue()` and its opposite.
    fn account(&mut self, id: u32, add: bool) {
        let (share, home) = (self.entity(id).share, self.entity(id).home);
        let rq = self.rq_mut(home);
        rq.load = if add { rq.load + share } else { rq.load - share };
        let joins_list = add && rq.owner.is_some() && !std::mem::replace(&mut rq.on_list, true);
        let cpu = rq.cpu;
        let group = rq.group.index();
        let load = &mut self.groups[group].load;
        *load = if add { *load + share } else { *load - share };
        if joins_list {
            let queues = &mut self.group_queues[cpu.index()];
            let at = queues.partition_point(|other| *other < home);
            queues.insert(at, home);
        }
    }

    /// It competes in a queue from now on: placed by its lag, or its sleep. `woken`: it comes from sleep, or is new.
    pub(super) fn compete(&mut self, id: u32, rq_id: u32, woken: bool) {
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
        self.rq_mut(rq_id).nr += 1;
        if self.rq(rq_id).curr != Some(id) {
            self.tree_insert(id);
        }
    }

    /// It no longer competes. `sleeps`: it does not just move.
    pub(super) fn stop_competing(&mut self, id: u32, sleeps: bool) {
        let rq_id = self.entity(id).rq;
        if self.eevdf {
            self.update_entity_lag(id);
        }
        self.clear_buddies(id);
        if self.rq(rq_id).curr != Some(id) {
            self.tree_remove(id);
        }
        self.rq_mut(rq_id).nr -= 1;
        if self.eevdf && self.config.delay_dequeue && !sleeps {
            let entity = self.entity_mut(id);
            entity.deadline -= entity.vruntime;
            entity.rel_deadline = true;
        }
    }

    /// `reweight_entity()`: another share of its queue.
    pub(super) fn set_share(&mut self, id: u32, share: u64) {
        let entity = self.entity(id);
        let (old, home, on_rq) = (entity.share, entity.home, entity.on_rq);
        if old == share {
            return;
        }
        if on_rq {
            self.account(id, false);
        }
        let entity = &mut self.entities[id as usize];
        entity.share = share;
        if entity.attached == Some(home) {
            let queue = &mut self.queues[home as usize].avg;
            queue.take(&entity.avg, load_of(old));
            entity.avg.average(load_of(share));
            queue.add(&entity.avg, load_of(share));
        }
        if on_rq {
            self.account(id, true);
        }
        if !self.flat {
            self.reweigh(id, share, on_rq);
        }
    }

    /// `reweight_eevdf()`: another weight to compete with. Its lag, as far as it counts, and what is left of its slice stay the same in
    /// real time.
    pub(super) fn reweigh(&mut self, id: u32, weight: u64, queued: bool) {
        let entity = self.entity(id);
        let (old, rq_id) = (entity.weight, entity.rq);
        if old == weight {
            return;
        }
        let is_curr = self.rq(rq_id).curr == Some(id);
        let average = if queued && self.eevdf { self.avg_vruntime(rq_id) } else { 0 };
        let lag = if queued && self.eevdf { self.entity_lag(id, average) } else { 0 };
        if queued && !is_curr {
            self.tree_remove(id);
        }
        let eevdf = self.eevdf;
        let entity = self.entity_mut(id);
        entity.weight = weight;
        let rescale = |distance: i64| (i128::from(distance) * i128::from(old) / i128::from(weight)) as i64;
        if eevdf && queued {
            let is_protected = is_curr && entity.is_protected();
            entity.vruntime = average - rescale(lag);
            entity.deadline = average + rescale(entity.deadline - average);
            if is_protected {
                entity.vprot = average + rescale(entity.vprot - average);
            }
        } else if eevdf {
            entity.vlag = rescale(entity.vlag);
            if entity.rel_deadline {
                entity.deadline = rescale(entity.deadline);
            }
        }
        if queued {
            if !is_curr {
                self.tree_insert(id);
            }
            self.update_min_vruntime(rq_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::class::fair::{Fair, FairConfig, Variant};
    use crate::class::AnyClass;
    use crate::host::TaskSpec;
    use crate::machine::MachineConfig;
    use crate::time::MS;
    use crate::Host;

    /// Where a task is that is 10 ms behind the average, which is at 10 ms, when its weight has doubled.
    fn reweighed(variant: Variant) -> i64 {
        let config = FairConfig { slice_ns: 3 * MS, ..FairConfig::of(variant) };
        let class = AnyClass::Fair(Fair::new(config));
        let mut host = Host::new(&MachineConfig::ideal(1), class, 1).unwrap();
        let tasks = [0, 1].map(|_| host.spawn(TaskSpec::default()));
        for task in tasks {
            host.wake(task, None);
        }
        let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
        let [behind, ahead] = tasks.map(|task| class.of_task[task.index()]);
        class.tree_remove(ahead);
        class.entity_mut(ahead).vruntime = 20_000_000;
        class.tree_insert(ahead);
        let weight = class.entity(behind).weight;
        class.reweigh(behind, 2 * weight, true);
        class.entity(behind).vruntime
    }

    #[test]
    fn no_more_lag_is_kept_than_counts() {
        // Two slices are 6 ms, half of which at twice the weight; a slice and a tick are 7 ms.
        assert_eq!(reweighed(Variant::Eevdf), 7_000_000);
        assert_eq!(reweighed(Variant::EevdfForfeit), 6_500_000);
        assert_eq!(reweighed(Variant::EevdfFlat), 6_500_000);
    }
}
