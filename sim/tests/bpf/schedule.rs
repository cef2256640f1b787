// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler's schedules computed by hand: one pCPU, ticks every 4 ms, slices of 16 ms, which end with a tick; v: virtual run time in ms.

use crate::common::*;
use crate::spec::Spec;
use crate::world::{TaskId, World};

/// Who runs from when on, in ms, exact to the ns: looked at just before and at each tick.
fn turns(w: &mut World, tasks: &[TaskId], end_ms: u64) -> Vec<(u64, usize)> {
    let runner = |w: &World| tasks.iter().position(|id| w.is_running(*id)).expect("somebody runs");
    let mut found = vec![(0, runner(w))];
    for tick in 1..=end_ms / 4 {
        w.run(4 * MS - 1);
        assert_eq!(runner(w), found[found.len() - 1].1, "a switch between ticks");
        w.run(1);
        if runner(w) != found[found.len() - 1].1 {
            found.push((4 * tick, runner(w)));
        }
    }
    found
}

#[test]
fn equals_take_turns_and_a_tie_goes_to_the_runner() {
    let mut w = world(1);
    let tasks = [w.spawn(Spec::busy()), w.spawn(Spec::busy())];
    // 16: v 16 and 0. 32: v 16 and 16, it goes on. 48: v 16 and 32. 64: v 32 and 32, it goes on. 80: v 48 and 32.
    assert_eq!(turns(&mut w, &tasks, 100), [(0, 0), (16, 1), (48, 0), (80, 1)]);
}

#[test]
fn three_times_the_weight_is_three_turns_for_one() {
    let mut w = world(1);
    let tasks = [w.spawn(Spec::busy().weight(300)), w.spawn(Spec::busy())];
    // Each tick adds 1.333333 to the heavy one's v. 16: v 5.3 and 0. 32: 5.3 and 16. 48: 10.7. 64: 15.999996, still less. 80: 21.3 and 16.
    assert_eq!(turns(&mut w, &tasks, 96), [(0, 0), (16, 1), (32, 0), (80, 1), (96, 0)]);
}

#[test]
fn who_wakes_behind_by_more_than_the_granularity_preempts_at_once() {
    let mut w = world(1);
    let (runs, sleeps) = (w.spawn(Spec::busy()), w.spawn(Spec::on_demand(500_000)));
    w.run(100 * MS);
    assert!(w.is_running(runs));
    // In the middle of a slice and between two ticks.
    w.run(1_234_567);
    w.wake(sleeps);
    assert!(w.is_running(sleeps), "it has slept while the other one ran");
    w.run(499_999);
    assert!(w.is_running(sleeps));
    w.run(1);
    assert!(w.is_running(runs));
    audit(&mut w);
}
