// SPDX-License-Identifier: GPL-2.0-only
//! Who yields (sched_yield()) leaves its pCPU to others, and may claim no more for that than one that sleeps.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

fn world_of(cpus: usize, order: u32) -> World {
    world_with(cpus, Knobs { order: Some(order), ..Knobs::default() })
}

/// So long it yields whenever it has had its pCPU for a moment.
fn yields_for(w: &mut World, id: TaskId, ms: u64) {
    for _ in 0..ms {
        w.run(MS);
        w.yield_now(id);
    }
}

/// One that is to yield, and one that computes beside it.
type Scene = fn(&mut World) -> [TaskId; 2];

fn two_tasks(w: &mut World) -> [TaskId; 2] {
    [0; 2].map(|_| w.spawn(Spec::busy()))
}

fn two_of_a_cgroup(w: &mut World) -> [TaskId; 2] {
    let cgroup = w.new_cgroup(0, 100);
    [cgroup; 2].map(|cgroup| w.spawn(Spec::busy().cgroup(cgroup)))
}

fn cgroups_of_which_one_is_lighter(w: &mut World) -> [TaskId; 2] {
    let cgroups = [100, 50].map(|weight| w.new_cgroup(0, weight));
    cgroups.map(|cgroup| w.spawn(Spec::busy().cgroup(cgroup)))
}

fn cgroups_of_which_one_is_deeper(w: &mut World) -> [TaskId; 2] {
    let outer = w.new_cgroup(0, 100);
    let cgroups = [w.new_cgroup(outer, 100), w.new_cgroup(0, 100)];
    cgroups.map(|cgroup| w.spawn(Spec::busy().cgroup(cgroup)))
}

fn two_vms(w: &mut World) -> [TaskId; 2] {
    [0; 2].map(|_| busy_vm(w, 1).1[0])
}

fn a_vmms_thread_beside_another_vm(w: &mut World) -> [TaskId; 2] {
    let vm = w.new_vm(1);
    w.spawn(Spec::on_demand(MS).vcpu(vm, 0));
    w.run(10 * MS);
    let io = w.spawn(Spec::busy().thread_of(w.vm_tgid(vm)));
    [io, busy_vm(w, 1).1[0]]
}

/// It had all that it left at once, when it began to compute: more than a second.
#[test]
fn who_yields_saves_up_no_more_than_who_sleeps() {
    let scenes: [Scene; 6] = [
        two_tasks,
        two_of_a_cgroup,
        cgroups_of_which_one_is_lighter,
        cgroups_of_which_one_is_deeper,
        two_vms,
        a_vmms_thread_beside_another_vm,
    ];
    for order in [knob::ORDER_VM, knob::ORDER_TASK, knob::ORDER_SBCO] {
        for (number, scene) in scenes.iter().enumerate() {
            let mut w = world_of(1, order);
            let [yields, computes] = scene(&mut w);
            yields_for(&mut w, yields, 3_000);
            let used_ms = w.task(computes).used_ns / MS;
            assert!(used_ms > 2_500, "test: order {order}, scene {number}: {used_ms} ms were left to it");
            w.run(2_000 * MS);
            let longest_ms = w.task(computes).wait_max_ns / MS;
            // What one that sleeps may claim, 20 ms, and a turn or two on either side.
            assert!(longest_ms <= 100, "order {order}, scene {number}: it waited for {longest_ms} ms");
            audit(&mut w);
        }
    }
}

/// Its cgroup wants a pCPU all the time where it does not yield.
#[test]
fn who_yields_gives_away_nothing_of_its_cgroups_others() {
    for order in [knob::ORDER_VM, knob::ORDER_TASK] {
        let mut w = world_of(2, order);
        let cgroup = w.new_cgroup(0, 100);
        let [yields, other] = [0, 1].map(|cpu| w.spawn(Spec::busy().on(&[cpu]).cgroup(cgroup)));
        for cpu in 0..2 {
            w.spawn(Spec::busy().on(&[cpu]));
        }
        yields_for(&mut w, yields, 1_000);
        let before = w.task(other).used_ns;
        yields_for(&mut w, yields, 4_000);
        let share = (w.task(other).used_ns - before) as f64 / (4_000 * MS) as f64;
        assert!(share > 0.4, "order {order}: it has {share:.3} of its pCPU, beside one of the same weight");
    }
}

/// A turn puts that one 1.6 s of virtual time ahead.
#[test]
fn one_yield_beside_a_light_task_costs_little() {
    let mut w = world(1);
    let [yields, sleeps] = two_tasks(&mut w);
    let light = w.spawn(Spec::busy().weight(1));
    w.run(500 * MS);
    until_it_runs(&mut w, sleeps);
    w.sleep(sleeps);
    w.run(MS);
    assert!(w.is_running(yields), "test");
    w.yield_now(yields);
    w.settle();
    assert!(w.is_running(light), "test");
    w.wake(sleeps);
    w.run(2_000 * MS);
    let longest_ms = w.task(yields).wait_max_ns / MS;
    assert!(longest_ms <= 200, "it waited for {longest_ms} ms");
}
