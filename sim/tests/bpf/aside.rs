// SPDX-License-Identifier: GPL-2.0-only
//! Who has used up a quota waits aside, and competes again when he may run.

use cohort_sim::class::ext::Cost;
use cohort_sim::host::NO_QUOTA;

use crate::common::*;
use crate::quotas::{gets, vm_in};
use crate::spec::knob::*;
use crate::spec::{Config, Knobs, Spec};
use crate::world::World;

const SECOND: u64 = 1_000 * MS;

#[test]
fn who_was_put_aside_claims_no_more_than_a_sleeper() {
    let mut w = world(1);
    let (cgroup, limited) = vm_in(&mut w, 0, 1);
    let (_, free) = vm_in(&mut w, 0, 1);
    w.set_quota(cgroup, 1_000_000, 1_000, 0);
    w.run(5 * SECOND);
    w.set_quota(cgroup, 100_000, NO_QUOTA, 0);
    // A claim of 20 ms, and a turn or two.
    let used = used_in(&mut w, 200 * MS, &[limited[0], free[0]]);
    assert!(used[0] <= 138 * MS, "it got {} ms of 200", used[0] / MS);
}

#[test]
fn who_may_run_again_has_the_pcpu_that_idles() {
    let mut w = world(2);
    let (limited, heavy) = (w.new_cgroup(0, 100), w.new_cgroup(0, 10_000));
    w.set_quota(limited, 100_000, 20_000, 0);
    let task = w.spawn(Spec::busy().on(&[0]).cgroup(limited));
    w.run(50 * MS);
    // It has been put aside on a pCPU that is another's from now on, who comes before it for ever. It could go to the other one, which has nothing to do.
    let other = w.spawn(Spec::busy().on(&[0]).cgroup(heavy));
    w.set_affinity(task, &[0, 1]);
    // The period ends in the middle of this, and nobody has waited for too long by its end.
    let used = used_in(&mut w, 100 * MS, &[task, other]);
    assert_near(used[0] as f64 / MS as f64, 20.0, 1.0);
    assert_near(used[1] as f64 / MS as f64, 100.0, 1.0);
}

#[test]
fn a_refill_ends_no_turns_but_where_somebody_of_that_cgroup_is_aside() {
    let mut w = world(4);
    for cpu in 0..4 {
        for _ in 0..2 {
            w.spawn(Spec::busy().on(&[cpu]));
        }
        for _ in 0..4 {
            let cgroup = w.new_cgroup(0, 100);
            w.set_quota(cgroup, 100_000, 1_000, 0);
            w.spawn(Spec::busy().on(&[cpu]).cgroup(cgroup));
            // So that they are not refilled at the same moment.
            w.run(3 * MS);
        }
    }
    w.run(SECOND);
    let before = w.stats().switches;
    w.run(SECOND);
    // Sixteen refills in 100 ms, with a turn each, and 63 turns a second on each pCPU of those that have no quota; some of these are cut in two.
    let switches = w.stats().switches - before;
    assert!(switches < 16 * 10 + 4 * 63 + 80, "{switches} switches");
}

#[test]
fn who_may_run_again_competes_though_its_gang_does_not_let_it_run_yet() {
    for gang in [GANG_STRICT, GANG_PARTIAL, GANG_PROCCO] {
        let mut w = world_with(2, Knobs { gang: Some(gang), ..Knobs::default() });
        let (cgroup, limited) = vm_in(&mut w, 0, 2);
        vm_in(&mut w, 0, 2);
        w.set_quota(cgroup, 100_000, 60_000, 0);
        w.run(SECOND);
        let share = gets(&mut w, 10 * SECOND, &limited);
        assert!((0.55..0.612).contains(&share), "{share:.3} of 0.6 pCPUs with gang {gang}");
    }
}

#[test]
fn who_was_put_aside_where_a_real_time_task_is_now_runs_elsewhere() {
    for sched_switch in [true, false] {
        for is_busy in [true, false] {
            let mut w = World::new(Config { sched_switch, ..Config::cpus(2) });
            let (cgroup, vm) = vm_in(&mut w, 0, 1);
            w.set_quota(cgroup, 100_000, 50_000, 0);
            w.run(MS);
            while w.is_running(vm[0]) {
                w.run(MS);
            }
            let cpu = w.task(vm[0]).cpu;
            w.rt_takes(cpu);
            if is_busy {
                w.spawn(Spec::busy().on(&[1 - cpu]));
            }
            w.run(200 * MS);
            assert_near(gets(&mut w, SECOND, &vm), 0.5, 0.1);
        }
    }
}

#[test]
fn who_was_put_aside_where_real_time_tasks_are_now_runs_elsewhere_however_many_have_come() {
    let mut w = world(3);
    let cgroup = w.new_cgroup(0, 100);
    w.set_quota(cgroup, 100_000, 60_000, 0);
    let tasks = [0, 1].map(|cpu| w.spawn(Spec::busy().on(&[cpu]).cgroup(cgroup)));
    w.run(MS);
    while tasks.iter().any(|id| w.is_running(*id)) {
        w.run(MS);
    }
    for (cpu, task) in tasks.iter().enumerate() {
        w.rt_takes(cpu);
        w.set_affinity(*task, &[cpu, 2]);
    }
    w.run(200 * MS);
    // Both on the third pCPU, at one refill's word.
    let used = used_in(&mut w, SECOND, &tasks);
    assert_near(used.iter().sum::<u64>() as f64 / SECOND as f64, 0.6, 0.05);
    assert!(used.iter().all(|ns| *ns > SECOND / 5), "{used:?}");
}

#[test]
fn who_is_aside_is_not_looked_at_for_every_choice() {
    let waiters = |aside: usize| {
        let mut w = world(1);
        let cgroup = w.new_cgroup(0, 100);
        w.set_quota(cgroup, 1_000_000, 1_000, 0);
        for _ in 0..aside {
            w.spawn(Spec::busy().cgroup(cgroup));
        }
        for _ in 0..4 {
            w.spawn(Spec::cycle(200_000, 100_000));
        }
        w.run(200 * MS);
        let (costs, switches) = (w.costs(), w.stats().switches);
        // The budget is empty all the time.
        w.run(500 * MS);
        let (costs, switches) = (w.costs().since(&costs), w.stats().switches - switches);
        costs.total(Cost::IterNext) as f64 / switches as f64
    };
    let one = waiters(1);
    // The last are more than one look sees.
    for (aside, more) in [(200, 4.0), (1_100, 8.0)] {
        let many = waiters(aside);
        assert!(
            many < one + more,
            "{many:.1} are looked at for a choice if {aside} are aside, {one:.1} if one is"
        );
    }
}

#[test]
fn who_was_put_aside_has_not_waited_for_others() {
    let mut w = world(1);
    let (cgroup, vm) = vm_in(&mut w, 0, 1);
    w.set_quota(cgroup, 500_000, 100_000, 0);
    // It deserves the pCPU less for a while when it may run again.
    let (_, other) = vm_in(&mut w, 0, 1);
    w.run(SECOND);
    let before = w.stats().starved;
    assert_near(gets(&mut w, 10 * SECOND, &vm), 0.2, 0.004);
    assert_eq!(w.stats().starved, before);
    assert_near(gets(&mut w, SECOND, &other), 0.8, 0.05);
}
