// SPDX-License-Identifier: GPL-2.0-only
//! What users, guests and the kernel's own threads can do to those beside them, if they try or by accident: not much.

use cohort_sim::class::ext::Cost;
use cohort_sim::host::NO_QUOTA;

use crate::common::*;
use crate::quotas::gets;
use crate::spec::knob::{BOOST_ANY_MODE, BOOST_MIGRATE, ORDER_TASK, ORDER_VM};
use crate::spec::{Config, Knobs, Spec};
use crate::view::State;
use crate::world::World;

const SECOND: u64 = 1_000 * MS;

/// The kernel puts who exits back on its pCPU, and asks no scheduler that does not want to be: two of them had the pCPU in turn.
#[test]
fn those_that_take_long_to_exit_share_their_pcpu() {
    let mut w = world(1);
    let (_, vm) = busy_vm(&mut w, 1);
    let leave = [0; 2].map(|_| w.spawn(Spec::on_demand(MS)));
    w.run(200 * MS);
    for id in leave {
        w.exit_slowly(id, SECOND);
    }
    let share = gets(&mut w, SECOND, &vm);
    assert!(share > 0.3, "beside two that exit it has {share:.3} of the pCPU");
    w.run(3 * SECOND);
    let longest = w.task(vm[0]).wait_max_ns / MS;
    assert!(longest <= 100, "it waited for {longest} ms");
    assert!(leave.iter().all(|id| w.task(*id).state == State::Dead));
}

/// Whether or not somebody else makes the pCPU choose.
#[test]
fn of_more_that_are_aside_than_one_look_sees_each_is_seen() {
    for (aside, is_busy) in [(1_100, true), (3_000, false)] {
        let mut w = world(1);
        let (many, one) = (w.new_cgroup(0, 100), w.new_cgroup(0, 100));
        w.set_quota(many, 1_000_000, 1_000, 0);
        w.set_quota(one, 100_000, 30_000, 0);
        for _ in 0..aside {
            w.spawn(Spec::busy().cgroup(many));
        }
        if is_busy {
            w.spawn(Spec::busy());
        }
        w.run(50 * MS);
        let task = w.spawn(Spec::busy().cgroup(one));
        w.run(SECOND);
        assert_near(gets(&mut w, 5 * SECOND, &[task]), 0.3, 0.02);
    }
}

/// What it holds is others' to wait for; what it takes is charged all the same.
#[test]
fn a_quota_does_not_hold_up_who_exits() {
    let mut w = world(1);
    let cgroup = w.new_cgroup(0, 100);
    w.set_quota(cgroup, 100_000, 10_000, 0);
    let leaves = w.spawn(Spec::on_demand(MS).cgroup(cgroup));
    let stays = w.spawn(Spec::busy());
    w.run(200 * MS);
    w.exit_slowly(leaves, 100 * MS);
    w.run(300 * MS);
    assert_eq!(w.task(leaves).state, State::Dead);
    assert!(w.task(stays).wait_max_ns <= 40 * MS);
}

#[test]
fn who_writes_a_quota_again_and_again_ends_nobodys_turn() {
    let mut w = world(4);
    let (throttled, other) = (w.new_cgroup(0, 100), w.new_cgroup(0, 100));
    for cpu in 0..4 {
        for _ in 0..2 {
            w.spawn(Spec::busy().on(&[cpu]));
        }
        w.spawn(Spec::busy().on(&[cpu]).cgroup(throttled));
    }
    w.set_quota(throttled, 1_000_000, 1_000, 0);
    w.run(SECOND);
    let mut switches = |cgroup: usize| {
        let before = w.stats().switches;
        for number in 0..10_000 {
            w.set_quota(cgroup, 1_000_000, 1_000 + number % 2, 0);
            w.run(100_000);
        }
        w.stats().switches - before
    };
    // 63 turns a second on each pCPU, and a refill.
    let of_other = switches(other);
    assert!(of_other < 4 * 63 + 60, "{of_other} switches");
    // Each write is a new budget as well, for those that wait for it: they are looked at every 2 ms at most.
    let own = switches(throttled);
    assert!(own < 1_700, "{own} switches");
}

/// A thread of that cgroup uses the quota up elsewhere. Those that begin here one after the other are put aside, and come before nobody: their cgroup is far ahead
/// of its share.
#[test]
fn a_quota_of_a_short_period_ends_nobodys_turn() {
    let mut w = world(2);
    let throttled = w.new_cgroup(0, 1);
    w.spawn(Spec::busy().on(&[0]).cgroup(throttled));
    let others = [0; 2].map(|_| w.spawn(Spec::busy().on(&[1])));
    w.set_quota(throttled, 1_000, 100, 0);
    w.run(SECOND);
    let (mut changes, mut ran) = (0, w.is_running(others[0]));
    for _ in 0..2_000 {
        let aside = w.spawn(Spec::busy().on(&[1]).cgroup(throttled));
        w.run(MS);
        w.exit(aside);
        let runs = w.is_running(others[0]);
        changes += usize::from(runs != ran);
        ran = runs;
    }
    // Turns are of 16 ms.
    assert!(changes < 160, "{changes} times in 2 s another has the pCPU");
}

#[test]
fn kernel_threads_that_follow_one_another_leave_others_something() {
    // Without a moment between two, with one, in long pieces, and one alone.
    let threads = [
        (2, 60_000, 50_000),
        (2, 60_000, 65_000),
        (2, 600_000, 650_000),
        (1, 1_100_000, 50_000),
        (1, 15 * MS, MS),
    ];
    for (count, run_ns, sleep_ns) in threads {
        let mut w = world(1);
        let task = w.spawn(Spec::busy().on(&[0]));
        for _ in 0..count {
            w.spawn(Spec::cycle(run_ns, sleep_ns).kthread().on(&[0]));
        }
        w.run(SECOND);
        let share = gets(&mut w, 10 * SECOND, &[task]);
        assert!(share > 0.3, "beside {count} of {run_ns} ns it has {share:.3} of the pCPU");
        let longest = w.task(task).wait_max_ns / MS;
        assert!(longest <= 100, "it waited for {longest} ms");
    }
}

#[test]
fn who_is_interrupted_all_the_time_is_not_starved() {
    let mut w = world(1);
    let (vm, a) = busy_vm(&mut w, 1);
    busy_vm(&mut w, 1);
    busy_vm(&mut w, 1);
    introduce(&mut w, &a);
    let io = w.spawn(Spec::cycle(50_000, 5 * MS).thread_of(w.vm_tgid(vm)));
    // No piece of a turn is as long as what counts as one.
    w.spawn(Spec::cycle(20_000, 300_000).kthread().on(&[0]));
    w.run(5 * SECOND);
    let longest = w.task(io).wait_max_ns / MS;
    assert!(longest <= 50, "it waited for {longest} ms");
    let starved = w.stats().starved;
    assert!(starved < 10, "{starved} were starved");
}

#[test]
fn a_guest_that_spins_ends_no_turns_where_its_sibling_comes_last() {
    let boost = Some(BOOST_ANY_MODE | BOOST_MIGRATE);
    let mut w = world_with(2, Knobs { boost, ..Knobs::default() });
    let vm = w.new_vm(2);
    let a = [0, 1].map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[id])));
    for _ in 0..2 {
        let other = w.new_vm(1);
        w.spawn(Spec::busy().vcpu(other, 0).on(&[1]));
    }
    w.run(100 * MS);
    for id in a {
        w.set_guest_kernel(id, true);
    }
    w.run(SECOND);
    let before = w.stats();
    for _ in 0..10_000 {
        w.pause_exit(a[0]);
        w.run(100_000);
    }
    let after = w.stats();
    let (exits, switches) = (after.ple - before.ple, after.switches - before.switches);
    assert!(exits > 5_000, "test: {exits} exits");
    assert!(switches < 200, "{switches} switches");
    assert!(after.boost_preempted - before.boost_preempted < 20);
}

/// The kernel's masks have offline pCPUs as well: by their number alone all of these might run everywhere.
#[test]
fn weights_hold_on_a_partitioned_host_of_which_half_is_offline() {
    let mut w = World::new(Config::cpus(4));
    w.cpu_offline(2);
    w.cpu_offline(3);
    let one = |w: &mut World, weight: u32, spec: Spec, cpus: &[usize]| {
        let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(1));
        w.spawn(spec.vcpu(vm, 0).cgroup(cgroup).on(cpus))
    };
    let heavy = one(&mut w, 900, Spec::cycle(20 * MS, MS), &[0, 2]);
    one(&mut w, 100, Spec::busy(), &[0, 2]);
    one(&mut w, 100, Spec::busy(), &[1, 3]);
    w.run(SECOND);
    let share = gets(&mut w, 10 * SECOND, &[heavy]);
    assert!(share > 0.85, "it has {share:.3} of the pCPU");
}

/// As a build in a VM's cgroup, or in a user's: each has less than a turn, and the next one is there when it exits.
#[test]
fn a_chain_of_short_tasks_does_not_starve_whoever_computes_beside_it() {
    for order in [ORDER_VM, ORDER_TASK] {
        let mut w = world_with(1, Knobs { order: Some(order), ..Knobs::default() });
        let cgroup = w.new_cgroup(0, 100);
        let hog = w.spawn(Spec::busy().cgroup(cgroup));
        let mut chain = [0; 2].map(|_| w.spawn(Spec::busy().cgroup(cgroup)));
        w.run(100 * MS);
        let before = w.task(hog).used_ns;
        let mut began = 0;
        for _ in 0..8_000 {
            w.run(MS / 4);
            for id in &mut chain {
                if w.is_running(*id) && w.task(*id).used_ns >= 5 * MS {
                    w.exit(*id);
                    *id = w.spawn(Spec::busy().cgroup(cgroup));
                    began += 1;
                }
            }
        }
        let share = (w.task(hog).used_ns - before) as f64 / (2 * SECOND) as f64;
        assert!(began > 100, "test: {began} have begun");
        assert!(share > 0.28, "order {order}: it has {share:.3} of the pCPU, beside two at a time");
    }
}

/// A user may have been given both files. Each write made all tasks look up their cgroups anew, and those that may not run everywhere each of their pCPUs.
#[test]
fn who_writes_weights_and_quotas_makes_nobody_look_up_its_place() {
    let mut w = world(8);
    for cpu in (0..8).chain(0..8) {
        w.spawn(Spec::busy().on(&[cpu]));
    }
    let cgroup = w.new_cgroup(0, 100);
    // With the first quota of all each does so once.
    w.set_quota(cgroup, 100_000, 50_000, 0);
    w.run(SECOND);
    let mut look_ups = |write: fn(&mut World, usize, u32)| {
        let before = w.costs().total(Cost::Hash);
        for number in 1..=100 {
            write(&mut w, cgroup, number);
            w.run(10 * MS);
        }
        w.costs().total(Cost::Hash) - before
    };
    let found = [
        look_ups(|w, cgroup, number| w.set_cgroup_weight(cgroup, 100 + number)),
        look_ups(|w, cgroup, number| w.set_quota(cgroup, 100_000, 50_000 + u64::from(number), 0)),
        look_ups(|w, cgroup, number| {
            w.set_quota(cgroup, 100_000, if number % 2 == 1 { NO_QUOTA } else { 50_000 }, 0);
        }),
    ];
    // The write itself takes two.
    assert!(found.iter().all(|count| (100..=200).contains(count)), "{found:?} for 100 writes each");
}
