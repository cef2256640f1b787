// SPDX-License-Identifier: GPL-2.0-only
//! cgroups: none that compete; and EEVDF of Linux 7.3: one queue for all of them, slices that end on time, and a cgroup's weight by how many of its tasks were
//! runnable.

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, GroupWeight, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::MachineConfig;
use cohort_sim::{CpuId, GroupId};

use crate::common::{busy, cycle, fair, record, sim, spawn, turns_us, Sim, MS, US};

fn one() -> Sim {
    let config = FairConfig { slice_ns: 3 * MS, ..FairConfig::of(Variant::EevdfFlat) };
    sim(&MachineConfig::ideal(1), fair(config), 1)
}

/// One task alone in a cgroup, beside three in another one, on one pCPU: the part of 4 s that it gets.
fn part_of_one_beside_three(config: FairConfig) -> f64 {
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let [one, three] = [(); 2].map(|()| s.host.new_group(GroupId(0), 100));
    let alone = spawn(&mut s, TaskSpec { group: one, ..TaskSpec::default() }, Program::Busy);
    for _ in 0..3 {
        spawn(&mut s, TaskSpec { group: three, ..TaskSpec::default() }, Program::Busy);
    }
    s.run_until(4_000 * MS).unwrap();
    s.host.run_ns(alone) as f64 / (4_000 * MS) as f64
}

#[test]
fn without_cgroups_every_task_competes_for_itself() {
    for variant in [Variant::Cfs, Variant::Eevdf, Variant::EevdfForfeit, Variant::EevdfFlat] {
        let group_weight = GroupWeight::Smp;
        let with = part_of_one_beside_three(FairConfig { group_weight, ..FairConfig::of(variant) });
        let without = part_of_one_beside_three(FairConfig { groups: false, ..FairConfig::of(variant) });
        assert!((with - 0.5).abs() < 0.01 && (without - 0.25).abs() < 0.01, "{variant:?}: {with} {without}");
    }
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

/// Two groups of two tasks on two pCPUs, one a moment after the other: each task weighs half of its group, and what is left of a slice is not whole ns.
fn longest_turn_us(timer_late_ns: u64) -> u64 {
    let mut machine = MachineConfig::ideal(2);
    machine.costs.timer_late_ns = timer_late_ns;
    let config = FairConfig { group_weight: GroupWeight::Smp, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&machine, fair(config), 1);
    let turns = record(&mut s);
    for at in 0..2 {
        s.run_until(at * 300 * US).unwrap();
        let group = s.host.new_group(GroupId(0), 100);
        for cpu in 0..2 {
            let allowed = Some([CpuId(cpu)].into_iter().collect());
            spawn(&mut s, TaskSpec { group, allowed, ..TaskSpec::default() }, Program::Busy);
        }
    }
    s.run_until(1_000 * MS).unwrap();
    let of_0 = turns_us(&turns, 0);
    of_0.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap()
}

#[test]
fn a_timer_that_is_late_finds_the_slice_used_up() {
    // 1.4 ms for 2 pCPUs. When a timer comes that was rounded down and not late, some of the slice is left: the runner goes on until the tick. Then the other one
    // has more than a slice to catch up, is picked again when its own ends, and so on: all turns are 4 ms.
    assert_eq!(longest_turn_us(2 * US), 1_402);
    assert_eq!(longest_turn_us(59 * US), 1_459);
    assert_eq!(longest_turn_us(0), 4_000);
}

#[test]
fn who_wakes_preempts_over_a_sleeper_that_has_paid() {
    let mut s = one();
    let turns = record(&mut s);
    cycle(&mut s, MS, 3_600 * US);
    s.run_until(2 * MS).unwrap();
    cycle(&mut s, 1_200 * US, 100 * MS);
    busy(&mut s);
    s.run_until(5_700 * US - 1).unwrap();
    // 0 leaves an idle pCPU at 1, with no lag. From there v and d are counted: 1 and 2 come at 2, v 0 and d 1.5. At 3.2 task 1 sleeps with v 1.2, average
    // 0.6: it stays to pay. At 4.6 task 2 has v 1.4, and 0 comes to the average of 1.3, d 4.3. 2 is ahead of that, 1 has paid and the earliest deadline:
    // it leaves, and next is 0 (average 1.35), before 2's slice ends at 4.7. It sleeps at v 2.3.
    let expected =
        [(0, Some(0)), (1_000, None), (2_000, Some(1)), (3_200, Some(2)), (4_600, Some(0)), (5_600, Some(2))];
    assert_eq!(turns_us(&turns, 0), expected);
}

#[test]
fn who_comes_after_the_slice_ended_sets_a_timer_anew() {
    let config = FairConfig { slice_ns: MS, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let turns = record(&mut s);
    spawn(&mut s, TaskSpec { weight: 4096, ..TaskSpec::default() }, Program::Busy);
    busy(&mut s);
    s.run_until(2_400 * US).unwrap();
    busy(&mut s);
    s.run_until(3_500 * US - 1).unwrap();
    // 0 has d 0.125, then 0.375; 1 has d 0.5. At 2 the slice of 0 ends with v 0.375, average 0.4, and 1 has v 0.5: 0 goes on, d 0.625, and no timer is
    // set. At 2.4 it has v 0.475; 2 comes to the average of 0.48, d 0.98, and sets one: 0.15 * 4 later 0 has v 0.625, average 0.58. The tick is at 4.
    assert_eq!(turns_us(&turns, 0), [(0, Some(0)), (500, Some(1)), (1_000, Some(0)), (3_000, Some(2))]);
}

/// Who runs when on pCPU 1, which balances at the ticks at 64 and 124. Task 0 must be there, and has been alone for so long that the pCPU is known to be
/// full. From 122.55 on task 1, of this weight, is on pCPU 0 with two more, the last of which must be there.
fn pulls(slice_ns: u64, weight: u32) -> Vec<(u64, Option<u32>)> {
    let config = FairConfig { slice_ns, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&MachineConfig::ideal(2), fair(config), 1);
    let turns = record(&mut s);
    let on = |cpu| TaskSpec { allowed: Some([CpuId(cpu)].into_iter().collect()), ..TaskSpec::default() };
    spawn(&mut s, on(1), Program::Busy);
    s.run_until(122_550 * US).unwrap();
    spawn(&mut s, TaskSpec { weight, ..TaskSpec::default() }, Program::Busy);
    busy(&mut s);
    spawn(&mut s, on(0), Program::Busy);
    s.run_until(156 * MS - 1).unwrap();
    turns_us(&turns, 1)
}

#[test]
fn who_is_pulled_sets_a_timer_for_the_runners_slice() {
    // On pCPU 0: task 1 up to 123.65, then 2. So 1 is ahead there at the tick at 124, and would have to wait on pCPU 1 as well: it stays. 2 might come, but
    // runs. That was one failure, so at the next balancing, at 152, 1 may come although it is ahead, by 0.08: 2 has run since 147.85, 3 since 150.05. Placed
    // ahead of the average, it lets 0, with v 152 and d 154.2, go on up to that, and not to the tick at 156.
    assert_eq!(pulls(2_200 * US, 1024), [(0, Some(0)), (154_200, Some(1))]);
}

#[test]
fn who_is_pulled_may_preempt_although_it_never_ran() {
    // On pCPU 0: task 2 up to 125.55, its d; task 1 has a d of 3.07, v 0. Behind there, it comes at the tick at 124, and is placed behind 0, which has v 124
    // and so is ahead. Its slice is 3.07 * 1000 / 1024; then it is ahead.
    let turns = pulls(6 * MS, 1000);
    assert_eq!(turns[..3], [(0, Some(0)), (124_000, Some(1)), (127_000, Some(0))]);
}

/// When two tasks take turns on pCPU 0.
fn turns_of_two(pcpus: u32, normalized_slice_ns: u64) -> Vec<(u64, Option<u32>)> {
    let config = FairConfig { normalized_slice_ns, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&MachineConfig::ideal(pcpus), fair(config), 1);
    let turns = record(&mut s);
    for _ in 0..2 {
        let allowed = Some([CpuId(0)].into_iter().collect());
        spawn(&mut s, TaskSpec { allowed, ..TaskSpec::default() }, Program::Busy);
    }
    s.run_until(3 * MS).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn slices_are_those_of_the_kernel_and_grow_with_the_number_of_pcpus() {
    let expected =
        [(0, Some(0)), (350, Some(1)), (700, Some(0)), (1_400, Some(1)), (2_100, Some(0)), (2_800, Some(1))];
    assert_eq!(turns_of_two(1, 0), expected);
    let expected =
        [(0, Some(0)), (375, Some(1)), (750, Some(0)), (1_500, Some(1)), (2_250, Some(0)), (3_000, Some(1))];
    assert_eq!(turns_of_two(1, 750_000), expected);
    // Twice as long on 2 and on 3, four times on 8 and on 16.
    assert_eq!(turns_of_two(3, 0), [(0, Some(0)), (700, Some(1)), (1_400, Some(0)), (2_800, Some(1))]);
    assert_eq!(turns_of_two(16, 0), [(0, Some(0)), (1_400, Some(1)), (2_800, Some(0))]);
}

/// Where b, which has run for 1 ms and slept for 10, comes back beside a, whose group has a hundredth of b's weight: 10485 and 1048576.
fn comes_back_beside_a_light_group(config: FairConfig) -> i64 {
    let config = FairConfig { slice_ns: 3 * MS, delay_dequeue: false, ..config };
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let group = s.host.new_group(GroupId(0), 1);
    spawn(&mut s, TaskSpec { group, ..TaskSpec::default() }, Program::Busy);
    let b = cycle(&mut s, MS, 10 * MS);
    s.run_until(11 * MS).unwrap();
    let AnyClass::Fair(class) = &s.host.class else { panic!("a fair class") };
    class.vruntime(b)
}

#[test]
fn weights_count_in_full_since_7_1() {
    // a has run from 1 ms to the ticks at 4 and 8 and to 11: 3 ms, 4 ms and 3 ms of virtual run time, each rounded down.
    let a = 300_021_745 + 400_028_993 + 300_021_745;
    // At 1 ms the average is 1048576 / 1059061 ms, so b leaves 9,901 ns ahead of it. It comes back 9,901 * 1059061 / 10485 ns ahead of a.
    let flat = comes_back_beside_a_light_group(FairConfig::of(Variant::EevdfFlat));
    assert_eq!(flat, a + 1_000_072);
    let since_7_1 = comes_back_beside_a_light_group(FairConfig::of(Variant::EevdfForfeit));
    assert_eq!(since_7_1, a + 1_000_072);
    // 1024 and 10 before: the average is 1024 / 1034 ms, b is 9,672 ns ahead, and then 9,672 * 1034 / 10.
    let full_weights = false;
    let scaled = FairConfig { full_weights, ..FairConfig::of(Variant::EevdfForfeit) };
    assert_eq!(comes_back_beside_a_light_group(scaled), a + 1_000_084);
    assert_eq!(comes_back_beside_a_light_group(FairConfig::of(Variant::Eevdf)), a + 1_000_084);
}

#[test]
fn an_average_of_the_heaviest_and_the_lightest_does_not_overflow() {
    let config = FairConfig { slice_ns: 100 * MS, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let turns = record(&mut s);
    let of = |weight| TaskSpec { weight, ..TaskSpec::default() };
    // Of two of nice 19, weight 15 * 1024, one has run for ten ticks: 10 * 273,066,666. The average is half of that, where the other one is at 0.
    for _ in 0..2 {
        spawn(&mut s, of(15), Program::Busy);
    }
    s.run_until(40 * MS).unwrap();
    // That far ahead of it come a hundred of nice -20: 100 * 88761 * 1024 * 1,365,333,330 is 2^63.4. Whoever comes to the average does not move it.
    let heavy: Vec<_> = (0..100).map(|_| spawn(&mut s, of(88_761), Program::Busy)).collect();
    let AnyClass::Fair(class) = &s.host.class else { panic!("a fair class") };
    for task in heavy {
        assert_eq!(class.vruntime(task), 1_365_333_330);
    }
    s.run_until(50 * MS).unwrap();
    // New, it has half a slice, to its deadline: 3,413,333,333, less than a ns short of 50 ms. It is ahead of the average; the one that waited has the same
    // deadline, and the heavy ones have 1,365,333,330 and half of 100 * 1024 / 88761 ms.
    assert_eq!(turns_us(&turns, 0), [(0, Some(0)), (49_999, Some(2))]);
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

/// A group of three that always run and a task beside them, all on pCPU 0; the others are taken away or not.
fn three_beside_one(pcpus: u32, offline: bool, until_ns: u64) -> (Vec<(u64, Option<u32>)>, u64) {
    let config = FairConfig { slice_ns: 3 * MS, ..FairConfig::of(Variant::EevdfFlat) };
    let mut s = sim(&MachineConfig::ideal(pcpus), fair(config), 1);
    let turns = record(&mut s);
    for cpu in (1..pcpus).filter(|_| offline).map(CpuId) {
        s.host.cpu_offline(cpu);
    }
    let group = s.host.new_group(GroupId(0), 100);
    let allowed = Some([CpuId(0)].into_iter().collect());
    let spec = TaskSpec { allowed, ..TaskSpec::default() };
    for _ in 0..3 {
        spawn(&mut s, TaskSpec { group, ..spec.clone() }, Program::Busy);
    }
    let one = spawn(&mut s, spec, Program::Busy);
    s.run_until(until_ns).unwrap();
    let turns = turns.borrow().iter().filter(|turn| turn.1 == 0).map(|turn| (turn.0, turn.2)).collect();
    (turns, s.host.run_ns(one))
}

#[test]
fn a_group_counts_at_most_once_per_pcpu_that_is_online() {
    // What is offline is as if it were not there, to the ns: the three count once, and the one has half of the time.
    let until_ns = 6_000 * MS;
    let (alone, _) = three_beside_one(1, false, until_ns);
    let (others_offline, had_ns) = three_beside_one(4, true, until_ns);
    assert_eq!(others_offline, alone);
    assert!(had_ns.abs_diff(until_ns / 2) < 10 * MS, "{had_ns}");
    // Where the tasks may run does not count: with four online the three are two, their average rounded down, and the one has a third.
    let (_, had_ns) = three_beside_one(4, false, until_ns);
    assert!(had_ns.abs_diff(until_ns / 3) < 60 * MS, "{had_ns}");
}
