// SPDX-License-Identifier: GPL-2.0-only
//! What hosts and users do to a scheduler: clocks that differ, crowds, kernel threads, hogs.

use crate::boost::{boosted, sibling_waits_elsewhere};
use crate::common::*;
use crate::spec::knob::*;
use crate::spec::{Config, Knobs, Spec};
use crate::world::{TaskId, World};

const SECOND: u64 = 1_000 * MS;

/// A VM in a cgroup of that weight, its vCPUs busy on these pCPUs.
fn vm_on(w: &mut World, weight: u32, vcpus: usize, cpus: &[usize]) -> Vec<TaskId> {
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(vcpus));
    (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup).on(cpus))).collect()
}

fn longest_wait_ms(w: &World, tasks: &[TaskId]) -> u64 {
    tasks.iter().map(|id| w.task(*id).wait_max_ns / MS).max().unwrap_or(0)
}

#[test]
fn nobody_starves_because_clocks_differ() {
    for skew in [3, 30, 300].map(|ms| ms * MS as i64) {
        for knobs in [Knobs::default(), Knobs { gang: Some(GANG_ALIGNED), ..Knobs::default() }] {
            let mut w = World::new(Config { skew_ns: vec![0, skew, -skew], knobs, ..Config::cpus(3) });
            let vms: Vec<_> = [300, 100, 100].map(|weight| vm_on(&mut w, weight, 3, &[0, 1, 2])).to_vec();
            w.run(SECOND);
            let before = w.stats().starved;
            let shares = shares(&mut w, 10 * SECOND, &vms.concat());
            // What a clock is ahead and a wait of some turns may be more than the limit on waiting; shares hold all the same.
            assert!(skew > 3 * MS as i64 || w.stats().starved == before, "skew {skew}");
            for (vm, due) in [1.8, 0.6, 0.6].into_iter().enumerate() {
                assert_near(shares[3 * vm..3 * vm + 3].iter().sum(), due, 0.03);
            }
        }
    }
}

#[test]
fn woken_tasks_go_between_pcpus_whose_clocks_differ() {
    let skew_ns = vec![0, 300 * MS as i64, -300 * MS as i64, 5 * MS as i64];
    let mut w = World::new(Config { skew_ns, ..Config::cpus(4) });
    let busy: Vec<_> = (0..2).flat_map(|_| busy_vm(&mut w, 4).1).collect();
    let sleepers: Vec<_> =
        (0..8).map(|i| w.spawn(Spec::cycle(300_000 + i * 70_000, 3 * MS + i * 130_000))).collect();
    w.run(SECOND);
    let used = used_in(&mut w, 5 * SECOND, &busy);
    let (a, b): (u64, u64) = (used[..4].iter().sum(), used[4..].iter().sum());
    assert_near(a as f64 / b as f64, 1.0, 0.02);
    let longest = longest_wait_ms(&w, &sleepers);
    assert!(longest <= 40, "a light sleeper waited for {longest} ms");
}

#[test]
fn a_runner_whose_turn_is_over_by_the_wakers_clock_does_not_go_before_all() {
    // Beyond the end of every turn there; but not by so much that the limit on waiting decides.
    for ahead in [20, 40].map(|ms| ms * MS as i64) {
        let skew_ns = vec![0, ahead];
        let mut w = World::new(Config { skew_ns, ..Config::cpus(2) });
        // Not of the usual weight: what is scaled does not wrap back.
        let hogs: Vec<_> = [0, 1].map(|cpu| vm_on(&mut w, 300, 1, &[cpu])).concat();
        let sleepers: Vec<_> = (0..4)
            .map(|i| {
                let cgroup = w.new_cgroup(0, 70);
                w.spawn(Spec::cycle(100_000 + i * 30_000, 7 * MS + i * 130_000).cgroup(cgroup))
            })
            .collect();
        w.run(SECOND);
        used_in(&mut w, 5 * SECOND, &hogs);
        let longest = longest_wait_ms(&w, &sleepers);
        // A turn, and what is left of one.
        assert!(longest <= 20, "a light sleeper waited for {longest} ms");
    }
}

#[test]
fn in_a_long_queue_the_light_ones_run_too() {
    let mut w = world(1);
    let normal: Vec<_> = (0..40).map(|_| w.spawn(Spec::busy())).collect();
    let light: Vec<_> = (0..6).map(|_| w.spawn(Spec::busy().weight(1))).collect();
    // A user's own cgroup with many makes no difference.
    let cgroup = w.new_cgroup(0, 100);
    let many: Vec<_> = (0..40).map(|_| w.spawn(Spec::busy().cgroup(cgroup))).collect();
    w.run(60 * SECOND);
    audit(&mut w);
    for who in [&normal, &light, &many] {
        let longest = longest_wait_ms(&w, who);
        assert!(longest <= 15_000, "one waited for {longest} ms");
    }
}

#[test]
fn a_thousand_on_one_pcpu_all_run() {
    let mut w = world(1);
    let tasks: Vec<_> =
        (0..1_000).map(|i| w.spawn(Spec::busy().weight(if i % 5 == 0 { 1 } else { 100 }))).collect();
    w.run(60 * SECOND);
    audit(&mut w);
    let longest = longest_wait_ms(&w, &tasks);
    assert!(longest <= 25_000, "one waited for {longest} ms");
    assert!(tasks.iter().all(|id| w.task(*id).used_ns > 0));
}

#[test]
fn a_hog_that_was_alone_owes_nothing_and_is_owed_nothing() {
    // Of a host task, of a cgroup and of a VM.
    type Make = fn(&mut World) -> TaskId;
    let task: Make = |w| w.spawn(Spec::busy());
    let cgroup: Make = |w| {
        let cgroup = w.new_cgroup(0, 100);
        w.spawn(Spec::busy().cgroup(cgroup))
    };
    let vm: Make = |w| busy_vm(w, 1).1[0];
    for old in [task, cgroup, vm] {
        for new in [task, cgroup, vm] {
            let mut w = world(1);
            let old = old(&mut w);
            w.run(10 * SECOND);
            let new = new(&mut w);
            // A turn or two, and what a sleeper may claim, in either direction.
            let used = used_in(&mut w, SECOND, &[old, new]);
            let ahead_ms = (used[0] as i64 - used[1] as i64) / MS as i64;
            assert!(ahead_ms.abs() <= 60, "the old one is {ahead_ms} ms ahead");
        }
    }
}

#[test]
fn a_kernel_thread_ends_no_turn() {
    let switches = |kthread: bool| {
        let mut w = world(1);
        let vms: Vec<_> = (0..2).flat_map(|_| busy_vm(&mut w, 1).1).collect();
        if kthread {
            w.spawn(Spec::cycle(20_000, 2 * MS).kthread().on(&[0]));
        }
        w.run(SECOND);
        let mut turns = 0;
        let mut last = None;
        for _ in 0..20_000 {
            w.run(100_000);
            let runs = vms.iter().find(|id| w.is_running(**id));
            if runs.is_some() && runs != last {
                turns += 1;
                last = runs;
            }
        }
        let shares = shares(&mut w, 2 * SECOND, &vms);
        assert_near(shares[0] / (shares[0] + shares[1]), 0.5, 0.02);
        (turns, w.stats().resumed)
    };
    let (alone, resumed) = switches(false);
    assert_eq!(resumed, 0);
    let (interrupted, resumed) = switches(true);
    assert!(resumed > 500, "{resumed} turns went on");
    // A VM that is equal to the other may take two turns at once; no turn is less than a slice.
    assert!(
        interrupted <= 2 * SECOND / (16 * MS) + 4,
        "{interrupted} turns of two VMs, without the thread {alone}"
    );
}

#[test]
fn a_kernel_thread_that_comes_upon_another_ends_no_turn_either() {
    let mut w = world(1);
    let vms: Vec<_> = (0..2).flat_map(|_| busy_vm(&mut w, 1).1).collect();
    let kthreads = [0, 1].map(|_| w.spawn(Spec::on_demand(200_000).kthread().on(&[0])));
    w.run(SECOND);
    let (mut rounds, mut goes_on) = (0, 0);
    for round in 0..40 {
        w.run(23 * MS + round * MS / 3);
        let Some(runs) = vms.iter().copied().find(|id| w.is_running(*id)) else { continue };
        w.wake(kthreads[0]);
        w.run(MS / 10);
        w.wake(kthreads[1]);
        w.run(MS / 2);
        rounds += 1;
        goes_on += u32::from(w.is_running(runs));
    }
    // Some turns were nearly over.
    assert!(rounds >= 35 && goes_on * 10 >= rounds * 8, "{goes_on} of {rounds} turns went on");
    let longest_us = kthreads.map(|id| w.task(id).wait_max_ns / 1_000);
    assert!(longest_us.iter().all(|us| *us <= 200), "they waited for {longest_us:?} us");
}

#[test]
fn a_boost_and_a_turn_end_on_time() {
    let knobs = Knobs { boost: Some(BOOST_ANY_MODE), ..Knobs::default() };
    let mut w = World::new(Config { knobs, ..Config::cpus(1) });
    let (_, vcpus) = busy_vm(&mut w, 2);
    let (_, rival) = busy_vm(&mut w, 1);
    w.run(400 * MS);
    // One of the VM's runs, and turns are 16 ms though ticks are 4.
    let (mut granted, mut ended) = (0, 0);
    for _ in 0..40 {
        while w.is_running(rival[0]) {
            w.run(100_000);
        }
        w.run(MS);
        let Some(spinner) = vcpus.iter().copied().find(|id| w.is_running(*id)) else { continue };
        let before = w.stats().boost_granted;
        w.set_guest_kernel(spinner, true);
        w.pause_exit(spinner);
        let other = if spinner == vcpus[0] { vcpus[1] } else { vcpus[0] };
        if w.stats().boost_granted > before && w.is_running(other) {
            granted += 1;
            let used = w.task(other).used_ns;
            w.run(500_000);
            // It may go on if its rank says so; most do not deserve that.
            ended += usize::from(!w.is_running(other));
            let ran_us = (w.task(other).used_ns - used) / 1_000;
            assert!((390..=500).contains(&ran_us), "a boost lasted {ran_us} us");
        }
        w.run(30 * MS);
    }
    assert!(granted >= 5 && ended * 2 >= granted, "of {granted} boosts {ended} ended in 500 us");
}

#[test]
fn a_turn_ends_on_time_for_one_that_wakes_in_the_middle_of_it() {
    let knobs = Knobs { slice_ns: Some(6 * MS), ..Knobs::default() };
    let mut w = World::new(Config { knobs, ..Config::cpus(1) });
    w.spawn(Spec::busy());
    // Too little to preempt for. Ticks are 4 ms.
    w.run(MS / 2);
    let newcomer = w.spawn(Spec::busy());
    w.run(5 * MS);
    assert!(!w.is_running(newcomer), "test");
    w.run(MS);
    assert!(w.is_running(newcomer), "after 6.5 ms");
}

/// How long each turn lasted, in us, while these take turns on pCPU 0.
fn turns_us(w: &mut World, ns: u64) -> Vec<u64> {
    let (mut turns, mut since, mut who) = (Vec::new(), w.now_ns, w.cpus[0].curr);
    for _ in 0..ns / 50_000 {
        w.run(50_000);
        if w.cpus[0].curr != who {
            turns.push((w.now_ns - since) / 1_000);
            (since, who) = (w.now_ns, w.cpus[0].curr);
        }
    }
    turns
}

#[test]
fn turns_end_between_ticks() {
    // A slice that is no multiple of the tick.
    for (slice_us, tick_ms) in [(16_000, 10), (6_000, 4), (1_000, 4)] {
        let knobs = Knobs { slice_ns: Some(slice_us * 1_000), ..Knobs::default() };
        let mut w = World::new(Config { knobs, tick_ns: tick_ms * MS, ..Config::cpus(1) });
        for _ in 0..3 {
            busy_vm(&mut w, 1);
        }
        w.run(SECOND);
        let turns = turns_us(&mut w, 2 * SECOND);
        let on_time =
            turns[1..].iter().filter(|us| us.abs_diff(slice_us) <= 100 || **us % slice_us <= 100).count();
        assert!(
            on_time * 10 >= turns.len() * 9,
            "turns of {slice_us} us lasted {:?}",
            &turns[..turns.len().min(20)]
        );
    }
}

#[test]
fn back_off_is_asked_before_the_search() {
    let mut w = boosted(2, BOOST_ANY_MODE);
    let (spinner, waiter, other) = sibling_waits_elsewhere(&mut w);
    // The sibling is asked to run where it waits, so the spinner goes on.
    w.pause_exit(spinner);
    w.pause_exit(spinner);
    let stats = w.stats();
    assert_eq!((stats.ple, stats.boost_chosen, stats.ple_backoff), (2, 1, 1));
    // Nobody is left to boost, as a search would find.
    w.sleep(other);
    w.settle();
    assert!(w.is_running(spinner) && w.is_running(waiter));
    w.pause_exit(spinner);
    assert_eq!((w.stats().ple_backoff, w.stats().ple_no_sibling), (2, 0));
}

#[test]
fn a_boost_that_affinity_forbids_here_is_had_where_the_sibling_waits() {
    let mut w = boosted(2, BOOST_ANY_MODE | BOOST_MIGRATE | BOOST_UNFAIR);
    let (spinner, waiter, other) = sibling_waits_elsewhere(&mut w);
    let there = w.task(other).cpu;
    w.set_affinity(waiter, &[there]);
    w.settle();
    w.pause_exit(spinner);
    w.settle();
    assert!(w.is_running(waiter) && w.task(waiter).cpu == there);
    let stats = w.stats();
    assert_eq!((stats.boost_granted, stats.boost_migrated, stats.boost_missed), (1, 0, 0));
}

#[test]
fn a_wish_that_comes_too_late_is_not_granted() {
    for (kept_ms, granted) in [(1, 1), (9, 0)] {
        let mut w = boosted(2, BOOST_ANY_MODE | BOOST_UNFAIR);
        let (spinner, waiter, other) = sibling_waits_elsewhere(&mut w);
        let there = w.task(other).cpu;
        // Nobody can go elsewhere.
        w.set_affinity(waiter, &[there]);
        w.set_affinity(other, &[there]);
        w.settle();
        w.pause_exit(spinner);
        // Before the pCPU has heard of it, a real-time task has it.
        w.rt_takes(there);
        w.run(kept_ms * MS);
        w.rt_leaves(there);
        w.settle();
        let stats = w.stats();
        assert_eq!((stats.boost_granted, stats.boost_missed), (granted, 1 - granted), "after {kept_ms} ms");
    }
}

#[test]
fn an_iothread_of_a_vm_ahead_of_its_share_does_not_wait_long() {
    let mut w = world(1);
    let (vm, a) = busy_vm(&mut w, 1);
    let (_, b) = busy_vm(&mut w, 1);
    let (_, c) = busy_vm(&mut w, 1);
    introduce(&mut w, &a);
    let io = w.spawn(Spec::cycle(50_000, 5 * MS).thread_of(w.vm_tgid(vm)));
    w.run(5 * SECOND);
    let longest_us = w.task(io).wait_max_ns / 1_000;
    assert!(longest_us <= 50_000, "it waited for {longest_us} us");
    // It is lent: the VM has what it is due, together.
    let used = used_in(&mut w, 10 * SECOND, &[a[0], io, b[0], c[0]]);
    assert_near((used[0] + used[1]) as f64 / (10 * SECOND) as f64, 1.0 / 3.0, 0.01);
    assert_near(used[2] as f64 / (10 * SECOND) as f64, 1.0 / 3.0, 0.01);
}

#[test]
fn who_is_flexible_makes_room_for_who_is_pinned() {
    let mut w = world(2);
    let company = w.spawn(Spec::busy().on(&[1]));
    let pinned = w.spawn(Spec::busy().on(&[0]));
    let heavy = w.spawn(Spec::busy().weight(10_000));
    until_it_runs(&mut w, heavy);
    w.set_affinity(heavy, &[0]);
    w.run(200 * MS);
    w.set_affinity(heavy, &[0, 1]);
    while !w.is_running(heavy) || w.task(heavy).cpu != 0 {
        w.run(MS);
    }
    w.sleep(company);
    while w.task(company).state != crate::view::State::Asleep {
        w.run(MS);
    }
    w.run(5 * MS);
    // It deserves its pCPU more, and loses nothing by going to the idle one.
    assert_eq!(used_in(&mut w, 500 * MS, &[pinned, heavy]), [500 * MS, 500 * MS]);
}

#[test]
fn who_is_flexible_makes_room_where_it_takes_less() {
    let mut w = world(2);
    let one = |w: &mut World, weight: u32, cpus: &[usize]| vm_on(w, weight, 1, cpus)[0];
    let (a, b, c) = (one(&mut w, 100, &[0]), one(&mut w, 300, &[0, 1]), one(&mut w, 100, &[1]));
    w.run(SECOND);
    let shares = shares(&mut w, 10 * SECOND, &[a, b, c]);
    assert_near(shares[1], 1.0, 0.02);
    assert_near(shares[0], 0.5, 0.02);
    assert_near(shares[2], 0.5, 0.02);
}

#[test]
fn numbers_are_taken_again() {
    // More VMs than there are numbers for VMs, blocks of vCPUs and entities, one after the other.
    let mut w = world(1);
    for vm in 0..8_300 {
        let (_, vcpus) = busy_vm(&mut w, 1);
        w.run(4 * MS);
        let known = w.peek_task(vcpus[0]);
        assert!(known.vcpu == 0 && known.leaf != 0, "VM {vm} is none: {known:?}");
        w.exit(vcpus[0]);
        w.run(MS);
    }
}
