// SPDX-License-Identifier: GPL-2.0-only
//! Who is moved to which pCPU, and when, computed by hand.

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, Newidle, Variant};
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::{Costs, MachineConfig};
use cohort_sim::{CpuId, TaskId};

use crate::common::{busy, fair, record, sim, spawn, turns_us, Sim, MS, US};

fn on(cpus: &[u32]) -> TaskSpec {
    let allowed = Some(cpus.iter().copied().map(CpuId).collect());
    TaskSpec { allowed, ..TaskSpec::default() }
}

fn config(slice_ns: u64) -> FairConfig {
    // No dice, so that times are known.
    FairConfig { slice_ns, newidle: Newidle::Cost, ..FairConfig::of(Variant::EevdfFlat) }
}

fn tasks_on(s: &Sim, cpu: u32) -> Vec<usize> {
    let tasks = s.host.core.tasks.iter().enumerate();
    tasks.filter(|(_, task)| task.cpu == CpuId(cpu) && task.is_queued()).map(|(id, _)| id).collect()
}

/// Who runs on pCPU 1. Task 0 is there alone for 3.2 ms, then sleeps; 1 and 2 are on pCPU 0 from the beginning, and 2 runs from 1.5 to 3.
fn after_a_turn(machine: &MachineConfig) -> Vec<(u64, Option<u32>)> {
    let mut s = sim(machine, fair(config(3 * MS)), 1);
    let turns = record(&mut s);
    spawn(&mut s, on(&[1]), Program::OnDemand { run_ns: 3_200 * US });
    busy(&mut s);
    busy(&mut s);
    s.run_until(5 * MS).unwrap();
    turns_us(&turns, 1)
}

#[test]
fn who_ran_just_now_is_hot_but_not_to_its_cores_other_thread() {
    let cores = MachineConfig::ideal(2);
    let threads = MachineConfig { threads_per_core: 2, ..MachineConfig::ideal(1) };
    assert_eq!(after_a_turn(&cores), [(0, Some(0)), (3_200, None), (4_000, Some(2))]);
    assert_eq!(after_a_turn(&threads), [(0, Some(0)), (3_200, Some(2))]);
}

/// Who runs on pCPU 1. On pCPU 0 two take turns that end 0.2 ms before each tick.
fn hot_at_every_tick(machine: &MachineConfig, balance: bool) -> Vec<(u64, Option<u32>)> {
    let mut s = sim(machine, fair(FairConfig { balance, ..config(4 * MS) }), 1);
    let turns = record(&mut s);
    s.run_until(3_800 * US).unwrap();
    spawn(&mut s, on(&[1]), Program::OnDemand { run_ns: 4_100 * US });
    busy(&mut s);
    busy(&mut s);
    s.run_until(23 * MS).unwrap();
    turns_us(&turns, 1)
}

#[test]
fn hot_tasks_are_moved_after_two_failures_of_who_was_told_to_look() {
    // At 7.9 pCPU 1 finds nobody by itself, which does not count; then it is told at 8, 12 and 16.
    let near = MachineConfig::ideal(2);
    assert_eq!(hot_at_every_tick(&near, true), [(3_800, Some(0)), (7_900, None), (16_000, Some(2))]);
    assert_eq!(hot_at_every_tick(&near, false), [(3_800, Some(0)), (7_900, None)]);
    // To another NUMA node after three.
    let far = MachineConfig { sockets: 2, ..MachineConfig::ideal(1) };
    assert_eq!(hot_at_every_tick(&far, true), [(3_800, Some(0)), (7_900, None), (20_000, Some(1))]);
}

#[test]
fn who_sleeps_for_moments_does_not_look() {
    let moved = |newidle_pcpu_ns| {
        let machine =
            MachineConfig { costs: Costs { newidle_pcpu_ns, ..Costs::free() }, ..MachineConfig::ideal(2) };
        let mut s = sim(&machine, fair(config(3 * MS)), 1);
        spawn(&mut s, on(&[1]), Program::Cycle { run_ns: 97 * US, sleep_ns: 3 * US });
        s.run_until(20_050 * US).unwrap();
        busy(&mut s);
        busy(&mut s);
        s.run_until(23_950 * US).unwrap();
        !tasks_on(&s, 1).contains(&2)
    };
    assert!(moved(2_000), "3 us are less than 2 pCPUs take");
    assert!(!moved(1_000), "and more than that");
}

#[test]
fn dice_remember_that_nobody_was_found() {
    let moved = |newidle| {
        let config = FairConfig { newidle, ..config(3 * MS) };
        let mut s = sim(&MachineConfig::ideal(2), fair(config), 1);
        spawn(&mut s, on(&[1]), Program::Cycle { run_ns: 100 * US, sleep_ns: 100 * US });
        for _ in 0..2 {
            spawn(&mut s, on(&[0]), Program::Busy);
        }
        s.run_until(1_001 * MS).unwrap();
        for task in [1, 2] {
            s.host.set_affinity(TaskId(task), None);
        }
        s.run_until(1_003_900 * US).unwrap();
        tasks_on(&s, 0).len() == 1
    };
    assert!(moved(Newidle::Cost), "14 times it went idle");
    assert!(!moved(Newidle::Random), "after 5,000 for nothing");
}

#[test]
fn who_was_told_to_look_does_so_at_once_or_not_at_all() {
    let costs = Costs { newidle_pcpu_ns: 1_000 * MS, ipi_ns: 100 * US, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(2) };
    let mut s = sim(&machine, fair(config(3 * MS)), 1);
    let turns = record(&mut s);
    for task in [0, 0].map(|cpu| spawn(&mut s, on(&[cpu]), Program::Busy)) {
        s.host.set_affinity(task, None);
    }
    // It is told at 4, and about to look at 4.1.
    s.run_until(4_050 * US).unwrap();
    spawn(&mut s, on(&[1]), Program::OnDemand { run_ns: 400 * US });
    s.run_until(9 * MS).unwrap();
    assert_eq!(turns_us(&turns, 1), [(4_100, Some(2)), (4_500, None), (8_100, Some(0))]);
}

#[test]
fn an_idle_pcpu_looks_where_it_was_told_from() {
    // 0 idles; on 35 two wait for each other, one of which may go there. Nobody may from the 34 between, more than are looked at.
    let mut s = sim(&MachineConfig::ideal(36), fair(config(3 * MS)), 1);
    for cpu in (1..36).chain(1..36) {
        spawn(&mut s, on(&[cpu]), Program::Busy);
    }
    s.host.set_affinity(TaskId(69), Some([CpuId(0), CpuId(35)].into_iter().collect()));
    s.run_until(9 * MS).unwrap();
    assert_eq!(tasks_on(&s, 0), [69]);
}

/// Two busy pCPUs of so many that are online, with three tasks that may move and one: how many are on each in the end?
fn evened_out(cpus: u32) -> [usize; 2] {
    let mut s = sim(&MachineConfig::ideal(cpus), fair(config(3 * MS)), 1);
    for cpu in 2..cpus {
        s.host.cpu_offline(CpuId(cpu));
    }
    let tasks = [0, 0, 0, 1].map(|cpu| spawn(&mut s, on(&[cpu]), Program::Busy));
    s.run_until(99 * MS).unwrap();
    for task in tasks {
        s.host.set_affinity(task, None);
    }
    s.run_until(900 * MS).unwrap();
    [0, 1].map(|cpu| tasks_on(&s, cpu).len())
}

#[test]
fn pcpus_that_are_offline_do_not_count_in_the_average_load() {
    assert_eq!(evened_out(2), [2, 2]);
    assert_eq!(evened_out(6), [2, 2]);
}

#[test]
fn a_queue_of_which_nobody_may_come_hides_no_other() {
    let mut s = sim(&MachineConfig::ideal(3), fair(config(3 * MS)), 1);
    for cpu in [0, 1, 1, 1, 1, 2, 2, 2] {
        spawn(&mut s, on(&[cpu]), Program::Busy);
    }
    s.run_until(199 * MS).unwrap();
    for task in [5, 6, 7] {
        s.host.set_affinity(TaskId(task), None);
    }
    s.run_until(900 * MS).unwrap();
    // Load 1, 4 and 3, on average 2.
    assert_eq!([0, 1, 2].map(|cpu| tasks_on(&s, cpu).len()), [2, 4, 2]);
}

/// How many tasks are on pCPU 1, busy but not for long, at 101 and 200 ms: three may come there since 97.
fn with_time_to_spare(variant: Variant, cores_per_cache: u32) -> [usize; 2] {
    let machine = MachineConfig { cores_per_cache, ..MachineConfig::ideal(2) };
    let config = FairConfig { slice_ns: 3 * MS, newidle: Newidle::Cost, ..FairConfig::of(variant) };
    let mut s = sim(&machine, fair(config), 1);
    let tasks = [0, 0, 0].map(|cpu| spawn(&mut s, on(&[cpu]), Program::Busy));
    s.run_until(97 * MS).unwrap();
    spawn(&mut s, on(&[1]), Program::Busy);
    for task in tasks {
        s.host.set_affinity(task, None);
    }
    [101, 200].map(|ms| {
        s.run_until(ms * MS).unwrap();
        tasks_on(&s, 1).len()
    })
}

#[test]
fn a_busy_pcpu_with_time_to_spare_takes_nobody_who_shares_its_cache_since_6_6() {
    assert_eq!(with_time_to_spare(Variant::EevdfFlat, 0), [1, 2]);
    assert_eq!(with_time_to_spare(Variant::Cfs, 0), [2, 2]);
}
