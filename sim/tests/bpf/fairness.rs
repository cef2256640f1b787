// SPDX-License-Identifier: GPL-2.0-only
//! Who gets how much. The expected shares are computed by hand.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

fn order(order: u32) -> Knobs {
    Knobs { order: Some(order), ..Knobs::default() }
}

#[test]
fn host_tasks_share_by_weight() {
    let mut w = world(1);
    let a = w.spawn(Spec::busy().weight(100));
    let b = w.spawn(Spec::busy().weight(200));
    let shares = shares(&mut w, 3_000 * MS, &[a, b]);
    assert_near(shares[0], 1.0 / 3.0, 0.01);
    assert_near(shares[1], 2.0 / 3.0, 0.01);
}

#[test]
fn equal_host_tasks_take_turns_of_a_slice() {
    let mut w = world_with(1, Knobs { slice_ns: Some(8 * MS), ..Knobs::default() });
    let a = w.spawn(Spec::busy());
    let b = w.spawn(Spec::busy());
    // Both begin at a tick, and a slice is two ticks. At a tie who runs goes on: it saves a switch.
    let mut turns = Vec::new();
    for _ in 0..5 {
        turns.push(used_in(&mut w, 8 * MS, &[a, b]));
    }
    let (first, second) = ([8 * MS, 0], [0, 8 * MS]);
    assert_eq!(turns, [first, second, second, first, first]);
    // Nobody woke: whoever is put back must not throw out who has just been chosen.
    assert_eq!(w.stats().preempt_wakeup, 0);
}

/// VM a with one busy vCPU beside VM b with two, on two pCPUs. Returns the pCPUs that a gets.
fn lone_vcpu_beside_two(w: &mut World) -> f64 {
    let (_, a) = busy_vm(w, 1);
    let (_, b) = busy_vm(w, 2);
    w.run(1_000 * MS);
    let shares = shares(w, 4_000 * MS, &[a[0], b[0], b[1]]);
    assert_near(shares.iter().sum(), 2.0, 1e-9);
    shares[0]
}

#[test]
fn a_vm_gets_its_share_through_one_vcpu() {
    // Each VM is entitled to one of the two pCPUs.
    assert_near(lone_vcpu_beside_two(&mut world(2)), 1.0, 0.03);
}

#[test]
fn between_tasks_a_vm_with_one_vcpu_gets_less() {
    // Each of three threads is entitled to a third of two pCPUs.
    let mut w = world_with(2, order(knob::ORDER_TASK));
    assert_near(lone_vcpu_beside_two(&mut w), 2.0 / 3.0, 0.05);
}

#[test]
fn siblings_share_their_vms_time() {
    let mut w = world(1);
    let (_, a) = busy_vm(&mut w, 1);
    let (_, b) = busy_vm(&mut w, 2);
    w.run(500 * MS);
    let shares = shares(&mut w, 4_000 * MS, &[a[0], b[0], b[1]]);
    assert_near(shares[0], 0.5, 0.01);
    assert_near(shares[1], 0.25, 0.01);
    assert_near(shares[2], 0.25, 0.01);
}

#[test]
fn what_a_vmms_other_threads_use_is_its_vms() {
    let mut w = world(1);
    let (vm, a) = busy_vm(&mut w, 1);
    let (_, b) = busy_vm(&mut w, 1);
    let io = w.spawn(Spec::busy().thread_of(w.vm_tgid(vm)));
    w.run(500 * MS);
    let shares = shares(&mut w, 4_000 * MS, &[a[0], io, b[0]]);
    assert_near(shares[0] + shares[1], 0.5, 0.01);
    assert_near(shares[2], 0.5, 0.01);
}

#[test]
fn a_vm_weighs_what_its_cgroup_weighs() {
    let mut w = world(1);
    let heavy = w.new_cgroup(0, 300);
    let (a, b) = (w.new_vm(1), w.new_vm(1));
    let a = w.spawn(Spec::busy().vcpu(a, 0).cgroup(heavy));
    let b = w.spawn(Spec::busy().vcpu(b, 0));
    w.run(500 * MS);
    assert_near(shares(&mut w, 4_000 * MS, &[a, b])[0], 0.75, 0.01);

    w.set_cgroup_weight(heavy, 50);
    w.run(500 * MS);
    assert_near(shares(&mut w, 6_000 * MS, &[a, b])[0], 1.0 / 3.0, 0.01);

    w.move_to_cgroup(a, 0);
    w.run(500 * MS);
    assert_near(shares(&mut w, 4_000 * MS, &[a, b])[0], 0.5, 0.01);
}

#[test]
fn nested_weights_divide_what_their_parent_has() {
    let mut w = world(1);
    let (outer, beside) = (w.new_cgroup(0, 100), w.new_cgroup(0, 100));
    let (greedy, modest) = (w.new_cgroup(outer, 10_000), w.new_cgroup(outer, 100));
    let vm = w.new_vm(1);
    let a = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(greedy));
    let b = w.spawn(Spec::busy().cgroup(modest));
    let c = w.spawn(Spec::busy().cgroup(beside));
    w.run(500 * MS);
    // The child's weight is taken from its sibling's part, not from its parent's neighbour's.
    let shares = shares(&mut w, 10_000 * MS, &[a, b, c]);
    assert_near(shares[0], 0.5 * 100.0 / 101.0, 0.005);
    assert_near(shares[1], 0.5 / 101.0, 0.005);
    assert_near(shares[2], 0.5, 0.005);
}

#[test]
fn weights_hold_on_a_partitioned_host() {
    let mut w = world(2);
    let one = |w: &mut World, weight: u32, cpu: usize| {
        let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(1));
        w.spawn(Spec::busy().vcpu(vm, 0).cgroup(cgroup).on(&[cpu]))
    };
    let (heavy, light) = (one(&mut w, 900, 0), one(&mut w, 100, 0));
    // It is alone on its pCPU, and its virtual time runs away from theirs.
    one(&mut w, 100, 1);
    w.run(1_000 * MS);
    let shares = shares(&mut w, 10_000 * MS, &[heavy, light]);
    assert_near(shares[0], 0.9, 0.01);
    assert_near(shares[1], 0.1, 0.01);
}

#[test]
fn extreme_weights_do_not_overflow() {
    let mut w = world(1);
    let outer = w.new_cgroup(0, 10_000);
    let inner = w.new_cgroup(outer, 10_000);
    let heavy = w.spawn(Spec::busy().weight(10_000).cgroup(inner));
    let light = w.spawn(Spec::busy());
    w.run(200 * MS);
    // The light one gets a slice each time that it has waited for too long.
    let shares = shares(&mut w, 1_000 * MS, &[heavy, light]);
    assert!(shares[0] > 0.85, "the heavy one got {:.3}, the light one {:.3}", shares[0], shares[1]);
}

#[test]
fn a_sleeper_claims_no_more_than_the_bound() {
    let mut w = world(1);
    let sleeper = w.spawn(Spec::on_demand(1_000 * MS));
    w.run(MS);
    w.sleep(sleeper);
    let busy = w.spawn(Spec::busy());
    w.run(2_000 * MS);
    w.wake(sleeper);
    // Of the 2 s it slept it may claim lag_ns, 20 ms: it runs that and one slice at most before it must share.
    let used = used_in(&mut w, 100 * MS, &[sleeper, busy]);
    assert!(
        used[0] >= 50 * MS && used[0] <= 50 * MS + 20 * MS + 12 * MS,
        "the sleeper got {} ms",
        used[0] / MS
    );
}

#[test]
fn a_vm_that_sleeps_claims_no_more_than_the_bound() {
    let mut w = world(1);
    let (_, sleeper) = busy_vm(&mut w, 1);
    let (_, busy) = busy_vm(&mut w, 1);
    introduce(&mut w, &sleeper);
    w.run(200 * MS);
    w.sleep(sleeper[0]);
    w.run(3_000 * MS);
    w.wake(sleeper[0]);
    // It is owed lag_ns of virtual time, 20 ms, and not the 3 s: so much more than the other one, and turns of a slice on either side.
    let used = used_in(&mut w, 400 * MS, &[sleeper[0], busy[0]]);
    assert_near((used[0] as f64 - used[1] as f64) / MS as f64, 20.0, 2.0 * 16.0);
}

#[test]
fn a_vm_that_starts_late_gets_no_credit_for_the_past() {
    for mode in [knob::ORDER_VM, knob::ORDER_TASK] {
        let mut w = world_with(1, order(mode));
        let old = w.spawn(Spec::busy());
        w.run(10_000 * MS);
        let (_, new) = busy_vm(&mut w, 1);
        let shares = shares(&mut w, 1_000 * MS, &[old, new[0]]);
        // A turn or two more or less, on either side.
        assert_near(shares[1], 0.5, 0.07);
    }
}

#[test]
fn a_vms_books_are_exact() {
    let mut w = world(2);
    let (vm, a) = busy_vm(&mut w, 2);
    let (_, b) = busy_vm(&mut w, 3);
    // Until everybody is known to the scheduler.
    w.run(400 * MS);
    let slot = w.slot_of(vm).unwrap();
    let before = w.peek_vm(slot).runtime_ns;
    let busy_before: u64 = w.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    let all = [a.clone(), b].concat();
    // At a tick every runner has just been charged.
    let used = used_in(&mut w, 2_000 * MS, &all);
    assert_eq!(w.peek_vm(slot).runtime_ns - before, used[0] + used[1]);
    let busy: u64 = w.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    assert_eq!(busy - busy_before, used.iter().sum::<u64>());
    assert_eq!(busy - busy_before, 4_000 * MS);
}

#[test]
fn the_lightest_of_many_is_not_starved() {
    // More than starve_ns' worth of slices wait: everybody is overdue, and whoever is most overdue must go first, wherever in the queue.
    for others in [20, 40, 100] {
        let mut w = world(1);
        let light = w.spawn(Spec::busy().weight(1));
        for _ in 0..others {
            w.spawn(Spec::busy());
        }
        w.run(20_000 * MS);
        // It is ahead of its share, so the limit is ten times starve_ns; then a slice of each, to the end of a tick.
        let longest_ms = w.task(light).wait_max_ns / MS;
        assert!(longest_ms <= 1_000 + (others + 1) * 12, "of {others} it waited for {longest_ms} ms");
    }
}

#[test]
fn a_lone_runners_weight_is_known_too() {
    // The light VM's one vCPU has a pCPU for itself at first; its weight decides when the heavy VM's third vCPU gets a part of that.
    let mut w = world(4);
    let vms: Vec<_> = [(1, 51), (1, 50), (3, 127)]
        .map(|(vcpus, weight)| {
            let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(vcpus));
            (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect::<Vec<_>>()
        })
        .to_vec();
    w.run(1_000 * MS);
    let shares = shares(&mut w, 4_000 * MS, &vms.concat());
    // 4 pCPUs * 50 / 228.
    assert_near(shares[1], 0.877, 0.04);
}

#[test]
fn a_light_sleeper_runs_as_soon_as_it_wakes() {
    let mut w = world(1);
    let (_, _) = busy_vm(&mut w, 2);
    let (_, _) = busy_vm(&mut w, 2);
    let light = w.spawn(Spec::cycle(200_000, 9_900_000));
    w.run(500 * MS);
    for _ in 0..100 {
        w.run(10 * MS);
        let task = w.task(light);
        let waits_ns = if task.queue.is_some() { w.now_ns - task.waits_since_ns } else { 0 };
        assert!(waits_ns <= MS, "it waits for {waits_ns} ns already");
    }
    // It used about what it asked for.
    let used = used_in(&mut w, 1_000 * MS, &[light])[0];
    assert!(used >= 18 * MS, "it got {} us in a second", used / 1_000);
}

#[test]
fn whose_turn_has_begun_has_paid_for_no_more_than_it_has_run() {
    for mode in [knob::ORDER_VM, knob::ORDER_TASK] {
        let mut w = world_with(1, order(mode));
        let tasks = [0, 1].map(|_| w.spawn(Spec::busy()));
        while w.is_running(tasks[0]) {
            w.run(MS / 20);
        }
        // It has had its turn, and half a millisecond more than the other.
        w.run(15 * MS + MS / 2);
        w.sleep(tasks[1]);
        w.run(MS / 5);
        w.wake(tasks[1]);
        w.run(MS / 5);
        assert!(w.is_running(tasks[0]), "order {mode}: it lost its pCPU");
    }
}

#[test]
fn one_that_becomes_heavy_does_not_wait_for_what_it_paid_when_it_was_light() {
    for idle in [false, true] {
        let mut w = world(1);
        let cgroup = if idle { w.new_idle_cgroup(0, 100) } else { w.new_cgroup(0, 1) };
        let vm = w.new_vm(1);
        let light = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(cgroup));
        let other = w.spawn(Spec::on_demand(MS));
        introduce(&mut w, &[light]);
        // In the middle of a turn, which costs a hundred times as much of its virtual time.
        w.run(1_003 * MS);
        if idle {
            w.set_cgroup_idle(cgroup, false);
        } else {
            w.set_cgroup_weight(cgroup, 100);
        }
        w.exit(other);
        let other = w.spawn(Spec::busy());
        let shares = shares(&mut w, 1_000 * MS, &[light, other]);
        assert_near(shares[0], 0.5, 0.06);
    }
}

#[test]
fn a_vm_that_is_too_deep_for_an_entity_of_its_own_is_a_task_of_what_it_is_in() {
    let mut w = world(1);
    let mut deep = 0;
    for _ in 0..10 {
        deep = w.new_cgroup(deep, 100);
    }
    let beside = w.new_cgroup(0, 100);
    let old = w.spawn(Spec::busy().cgroup(beside));
    w.run(5_000 * MS);
    let vm = w.new_vm(1);
    let vcpu = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(deep));
    introduce(&mut w, &[vcpu]);
    let shares = shares(&mut w, 2_000 * MS, &[old, vcpu]);
    assert_near(shares[1], 0.5, 0.05);
}

#[test]
fn turns_are_shorter_where_many_wait() {
    let mean_ms = |tasks: usize| {
        let mut w = world(1);
        (0..tasks).for_each(|_| {
            w.spawn(Spec::busy());
        });
        w.run(1_000 * MS);
        let before = w.stats().switches;
        w.run(4_000 * MS);
        4_000.0 / (w.stats().switches - before) as f64
    };
    let (few, many) = (mean_ms(20), mean_ms(65));
    assert_near(many / few, 0.5, 0.05);
}

#[test]
fn who_is_overdue_runs_for_a_moment() {
    // All are: every other turn is a moment.
    let knobs = Knobs { starve_ns: Some(2 * MS), ..Knobs::default() };
    let mut w = world_with(1, knobs);
    let all: Vec<TaskId> = (0..64).map(|_| w.spawn(Spec::busy())).collect();
    w.run(4_000 * MS);
    let switches = |w: &World| all.iter().map(|id| w.task(*id).switches).sum::<u64>();
    let before = switches(&w);
    w.run(4_000 * MS);
    let mean_ms = 4_000.0 / (switches(&w) - before) as f64;
    assert!(mean_ms < 8.0, "a turn lasts {mean_ms:.1} ms on average");
    assert!(w.stats().starved > 0);
}

#[test]
fn who_yields_lets_another_run_even_if_it_comes_first() {
    let mut w = world(1);
    let (heavy, light) = (w.spawn(Spec::busy().weight(10_000)), w.spawn(Spec::busy()));
    for _ in 0..20 {
        w.run(100 * MS);
        until_it_runs(&mut w, heavy);
        w.yield_now(heavy);
        w.settle();
        assert!(w.is_running(light), "at {}", w.now_ns);
    }
    w.exit(light);
    w.run(MS);
    let switches = w.stats().switches;
    w.yield_now(heavy);
    w.settle();
    assert!(w.is_running(heavy));
    assert_eq!(w.stats().switches, switches, "there is nobody to yield to");
}
