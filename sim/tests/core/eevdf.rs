// SPDX-License-Identifier: GPL-2.0-only
//! EEVDF, schedules computed by hand. One pCPU on which everything is free, ticks every 4 ms, a slice of 3 ms; v: virtual run time, d: deadline.

use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::host::{TaskSpec, YieldTo};
use cohort_sim::machine::MachineConfig;

use crate::common::*;
use cohort_sim::bodies::Program;

fn one(variant: Variant) -> Sim {
    let config = FairConfig { slice_ns: 3 * MS, ..FairConfig::of(variant) };
    sim(&MachineConfig::ideal(1), fair(config), 1)
}

#[test]
fn equals_take_turns() {
    let mut s = one(Variant::Eevdf);
    let turns = record(&mut s);
    busy(&mut s);
    busy(&mut s);
    s.run_until(20 * MS - 1).unwrap();
    // Both come with v 0 and, being new, half a slice: d 1.5. At each tick the runner's slice is used up and it is ahead of the average.
    assert_eq!(
        turns_us(&turns, 0),
        [(0, Some(0)), (4_000, Some(1)), (8_000, Some(0)), (12_000, Some(1)), (16_000, Some(0))]
    );
}

#[test]
fn weights_decide() {
    let mut s = one(Variant::Eevdf);
    let turns = record(&mut s);
    busy(&mut s);
    spawn(&mut s, TaskSpec { weight: 2048, ..TaskSpec::default() }, Program::Busy);
    s.run_until(32 * MS - 1).unwrap();
    // b (weight 2048): d 0.75 against a's 1.5, so it begins. At 12 ms both have v 4, and b's d of 5.5 is earlier than a's 7: it goes on.
    assert_eq!(
        turns_us(&turns, 0),
        [
            (0, Some(1)),
            (4_000, Some(0)),
            (8_000, Some(1)),
            (16_000, Some(0)),
            (20_000, Some(1)),
            (28_000, Some(0))
        ]
    );
}

/// a alone for 2 ms; then b comes, and a yields at once.
fn yields(config: FairConfig) -> Vec<(u64, Option<u32>)> {
    let mut s = sim(&MachineConfig::ideal(1), fair(FairConfig { slice_ns: 3 * MS, ..config }), 1);
    let turns = record(&mut s);
    let a = busy(&mut s);
    s.run_until(2 * MS).unwrap();
    busy(&mut s);
    s.host.yield_now(a);
    s.run_until(12 * MS - 1).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn who_yields_has_a_later_deadline() {
    // a: v 2, d 5 + 3. b runs to the tick at 4, v 4, ahead of the average of 3: a's turn, which lasts beyond the tick at 8 (v 6, d 8).
    assert_eq!(yields(FairConfig::of(Variant::Eevdf)), [(0, Some(0)), (2_000, Some(1)), (4_000, Some(0))]);
}

#[test]
fn since_6_19_who_yields_forfeits_up_to_its_deadline() {
    // a: v 5, d 8. At the tick at 4 b has v 4, the average is 4.5, a is not eligible; at 8 b has v 8.
    let expected = [(0, Some(0)), (2_000, Some(1)), (8_000, Some(0))];
    assert_eq!(yields(FairConfig::of(Variant::EevdfForfeit)), expected);
    // Stable kernels before it have only that of 6.19.
    assert_eq!(yields(FairConfig { yield_forfeits: true, ..FairConfig::of(Variant::Eevdf) }), expected);
}

/// a has its turn up to the tick at 4 ms, then b; which yields to a at 5 ms.
fn yields_to_who_is_ahead(unfair_boost: bool) -> Vec<(u64, Option<u32>)> {
    let config = FairConfig { slice_ns: 3 * MS, unfair_boost, ..FairConfig::of(Variant::EevdfForfeit) };
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let turns = record(&mut s);
    let (a, b) = (busy(&mut s), busy(&mut s));
    s.run_until(5 * MS).unwrap();
    let (runs, waits) = if s.host.is_running(a) { (a, b) } else { (b, a) };
    assert_eq!(s.host.yield_to(runs, waits), YieldTo::Granted);
    s.run_until(6 * MS).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn a_directed_yield_goes_to_who_is_eligible_unless_it_may_be_unfair() {
    // a is ahead of the average (v 4 and 1).
    assert_eq!(yields_to_who_is_ahead(false), [(0, Some(0)), (4_000, Some(1))]);
    assert_eq!(yields_to_who_is_ahead(true), [(0, Some(0)), (4_000, Some(1)), (5_000, Some(0))]);
}

/// a alone for 2 ms; then b is made.
fn forks(config: FairConfig) -> Vec<(u64, Option<u32>)> {
    let mut s = sim(&MachineConfig::ideal(1), fair(FairConfig { slice_ns: 3 * MS, ..config }), 1);
    let turns = record(&mut s);
    busy(&mut s);
    s.run_until(2 * MS).unwrap();
    busy(&mut s);
    s.run_until(12 * MS - 1).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn who_is_new_preempts_until_6_18() {
    // b comes to a's v of 2, with half a slice: d 3.5. a, whose first d was 1.5, has one of 5: b runs at once. At 4 it is ahead of the average of 3.
    let expected = [(0, Some(0)), (2_000, Some(1)), (4_000, Some(0)), (8_000, Some(1))];
    assert_eq!(forks(FairConfig::of(Variant::Eevdf)), expected);
    // Before 6.12 the first slice is a whole one: a has a d of 3 and runs up to it; at the tick at 4 it is ahead.
    let before_6_12 = FairConfig { place_deadline_initial: false, ..FairConfig::of(Variant::Eevdf) };
    assert_eq!(forks(before_6_12), [(0, Some(0)), (4_000, Some(1)), (8_000, Some(0))]);
}

#[test]
fn since_6_19_who_is_new_waits_for_the_next_tick() {
    // a's protection ended at v 1.5, when nobody waited. At the tick at 4 that shows, though its d is 5; b (v 2) is behind the average of 3.
    // At 8 b has v 6, at an average of 5.
    for variant in [Variant::EevdfForfeit, Variant::EevdfFlat] {
        assert_eq!(
            forks(FairConfig::of(variant)),
            [(0, Some(0)), (4_000, Some(1)), (8_000, Some(0))],
            "{variant:?}"
        );
    }
}

#[test]
fn a_group_is_never_new() {
    let mut s = one(Variant::Eevdf);
    let turns = record(&mut s);
    let group = s.host.new_group(cohort_sim::GroupId(0), 100);
    spawn(&mut s, TaskSpec { group, ..TaskSpec::default() }, Program::Busy);
    busy(&mut s);
    s.run_until(12 * MS - 1).unwrap();
    // The group of task 0 has a whole slice, d 3, task 1 half of one, d 1.5. At 8 both have v 4 and d 7.
    assert_eq!(turns_us(&turns, 0), [(0, Some(1)), (4_000, Some(0)), (8_000, Some(1))]);
}

#[test]
fn a_sleeper_keeps_its_lag() {
    let mut s = one(Variant::Eevdf);
    let turns = record(&mut s);
    busy(&mut s);
    // 1 ms of work, then 6 ms of sleep.
    let sleeper = cycle(&mut s, MS, 6 * MS);
    s.run_until(11 * MS).unwrap();
    let AnyClass::Fair(class) = &s.host.class else { panic!("a fair class") };
    assert_eq!(class.vruntime(sleeper), 7 * MS as i64);
    s.run_until(24 * MS - 1).unwrap();
    // 0: a runs (d 1.5, first of two equals). 4: a has v 4, the sleeper v 0 runs, and at 5 sleeps with v 1; the average is 2.5, its lag 1.5.
    // a goes on. 11: a has v 10; the sleeper comes to v 10 - 1.5 * 2 = 7 (the lag inflated by both weights over a's), d 10. Of the two, only it
    // is eligible (average 8.5), so it preempts, and at 12 sleeps with v 8 and lag 1. 18: v 16 - 2 = 14, average 15: again at once.
    assert_eq!(
        turns_us(&turns, 0),
        [
            (0, Some(0)),
            (4_000, Some(1)),
            (5_000, Some(0)),
            (11_000, Some(1)),
            (12_000, Some(0)),
            (18_000, Some(1)),
            (19_000, Some(0)),
        ]
    );
}

/// b (task 0) runs for 6 ms and sleeps for 5, a (task 1) is always busy.
fn sleeper_that_ran_ahead(delay_dequeue: bool, until_ns: u64) -> Vec<(u64, Option<u32>)> {
    let config = FairConfig { slice_ns: 3 * MS, delay_dequeue, ..FairConfig::of(Variant::Eevdf) };
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let turns = record(&mut s);
    cycle(&mut s, 6 * MS, 5 * MS);
    busy(&mut s);
    s.run_until(until_ns).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn who_sleeps_ahead_of_the_average_pays() {
    let begins = [(0, Some(0)), (4_000, Some(1)), (8_000, Some(0)), (10_000, Some(1))];
    // At 10 b sleeps with v 6, the average is 5: it stays queued. At 15 a has v 9, its slice is used up (d 12); b has paid, and comes to the
    // average, v 9, d 12: it was there first.
    let delayed = sleeper_that_ran_ahead(true, 16 * MS - 1);
    assert_eq!(delayed, [&begins[..], &[(15_000, Some(0))]].concat());
    // Before 6.12 it leaves with a lag of -1 and comes back 2 ahead of a, at v 11: it waits until a has used up another slice, at the tick at 20.
    let at_once = sleeper_that_ran_ahead(false, 20 * MS);
    assert_eq!(at_once, [&begins[..], &[(20_000, Some(0))]].concat());
}

#[test]
fn groups_share_by_their_weights_whatever_they_hold() {
    let mut s = one(Variant::EevdfForfeit);
    let (heavy, light) =
        (s.host.new_group(cohort_sim::GroupId(0), 300), s.host.new_group(cohort_sim::GroupId(0), 100));
    let one = spawn(&mut s, TaskSpec { group: heavy, ..TaskSpec::default() }, Program::Busy);
    let many: Vec<_> = (0..5)
        .map(|_| spawn(&mut s, TaskSpec { group: light, ..TaskSpec::default() }, Program::Busy))
        .collect();
    s.run_until(8_000 * MS).unwrap();
    let share = |ns: u64| ns as f64 / (8_000 * MS) as f64;
    assert!((share(s.host.run_ns(one)) - 0.75).abs() < 0.005, "{}", share(s.host.run_ns(one)));
    for task in many {
        assert!((share(s.host.run_ns(task)) - 0.05).abs() < 0.005, "{}", share(s.host.run_ns(task)));
    }
}
