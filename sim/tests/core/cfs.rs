// SPDX-License-Identifier: GPL-2.0-only
//! CFS, schedules computed by hand. One pCPU on which everything is free, ticks every 4 ms, latency 6 ms, granularities 0.75 and 1 ms.

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::host::{TaskSpec, YieldTo};
use cohort_sim::machine::MachineConfig;

use crate::common::*;

fn one() -> Sim {
    sim(&MachineConfig::ideal(1), fair(FairConfig::of(Variant::Cfs)), 1)
}

#[test]
fn equals_take_turns() {
    let mut s = one();
    let turns = record(&mut s);
    busy(&mut s);
    busy(&mut s);
    s.run_until(16 * MS - 1).unwrap();
    // START_DEBIT: a comes at its slice of 6 ms, b at 3 ms. At each tick the runner has had more than its slice of 3 ms, and is ahead.
    assert_eq!(turns_us(&turns, 0), [(0, Some(1)), (4_000, Some(0)), (8_000, Some(1)), (12_000, Some(0))]);
}

#[test]
fn a_sleeper_gets_half_a_latency_of_credit_and_preempts() {
    let mut s = one();
    let turns = record(&mut s);
    busy(&mut s);
    cycle(&mut s, MS, 10 * MS);
    s.run_until(33 * MS - 1).unwrap();
    // The sleeper comes at 3 ms and runs first. Each time it wakes it is 3 ms behind, more than the wake-up granularity.
    assert_eq!(
        turns_us(&turns, 0),
        [
            (0, Some(1)),
            (1_000, Some(0)),
            (11_000, Some(1)),
            (12_000, Some(0)),
            (22_000, Some(1)),
            (23_000, Some(0))
        ]
    );
}

#[test]
fn weights_decide() {
    let mut s = one();
    let light = busy(&mut s);
    let heavy = spawn(&mut s, TaskSpec { weight: 3072, ..TaskSpec::default() }, Program::Busy);
    s.run_until(4_000 * MS).unwrap();
    let (light, heavy) = (s.host.run_ns(light), s.host.run_ns(heavy));
    assert_eq!(light + heavy, 4_000 * MS);
    assert!((heavy as f64 / light as f64 - 3.0).abs() < 0.02, "{heavy} {light}");
}

#[test]
fn a_new_task_counts_in_the_period_that_it_waits_for() {
    let mut s = one();
    for _ in 0..8 {
        busy(&mut s);
    }
    let ninth = spawn(&mut s, TaskSpec { weight: 8 * 1024, ..TaskSpec::default() }, Program::Busy);
    let AnyClass::Fair(class) = &s.host.class else { panic!("a fair class") };
    // More than 8 have 0.75 ms each, 6.75 in all: half of that is the ninth's, whose weight is that of all others; an eighth of that in virtual time.
    assert_eq!(class.vruntime(ninth), 421_875);
}

/// Three, of which the third runs (virtual run times 6, 3 and 2 ms at the start); at 1 ms it yields to the first.
fn yields_to_the_first(wakeup_granularity_ns: u64, unfair_boost: bool) -> Vec<(u64, Option<u32>)> {
    let config = FairConfig { wakeup_granularity_ns, unfair_boost, ..FairConfig::of(Variant::Cfs) };
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let turns = record(&mut s);
    let (a, _, c) = (busy(&mut s), busy(&mut s), busy(&mut s));
    s.run_until(MS).unwrap();
    assert!(s.host.is_running(c));
    assert_eq!(s.host.yield_to(c, a), YieldTo::Granted);
    s.run_until(2 * MS).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn a_directed_yield_is_bounded_by_fairness() {
    // The first is 3 ms behind the second: further than a granularity of 1 ms, so the second runs; not further than one of 5 ms.
    assert_eq!(yields_to_the_first(MS, false), [(0, Some(2)), (1_000, Some(1))]);
    assert_eq!(yields_to_the_first(5 * MS, false), [(0, Some(2)), (1_000, Some(0))]);
    // Unless the kernel was changed to boost unfairly.
    assert_eq!(yields_to_the_first(MS, true), [(0, Some(2)), (1_000, Some(0))]);
}
