// SPDX-License-Identifier: GPL-2.0-only
//! Where tasks are queued, and what idle pCPUs do about it.

use crate::common::*;
use crate::spec::{knob, Config, Knobs, Spec};
use crate::view::{Queue, State};
use crate::world::{TaskId, World};

/// The pCPU on which a runnable task runs or waits.
fn pcpu_of(w: &World, id: TaskId) -> usize {
    match w.task(id).queue {
        // After the run queues come those of the overdue, as many.
        Some(Queue::User(dsq)) => dsq as usize % w.cpus.len(),
        Some(Queue::Local(cpu)) => cpu,
        _ => w.task(id).cpu,
    }
}

fn stacked(w: &World, vm: &[TaskId]) -> usize {
    let mut pcpus: Vec<usize> =
        vm.iter().filter(|id| w.task(**id).state == State::Runnable).map(|id| pcpu_of(w, *id)).collect();
    let all = pcpus.len();
    pcpus.sort_unstable();
    pcpus.dedup();
    all - pcpus.len()
}

#[test]
fn siblings_are_never_queued_together_while_there_is_room() {
    let mut w = world(3);
    let vms: Vec<_> = (0..4).map(|_| busy_vm(&mut w, 3).1).collect();
    // Until everybody is known.
    w.run(400 * MS);
    for _ in 0..500 {
        w.run(MS);
        for vm in &vms {
            assert_eq!(stacked(&w, vm), 0, "at {}", w.now_ns);
        }
    }
    audit(&mut w);
}

#[test]
fn a_core_without_a_sibling_is_better_than_one_with() {
    // Two cores of two threads, and somebody computes on each thread. Both vCPUs were on the first core.
    for threads_per_core in [1, 2] {
        let mut w = World::new(Config { threads_per_core, ..Config::cpus(4) });
        for cpu in 0..4 {
            w.spawn(Spec::busy().on(&[cpu]));
        }
        let vm = w.new_vm(2);
        let vcpus = [0, 1].map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[id])));
        introduce(&mut w, &vcpus);
        w.sleep(vcpus[1]);
        while w.task(vcpus[1]).state != State::Asleep {
            w.run(MS);
        }
        w.set_affinity(vcpus[1], &[0, 1, 2, 3]);
        w.wake(vcpus[1]);
        // Where pCPU 1 is a core of its own it has no reason to leave it.
        let allowed = if threads_per_core == 1 { 1..2 } else { 2..4 };
        assert!(allowed.contains(&pcpu_of(&w, vcpus[1])), "on pCPU {}", pcpu_of(&w, vcpus[1]));
    }
}

#[test]
fn sleepers_wake_beside_no_sibling() {
    let mut w = world(4);
    let vm = w.new_vm(4);
    let vcpus: Vec<_> =
        (0..4).map(|id| w.spawn(Spec::cycle(3 * MS + id as u64 * 700_000, 2 * MS).vcpu(vm, id))).collect();
    for _ in 0..5 {
        w.spawn(Spec::busy());
    }
    w.run(400 * MS);
    let before = w.stats().stacked;
    for _ in 0..2_000 {
        w.run(500_000);
        assert_eq!(stacked(&w, &vcpus), 0, "at {}", w.now_ns);
    }
    assert_eq!(w.stats().stacked, before);
}

#[test]
fn more_vcpus_than_pcpus_are_spread_evenly() {
    let mut w = world(2);
    let (_, vcpus) = busy_vm(&mut w, 4);
    let (_, _) = busy_vm(&mut w, 1);
    w.run(400 * MS);
    for _ in 0..200 {
        w.run(MS);
        w.settle();
        let on_0 = vcpus.iter().filter(|id| pcpu_of(&w, **id) == 0).count();
        assert!((1..=3).contains(&on_0), "{on_0} of 4 siblings on pCPU 0 at {}", w.now_ns);
    }
}

#[test]
fn affinity_is_respected_even_if_it_stacks() {
    let mut w = world(2);
    let vm = w.new_vm(2);
    let vcpus: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[1]))).collect();
    w.spawn(Spec::busy());
    w.run(400 * MS);
    let shares = shares(&mut w, 400 * MS, &vcpus);
    assert_near(shares[0] + shares[1], 1.0, 0.01);
    assert!(vcpus.iter().all(|id| pcpu_of(&w, *id) == 1));
}

#[test]
fn an_idle_pcpu_steals_from_the_longest_queue() {
    // With placement any, a task that may go elsewhere from now on stays where it was.
    let mut w = world_with(3, Knobs { placement: Some(knob::PLACEMENT_ANY), ..Knobs::default() });
    // Three on pCPU 1, two on pCPU 2, all pinned by their affinity; one on pCPU 0, which then sleeps.
    let pinned: Vec<_> = [1, 1, 1, 2, 2].map(|cpu| w.spawn(Spec::busy().on(&[cpu]))).to_vec();
    let last = w.spawn(Spec::busy().on(&[0]));
    w.run(20 * MS);
    // They may move from now on, but nothing asks them to.
    for id in &pinned {
        w.set_affinity(*id, &[0, 1, 2]);
    }
    w.settle();
    let before = w.stats().steals;
    let on_1 = pinned.iter().filter(|id| pcpu_of(&w, **id) == 1).count();
    assert_eq!(on_1, 3);
    w.sleep(last);
    w.settle();
    assert!(w.stats().steals > before);
    let on_1 = pinned.iter().filter(|id| pcpu_of(&w, **id) == 1).count();
    assert_eq!(on_1, 2, "the steal was not from the longest queue");
    assert_work_conserving(&mut w);
}

#[test]
fn an_idle_pcpu_steals_whom_it_does_not_stack_and_the_rest_rather_than_idle() {
    let mut w = world(2);
    let (_, vcpus) = busy_vm(&mut w, 3);
    w.run(400 * MS);
    // All three siblings on two pCPUs: whoever of them leaves a pCPU idle, another comes, stacked or not.
    for _ in 0..3 {
        w.sleep(vcpus[0]);
        assert_work_conserving(&mut w);
        w.wake(vcpus[0]);
        w.run(10 * MS);
    }
    audit(&mut w);
}

#[test]
fn placement_any_stays_where_it_was() {
    let mut w = world_with(2, Knobs { placement: Some(knob::PLACEMENT_ANY), ..Knobs::default() });
    let vm = w.new_vm(2);
    let vcpus: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[0]))).collect();
    w.spawn(Spec::busy().on(&[1]));
    w.spawn(Spec::busy().on(&[1]));
    w.run(100 * MS);
    for id in &vcpus {
        w.set_affinity(*id, &[0, 1]);
    }
    w.run(4 * MS);
    assert_eq!(stacked(&w, &vcpus), 1, "nothing but fairness moves them");
}

#[test]
fn a_preempted_vcpu_is_placed_anew_although_a_bpf_program_pins_it() {
    // The BPF prologue disables the migration of the task being put back; that must not look like a pin.
    let mut w = world(2);
    let (_, a) = busy_vm(&mut w, 2);
    w.run(100 * MS);
    // Both on pCPU 1, stacked by affinity; released while they wait and run.
    for id in &a {
        w.set_affinity(*id, &[1]);
    }
    let host: Vec<_> = (0..2).map(|_| w.spawn(Spec::busy().on(&[0]))).collect();
    w.run(100 * MS);
    assert_eq!(stacked(&w, &a), 1);
    for id in &a {
        w.set_affinity(*id, &[0, 1]);
    }
    w.run(60 * MS);
    assert_eq!(stacked(&w, &a), 0, "both siblings are still on one pCPU");
    assert!(host.iter().all(|id| pcpu_of(&w, *id) == 0));
}

#[test]
fn hosts_larger_than_any_search_work_too() {
    // More pCPUs than are examined for a placement (64) or a look at others' queues (16).
    let mut w = world(80);
    let far: Vec<_> =
        (70..80).flat_map(|cpu| [cpu, cpu]).map(|cpu| w.spawn(Spec::busy().on(&[cpu, 0]))).collect();
    let vms: Vec<_> = (0..6).map(|_| busy_vm(&mut w, 16).1).collect();
    w.run(300 * MS);
    assert_work_conserving(&mut w);
    audit(&mut w);
    for vm in &vms {
        assert_eq!(stacked(&w, vm), 0);
    }
    let used = used_in(&mut w, 300 * MS, &far);
    assert!(used.iter().all(|ns| *ns > 50 * MS), "{used:?}");
    w.cpu_offline(75);
    w.run(100 * MS);
    assert_work_conserving(&mut w);
    audit(&mut w);
}

#[test]
fn who_makes_room_runs_on_the_idle_pcpu_at_once() {
    let mut w = world(2);
    let (moves, here) = (w.spawn(Spec::busy()), w.spawn(Spec::busy().on(&[0])));
    let there = w.spawn(Spec::busy().on(&[1]));
    for round in 0..20 {
        w.run(7 * MS);
        while !(w.is_running(moves) && w.is_running(there) && w.task(moves).cpu == 0) {
            w.run(MS / 4);
        }
        w.sleep(there);
        w.settle();
        assert!(w.is_running(moves) && w.is_running(here), "round {round}");
        w.wake(there);
    }
}

#[test]
fn who_may_leave_goes_to_an_idle_pcpu_that_is_far() {
    let mut w = world(16);
    let everywhere: Vec<usize> = (0..16).collect();
    for cpu in 0..15 {
        w.spawn(Spec::busy().on(&[cpu]));
    }
    for home in [0, 3] {
        let waits = w.spawn(Spec::busy().on(&[home]));
        w.run(50 * MS);
        until_it_runs(&mut w, waits);
        until_it_waits(&mut w, waits);
        w.set_affinity(waits, &everywhere);
        w.settle();
        assert_eq!((w.is_running(waits), w.task(waits).cpu), (true, 15));
        w.exit(waits);
        w.run(10 * MS);
    }
}

#[test]
fn who_came_while_a_pcpu_looked_into_its_empty_queue_is_found() {
    // The kernel inserts only when ops.enqueue is over, on another pCPU: meanwhile this one may have found its queue empty, and said so.
    let mut w = world(1);
    let (runs, waits) = (w.spawn(Spec::busy()), w.spawn(Spec::busy()));
    w.run(10 * MS);
    assert!(w.is_running(runs));
    w.unmark(0);
    w.sleep(runs);
    w.settle();
    assert!(w.is_running(waits), "it waits beside an idle pCPU");
    audit(&mut w);
}

#[test]
fn each_of_three_siblings_runs_beside_one_that_is_due_a_whole_pcpu() {
    let mut w = world(2);
    let (one, three) = (busy_vm(&mut w, 1).1, busy_vm(&mut w, 3).1);
    w.run(2_000 * MS);
    let got = shares(&mut w, 10_000 * MS, &[&one[..], &three].concat());
    assert_near(got[0], 1.0, 0.01);
    got[1..].iter().for_each(|got| assert_near(*got, 1.0 / 3.0, 0.03));
}
