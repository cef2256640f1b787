// SPDX-License-Identifier: GPL-2.0-only
//! Near pCPUs come before those of another cache or node, and what is to be gained far away must be more.

use crate::common::*;
use crate::spec::{knob, Config, Knobs, Spec};
use crate::view::Queue;
use crate::world::{TaskId, World};

/// Two pCPUs: threads of a core, cores of a cache, caches of a node, nodes.
fn pairs() -> [Config; 4] {
    let flat = Config::cpus(2);
    [
        Config { threads_per_core: 2, ..flat.clone() },
        flat.clone(),
        Config { cores_per_cache: 1, ..flat.clone() },
        Config { sockets: 2, ..flat },
    ]
}

/// Four pCPUs, of which 0 and 1 are near.
fn two_and_two(sockets: usize, cores_per_cache: usize) -> Config {
    Config { sockets, cores_per_cache, ..Config::cpus(4) }
}

/// Tasks stay where they are until somebody takes them.
fn lazy(config: Config) -> World {
    let knobs =
        Knobs { placement: Some(knob::PLACEMENT_ANY), slice_ns: Some(2 * MS), ..config.knobs.clone() };
    World::new(Config { knobs, ..config })
}

fn waits_on(w: &World, id: TaskId) -> usize {
    match w.task(id).queue {
        Some(Queue::User(dsq)) => dsq as usize,
        queue => panic!("test: it is to wait, and is in {queue:?}"),
    }
}

#[test]
fn an_idle_pcpu_takes_one_that_is_near_before_more_that_are_far() {
    for (config, from) in [(two_and_two(1, 0), 2), (two_and_two(1, 2), 1), (two_and_two(2, 0), 1)] {
        let shape = format!("{config:?}");
        let mut w = lazy(config);
        // Two on pCPU 1, four on pCPU 2; pCPU 3 is nobody's affair.
        let pinned: Vec<_> = [1, 1, 2, 2, 2, 2].map(|cpu| w.spawn(Spec::busy().on(&[cpu]))).to_vec();
        let last = w.spawn(Spec::busy().on(&[0]));
        w.spawn(Spec::busy().on(&[3]));
        w.run(20 * MS);
        for id in &pinned {
            w.set_affinity(*id, &[0, 1, 2, 3]);
        }
        w.settle();
        w.sleep(last);
        w.settle();
        let came = pinned.iter().position(|id| w.is_running(*id) && w.task(*id).cpu == 0);
        let came = came.unwrap_or_else(|| panic!("pCPU 0 idles: {shape}"));
        assert_eq!(if came < 2 { 1 } else { 2 }, from, "{shape}");
    }
}

#[test]
fn a_busy_pcpu_takes_who_is_far_only_if_he_deserves_it_more() {
    let mut took = Vec::new();
    for config in pairs() {
        let mut w = lazy(config);
        let runner = w.spawn(Spec::busy().on(&[0]));
        w.spawn(Spec::busy().weight(10_000).on(&[1]));
        let waiter = w.spawn(Spec::busy().on(&[1]));
        w.run(MS);
        w.sleep(waiter);
        while w.is_running(waiter) || w.task(waiter).queue.is_some() {
            w.run(MS);
        }
        w.set_affinity(waiter, &[0, 1]);
        // Whoever has pCPU 1 deserves it for as long as this lasts, and pCPU 0's runner loses a little more all the time.
        let level = w.peek_task(runner).vtime;
        w.set_vtime(waiter, level + 2 * MS);
        w.wake(waiter);
        let start_ns = w.now_ns;
        while w.task(waiter).cpu != 0 || !w.is_running(waiter) {
            w.run(MS / 10);
            assert!(w.now_ns < start_ns + 200 * MS, "it is not pulled");
        }
        took.push((w.now_ns - start_ns) / MS);
    }
    // Three turns of 2 ms more for each step.
    for (nearer, farther) in took.iter().zip(&took[1..]) {
        assert!((4..=8).contains(&(farther - nearer)), "pulled after {took:?} ms");
    }
}

/// A task of which nobody is behind wakes, with `waiters` in the queue where it was and none on the other pCPU: where does it wait?
fn wakes_on(config: Config, waiters: usize) -> usize {
    let mut w = World::new(config);
    for _ in 0..=waiters {
        w.spawn(Spec::busy().on(&[0]));
    }
    w.spawn(Spec::busy().on(&[1]));
    let task = w.spawn(Spec::busy().on(&[0]));
    w.run(50 * MS);
    w.sleep(task);
    while w.is_running(task) || w.task(task).queue.is_some() {
        w.run(MS);
    }
    // It has had so much that it preempts nobody.
    let ahead = w.peek_task(task).vtime + 10_000 * MS;
    w.set_vtime(task, ahead);
    w.set_affinity(task, &[0, 1]);
    w.wake(task);
    waits_on(&w, task)
}

#[test]
fn a_waiter_more_is_no_reason_to_leave_a_cache_and_four_none_to_leave_a_node() {
    for (config, stays) in pairs().into_iter().zip([0, 0, 1, 4]) {
        let shape = format!("{config:?}");
        assert_eq!(wakes_on(config.clone(), stays), 0, "with {stays} waiters it leaves: {shape}");
        assert_eq!(wakes_on(config, stays + 1), 1, "with {} waiters it stays: {shape}", stays + 1);
    }
}
