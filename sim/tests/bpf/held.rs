// SPDX-License-Identifier: GPL-2.0-only
//! Gang partial-held: a set in its turn has a pCPU for each of its vCPUs, for those that sleep as well.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

fn held(cpus: usize) -> World {
    world_with(cpus, Knobs { gang: Some(knob::GANG_PARTIAL_HELD), boost: Some(0), ..Knobs::default() })
}

/// A VM with these sets, of whose vCPUs the first `awake` are busy and the others asleep.
fn half_asleep(w: &mut World, vcpus: usize, awake: usize, sets: &[&[u32]]) -> Vec<TaskId> {
    let (vm, ids) = busy_vm(w, vcpus);
    introduce(w, &ids);
    w.set_sets(vm, sets);
    for id in &ids[awake..] {
        w.sleep(*id);
    }
    ids
}

fn running(w: &World, ids: &[TaskId]) -> usize {
    ids.iter().filter(|id| w.is_running(**id)).count()
}

/// Let time pass until a turn of these begins, and a little of it is over.
fn until_in_turn(w: &mut World, ids: &[TaskId], others: &[TaskId]) {
    while running(w, others) < others.len() {
        w.run(MS / 4);
    }
    while running(w, ids) < ids.len() || running(w, others) > 0 {
        w.run(MS / 4);
    }
    w.run(MS);
}

#[test]
fn a_whole_vm_has_all_pcpus_or_none() {
    let mut w = held(4);
    let a = half_asleep(&mut w, 4, 2, &[&[0, 1, 2, 3]]);
    let b = half_asleep(&mut w, 2, 2, &[&[0, 1]]);
    w.run(100 * MS);
    let mut both = 0;
    for _ in 0..8_000 {
        w.run(MS / 4);
        both += usize::from(running(&w, &a) > 0 && running(&w, &b) > 0);
    }
    // A look may come in the moment in which one follows the other.
    assert!(both * 33 < 8_000, "{both}");
    for share in shares(&mut w, 4_000 * MS, &[a[0], a[1], b[0], b[1]]) {
        assert_near(share, 0.5, 0.03);
    }
}

#[test]
fn smaller_sets_leave_the_rest_to_others() {
    let mut w = held(4);
    let a = half_asleep(&mut w, 4, 2, &[&[0, 1], &[2, 3]]);
    let b = half_asleep(&mut w, 2, 2, &[&[0, 1]]);
    w.run(100 * MS);
    for share in shares(&mut w, 2_000 * MS, &[a[0], a[1], b[0], b[1]]) {
        assert_near(share, 1.0, 0.02);
    }
}

#[test]
fn one_that_falls_asleep_in_its_turn_keeps_its_pcpu_from_others() {
    let mut w = held(2);
    let a = half_asleep(&mut w, 2, 2, &[&[0, 1]]);
    let b = [w.spawn(Spec::busy())];
    for _ in 0..20 {
        until_in_turn(&mut w, &a, &b);
        w.sleep(a[1]);
        // Long before the turn ends.
        w.run(2 * MS);
        assert_eq!((running(&w, &a), running(&w, &b)), (1, 0), "at {}", w.now_ns);
        // In its turn it goes on at once.
        w.wake(a[1]);
        w.run(MS / 4);
        assert_eq!(running(&w, &a), 2, "at {}", w.now_ns);
        w.run(7 * MS);
    }
}

#[test]
fn when_all_sleep_their_pcpus_are_others_at_once() {
    let mut w = held(4);
    let a = half_asleep(&mut w, 4, 2, &[&[0, 1, 2, 3]]);
    let b = half_asleep(&mut w, 4, 4, &[&[0, 1, 2, 3]]);
    for _ in 0..20 {
        until_in_turn(&mut w, &a[..2], &b);
        w.sleep(a[0]);
        w.sleep(a[1]);
        w.run(MS / 2);
        assert_eq!(running(&w, &b), 4, "at {}", w.now_ns);
        w.run(30 * MS);
        w.wake(a[0]);
        w.wake(a[1]);
        w.run(7 * MS);
    }
}

#[test]
fn who_is_in_no_set_has_its_share_beside_one_that_holds_pcpus() {
    // One vCPU of four wants to run, and has all four pCPUs in its turn. A task that may run on one of these alone, and one that may run anywhere.
    for on in [&[3][..], &[0, 1, 2, 3]] {
        let mut w = held(4);
        let a = half_asleep(&mut w, 4, 1, &[&[0, 1, 2, 3]]);
        let task = w.spawn(Spec::busy().on(on));
        w.run(500 * MS);
        let used = shares(&mut w, 4_000 * MS, &[a[0], task]);
        assert!(used.iter().all(|used| (0.4..0.65).contains(used)), "{on:?}: {used:?}");
    }
}

#[test]
fn weights_divide_the_time_of_those_that_hold_pcpus() {
    let mut w = held(2);
    let (heavy, light) = (w.new_cgroup(0, 300), w.new_cgroup(0, 100));
    let mut awake = Vec::new();
    for cgroup in [heavy, light] {
        let vm = w.new_vm(2);
        let ids: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect();
        introduce(&mut w, &ids);
        w.set_sets(vm, &[&[0, 1]]);
        w.sleep(ids[1]);
        awake.push(ids[0]);
    }
    w.run(500 * MS);
    let used = shares(&mut w, 8_000 * MS, &awake);
    assert_near(used[0], 0.75, 0.03);
    assert_near(used[1], 0.25, 0.03);
}
