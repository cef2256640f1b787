// SPDX-License-Identifier: GPL-2.0-only
//! A pCPU that two siblings have between them for good, since another VM is due all of the other one.

use crate::common::*;
use crate::spec::knob::{BOOST_ANY_MODE, BOOST_CANDIDATE, BOOST_IPI, BOOST_MIGRATE};
use crate::spec::Knobs;
use crate::world::World;

const SLICE: u64 = 16 * MS;

/// The longest that one of the two siblings waits, in ns, and what the other VM has of a pCPU meanwhile.
fn longest_wait(boost: u32) -> (u64, f64) {
    let knobs = Knobs { boost: Some(boost), slice_ns: Some(SLICE), ..Knobs::default() };
    let mut w: World = world_with(2, knobs);
    let (alone, two) = (busy_vm(&mut w, 1).1, busy_vm(&mut w, 2).1);
    w.run(2_000 * MS);
    let step = MS / 2;
    let (mut waits, mut longest, mut ran) = ([0; 2], 0, 0);
    for _ in 0..4_000 {
        w.run(step);
        ran += u64::from(w.is_running(alone[0]));
        for (waited, id) in waits.iter_mut().zip(&two) {
            *waited = if w.is_running(*id) { 0 } else { *waited + step };
            longest = longest.max(*waited);
        }
    }
    audit(&mut w);
    (longest, ran as f64 / 4_000.0)
}

#[test]
fn siblings_take_short_turns_where_only_calls_tell_who_waits() {
    let (longest, other) = longest_wait(BOOST_CANDIDATE | BOOST_ANY_MODE | BOOST_MIGRATE | BOOST_IPI);
    // Whoever comes is a short turn behind, and goes on until the other is.
    assert!(longest <= 2 * SLICE / 4 + MS, "one waits for {longest} ns");
    assert_near(other, 1.0, 0.01);
}

#[test]
fn with_a_pause_filter_they_change_places_by_boosts() {
    // A spin would be caught. Each exchange costs the caches of two.
    let (longest, other) = longest_wait(BOOST_CANDIDATE | BOOST_ANY_MODE | BOOST_MIGRATE);
    assert!(longest >= 2 * SLICE, "one waits for {longest} ns");
    assert_near(other, 1.0, 0.01);
}
