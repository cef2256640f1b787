// SPDX-License-Identifier: GPL-2.0-only
//! Boosts where threads compete each for itself, as in the paper on pause-loop exits: how far fairness lets them.

use crate::common::*;
use crate::spec::knob::*;
use crate::spec::Knobs;

/// One pCPU, a VM of two. vCPU 0 does nothing but spin for vCPU 1, which KVM offers each time. Returns how much more vCPU 1 has run after that long.
fn lead_ms(boost: u32, ms: u64) -> i64 {
    let knobs = Knobs { order: Some(ORDER_TASK), boost: Some(boost), ..Knobs::default() };
    let mut w = world_with(1, Knobs { slice_ns: Some(4 * MS), ..knobs });
    let (_, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    w.set_guest_kernel(vcpus[0], true);
    w.set_irq_pending(vcpus[1], true);
    let before: Vec<u64> = vcpus.iter().map(|id| w.task(*id).used_ns).collect();
    for _ in 0..ms * 10 {
        w.run(MS / 10);
        w.pause_exit(vcpus[0]);
    }
    audit(&mut w);
    let used: Vec<u64> = vcpus.iter().zip(before).map(|(id, before)| w.task(*id).used_ns - before).collect();
    (used[1] as i64 - used[0] as i64) / MS as i64
}

#[test]
fn kvms_choice_is_honoured_as_far_as_a_task_that_wakes_would_be() {
    let lead = lead_ms(BOOST_CANDIDATE, 400);
    assert!((0..8).contains(&lead), "it is {lead} ms ahead");
    // It does not grow.
    assert!(lead_ms(BOOST_CANDIDATE, 2_000) < 8);
}

#[test]
fn unfair_is_ahead_by_what_may_be_borrowed_and_no_more() {
    let lead = lead_ms(BOOST_CANDIDATE | BOOST_UNFAIR, 400);
    assert!((15..30).contains(&lead), "it is {lead} ms ahead");
    assert!(lead_ms(BOOST_CANDIDATE | BOOST_UNFAIR, 2_000) < 30);
}
