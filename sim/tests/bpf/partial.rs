// SPDX-License-Identifier: GPL-2.0-only
//! Sets of vCPUs that run together.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

fn partial(cpus: usize) -> World {
    world_with(cpus, Knobs { gang: Some(knob::GANG_PARTIAL), boost: Some(0), ..Knobs::default() })
}

/// A VM with these sets, all of its vCPUs busy.
fn vm_of_sets(w: &mut World, vcpus: usize, sets: &[&[u32]]) -> (usize, Vec<TaskId>) {
    let (vm, ids) = busy_vm(w, vcpus);
    introduce(w, &ids);
    w.set_sets(vm, sets);
    (vm, ids)
}

/// What was seen in many looks: how often a set ran whole, and how often in part although all of it wanted to run.
#[derive(Debug, Default)]
struct Seen {
    whole: u32,
    torn: u32,
    looks: u32,
}

fn watch(w: &mut World, ms: u64, set: &[TaskId]) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..4 * ms {
        w.run(MS / 4);
        seen.looks += 1;
        let wants = set.iter().filter(|id| w.task(**id).state == crate::view::State::Runnable).count();
        let runs = set.iter().filter(|id| w.is_running(**id)).count();
        seen.whole += u32::from(runs == set.len());
        seen.torn += u32::from(runs > 0 && runs < wants);
    }
    audit(w);
    seen
}

/// The paper's machine and VMs: 8 pCPUs, one VM of 8 vCPUs, one of 4. Returns the CPU time of each in pCPUs, and how the sets were seen.
fn papers_machine(sets: &[&[u32]], order: u32) -> (f64, f64, Vec<Seen>) {
    let knobs =
        Knobs { gang: Some(knob::GANG_PARTIAL), order: Some(order), boost: Some(0), ..Knobs::default() };
    let mut w = world_with(8, knobs);
    let (_, a) = vm_of_sets(&mut w, 8, sets);
    let (_, b) = vm_of_sets(&mut w, 4, &[&[0, 1, 2, 3]]);
    w.run(500 * MS);
    let all: Vec<TaskId> = a.iter().chain(&b).copied().collect();
    let used = shares(&mut w, 6_000 * MS, &all);
    let mut seen: Vec<Seen> = sets
        .iter()
        .map(|set| {
            let ids: Vec<TaskId> = set.iter().map(|id| a[*id as usize]).collect();
            watch(&mut w, 1_000, &ids)
        })
        .collect();
    seen.push(watch(&mut w, 1_000, &b));
    (used[..8].iter().sum(), used[8..].iter().sum(), seen)
}

#[test]
fn a_set_runs_whole_or_not_at_all() {
    for order in [knob::ORDER_VM, knob::ORDER_TASK] {
        for sets in [&[&[0u32, 1, 2, 3, 4, 5, 6, 7][..]][..], &[&[0, 1, 2, 3], &[4, 5, 6, 7]]] {
            let (_, _, seen) = papers_machine(sets, order);
            for seen in seen {
                assert!(seen.whole > seen.looks / 10, "{sets:?}: it hardly ran: {seen:?}");
                // A look may come in the moment in which the pCPUs go over from one to another.
                assert!(seen.torn * 50 < seen.looks, "{sets:?}: {seen:?}");
            }
        }
    }
}

#[test]
fn parts_fill_what_a_whole_vm_leaves_idle() {
    // Of a whole VM at a time the small one leaves half of the machine idle.
    let (large, small, _) = papers_machine(&[&[0, 1, 2, 3, 4, 5, 6, 7]], knob::ORDER_TASK);
    assert_near(large, 4.0, 0.3);
    assert_near(small, 2.0, 0.3);
    // Each of three sets has two thirds of the time: a third more than before.
    let (large, small, _) = papers_machine(&[&[0, 1, 2, 3], &[4, 5, 6, 7]], knob::ORDER_TASK);
    assert_near(large, 16.0 / 3.0, 0.3);
    assert_near(small, 8.0 / 3.0, 0.3);
    // Between VMs: each has half of the machine.
    let (large, small, _) = papers_machine(&[&[0, 1, 2, 3], &[4, 5, 6, 7]], knob::ORDER_VM);
    assert_near(large, 4.0, 0.2);
    assert_near(small, 4.0, 0.2);
}

#[test]
fn who_sleeps_holds_no_pcpu() {
    let mut w = partial(4);
    let (_, a) = vm_of_sets(&mut w, 4, &[&[0, 1, 2, 3]]);
    let (_, b) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    w.sleep(a[2]);
    w.sleep(a[3]);
    w.run(100 * MS);
    let awake = [a[0], a[1], b[0], b[1]];
    for share in shares(&mut w, 500 * MS, &awake) {
        assert_near(share, 1.0, 0.05);
    }
}

#[test]
fn who_sleeps_makes_no_set_too_large() {
    let mut w = partial(2);
    let (_, a) = vm_of_sets(&mut w, 3, &[&[0, 1, 2]]);
    w.spawn(Spec::busy().on(&[1]));
    // All three do not fit; the two that are awake do, whenever the task leaves them its pCPU.
    w.sleep(a[2]);
    w.run(1_500 * MS);
    let seen = watch(&mut w, 2_000, &a[..2]);
    assert!(seen.whole * 4 > seen.looks && seen.torn * 50 < seen.looks, "{seen:?}");
}

#[test]
fn one_that_wants_to_run_alone_needs_no_turn() {
    let mut w = partial(2);
    let (_, a) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    let (_, b) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    w.sleep(a[1]);
    w.run(100 * MS);
    let used = shares(&mut w, 2_000 * MS, &[a[0], b[0], b[1]]);
    assert!(used[0] > 0.4, "{used:?}");
    assert_near(used[1], used[2], 0.02);
}

#[test]
fn sets_may_change_while_they_run() {
    let mut w = partial(2);
    let (vm, a) = vm_of_sets(&mut w, 4, &[&[0, 1], &[2, 3]]);
    w.run(200 * MS);
    let before = watch(&mut w, 500, &[a[0], a[1]]);
    assert!(before.whole * 3 > before.looks && before.torn * 50 < before.looks, "{before:?}");
    w.set_sets(vm, &[&[0, 3], &[1, 2]]);
    w.run(200 * MS);
    let after = watch(&mut w, 500, &[a[0], a[3]]);
    assert!(after.whole * 3 > after.looks && after.torn * 50 < after.looks, "{after:?}");
    // In no set any more: each for itself.
    w.set_sets(vm, &[]);
    for share in shares(&mut w, 2_000 * MS, &a) {
        assert_near(share, 0.5, 0.05);
    }
}

#[test]
fn who_is_in_no_set_any_more_leaves_no_pcpu_idle() {
    let mut w = partial(2);
    let (vm, a) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    for _ in 0..2 {
        w.spawn(Spec::busy());
    }
    for _ in 0..40 {
        // In its turn.
        while !a.iter().all(|id| w.is_running(*id)) {
            w.run(MS / 8);
        }
        w.set_sets(vm, &[]);
        w.yield_now(a[0]);
        w.settle();
        assert!(w.cpus.iter().all(|cpu| !cpu.idles()), "at {}", w.now_ns);
        w.set_sets(vm, &[&[0, 1]]);
        w.run(7 * MS);
    }
    audit(&mut w);
}

#[test]
fn a_set_larger_than_the_machine_runs_all_the_same() {
    let mut w = partial(2);
    let (_, a) = vm_of_sets(&mut w, 3, &[&[0, 1, 2]]);
    for share in shares(&mut w, 2_000 * MS, &a) {
        assert_near(share, 2.0 / 3.0, 0.1);
    }
    // Nor may two that are pinned to one pCPU wait for each other.
    let mut w = partial(4);
    let (_, a) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    w.set_affinity(a[0], &[1]);
    w.set_affinity(a[1], &[1]);
    for share in shares(&mut w, 2_000 * MS, &a) {
        assert_near(share, 0.5, 0.1);
    }
}

#[test]
fn a_set_has_its_share_beside_host_tasks_everywhere() {
    let mut w = partial(4);
    for cpu in 0..4 {
        w.spawn(Spec::busy().on(&[cpu]));
    }
    let (_, a) = vm_of_sets(&mut w, 4, &[&[0, 1, 2, 3]]);
    w.run(500 * MS);
    let used: f64 = shares(&mut w, 4_000 * MS, &a).iter().sum();
    // Five compete for four pCPUs: four tasks and a VM. A turn of the set, 16 ms on each, is 0.016 in 4 s.
    // At either end it may just have had one more than its part, or one less, and have been refused a slot
    // for want of room, for which it has another later: four turns, and one for what was before.
    assert_near(used, 0.8, 0.08);
    let seen = watch(&mut w, 2_000, &a);
    assert!(seen.torn * 50 < seen.looks, "{seen:?}");
}

#[test]
fn a_newcomer_in_a_vms_place_is_in_none_of_its_sets() {
    let mut w = partial(2);
    let (_, a) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    for id in &a {
        w.exit(*id);
    }
    w.run(100 * MS);
    // One pCPU for two: as a set it would fall back; with a rival on the other it would wait for it.
    let (_, b) = busy_vm(&mut w, 2);
    introduce(&mut w, &b);
    w.set_affinity(b[0], &[0]);
    w.spawn(Spec::busy().on(&[1]).weight(10_000));
    let torn = watch(&mut w, 2_000, &b);
    assert!(torn.torn * 2 > torn.looks, "each runs for itself: {torn:?}");
}

#[test]
fn interrupts_between_siblings_are_counted() {
    let knobs = Knobs { gang: Some(knob::GANG_PARTIAL_AUTO), boost: Some(0), ..Knobs::default() };
    let mut w = world_with(3, knobs);
    let (vm, a) = busy_vm(&mut w, 3);
    introduce(&mut w, &a);
    assert_eq!(w.traffic_of(vm), []);
    for (from, to, times) in [(0, 1, 3), (1, 0, 1), (2, 1, 2), (0, 0, 5)] {
        assert!(w.is_running(a[from]), "test");
        (0..times).for_each(|_| w.send_irq(a[from], a[to]));
    }
    assert_eq!(w.traffic_of(vm), [(0, 1, 4), (1, 2, 2)]);

    // A doorbell for another VM's vCPU: of a number that this VM does not have.
    let (_, b) = busy_vm(&mut w, 4);
    introduce(&mut w, &b);
    let runs = a.iter().find(|id| w.is_running(**id)).copied().expect("one of the first VM");
    w.send_irq(runs, b[3]);
    assert_eq!(w.traffic_of(vm), [(0, 1, 4), (1, 2, 2)]);
    assert!((0..3).all(|vcpu| w.traffic_between(vm, vcpu, 3) == 0), "vCPU 3 is not one of it");
}

/// Three vCPUs that run, and are watched.
fn watched() -> (World, usize, Vec<TaskId>) {
    let knobs = Knobs { gang: Some(knob::GANG_PARTIAL_AUTO), boost: Some(0), ..Knobs::default() };
    let mut w = world_with(3, knobs);
    let (vm, a) = busy_vm(&mut w, 3);
    introduce(&mut w, &a);
    (w, vm, a)
}

#[test]
fn touches_of_the_same_page_are_counted() {
    let (mut w, vm, a) = watched();
    // A page by itself, one that two have, one that all three have.
    for (vcpu, gfn) in [(0, 1), (0, 1), (0, 2), (1, 2), (0, 2), (0, 2), (2, 3), (1, 3), (0, 3)] {
        assert!(w.is_running(a[vcpu]), "test");
        w.touch(a[vcpu], gfn);
    }
    assert_eq!(w.traffic_of(vm), [(0, 1, 3), (1, 2, 1)]);
}

#[test]
fn a_page_that_was_touched_long_ago_tells_nothing() {
    let (mut w, vm, a) = watched();
    w.touch(a[0], 7);
    w.run(1_900 * MS);
    w.touch(a[1], 7);
    assert_eq!(w.traffic_of(vm), [(0, 1, 1)]);
    w.run(2_100 * MS);
    w.touch(a[2], 7);
    assert_eq!(w.traffic_of(vm), [(0, 1, 1)]);
    w.touch(a[0], 7);
    assert_eq!(w.traffic_of(vm), [(0, 1, 1), (0, 2, 1)], "its time begins with each touch");
}

#[test]
fn a_page_of_the_same_number_is_another_vms() {
    let (mut w, vm, a) = watched();
    let (other, b) = busy_vm(&mut w, 3);
    introduce(&mut w, &b);
    let mut touches = [0, 0];
    for _ in 0..100 {
        // One of each: nobody has anything to say to itself.
        for (of, id) in [a[0], b[1]].into_iter().enumerate() {
            if w.is_running(id) {
                w.touch(id, 5);
                touches[of] += 1;
            }
        }
        w.run(3 * MS);
    }
    assert!(touches.iter().all(|times| *times > 10), "test: {touches:?}");
    assert_eq!(w.traffic_of(vm), []);
    assert_eq!(w.traffic_of(other), []);
    // A newcomer in the first one's place has none of its past.
    for id in &a {
        w.exit(*id);
    }
    w.run(10 * MS);
    let (newcomer, c) = busy_vm(&mut w, 3);
    introduce(&mut w, &c);
    while !w.is_running(c[1]) {
        w.run(MS);
    }
    w.touch(c[1], 5);
    assert_eq!(w.traffic_of(newcomer), []);
}

#[test]
fn who_has_a_block_of_a_vm_that_is_gone_is_in_none_of_its_sets() {
    // More vCPUs than one block of the map has. Its set's entries are in both.
    let mut w = partial(2);
    let (gone, a) = busy_vm(&mut w, 18);
    introduce(&mut w, &a);
    w.set_sets(gone, &[&[0, 16, 17]]);
    for id in &a {
        w.exit(*id);
    }
    w.run(1_000 * MS);
    // The next VM has its number and its first block, the one after that a new number and its second.
    let (_, b) = busy_vm(&mut w, 1);
    introduce(&mut w, &b);
    w.sleep(b[0]);
    let (_, c) = busy_vm(&mut w, 2);
    introduce(&mut w, &c);
    w.set_affinity(c[0], &[0]);
    w.spawn(Spec::busy().on(&[1]).weight(10_000));
    let torn = watch(&mut w, 2_000, &c);
    assert!(torn.torn * 2 > torn.looks, "each runs for itself: {torn:?}");
}

#[test]
fn the_second_vms_sets_are_its_own() {
    let mut w = partial(2);
    let (_, first) = vm_of_sets(&mut w, 2, &[]);
    let (_, second) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    for id in first {
        w.sleep(id);
    }
    w.set_affinity(second[0], &[0]);
    w.set_affinity(second[1], &[1]);
    w.spawn(Spec::busy().on(&[1]));
    w.run(500 * MS);
    let seen = watch(&mut w, 2_000, &second);
    assert!(seen.whole * 4 > seen.looks && seen.torn * 50 < seen.looks, "{seen:?}");
}

#[test]
fn who_wakes_does_not_stop_a_pcpu_of_a_set_in_its_turn() {
    let mut w = partial(2);
    let (_, a) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    let host = w.spawn(Spec::on_demand(MS / 4).on(&[0]));
    w.run(100 * MS);
    let before = w.stats().preempt_wakeup;
    for _ in 0..40 {
        while !a.iter().all(|id| w.is_running(*id)) {
            w.run(MS / 8);
        }
        w.wake(host);
        w.settle();
        w.run(13 * MS);
    }
    // A look may come in the moment in which the turn is as good as over.
    let stopped = w.stats().preempt_wakeup - before;
    assert!(stopped <= 4, "{stopped} of 40");
}

#[test]
fn a_pcpu_that_falls_idle_is_room_for_a_set_at_once() {
    let mut w = partial(2);
    let host = w.spawn(Spec::busy().on(&[1]).weight(10_000));
    let (_, a) = vm_of_sets(&mut w, 2, &[&[0, 1]]);
    for round in 0..20 {
        w.run(7 * MS + 300_000 * round);
        while !w.is_running(host) || a.iter().any(|id| w.is_running(*id)) {
            w.run(MS / 8);
        }
        w.sleep(host);
        w.settle();
        assert!(a.iter().all(|id| w.is_running(*id)), "round {round}");
        w.wake(host);
    }
}

/// A set begins its turn on idle pCPUs and on that of a host task, who goes to the idle one that is left and not to one that a member is about to have.
#[test]
fn who_makes_room_for_a_set_goes_where_nobody_is_expected() {
    // Who is first when the slot begins hangs on when all this happened.
    for offset_us in (0..2_000).step_by(50) {
        let mut w = partial(5);
        let (vm, vcpus) = busy_vm(&mut w, 4);
        let task = w.spawn(Spec::busy().weight(43));
        w.run(15 * MS + offset_us * 1_000);
        w.set_sets(vm, &[&[0, 1, 2], &[3]]);
        w.settle();
        w.set_affinity(vcpus[1], &[3, 4]);
        for _ in 0..50 {
            w.run(MS / 10 - 16_000);
            assert_work_conserving(&mut w);
        }
        let all = [&vcpus[..], &[task]].concat();
        assert!(all.iter().all(|id| w.is_running(*id)), "each has a pCPU by then");
    }
}
