// SPDX-License-Identifier: GPL-2.0-only
//! EEVDF of Linux 7.3: one queue for all cgroups, slices that end on time, and a cgroup's weight by how many of its tasks were runnable.

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, GroupWeight, Variant};
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::MachineConfig;
use cohort_sim::{CpuId, GroupId};

use crate::common::{busy, cycle, fair, record, sim, spawn, turns_us, Sim, MS};

fn one() -> Sim {
    let config = FairConfig { slice_ns: 3 * MS, ..FairConfig::of(Variant::EevdfFlat) };
    sim(&MachineConfig::ideal(1), fair(config), 1)
}

#[test]
fn slices_end_on_time_not_at_ticks() {
    let mut s = one();
    let turns = record(&mut s);
    busy(&mut s);
    busy(&mut s);
    s.run_until(12 * MS - 1).unwrap();
    // New tasks have half a slice: 0 runs up to its deadline, 1.5, then 1. At 3 both have v 1.5 and d 4.5: 0 was there first.
    let expected = [(0, Some(0)), (1_500, Some(1)), (3_000, Some(0)), (6_000, Some(1)), (9_000, Some(0))];
    assert_eq!(turns_us(&turns, 0), expected);
}

#[test]
fn a_slice_that_nobody_waits_for_does_not_end() {
    let mut s = one();
    let turns = record(&mut s);
    busy(&mut s);
    // Runs from 0 to 1, and from 11 on.
    cycle(&mut s, MS, 10 * MS);
    s.run_until(14 * MS).unwrap();
    // Task 0 has half a slice, as a new task has, then 1 its ms. When 1 wakes at 12.5, 0 has v 11.5 and is ahead of the average; what protected its
    // slice ended at v 4.5, and is not renewed while it is alone.
    let expected = [(0, Some(0)), (1_500, Some(1)), (2_500, Some(0)), (12_500, Some(1)), (13_500, Some(0))];
    assert_eq!(turns_us(&turns, 0), expected);
}

/// A group whose two tasks always run beside one of which one task sleeps now and then, on two pCPUs. Returns the pCPUs that the busy group has.
fn busy_beside_sleeper(group_weight: GroupWeight) -> f64 {
    let config = FairConfig { slice_ns: 3 * MS, group_weight, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&MachineConfig::ideal(2), fair(config), 1);
    let [hog, work] =
        [0, 1].map(|_| TaskSpec { group: s.host.new_group(GroupId(0), 100), ..TaskSpec::default() });
    let hogs = [0, 1].map(|_| {
        let allowed = Some([CpuId(0)].into_iter().collect());
        spawn(&mut s, TaskSpec { allowed, ..hog.clone() }, Program::Busy)
    });
    // What a group is told of averages that grow stops below 1024 of 1024, that of a task that moves is exact: let them have moved.
    s.run_until(1_000 * MS).unwrap();
    hogs.iter().for_each(|task| s.host.set_affinity(*task, None));
    s.run_until(2_000 * MS).unwrap();
    let before_ns: u64 = hogs.iter().map(|task| s.host.run_ns(*task)).sum();
    spawn(&mut s, work.clone(), Program::Busy);
    spawn(&mut s, work, Program::Cycle { run_ns: 20 * MS, sleep_ns: 2 * MS });
    s.run_until(22_000 * MS).unwrap();
    let ran_ns = hogs.iter().map(|task| s.host.run_ns(*task)).sum::<u64>() - before_ns;
    ran_ns as f64 / (20_000 * MS) as f64
}

#[test]
fn whoever_sleeps_now_and_then_counts_once_less() {
    // On average 1.95 of its tasks are runnable: one. It weighs half as much as the group that never sleeps: a third of the time.
    let found = busy_beside_sleeper(GroupWeight::Concur);
    assert!((1.28..1.38).contains(&found), "{found}");
    let found = busy_beside_sleeper(GroupWeight::Smp);
    assert!((0.97..1.08).contains(&found), "{found}");
}
