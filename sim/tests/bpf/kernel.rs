// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel may do to the scheduler at any time: take pCPUs, change quotas, remove groups, tell different times.

use cohort_sim::class::ext::{Cost, OpKind};
use cohort_sim::host::{Bandwidth, NO_QUOTA};

use crate::common::*;
use crate::spec::{Config, Spec};
use crate::world::World;

#[test]
fn books_are_right_while_a_real_time_task_comes_and_goes() {
    let mut w = world(2);
    let (_, vcpus) = busy_vm(&mut w, 3);
    let host = w.spawn(Spec::cycle(2 * MS, MS));
    for round in 0..20 {
        w.run(3 * MS + round * 100_000);
        w.rt_takes((round % 2) as usize);
        audit(&mut w);
        w.run(MS);
        audit(&mut w);
        w.rt_leaves((round % 2) as usize);
        assert_work_conserving(&mut w);
    }
    let used = used_in(&mut w, 400 * MS, &[vcpus, vec![host]].concat());
    assert!(used.iter().all(|ns| *ns > 20 * MS), "{used:?}");
}

#[test]
fn a_pcpu_that_is_taken_runs_nobody_and_the_others_go_on() {
    let mut w = world(2);
    let tasks: Vec<_> = (0..4).map(|_| w.spawn(Spec::busy())).collect();
    w.run(50 * MS);
    w.rt_takes(1);
    let used = used_in(&mut w, 100 * MS, &tasks);
    assert_eq!(used.iter().sum::<u64>(), 100 * MS);
    assert!(w.cpus[1].taken && w.cpus[1].curr.is_none());
    w.rt_leaves(1);
    let used = used_in(&mut w, 100 * MS, &tasks);
    assert_eq!(used.iter().sum::<u64>(), 200 * MS);
}

#[test]
fn groups_have_quotas_and_go() {
    let mut w = world(1);
    let limited = Bandwidth { period_us: 50_000, quota_us: 25_000, burst_us: 0 };
    let slice = w.new_cgroup(0, 300);
    let inner = w.new_limited_cgroup(slice, 100, limited);
    w.set_quota(slice, 100_000, 40_000, 10_000);
    w.set_quota(slice, 100_000, NO_QUOTA, 0);
    w.set_cgroup_idle(slice, true);
    let task = w.spawn(Spec::busy().cgroup(inner));
    w.run(10 * MS);
    assert!(!w.remove_cgroup(inner) && !w.remove_cgroup(slice), "somebody is in it");
    w.move_to_cgroup(task, 0);
    assert!(!w.remove_cgroup(slice), "a group is in it");
    assert!(w.remove_cgroup(inner) && w.remove_cgroup(slice));
    assert!(!w.remove_cgroup(slice) && !w.remove_cgroup(0));
    w.run(10 * MS);
    audit(&mut w);
}

#[test]
fn clocks_that_differ_stop_nothing() {
    let mut w = World::new(Config { skew_ns: vec![0, 900_000, -900_000], ..Config::cpus(3) });
    let tasks: Vec<_> = (0..7).map(|_| w.spawn(Spec::busy())).collect();
    w.run(10 * MS);
    let used = used_in(&mut w, 500 * MS, &tasks);
    assert_eq!(used.iter().sum::<u64>(), 1_500 * MS);
    assert!(used.iter().all(|ns| *ns > 100 * MS), "{used:?}");
}

#[test]
fn what_a_decision_costs_is_counted() {
    let mut w = world(2);
    busy_vm(&mut w, 4);
    w.run(100 * MS);
    let before = w.costs();
    w.run(100 * MS);
    let costs = w.costs().since(&before);
    assert!(costs.calls(OpKind::Dispatch) > 5 && costs.calls(OpKind::Running) > 5);
    assert!(costs.mean(OpKind::Dispatch, Cost::IterNext) > 1.0);
    assert!(costs.of(OpKind::Running, Cost::Array) > 0 && costs.of(OpKind::Running, Cost::Storage) > 0);
    assert_eq!(costs.of(OpKind::Running, Cost::DsqMove), 0);
    assert_eq!(costs.calls(OpKind::CgroupInit), 0);
    let calls = costs.total(Cost::Calls);
    // Looking from outside costs nothing.
    w.stats();
    assert_eq!(w.costs().since(&before).total(Cost::Calls), calls);
}

#[test]
fn who_is_woken_by_one_that_says_it_will_sleep_has_an_idle_pcpu() {
    let mut w = World::new(Config { wakes_sync: true, ..Config::cpus(3) });
    let woken = w.spawn(Spec::on_demand(MS));
    w.run(10 * MS);
    let there = w.task(woken).cpu;
    let waker = w.spawn(Spec::busy().on(&[there]));
    until_it_runs(&mut w, waker);
    w.wake(woken);
    w.settle();
    assert!(w.is_running(woken) && w.is_running(waker));
    assert_ne!(w.task(woken).cpu, there);
}

#[test]
fn who_waits_while_its_affinity_is_changed_is_overdue_all_the_same() {
    let mut w = world(1);
    let (light, heavy) = (w.new_cgroup(0, 1), w.new_cgroup(0, 10_000));
    let vm = w.new_vm(1);
    let waiter = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(light));
    w.spawn(Spec::busy().cgroup(heavy));
    introduce(&mut w, &[waiter]);
    w.run(500 * MS);
    for _ in 0..100 {
        w.set_affinity(waiter, &[0]);
        w.run(50 * MS);
    }
    // A turn each time it is overdue, after ten times starve_ns.
    let turns = w.task(waiter).switches;
    assert!((5..=7).contains(&turns), "{turns}");
    audit(&mut w);
}
