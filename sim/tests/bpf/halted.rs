// SPDX-License-Identifier: GPL-2.0-only
//! Who sleeps for a moment in its turn keeps its pCPU, and its VM pays.

use crate::common::*;
use crate::spec::knob::*;
use crate::spec::{Knobs, Spec};
use crate::world::{TaskId, World};

const KEEP: u64 = 200_000;
const SLICE: u64 = 8 * MS;

fn keeping(cpus: usize, knobs: Knobs) -> World {
    let knobs =
        Knobs { guard: Some(GUARD_HALTED), guard_keep_ns: Some(KEEP), slice_ns: Some(SLICE), ..knobs };
    world_with(cpus, knobs)
}

/// One pCPU, a VM of one vCPU that does this over and over, and a host task. Returns both, after their first second.
fn two_compete(w: &mut World, run_ns: u64, sleep_ns: u64) -> (TaskId, TaskId) {
    two_of(w, Spec::cycle(run_ns, sleep_ns), Spec::busy())
}

fn two_of(w: &mut World, vcpu: Spec, host: Spec) -> (TaskId, TaskId) {
    let vm = w.new_vm(1);
    let vcpu = w.spawn(vcpu.vcpu(vm, 0));
    let host = w.spawn(host);
    w.run(1_000 * MS);
    (vcpu, host)
}

/// How often the task has got a pCPU in a second.
fn turns(w: &mut World, id: TaskId) -> u64 {
    let before = w.task(id).switches;
    w.run(1_000 * MS);
    w.task(id).switches - before
}

#[test]
fn who_sleeps_for_a_moment_keeps_its_pcpu() {
    let mut w = keeping(1, Knobs::default());
    let (_, host) = two_compete(&mut w, MS / 2, MS / 10);
    let (before, turns) = (w.stats(), turns(&mut w, host));
    assert!((1_000 * MS / (2 * SLICE)).abs_diff(turns) <= 3, "the other one had {turns} turns");
    let (kept, in_time) = (w.stats().kept - before.kept, w.stats().kept_in_time - before.kept_in_time);
    assert!(kept > 700 && kept - in_time <= 1, "{in_time} of {kept} in time");
    let kept_us = w.stats().kept_us - before.kept_us;
    assert!(kept_us.abs_diff(100 * kept) < 5 * kept, "{kept} were kept for {kept_us} us");
}

#[test]
fn who_may_run_nowhere_else_keeps_its_pcpu_as_well() {
    let mut w = keeping(1, Knobs::default());
    let pinned = Spec::cycle(MS / 2, MS / 10).on(&[0]);
    let (vcpu, host) = two_of(&mut w, pinned, Spec::busy());
    let (before, used, turns) = (w.stats(), w.task(vcpu).used_ns, turns(&mut w, host));
    assert!((1_000 * MS / (2 * SLICE)).abs_diff(turns) <= 3, "the other one had {turns} turns");
    let (kept, in_time) = (w.stats().kept - before.kept, w.stats().kept_in_time - before.kept_in_time);
    assert!(kept > 700 && kept - in_time <= 1, "{in_time} of {kept} in time");
    // Nor does it sleep for longer than it wants to.
    assert_near((w.task(vcpu).used_ns - used) as f64 / 1e9, 0.5 * 5.0 / 6.0, 0.01);
}

/// Each wakes while the pCPU is kept for the other one.
#[test]
fn two_that_take_turns_at_sleeping_keep_nobody_waiting() {
    for same_vm in [true, false] {
        let mut w = keeping(1, Knobs::default());
        let vms = [w.new_vm(2), w.new_vm(1)];
        let cycle = || Spec::cycle(50_000, 100_000);
        w.spawn(cycle().vcpu(vms[0], 0));
        w.run(75_000);
        w.spawn(if same_vm { cycle().vcpu(vms[0], 1) } else { cycle().vcpu(vms[1], 0) });
        let host = w.spawn(Spec::busy());
        w.run(1_000 * MS);
        assert!(w.stats().kept > 100, "test: {}", w.stats().kept);
        let used = shares(&mut w, 5_000 * MS, &[host]);
        let due = if same_vm { 0.5 } else { 1.0 / 3.0 };
        assert!(used[0] > due - 0.01, "{used:?}");
        let longest_ms = w.task(host).wait_max_ns / MS;
        assert!(longest_ms <= 5 * SLICE / MS, "it waited for {longest_ms} ms");
    }
}

#[test]
fn who_would_have_preempted_it_does_not_wait_for_it() {
    let mut w = keeping(1, Knobs::default());
    let (vcpu, _) = until_its_turn_begins(&mut w);
    // Pinned: nobody asks where it wants to go.
    let light = w.spawn(Spec::on_demand(MS / 10).on(&[0]));
    w.run(500 * MS);
    until_it_waits(&mut w, vcpu);
    while !w.is_running(vcpu) {
        w.run(MS / 100);
    }
    // It has run for a while, so that it is behind.
    w.run(4 * MS);
    let kept = w.stats().kept;
    w.sleep(vcpu);
    w.run(KEEP / 4);
    assert_eq!(w.stats().kept, kept + 1, "test");
    w.wake(light);
    w.run(20_000);
    assert!(w.is_running(light));
}

#[test]
fn without_a_guard_the_other_one_has_it_meanwhile() {
    let mut w = world_with(1, Knobs { slice_ns: Some(SLICE), ..Knobs::default() });
    let (_, host) = two_compete(&mut w, MS / 2, MS / 10);
    let turns = turns(&mut w, host);
    assert!(turns > 300, "test: {turns} turns");
    assert_eq!(w.stats().kept, 0);
}

#[test]
fn the_vm_pays_for_it() {
    for (order, in_cgroups) in [(ORDER_VM, false), (ORDER_VM, true), (ORDER_TASK, false), (ORDER_TASK, true)]
    {
        let gang = if order == ORDER_TASK { GANG_OFF } else { GANG_ALIGNED };
        let mut w = keeping(1, Knobs { order: Some(order), gang: Some(gang), ..Knobs::default() });
        let groups = [0, 1].map(|_| if in_cgroups { w.new_cgroup(0, 100) } else { 0 });
        let cycle = Spec::cycle(MS / 4, MS / 10).cgroup(groups[0]);
        let (vcpu, host) = two_of(&mut w, cycle, Spec::busy().cgroup(groups[1]));
        let before = w.stats().kept_us;
        let used = shares(&mut w, 10_000 * MS, &[vcpu, host]);
        let kept = (w.stats().kept_us - before) as f64 / 1e7;
        assert!(kept > 0.1, "{kept}");
        assert_near(used[1], 0.5, 0.01);
        assert_near(used[0] + kept, 0.5, 0.01);
    }
}

#[test]
fn a_turn_is_no_longer_for_it() {
    let mut w = keeping(1, Knobs::default());
    let (_, host) = two_compete(&mut w, MS / 2, MS / 10);
    for _ in 0..10 {
        until_it_waits(&mut w, host);
        let begun_ns = w.now_ns;
        while !w.is_running(host) {
            w.run(MS / 100);
        }
        let turn_ns = w.now_ns - begun_ns;
        assert!(turn_ns <= SLICE + KEEP + MS, "{} us", turn_ns / 1_000);
    }
    assert!(w.stats().kept > 100, "test: {}", w.stats().kept);
}

#[test]
fn nothing_is_kept_for_those_that_sleep_long() {
    let mut w = keeping(1, Knobs::default());
    two_compete(&mut w, MS / 2, 2 * MS);
    let before = w.stats().kept;
    w.run(1_000 * MS);
    assert_eq!(w.stats().kept, before);
}

#[test]
fn one_long_sleep_among_short_ones_is_forgiven() {
    let mut w = keeping(1, Knobs::default());
    let (vcpu, _) = two_compete(&mut w, MS / 2, MS / 10);
    until_it_runs(&mut w, vcpu);
    w.sleep(vcpu);
    w.run(500 * MS);
    w.wake(vcpu);
    w.run(100 * MS);
    let before = w.stats().kept;
    w.run(100 * MS);
    assert!(w.stats().kept > before + 50);
}

/// The same with a vCPU that sleeps only when it is told to; it has slept once, and is at the beginning of a turn.
fn until_its_turn_begins(w: &mut World) -> (TaskId, TaskId) {
    let (_, vcpus) = busy_vm(w, 1);
    let host = w.spawn(Spec::busy());
    introduce(w, &vcpus);
    w.run(1_000 * MS);
    until_it_waits(w, vcpus[0]);
    while !w.is_running(vcpus[0]) {
        w.run(MS / 100);
    }
    (vcpus[0], host)
}

#[test]
fn nothing_is_kept_for_a_long_sleeper_whose_affinity_is_set_while_it_waits() {
    let mut w = keeping(1, Knobs::default());
    let (vcpu, _) = until_its_turn_begins(&mut w);
    let waits = |w: &mut World| {
        until_it_runs(w, vcpu);
        until_it_waits(w, vcpu);
    };
    // What is kept when its turn begins and it sleeps then.
    let kept = |w: &mut World| {
        let before = w.stats().kept;
        while !w.is_running(vcpu) {
            w.run(MS / 100);
        }
        w.sleep(vcpu);
        w.stats().kept - before
    };
    for _ in 0..10 {
        until_it_runs(&mut w, vcpu);
        w.sleep(vcpu);
        w.run(5 * MS);
        w.wake(vcpu);
    }
    waits(&mut w);
    assert_eq!(kept(&mut w), 0, "test: it sleeps long");
    w.run(5 * MS);
    w.wake(vcpu);
    waits(&mut w);
    for _ in 0..20 {
        w.set_affinity(vcpu, &[0]);
        assert!(!w.is_running(vcpu), "test");
    }
    assert_eq!(kept(&mut w), 0);
}

#[test]
fn who_does_not_wake_in_time_loses_it() {
    let mut w = keeping(1, Knobs::default());
    let (vcpu, host) = until_its_turn_begins(&mut w);
    w.sleep(vcpu);
    assert!(!w.is_running(host));
    w.run(KEEP - 10_000);
    assert!(!w.is_running(host), "too early");
    w.run(20_000);
    assert!(w.is_running(host), "too late");
    assert_eq!((w.stats().kept, w.stats().kept_in_time), (1, 0));
}

#[test]
fn who_wakes_meanwhile_and_finds_it_idle_has_it() {
    let mut w = keeping(1, Knobs::default());
    let other = w.spawn(Spec::on_demand(MS / 10));
    let (vcpu, host) = until_its_turn_begins(&mut w);
    w.sleep(vcpu);
    w.run(KEEP / 4);
    assert!(!w.is_running(host) && !w.is_running(vcpu));
    w.wake(other);
    w.run(20_000);
    assert!(w.is_running(other));
    // It is not kept any longer after that.
    w.run(MS / 2);
    assert!(w.is_running(host));
}

#[test]
fn a_sibling_that_waits_there_has_it_at_once() {
    let mut w = keeping(1, Knobs::default());
    let vm = w.new_vm(2);
    w.spawn(Spec::cycle(MS / 2, MS / 10).vcpu(vm, 0));
    w.spawn(Spec::busy().vcpu(vm, 1));
    w.spawn(Spec::busy());
    w.run(1_000 * MS);
    let before = w.stats().kept;
    w.run(1_000 * MS);
    assert_eq!(w.stats().kept, before);
}

#[test]
fn a_pcpu_that_was_offline_meanwhile_was_not_kept_for_so_long() {
    let mut w = keeping(2, Knobs::default());
    w.spawn(Spec::busy().on(&[0]));
    let (vcpu, host) = until_its_turn_begins(&mut w);
    assert_eq!((w.task(vcpu).cpu, w.task(host).cpu), (1, 1));
    w.sleep(vcpu);
    assert_eq!(w.stats().kept, 1);
    let before = w.stats().kept_us;
    w.cpu_offline(1);
    w.run(1_000 * MS);
    w.cpu_online(1);
    w.run(100 * MS);
    assert!(w.stats().kept_us - before <= KEEP / 1_000, "{} us", w.stats().kept_us - before);
}
