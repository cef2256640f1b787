// SPDX-License-Identifier: GPL-2.0-only
//! EEVDF (Stoica and Abdel-Wahab 1995) as in Linux 6.6 and later: among those that are not ahead of the average, the earliest virtual deadline.

use crate::ids::TaskId;

use super::{calc_delta_fair, Fair, Variant};

impl Fair {
    /// `avg_vruntime()`: the weighted average of all that are queued, rounded down.
    pub(super) fn avg_vruntime(&self, rq: u32) -> i64 {
        let (sum, load) = self.sums(rq);
        let min = self.rq(rq).min_vruntime;
        if load == 0 {
            return min;
        }
        // Nearly always 64 bits are enough, and they are much faster to divide.
        match i64::try_from(sum) {
            Ok(sum) => min + sum.div_euclid(load),
            Err(_) => min + sum.div_euclid(i128::from(load)) as i64,
        }
    }

    fn sums(&self, rq: u32) -> (i128, i64) {
        let rq = self.rq(rq);
        let (mut sum, mut load) = (rq.avg_sum, rq.avg_load);
        if let Some(curr) = rq.curr.map(|id| self.entity(id)).filter(|curr| curr.on_rq) {
            let weight = self.average_weight(curr.weight);
            sum += i128::from(curr.vruntime - rq.min_vruntime) * i128::from(weight);
            load += weight;
        }
        (sum, load)
    }

    /// `entity_eligible()`: not ahead of the average.
    pub(super) fn is_eligible(&self, id: u32) -> bool {
        let rq = self.entity(id).rq;
        let (sum, load) = self.sums(rq);
        let key = self.entity(id).vruntime - self.rq(rq).min_vruntime;
        sum >= i128::from(key) * i128::from(load)
    }

    fn slice(&self, weight: u64) -> i64 {
        calc_delta_fair(self.config.slice_ns, weight)
    }

    /// `entity_lag()`: how far it is behind the average; two slices at most, or a tick (since 7.0 a slice and a tick).
    pub(super) fn entity_lag(&self, id: u32, average: i64) -> i64 {
        let entity = self.entity(id);
        let limit_ns = match self.lag_by_tick {
            true => self.config.slice_ns + self.tick_ns,
            false => (2 * self.config.slice_ns).max(self.tick_ns),
        };
        let limit = calc_delta_fair(limit_ns, entity.weight);
        (average - entity.vruntime).clamp(-limit, limit)
    }

    /// `update_entity_lag()`: remembered while it sleeps. Who stays queued to pay loses no lag by that, and gains none (DELAY_ZERO). Return true if it is
    /// not where its virtual run time says.
    pub(super) fn update_entity_lag(&mut self, id: u32) -> bool {
        let average = self.avg_vruntime(self.entity(id).rq);
        let mut lag = self.entity_lag(id, average);
        let entity = self.entity(id);
        if entity.delayed {
            lag = lag.max(entity.vlag).min(0);
        }
        let moved = average - lag != entity.vruntime;
        self.entity_mut(id).vlag = lag;
        moved
    }

    /// `place_entity()`: at the average, with the lag it left with; inflated, because its own coming moves the average.
    pub(super) fn eevdf_place(&mut self, id: u32) {
        let entity = self.entity(id);
        let rq = self.rq(entity.rq);
        let mut slice = self.slice(entity.weight);
        let mut lag = 0;
        if rq.nr > 0 && entity.vlag != 0 {
            let curr = rq.curr.map(|id| self.entity(id)).filter(|curr| curr.on_rq);
            let load = rq.avg_load + curr.map_or(0, |curr| self.average_weight(curr.weight));
            let inflated = i128::from(entity.vlag) * i128::from(load + self.average_weight(entity.weight));
            lag = (inflated / i128::from(load.max(1))) as i64;
        }
        if entity.new && self.config.place_deadline_initial {
            slice /= 2;
        }
        let vruntime = self.avg_vruntime(entity.rq) - lag;
        let entity = self.entity_mut(id);
        entity.vruntime = vruntime;
        entity.deadline = vruntime + if entity.rel_deadline { entity.deadline } else { slice };
        entity.rel_deadline = false;
    }

    /// `update_deadline()`: return true if the slice is used up; then there is a new one.
    pub(super) fn update_deadline(&mut self, id: u32) -> bool {
        let entity = self.entity(id);
        if entity.vruntime < entity.deadline {
            return false;
        }
        let deadline = entity.vruntime + self.slice(entity.weight);
        self.entity_mut(id).deadline = deadline;
        true
    }

    /// Who would run now, as a wake-up asks. Buddies count since e837456fdca8 (6.19). A sleeper that is picked has paid and leaves, and the next one is
    /// picked, since ac8e69e69363 (7.1); before, nobody preempts then.
    pub(super) fn pick_at_wakeup(&mut self, rq: u32, curr: u32) -> Option<u32> {
        let buddies = self.config.variant >= Variant::EevdfForfeit;
        loop {
            let id = self.eevdf_pick(rq, Some(curr), buddies)?;
            if !self.paid_leave || !self.entity(id).delayed {
                return Some(id);
            }
            self.finish_delayed(id);
        }
    }

    /// `pick_next_entity()` and `pick_eevdf()`
    pub(super) fn eevdf_pick(&self, rq_id: u32, curr: Option<u32>, buddies: bool) -> Option<u32> {
        let rq = self.rq(rq_id);
        if let Some(boosted) = rq.boosted.filter(|_| buddies) {
            return Some(boosted);
        }
        if let Some(next) = rq.next.filter(|_| buddies && self.config.pick_buddy) {
            if self.is_eligible(next) {
                return Some(next);
            }
        }
        if rq.nr == 1 {
            return curr.or_else(|| self.forest.first(&rq.tree));
        }
        let curr = curr.filter(|id| self.is_eligible(*id));
        if curr.is_some_and(|id| self.config.run_to_parity && self.entity(id).is_protected()) {
            return curr;
        }
        let (sum, load) = self.sums(rq_id);
        let eligible = |vruntime: i64| sum >= i128::from(vruntime - rq.min_vruntime) * i128::from(load);
        let best = self.forest.first_passing(&rq.tree, eligible);
        match (curr, best) {
            (Some(curr), Some(best)) if self.entity(curr).deadline < self.entity(best).deadline => Some(curr),
            (curr, None) => curr.or_else(|| self.forest.first(&rq.tree)),
            (_, best) => best,
        }
    }

    /// Does it stay queued although it sleeps? (`dequeue_entity()`, DELAY_DEQUEUE)
    pub(super) fn delays(&self, id: u32) -> bool {
        self.eevdf && self.config.delay_dequeue && !self.is_eligible(id)
    }

    /// It sleeps from now on, and stays queued: `set_delayed()`. Of a group nobody sleeps: its tasks have left.
    pub(super) fn set_delayed(&mut self, id: u32) {
        self.entity_mut(id).delayed = true;
        if self.entity(id).task.is_some() {
            let cpu = self.rq(self.entity(id).rq).cpu;
            self.sleepers[cpu.index()] += 1;
        }
    }

    /// `clear_delayed()`
    pub(super) fn clear_delayed(&mut self, id: u32) {
        self.entity_mut(id).delayed = false;
        if self.entity(id).task.is_some() {
            let cpu = self.rq(self.entity(id).rq).cpu;
            self.sleepers[cpu.index()] -= 1;
        }
    }

    /// It wakes before it has paid: `requeue_delayed_entity()`.
    pub(super) fn requeue_delayed(&mut self, id: u32) {
        let rq = self.entity(id).rq;
        let moved = self.update_entity_lag(id);
        self.clear_delayed(id);
        if !moved {
            return;
        }
        let is_curr = self.rq(rq).curr == Some(id);
        if !is_curr {
            self.tree_remove(id);
        }
        self.rq_mut(rq).nr -= 1;
        self.eevdf_place(id);
        self.rq_mut(rq).nr += 1;
        if !is_curr {
            self.tree_insert(id);
        }
    }

    /// Somebody woke and does not take the turn: from here on it is protected for a slice only (`update_protect_slice()`).
    pub(super) fn shorten_protection(&mut self, curr: u32) {
        let entity = self.entity(curr);
        let slice = self.slice(entity.weight);
        let from = entity.vruntime.min(self.avg_vruntime(entity.rq));
        let entity = self.entity_mut(curr);
        entity.vprot = entity.vprot.min(from + slice);
    }

    /// `yield_task_fair()` of 6.6 and of 6.19.
    pub(super) fn eevdf_yield(&mut self, task: TaskId) {
        let id = self.of_task[task.index()];
        let slice = self.slice(self.entity(id).weight);
        let later = self.config.variant == Variant::Eevdf && !self.config.yield_forfeits;
        let forfeits = !later && self.is_eligible(id);
        let entity = self.entity_mut(id);
        let rq = entity.rq;
        if forfeits {
            entity.vruntime = entity.deadline;
        }
        if forfeits || later {
            entity.deadline += slice;
            entity.vprot = entity.vruntime;
        }
        self.update_min_vruntime(rq);
    }
}

#[cfg(test)]
mod tests {
    use crate::class::fair::{Fair, FairConfig, Variant};
    use crate::class::AnyClass;
    use crate::host::TaskSpec;
    use crate::machine::MachineConfig;
    use crate::Host;

    /// Three tasks that are not ahead: a sleeper that has paid, with the earliest deadline, one that has just woken, with the next, and the last, which may be
    /// marked as a buddy. Who is picked at that wake-up, and whether the sleeper is still there.
    fn picked_at_wakeup(config: FairConfig, marked: bool) -> (&'static str, bool) {
        let mut host = Host::new(&MachineConfig::ideal(1), AnyClass::Fair(Fair::new(config)), 1).unwrap();
        let tasks = [(); 3].map(|()| host.spawn(TaskSpec::default()));
        for task in tasks {
            host.wake(task, None);
        }
        let AnyClass::Fair(class) = &mut host.class else { panic!("a fair class") };
        let [sleeper, woken, last] = tasks.map(|task| class.of_task[task.index()]);
        for (id, deadline) in [(sleeper, 1_000_000), (woken, 2_000_000), (last, 3_000_000)] {
            class.tree_remove(id);
            let entity = class.entity_mut(id);
            (entity.vruntime, entity.deadline) = (0, deadline);
            class.tree_insert(id);
        }
        class.set_delayed(sleeper);
        class.rq_mut(0).next = Some(last).filter(|_| marked);
        let found = class.pick_at_wakeup(0, last).expect("somebody");
        let names = [(sleeper, "sleeper"), (woken, "woken"), (last, "last")];
        let (_, name) = names.into_iter().find(|(id, _)| *id == found).expect("one of them");
        (name, class.entity(sleeper).on_rq)
    }

    #[test]
    fn a_sleeper_that_has_paid_leaves_at_a_wake_up_since_7_1() {
        let forfeit = FairConfig::of(Variant::EevdfForfeit);
        assert_eq!(picked_at_wakeup(forfeit.clone(), false), ("woken", false));
        assert_eq!(picked_at_wakeup(FairConfig { paid_leave: false, ..forfeit }, false), ("sleeper", true));
    }

    #[test]
    fn buddies_go_first_at_wake_ups_since_6_19() {
        assert_eq!(picked_at_wakeup(FairConfig::of(Variant::EevdfForfeit), true), ("last", true));
        assert_eq!(picked_at_wakeup(FairConfig::of(Variant::Eevdf), true), ("sleeper", true));
    }
}
