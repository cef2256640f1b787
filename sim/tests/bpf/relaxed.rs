// SPDX-License-Identifier: GPL-2.0-only
//! Gang relaxed: who is too far ahead of its slowest sibling waits for it.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::together::{watch, Watch};
use crate::world::{TaskId, World};

fn relaxed() -> Knobs {
    Knobs { gang: Some(knob::GANG_RELAXED), boost: Some(0), ..Knobs::default() }
}

const LIMIT_NS: u64 = 3 * MS;
const SLICE_NS: u64 = 16 * MS;

/// Two VMs of two vCPUs, and a task that is always in the way of one of each. What the vCPUs do is watched from their last sleep on.
fn watched(knobs: Knobs) -> (World, Vec<Vec<TaskId>>, Watch) {
    let mut w = world_with(2, knobs);
    let vms = vec![busy_vm(&mut w, 2).1, busy_vm(&mut w, 2).1];
    let all = vms.concat();
    w.run(MS);
    all.iter().for_each(|id| w.sleep(*id));
    w.run(100 * MS);
    let watch = watch(&mut w, &[&vms[0], &vms[1]]);
    all.iter().for_each(|id| w.wake(*id));
    w.run(MS);
    w.spawn(Spec::busy().on(&[1]));
    w.spawn(Spec::cycle(3_300_000, 1_100_000).on(&[1]));
    w.run(100 * MS);
    (w, vms, watch)
}

fn uneven(knobs: Knobs) -> (World, Vec<Vec<TaskId>>) {
    let (w, vms, _) = watched(knobs);
    (w, vms)
}

fn greatest_lead_ns(knobs: Knobs) -> u64 {
    let (mut w, _, watched) = watched(knobs);
    w.run(5_000 * MS);
    audit(&mut w);
    watched.seen(&w).iter().map(|seen| seen.greatest_lead_ns).max().unwrap()
}

#[test]
fn skew_stays_under_the_limit_and_a_slice() {
    let off = greatest_lead_ns(Knobs { gang: Some(knob::GANG_OFF), ..relaxed() });
    assert!(off > 2 * (LIMIT_NS + SLICE_NS), "without a gang the greatest lead is {off}: test");
    let lead = greatest_lead_ns(relaxed());
    assert!(lead <= LIMIT_NS + SLICE_NS, "{lead}");
    let tight = greatest_lead_ns(Knobs { skew_limit_ns: Some(MS), slice_ns: Some(4 * MS), ..relaxed() });
    println!("greatest leads: {off} ns without a gang, {lead} with it, {tight} with a limit of 1 ms and slices of 4");
    assert!(tight <= MS + 4 * MS, "{tight}");
}

#[test]
fn a_leader_waits_and_goes_on() {
    let (mut w, vms) = uneven(relaxed());
    let before = w.stats().gang_stops;
    let shares = shares(&mut w, 4_000 * MS, &vms.concat());
    assert!(w.stats().gang_stops > before + 50);
    for (vm, part) in vms.iter().zip(shares.chunks(2)) {
        assert_near(part[0], part[1], 0.02);
        assert!(part[0] > 0.2, "{vm:?} got {part:?}");
    }
}

#[test]
fn a_leader_goes_on_as_soon_as_its_laggard_runs() {
    let mut w = world_with(2, relaxed());
    let (_, vm) = busy_vm(&mut w, 2);
    introduce(&mut w, &vm);
    w.set_affinity(vm[0], &[0]);
    w.set_affinity(vm[1], &[1]);
    w.spawn(Spec::busy().on(&[1]));
    while w.stats().gang_stops == 0 {
        w.run(MS / 10);
    }
    w.settle();
    assert!(!w.is_running(vm[0]) && !w.is_running(vm[1]), "both wait for the task on pCPU 1");
    while !w.is_running(vm[1]) {
        w.run(MS / 10);
    }
    w.settle();
    // Its lead is as long as it was; but it grows no longer.
    assert!(w.is_running(vm[0]));
}

#[test]
fn who_waits_has_not_waited_twice_when_its_affinity_is_set() {
    let mut w = world_with(2, relaxed());
    let waits_ns = [5 * MS / 2, 4 * MS];
    let kthreads = [0, 1].map(|cpu| w.spawn(Spec::on_demand(waits_ns[cpu]).kthread().on(&[cpu])));
    w.run(10 * MS);
    let vm = w.new_vm(2);
    let vcpus = [0, 1].map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[id])));
    introduce(&mut w, &vcpus);
    // The one falls behind by 2.5 ms, then the other one for 3.5: by 1 ms, in the end.
    w.wake(kthreads[0]);
    w.run(10 * MS);
    let before = w.stats().gang_stops;
    w.wake(kthreads[1]);
    w.run(7 * MS / 2);
    assert!(w.is_running(vcpus[0]) && !w.is_running(vcpus[1]), "test");
    for _ in 0..4 {
        w.set_affinity(vcpus[1], &[1]);
    }
    w.settle();
    assert!(w.is_running(vcpus[0]), "it has no such lead");
    assert_eq!(w.stats().gang_stops, before);
}

#[test]
fn idling_is_progress() {
    let mut w = world_with(2, relaxed());
    let (_, vm) = busy_vm(&mut w, 2);
    introduce(&mut w, &vm);
    w.run(50 * MS);
    w.sleep(vm[1]);
    w.run(200 * MS);
    // Nobody waits for a vCPU that sleeps.
    let used = used_in(&mut w, 1_000 * MS, &[vm[0]]);
    assert_near(used[0] as f64 / 1e9, 1.0, 1e-3);
    w.wake(vm[1]);
    w.settle();
    // ... and it has left nobody behind.
    assert!(w.is_running(vm[0]) && w.is_running(vm[1]));
    w.run(100 * MS);
    assert!(w.is_running(vm[0]) && w.is_running(vm[1]));
    assert_eq!(w.stats().gang_stops, 0);
}

#[test]
fn a_laggard_that_falls_asleep_is_nobodys_laggard() {
    let (mut w, vms) = uneven(relaxed());
    for round in 0..20 {
        let sleeper = vms[round % 2][round / 2 % 2];
        w.run((5 + round as u64) * MS);
        w.sleep(sleeper);
        w.run(60 * MS);
        let sibling = *vms[round % 2].iter().find(|id| **id != sleeper).unwrap();
        let used = used_in(&mut w, 200 * MS, &[sibling]);
        assert!(used[0] > 30 * MS, "round {round}: {used:?}");
        w.wake(sleeper);
    }
}

#[test]
fn shares_are_as_they_were() {
    for weights in [[100, 100], [100, 300]] {
        let mut w = world_with(4, relaxed());
        let mut all = Vec::new();
        for weight in weights {
            let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(4));
            all.push((0..4).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect::<Vec<_>>());
        }
        introduce(&mut w, &all.concat());
        w.run(1_000 * MS);
        let shares = shares(&mut w, 20_000 * MS, &all.concat());
        let due = f64::from(weights[0]) / f64::from(weights[0] + weights[1]);
        assert_near(shares[..4].iter().sum::<f64>() / 4.0, due, 0.01);
    }
}

#[test]
fn a_vm_with_more_vcpus_than_pcpus_goes_on() {
    let mut w = world_with(2, relaxed());
    let (_, wide) = busy_vm(&mut w, 5);
    introduce(&mut w, &wide);
    w.run(500 * MS);
    for share in shares(&mut w, 5_000 * MS, &wide) {
        assert_near(share, 0.4, 0.02);
    }
}
