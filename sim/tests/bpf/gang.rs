// SPDX-License-Identifier: GPL-2.0-only
//! Turns that a VM's vCPUs take together.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

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

/// Three VMs of one vCPU on two pCPUs. One waits for pCPU 1 and may go to pCPU 0, which takes it as soon as that idles. Nobody has a sibling.
#[test]
fn who_comes_from_another_queue_does_not_ask_there_for_itself() {
    let knobs = Knobs { gang: Some(knob::GANG_ALIGNED), boost: Some(0), ..Knobs::default() };
    // There who may go elsewhere from now on stays where it was.
    let mut w = world_with(2, Knobs { placement: Some(knob::PLACEMENT_ANY), ..knobs });
    let [goes, stays, sleeps] = [1, 1, 0].map(|cpu| {
        let vm = w.new_vm(1);
        w.spawn(Spec::busy().vcpu(vm, 0).on(&[cpu]))
    });
    for _ in 0..20 {
        w.run(50 * MS);
        until_it_runs(&mut w, goes);
        until_it_runs(&mut w, stays);
        // By now it deserves its pCPU less than the one who waits.
        w.run(6 * MS);
        w.set_affinity(goes, &[0, 1]);
        w.sleep(sleeps);
        w.settle();
        assert!(w.is_running(goes) && w.is_running(stays), "test");
        w.set_affinity(goes, &[1]);
        w.wake(sleeps);
    }
    audit(&mut w);
    assert_eq!((w.stats().steals, w.stats().gang_starts), (20, 0));
}

/// A VM's vCPUs, which sleep, and as many host tasks, one of each bound to each pCPU. The VM weighs so much.
fn beside_host_tasks(weight: u32, cpus: usize) -> (World, Vec<TaskId>, Vec<TaskId>) {
    let mut w =
        world_with(cpus, Knobs { gang: Some(knob::GANG_ALIGNED), boost: Some(0), ..Knobs::default() });
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(cpus));
    let on = |id| Spec::busy().vcpu(vm, id).cgroup(cgroup).on(&[id]);
    let vcpus: Vec<TaskId> = (0..cpus).map(|id| w.spawn(on(id))).collect();
    introduce(&mut w, &vcpus);
    for id in &vcpus {
        w.sleep(*id);
    }
    let hosts = (0..cpus).map(|cpu| w.spawn(Spec::busy().on(&[cpu]))).collect();
    w.run(1_000 * MS);
    (w, vcpus, hosts)
}

#[test]
fn who_joins_a_turn_gets_what_is_left_of_it() {
    // It slept for long and may preempt; after its turn it has had more than the others.
    let (mut w, vcpus, _) = beside_host_tasks(75, 3);
    w.wake(vcpus[0]);
    w.settle();
    assert!(w.is_running(vcpus[0]), "test");
    for id in &vcpus[1..] {
        w.run(2 * MS);
        w.wake(*id);
        w.settle();
        assert!(w.is_running(*id), "test");
    }
    w.run(11 * MS);
    assert!(vcpus.iter().all(|id| w.is_running(*id)), "after 15 ms");
    w.run(MS + MS / 5);
    let run: Vec<bool> = vcpus.iter().map(|id| w.is_running(*id)).collect();
    assert_eq!(run, [false; 3], "a slice after the first began");
}

#[test]
fn waiting_siblings_join_at_once_where_they_deserve_it() {
    let (mut w, vcpus, hosts) = beside_host_tasks(100, 2);
    vcpus.iter().for_each(|id| w.wake(*id));
    let (mut asked, mut joined) = (0, 0);
    for round in 0..200 {
        w.run(100 * MS + round * MS / 4);
        // Both host tasks are in the middle of their turns.
        if !hosts.iter().all(|id| w.is_running(*id)) {
            continue;
        }
        let before = w.stats().gang_starts;
        w.sleep(hosts[0]);
        w.settle();
        if w.stats().gang_starts > before {
            asked += 1;
            joined += u32::from(vcpus.iter().all(|id| w.is_running(*id)));
        }
        w.run(5 * MS);
        w.wake(hosts[0]);
    }
    assert!(asked >= 10, "{asked}: test");
    assert_eq!(joined, asked);
}

#[test]
fn nobody_is_asked_for_a_pcpu_whose_runner_deserves_it_more() {
    let (mut w, vcpus, hosts) = beside_host_tasks(1, 4);
    vcpus.iter().for_each(|id| w.wake(*id));
    w.run(1_000 * MS);
    while !hosts.iter().all(|id| w.is_running(*id)) {
        w.run(MS);
    }
    let before = w.stats();
    w.sleep(hosts[0]);
    w.settle();
    let runs: Vec<bool> = vcpus.iter().map(|id| w.is_running(*id)).collect();
    assert_eq!(runs, [true, false, false, false]);
    let asked = w.stats();
    assert_eq!((asked.gang_starts, asked.boost_missed), (before.gang_starts, before.boost_missed));
}
