// SPDX-License-Identifier: GPL-2.0-only
//! What boosts take they pay for: shares between VMs while one of them spins.

use crate::common::*;
use crate::spec::knob::*;
use crate::spec::Knobs;
use crate::world::World;

#[test]
fn the_boost_is_charged_to_its_vm() {
    // VM a spins all the time, VM b never: whatever boosts do, each keeps its half.
    for boost in 0..16 {
        let mut w = world_with(1, Knobs { boost: Some(boost), ..Knobs::default() });
        let (_, a) = busy_vm(&mut w, 3);
        let (_, b) = busy_vm(&mut w, 3);
        w.run(400 * MS);
        for id in &a {
            w.set_guest_kernel(*id, true);
        }
        audit(&mut w);
        let start: u64 = b.iter().map(|id| w.task(*id).used_ns).sum();
        for _ in 0..10_000 {
            w.run(200_000);
            if let Some(id) = a.iter().find(|id| w.is_running(**id)).copied() {
                w.pause_exit(id);
            }
        }
        assert!(w.stats().ple > 3_000, "test: {} exits", w.stats().ple);
        let b_used: u64 = b.iter().map(|id| w.task(*id).used_ns).sum::<u64>() - start;
        assert_near(b_used as f64 / (2_000 * MS) as f64, 0.5, 0.02);
        audit(&mut w);
    }
}

/// VM a takes a pause-loop exit every millisecond. Returns the pCPUs that it gets, and its boosts.
fn spinner_gets(pcpus: usize, a: usize, b: usize, boost: u32, gang: u32) -> (f64, u64) {
    let mut w = world_with(pcpus, Knobs { boost: Some(boost), gang: Some(gang), ..Knobs::default() });
    let (_, a) = busy_vm(&mut w, a);
    let (_, _) = busy_vm(&mut w, b);
    for id in &a {
        w.set_guest_kernel(*id, true);
    }
    w.run(1_000 * MS);
    let used = |w: &World| a.iter().map(|id| w.task(*id).used_ns).sum::<u64>();
    let (before, granted) = (used(&w), w.stats().boost_granted);
    for step in 0..4_000 {
        w.run(MS);
        w.pause_exit(a[step % a.len()]);
    }
    audit(&mut w);
    ((used(&w) - before) as f64 / (4_000 * MS) as f64, w.stats().boost_granted - granted)
}

#[test]
fn lending_has_a_limit() {
    // Two VMs of the same weight; each is entitled to half, or to as many pCPUs as it has vCPUs.
    for gang in [GANG_OFF, GANG_ALIGNED] {
        for boost in [BOOST_CANDIDATE, BOOST_CANDIDATE | BOOST_UNFAIR, 15] {
            for (pcpus, a, b, due, tolerance) in
                [(1, 2, 1, 0.5, 0.03), (3, 2, 2, 1.5, 0.06), (2, 2, 1, 1.0, 0.06), (4, 4, 1, 3.0, 0.1)]
            {
                let (gets, granted) = spinner_gets(pcpus, a, b, boost, gang);
                assert_near(gets, due, tolerance);
                // On one pCPU the sibling waits where the spinner runs, in its VM's turn. Elsewhere it may
                // wait in vain for one that another deserves more; with all kinds it comes to the spinner's.
                let is_sure = pcpus == 1 || boost == 15;
                assert!(!is_sure || granted > 0, "boost {boost}, gang {gang}: none granted on {pcpus} pCPUs");
            }
        }
    }
}
