// SPDX-License-Identifier: GPL-2.0-only
//! A spinner stands back for the sibling that it waits for, while that is needed.

use crate::common::*;
use crate::spec::knob::*;
use crate::spec::{Knobs, Spec};
use crate::world::{TaskId, World};

fn preferring(cpus: usize) -> World {
    let knobs = Knobs { spin: Some(SPIN_PREFER), boost: Some(0), ..Knobs::default() };
    world_with(cpus, Knobs { order: Some(ORDER_TASK), slice_ns: Some(8 * MS), ..knobs })
}

/// One pCPU, a VM of this many: one runs, in kernel mode, and the others wait, the one that has waited longest first.
fn one_runs(w: &mut World, vcpus: usize) -> (TaskId, Vec<TaskId>) {
    let (_, vcpus) = busy_vm(w, vcpus);
    introduce(w, &vcpus);
    w.run(400 * MS);
    let spinner = *vcpus.iter().find(|id| w.is_running(**id)).expect("one of them runs");
    let mut waiting: Vec<_> = vcpus.iter().copied().filter(|id| *id != spinner).collect();
    waiting.sort_by_key(|id| w.task(*id).waits_since_ns);
    w.set_guest_kernel(spinner, true);
    (spinner, waiting)
}

#[test]
fn the_preferred_one_runs_for_longer_than_a_boost() {
    let mut w = preferring(1);
    let (spinner, waiting) = one_runs(&mut w, 2);
    w.pause_exit(spinner);
    assert!(w.is_running(waiting[0]));
    let begun_ns = w.now_ns;
    while w.is_running(waiting[0]) {
        w.run(MS / 100);
    }
    // 6 times 400 us, as nobody else waits; then the spinner is as far as it.
    assert!(w.now_ns - begun_ns >= 2_400_000, "it ran for {} us", (w.now_ns - begun_ns) / 1_000);
    assert_eq!(w.stats().boost_granted, 1);
    audit(&mut w);
}

#[test]
fn the_spinner_stands_back_not_its_vm() {
    // Nothing but spinning: what the spinner does not use its sibling has, and the other VM has its half.
    for order in [ORDER_VM, ORDER_TASK] {
        let knobs = Knobs { spin: Some(SPIN_PREFER), boost: Some(0), ..Knobs::default() };
        let mut w = world_with(1, Knobs { order: Some(order), slice_ns: Some(4 * MS), ..knobs });
        let groups = [w.new_cgroup(0, 100), w.new_cgroup(0, 100)];
        let mut vcpus = Vec::new();
        for group in groups {
            let vm = w.new_vm(2);
            vcpus.extend((0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(group))));
        }
        introduce(&mut w, &vcpus);
        w.set_guest_kernel(vcpus[0], true);
        let before: Vec<u64> = vcpus.iter().map(|id| w.task(*id).used_ns).collect();
        for _ in 0..50_000 {
            w.run(MS / 10);
            w.pause_exit(vcpus[0]);
        }
        let used: Vec<f64> = vcpus
            .iter()
            .zip(before)
            .map(|(id, before)| (w.task(*id).used_ns - before) as f64 / 5e9)
            .collect();
        assert_near(used[0] + used[1], 0.5, 0.01);
        assert!(used[1] > 2.0 * used[0], "order {order}: {used:?}");
        audit(&mut w);
    }
}

/// A VM of two on one pCPU, which weighs so much: how far behind the other one a vCPU stands, in virtual time, that spins as soon as it has the pCPU.
fn stands_back(weight: u32) -> u64 {
    let knobs = Knobs { spin: Some(SPIN_PREFER), boost: Some(0), ..Knobs::default() };
    let mut w = world_with(1, Knobs { order: Some(ORDER_SBCO), ..knobs });
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(2));
    let vcpus: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect();
    introduce(&mut w, &vcpus);
    w.run(400 * MS);
    let preferred = *vcpus.iter().find(|id| w.is_running(**id)).expect("one of them runs");
    until_it_waits(&mut w, preferred);
    let spinner = the_running_one_spins(&mut w, &vcpus);
    assert!(spinner != preferred && w.is_running(preferred), "test");
    w.peek_sbco(spinner).place - w.peek_sbco(preferred).place
}

#[test]
fn in_a_flat_order_the_spinner_stands_back_for_as_long_whatever_its_vm_weighs() {
    for weight in [100, 1_000] {
        // The weight is that of two: the virtual time of 6 times 400 us.
        let due = 2_400_000 * 2 * 100 / u64::from(weight);
        assert_near(stands_back(weight) as f64 / due as f64, 1.0, 0.02);
    }
}

/// The spinner asks for the sibling that has waited longest, which is preempted again after a while; returns that one, and the spinner runs.
fn after_a_first_choice(w: &mut World, first_in_kernel: bool) -> (TaskId, TaskId) {
    let (spinner, waiting) = one_runs(w, 4);
    w.pause_exit(spinner);
    assert!(w.is_running(waiting[0]), "the one that has waited longest");
    w.set_guest_kernel(waiting[0], first_in_kernel);
    until_it_waits(w, waiting[0]);
    while !w.is_running(spinner) {
        w.run(MS / 100);
    }
    assert!(!w.is_running(waiting[0]));
    (spinner, waiting[0])
}

#[test]
fn a_spinner_that_spins_on_keeps_its_choice_as_long_as_that_has_something_to_do() {
    for in_kernel in [false, true] {
        let mut w = preferring(1);
        let (spinner, first) = after_a_first_choice(&mut w, in_kernel);
        w.run(MS / 2);
        w.pause_exit(spinner);
        assert_eq!(w.stats().prefer_kept, u64::from(in_kernel));
        // In user mode it has had its time. Others have waited longer.
        assert_eq!(w.is_running(first), in_kernel);
    }
}

#[test]
fn a_preference_ends_with_the_spinning() {
    let mut w = preferring(1);
    let (spinner, _) = after_a_first_choice(&mut w, true);
    w.run(3 * MS);
    assert!(w.is_running(spinner), "test: a turn is longer");
    w.pause_exit(spinner);
    assert_eq!((w.stats().prefer_kept, w.stats().boost_chosen), (0, 2));
}

#[test]
fn two_that_would_prefer_each_other_do_not() {
    let mut w = preferring(1);
    let (spinner, waiting) = one_runs(&mut w, 2);
    w.pause_exit(spinner);
    assert!(w.is_running(waiting[0]));
    // It spins at once, for whoever: not for the one that has just made room for it.
    w.set_guest_kernel(waiting[0], true);
    w.run(MS / 5);
    w.pause_exit(waiting[0]);
    assert!(w.is_running(waiting[0]), "they give the pCPU to and fro");
    assert!(w.stats().prefer_reverse >= 1);
    w.run(MS);
    w.pause_exit(waiting[0]);
    assert!(w.is_running(spinner), "the reverse pair is refused for ever");
    audit(&mut w);
}
