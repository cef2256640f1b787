// SPDX-License-Identifier: GPL-2.0-only
//! Turns that a VM's vCPUs take together.

use crate::common::*;
use crate::spec::{knob, Knobs};
use crate::world::World;

/// Two VMs of two vCPUs each on two pCPUs, brought out of step again and again: one vCPU sleeps for a moment in the middle of its turn. Returns the part
/// of the time in which one vCPU of a VM runs and its sibling waits.
fn torn(gang: u32) -> f64 {
    let mut w = world_with(2, Knobs { gang: Some(gang), boost: Some(0), ..Knobs::default() });
    let (_, a) = busy_vm(&mut w, 2);
    let (_, b) = busy_vm(&mut w, 2);
    introduce(&mut w, &a);
    introduce(&mut w, &b);
    let (mut apart, mut looks) = (0, 0);
    for round in 0..20 {
        let sleeper = [a[0], b[1], a[1], b[0]][round % 4];
        let runs = |w: &World| w.is_running(sleeper);
        while !runs(&w) {
            w.run(MS);
        }
        w.run(MS * (1 + round as u64 % 5));
        w.sleep(sleeper);
        w.run(3 * MS);
        w.wake(sleeper);
        // What comes right after that is no matter of turns.
        w.run(50 * MS);
        for _ in 0..200 {
            w.run(MS);
            looks += 2;
            apart += [&a, &b].iter().filter(|vm| w.is_running(vm[0]) != w.is_running(vm[1])).count();
        }
    }
    audit(&mut w);
    apart as f64 / f64::from(looks)
}

#[test]
fn aligned_turns_end_together_after_every_disturbance() {
    let (off, aligned) = (torn(knob::GANG_OFF), torn(knob::GANG_ALIGNED));
    assert!(off > 0.25, "without turns they are apart {off:.3} of the time: test");
    assert!(aligned < 0.1, "apart {aligned:.3} of the time, without turns {off:.3}");
}
