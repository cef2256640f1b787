// SPDX-License-Identifier: GPL-2.0-only
//! Who was preempted in the guest's kernel has its pCPU back first, for a bounded time.

use crate::boost::sibling_waits_elsewhere;
use crate::common::*;
use crate::spec::knob::*;
use crate::spec::{Knobs, Spec};
use crate::world::{TaskId, World};

const GRACE: u64 = MS;
const SLICE: u64 = 8 * MS;

fn guarded(cpus: usize, knobs: Knobs) -> World {
    world_with(cpus, Knobs { guard: Some(GUARD_KERNEL_MODE), slice_ns: Some(SLICE), ..knobs })
}

/// One pCPU, a VM of one vCPU in this mode, and a host task. Returns both, after their first second.
fn two_compete(w: &mut World, in_kernel: bool) -> (TaskId, TaskId) {
    let (_, vcpus) = busy_vm(w, 1);
    let host = w.spawn(Spec::busy());
    w.set_guest_kernel(vcpus[0], in_kernel);
    introduce(w, &vcpus);
    w.run(1_000 * MS);
    (vcpus[0], host)
}

/// How long the vCPU has the pCPU without a pause longer than 0.1 ms, from its next turn's beginning.
fn next_turn_ns(w: &mut World, vcpu: TaskId) -> u64 {
    until_it_waits(w, vcpu);
    while !w.is_running(vcpu) {
        w.run(MS / 100);
    }
    let begun_ns = w.now_ns;
    let mut lost = 0;
    loop {
        w.run(MS / 100);
        lost = if w.is_running(vcpu) { 0 } else { lost + 1 };
        if lost > 10 {
            return w.now_ns - begun_ns;
        }
    }
}

#[test]
fn kernel_mode_is_spared_twice_for_a_moment() {
    let mut w = guarded(1, Knobs::default());
    let (vcpu, _) = two_compete(&mut w, true);
    let before = w.stats();
    let turn_ns = next_turn_ns(&mut w, vcpu);
    assert_near(turn_ns as f64 / MS as f64, (SLICE + 2 * GRACE) as f64 / MS as f64, 0.2);
    let stats = w.stats();
    let (given, taken) = (stats.grace_given - before.grace_given, stats.grace_taken - before.grace_taken);
    // The turn before may have had its own meanwhile.
    assert!(given == taken && (2..=4).contains(&given), "{given} given, {taken} taken");
    audit(&mut w);
}

#[test]
fn user_mode_is_not_spared() {
    let mut w = guarded(1, Knobs::default());
    let (vcpu, _) = two_compete(&mut w, false);
    let switches = w.stats().switches;
    until_it_waits(&mut w, vcpu);
    w.run(500 * MS);
    assert!(w.stats().switches > switches + 20);
    assert_eq!(w.stats().grace_given, 0);
}

#[test]
fn who_comes_to_user_mode_in_its_grace_gets_no_second_one() {
    let mut w = guarded(1, Knobs::default());
    let (vcpu, _) = two_compete(&mut w, true);
    until_it_waits(&mut w, vcpu);
    until_it_runs(&mut w, vcpu);
    let before = w.stats().grace_given;
    while w.stats().grace_given == before {
        w.run(MS / 100);
    }
    w.set_guest_kernel(vcpu, false);
    w.run(2 * MS);
    assert!(!w.is_running(vcpu));
    assert_eq!(w.stats().grace_given, before + 1);
}

#[test]
fn without_a_guard_nobody_is_spared() {
    let mut w = world_with(1, Knobs { slice_ns: Some(SLICE), ..Knobs::default() });
    two_compete(&mut w, true);
    assert_eq!((w.stats().grace_given, w.stats().grace_taken), (0, 0));
}

#[test]
fn the_grace_is_charged_to_the_vm() {
    for order in [ORDER_VM, ORDER_TASK] {
        let mut w = guarded(1, Knobs { order: Some(order), ..Knobs::default() });
        let (vcpu, host) = two_compete(&mut w, true);
        let shares = shares(&mut w, 10_000 * MS, &[vcpu, host]);
        assert_near(shares[0], 0.5, 0.005);
        assert!(w.stats().grace_taken > 500, "{}", w.stats().grace_taken);
    }
}

#[test]
fn whoever_was_to_run_has_its_whole_turn_afterwards() {
    let mut w = guarded(1, Knobs::default());
    let (vcpu, host) = two_compete(&mut w, true);
    // Until its graces are over.
    let before = w.stats().grace_taken;
    while w.stats().grace_taken < before + 2 {
        w.run(MS / 100);
    }
    while w.is_running(vcpu) {
        w.run(MS / 100);
    }
    let begun_ns = w.now_ns;
    while w.is_running(host) {
        w.run(MS / 100);
    }
    assert_near((w.now_ns - begun_ns) as f64 / MS as f64, SLICE as f64 / MS as f64, 0.2);
}

#[test]
fn who_gave_its_pcpu_to_a_sibling_does_not_have_it_back_first() {
    for boost in [BOOST_ANY_MODE, BOOST_CANDIDATE] {
        let mut w = guarded(1, Knobs { boost: Some(boost), ..Knobs::default() });
        let (_, vcpus) = busy_vm(&mut w, 2);
        introduce(&mut w, &vcpus);
        w.run(400 * MS);
        preempt_in_kernel(&mut w, vcpus[1]);
        while !w.is_running(vcpus[0]) {
            w.run(MS);
        }
        w.run(3 * MS);
        assert!(w.is_running(vcpus[0]), "test: a turn is longer");
        let before = w.stats();
        the_running_one_spins(&mut w, &vcpus[..1]);
        w.settle();
        assert!(w.is_running(vcpus[1]), "boost {boost}: the sibling has lost the pCPU again");
        assert_eq!(w.stats().boost_granted, before.boost_granted + 1);
        assert_eq!(w.stats().grace_given, before.grace_given);
    }
}

#[test]
fn a_boost_goes_on_after_the_grace_of_whom_it_interrupted() {
    let knobs = Knobs { boost: Some(BOOST_ANY_MODE | BOOST_UNFAIR), ..Knobs::default() };
    let mut w = guarded(2, knobs);
    let (spinner, waiter, other) = sibling_waits_elsewhere(&mut w);
    w.set_guest_kernel(other, true);
    let before = w.stats();
    w.pause_exit(spinner);
    w.settle();
    assert!(w.is_running(other), "the other VM's vCPU has no grace");
    assert_eq!(w.stats().boost_granted, before.boost_granted + 1);
    while w.is_running(other) {
        w.run(MS / 100);
    }
    assert!(w.stats().grace_taken - before.grace_taken <= 2);
    assert!(w.is_running(waiter), "the boost is lost");
    assert!(w.stats().resumed > before.resumed);
    audit(&mut w);
}

#[test]
fn a_quota_is_kept_all_the_same() {
    let mut w = guarded(1, Knobs::default());
    let limited = w.new_cgroup(0, 100);
    w.set_quota(limited, 100_000, 20_000, 0);
    let (vm, host) = (w.new_vm(1), w.spawn(Spec::busy()));
    let vcpu = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(limited));
    w.set_guest_kernel(vcpu, true);
    w.run(1_000 * MS);
    let shares = shares(&mut w, 10_000 * MS, &[vcpu, host]);
    assert_near(shares[0], 0.2, 0.005);
}

#[test]
fn a_vcpu_that_is_placed_elsewhere_needs_no_grace() {
    let mut w = guarded(2, Knobs::default());
    let (_, vcpus) = busy_vm(&mut w, 1);
    let vcpu = vcpus[0];
    let hosts = [0, 1].map(|cpu| w.spawn(Spec::on_demand(5 * MS).on(&[cpu])));
    w.set_guest_kernel(vcpu, true);
    introduce(&mut w, &vcpus);
    w.run(100 * MS);
    let before = w.stats().grace_given;
    for _ in 0..50 {
        // Who loses its pCPU goes to the one that is free.
        let cpu = w.task(vcpu).cpu;
        w.wake(hosts[cpu]);
        until_it_runs(&mut w, hosts[cpu]);
        w.settle();
        assert!(w.is_running(vcpu) && w.task(vcpu).cpu != cpu, "it waits for the pCPU that it has lost");
        assert_eq!(w.stats().grace_given, before);
        w.run(20 * MS);
        audit(&mut w);
    }
}

#[test]
fn graces_leave_no_pcpu_idle() {
    let mut w = guarded(2, Knobs::default());
    let (_, vcpus) = busy_vm(&mut w, 2);
    for id in &vcpus {
        w.set_guest_kernel(*id, true);
    }
    let hosts: Vec<_> = (0..2).map(|cpu| w.spawn(Spec::cycle(5 * MS, 5 * MS).on(&[cpu]))).collect();
    for _ in 0..500 {
        w.run(MS);
        audit(&mut w);
        assert_work_conserving(&mut w);
    }
    assert!(hosts.iter().all(|id| w.task(*id).used_ns > 150 * MS));
    assert!(w.stats().grace_given > 0, "test: nobody has lost its pCPU to one of them");
}

#[test]
fn a_kernel_thread_is_not_stopped_for_whom_it_interrupts() {
    let mut w = guarded(1, Knobs::default());
    let (_, vcpus) = busy_vm(&mut w, 1);
    w.set_guest_kernel(vcpus[0], true);
    introduce(&mut w, &vcpus);
    let kthread = w.spawn(Spec::cycle(200_000, 2 * MS).kthread().on(&[0]));
    w.run(500 * MS);
    assert!(w.task(kthread).used_ns > 30 * MS, "test");
    let longest_us = w.task(kthread).wait_max_ns / 1_000;
    assert!(longest_us < 100, "it waited for {longest_us} us");
}

#[test]
fn a_guest_that_asks_its_vmm_in_its_grace_has_no_more_of_them() {
    let mut w = guarded(1, Knobs::default());
    let (vcpu, host) = two_compete(&mut w, true);
    let before = w.task(host).used_ns;
    for _ in 0..40_000 {
        w.run(MS / 20);
        if w.is_running(vcpu) {
            w.visits_vmm(vcpu);
        }
    }
    let used_ms = (w.task(host).used_ns - before) / MS;
    assert!((950..=1_050).contains(&used_ms), "the task beside it got {used_ms} ms of 2 s");
}
