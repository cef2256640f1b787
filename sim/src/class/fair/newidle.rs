// SPDX-License-Identifier: GPL-2.0-only
//! Does a pCPU that goes idle look for a task at all? Only if it is idle for longer than that takes, on average, and since 6.19 as often as it was worth it
//! (`sched_balance_newidle()` of kernel/sched/fair.c). A pCPU whose tasks sleep for moments at a time hardly ever does.

use serde::{Deserialize, Serialize};

use crate::host::Core;
use crate::ids::CpuId;
use crate::rng::{Rng, Stream};
use crate::time::Ns;

use super::balance::LEVELS;

/// sysctl_sched_migration_cost
pub const MIGRATION_COST_NS: Ns = 500_000;
/// Numbers of the random streams of pCPUs' dice.
const DICE: u64 = 1 << 40;

/// What decides whether a pCPU that goes idle looks for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Newidle {
    /// Up to 5.15: half a ms of idle time on average (and since 3.13 as much as looking has cost at most, as later).
    MigrationCost,
    /// From 5.16: as much idle time as looking has cost at most.
    Cost,
    /// From 6.19, and in stable kernels before it: ... and dice that know how often anything was found (NI_RANDOM).
    Random,
    /// From 7.1: ... and how often it was tried (NI_RATE).
    Rate,
}

/// How often looking in a domain was worth it (`sd->newidle_call` and so on).
#[derive(Clone, Debug)]
struct Worth {
    calls: u32,
    successes: u32,
    /// Of 1024.
    ratio: u32,
    since_ns: Ns,
}

impl Worth {
    const START: Self = Self { calls: 512, successes: 256, ratio: 512, since_ns: 0 };

    /// `update_newidle_stats()`
    fn count(&mut self, now_ns: Ns, success: u32, rule: Newidle) {
        self.calls += 1;
        self.successes += success;
        if self.calls < 1024 {
            return;
        }
        let rate = if rule >= Newidle::Rate { (now_ns - self.since_ns) >> 22 } else { 0 };
        self.since_ns = now_ns;
        self.ratio = (rate + Ns::from(self.successes)).min(1024) as u32;
        self.calls /= 2;
        self.successes /= 2;
    }
}

/// What it costs to look at so many pCPUs.
pub fn looking_ns(core: &Core, pcpus: u32) -> Ns {
    Ns::from(pcpus) * core.machine.costs.newidle_pcpu_ns
}

/// What a pCPU, or a guest's vCPU, remembers of being idle.
#[derive(Clone, Debug)]
pub struct Idling {
    since_ns: Option<Ns>,
    avg_ns: Ns,
    /// Twice max_idle_balance_cost: half a ms, or what it costs to look at all domains.
    avg_max_ns: Ns,
    worth: [Worth; LEVELS],
    dice: Rng,
}

impl Idling {
    /// `pcpus`: of all its domains.
    pub fn of_cpu(core: &Core, cpu: CpuId, pcpus: u32) -> Self {
        let dice = Rng::derive(core.seed, Stream::Cpu, DICE + u64::from(cpu.0));
        Self::new(looking_ns(core, pcpus), dice)
    }

    /// `cost_ns`: of looking everywhere.
    pub fn new(cost_ns: Ns, dice: Rng) -> Self {
        Self {
            since_ns: None,
            avg_ns: 2 * MIGRATION_COST_NS,
            avg_max_ns: 2 * MIGRATION_COST_NS.max(cost_ns),
            worth: [Worth::START; LEVELS],
            dice,
        }
    }

    #[cfg(test)]
    pub fn avg_ns(&self) -> Ns {
        self.avg_ns
    }

    pub fn begins(&mut self, now_ns: Ns) {
        self.since_ns = Some(now_ns);
    }

    /// `update_rq_avg_idle()`. `pulled`: it has found a task, so it was not idle.
    pub fn ends(&mut self, now_ns: Ns, pulled: bool) {
        let Some(since_ns) = self.since_ns.take().filter(|_| !pulled) else { return };
        let (idle, avg) = ((now_ns - since_ns) as i64, self.avg_ns as i64);
        self.avg_ns = ((avg + (idle - avg) / 8).max(0) as Ns).min(self.avg_max_ns);
    }

    /// Is it idle for long enough to look for that long?
    pub fn is_long(&self, cost_ns: Ns, rule: Newidle) -> bool {
        let least_ns = if rule == Newidle::MigrationCost { MIGRATION_COST_NS } else { 0 };
        self.avg_ns >= cost_ns.max(least_ns)
    }

    /// Throw the dice for a domain: how much a success counts, or None if it is not looked at this time.
    pub fn dice(&mut self, now_ns: Ns, level: usize, rule: Newidle) -> Option<u32> {
        let worth = &mut self.worth[level];
        if rule < Newidle::Random || worth.ratio >= 1024 {
            return Some(1);
        }
        let weight = 1 + worth.ratio;
        if self.dice.below(1024) > u64::from(weight) {
            worth.count(now_ns, 0, rule);
            return None;
        }
        Some((1024 + weight / 2) / weight)
    }

    pub fn count(&mut self, now_ns: Ns, level: usize, success: u32, rule: Newidle) {
        self.worth[level].count(now_ns, success, rule);
    }
}

#[cfg(test)]
mod tests {
    use crate::machine::MachineConfig;

    use super::*;

    fn core(cpus: u32) -> Core {
        let mut machine = MachineConfig::ideal(cpus);
        machine.costs.newidle_pcpu_ns = 2_000;
        Core::new(&machine, 1).unwrap()
    }

    fn idling() -> Idling {
        Idling::of_cpu(&core(2), CpuId(0), 2)
    }

    #[test]
    fn short_sleeps_make_looking_too_dear() {
        let mut idling = idling();
        for number in 0..40 {
            idling.begins(number * 1_000_000);
            idling.ends(number * 1_000_000 + 8_000, false);
        }
        assert!((8_000..16_000).contains(&idling.avg_ns), "{}", idling.avg_ns);
        idling.begins(100_000_000);
        idling.ends(200_000_000, false);
        assert_eq!(idling.avg_ns, 2 * MIGRATION_COST_NS, "a long one is forgotten no sooner than it came");
    }

    #[test]
    fn who_finds_a_task_was_not_idle() {
        let mut idling = idling();
        idling.begins(0);
        idling.ends(1, true);
        assert_eq!(idling.avg_ns, 2 * MIGRATION_COST_NS);
    }

    #[test]
    fn dice_are_thrown_less_often_where_nothing_is_found() {
        let mut idling = idling();
        let mut looked = 0;
        for number in 0..10_000 {
            // 4,096 times a second: the rate adds nothing.
            if idling.dice(number * 244_140, 0, Newidle::Random).is_some() {
                looked += 1;
                idling.count(number * 244_140, 0, 0, Newidle::Random);
            }
        }
        assert!((500..2_500).contains(&looked), "{looked}");
        assert!(idling.worth[0].ratio < 8, "{}", idling.worth[0].ratio);
    }

    #[test]
    fn who_asks_seldom_may_look() {
        let mut idling = idling();
        for number in 0..2_000u64 {
            if idling.dice(number * 8_000_000, 0, Newidle::Rate).is_some() {
                idling.count(number * 8_000_000, 0, 0, Newidle::Rate);
            }
        }
        // 512 calls took 4.1 s.
        assert!(idling.worth[0].ratio > 900, "{}", idling.worth[0].ratio);
    }

    #[test]
    fn a_large_machine_remembers_idling_for_as_long_as_looking_takes() {
        let core = core(1_024);
        let mut idling = Idling::of_cpu(&core, CpuId(0), 1_024);
        idling.begins(0);
        idling.ends(1_000_000_000, false);
        assert!(idling.is_long(looking_ns(&core, 1_024), Newidle::Cost));
        assert_eq!(idling.avg_ns, 2 * 1_024 * 2_000);
    }

    #[test]
    fn up_to_5_15_half_a_ms_was_asked_for_and_what_looking_costs() {
        let (small, large) = (core(2), core(1_024));
        let mut idling = idling();
        for (avg_ns, expected) in [(499_999, [false, false, true]), (500_000, [true, false, true])] {
            idling.avg_ns = avg_ns;
            let found = [
                idling.is_long(looking_ns(&small, 2), Newidle::MigrationCost),
                idling.is_long(looking_ns(&large, 1_024), Newidle::MigrationCost),
                idling.is_long(looking_ns(&small, 2), Newidle::Cost),
            ];
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn older_kernels_do_not_throw_dice() {
        assert!((0..1_000).all(|number| idling().dice(number, 0, Newidle::Cost) == Some(1)));
    }
}
