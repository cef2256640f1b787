// SPDX-License-Identifier: GPL-2.0-only
//! Moves of waiting tasks between the scheduler's own queues, with schedulers of a few lines in the place of `bpf/`.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

use crate::error::SimError;
use crate::machine::Costs;

use super::dsq::{DSQ_GLOBAL, DSQ_LOCAL};
use super::ffi::{DsqIter, Ops};
use super::kfuncs::*;
use super::small::*;

/// A second queue.
const SECOND: u64 = 8;

extern "C" fn create_both() -> i32 {
    create_shared() + scx_bpf_create_dsq(SECOND, -1)
}

/// Walk the shared queue.
fn for_each(mut f: impl FnMut(&mut DsqIter, Task)) {
    let mut iter = DsqIter::default();
    bpf_iter_scx_dsq_new(&mut iter, SHARED, 0);
    loop {
        let p = bpf_iter_scx_dsq_next(&mut iter);
        if p.is_null() {
            break;
        }
        f(&mut iter, p);
    }
}

fn pid(p: Task) -> i32 {
    // SAFETY: a task of the model's.
    unsafe { (*p).pid }
}

/// The younger a task, the earlier; a slice of 2 ms.
extern "C" fn youngest_first(_cpu: i32, _prev: Task) {
    for_each(|iter, p| {
        scx_bpf_dsq_move_set_slice(iter, 2 * MS);
        scx_bpf_dsq_move_set_vtime(iter, 1_000 - pid(p) as u64);
        assert!(scx_bpf_dsq_move_vtime(iter, p, SECOND, 0));
    });
    assert_eq!(scx_bpf_dsq_nr_queued(SHARED), 0);
    scx_bpf_dsq_move_to_local(SECOND);
}

#[test]
fn tasks_move_into_a_queue_by_virtual_time() {
    static OPS: Ops =
        Ops { enqueue: Some(to_shared), dispatch: Some(youngest_first), init: Some(create_both), ..NONE };
    let mut w = World::new(&OPS, 1, Costs::free());
    w.busy_all(4);
    w.until(9 * MS);
    // 0 comes first, and got its slice when it was alone. Then the youngest; 3, back in the shared queue when its turn ends, comes a dispatch later.
    assert_eq!(w.turns_ms(0), [(0, 0), (2, 3), (4, 2), (6, 3), (8, 2)]);
}

extern "C" fn through_the_second(_cpu: i32, _prev: Task) {
    for_each(|iter, p| {
        // A vtime for a move that goes by arrival is forgotten.
        scx_bpf_dsq_move_set_vtime(iter, 1);
        assert!(scx_bpf_dsq_move(iter, p, SECOND, 0));
        assert!(!scx_bpf_dsq_move(iter, p, SECOND, 0), "it is not there any more");
    });
    scx_bpf_dsq_move_to_local(SECOND);
}

#[test]
fn tasks_move_into_a_queue_by_arrival() {
    static OPS: Ops =
        Ops { enqueue: Some(to_shared), dispatch: Some(through_the_second), init: Some(create_both), ..NONE };
    let mut w = World::new(&OPS, 1, Costs::free());
    w.busy_all(3);
    w.until(13 * MS);
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 1), (6, 2), (9, 0), (12, 1)]);
}

extern "C" fn all_to_global(_cpu: i32, _prev: Task) {
    for_each(|iter, p| assert!(scx_bpf_dsq_move(iter, p, DSQ_GLOBAL, 0)));
}

#[test]
fn tasks_move_into_the_global_queue() {
    static OPS: Ops = Ops { enqueue: Some(to_shared), dispatch: Some(all_to_global), ..NONE };
    let mut w = World::new(&OPS, 1, Costs::free());
    w.busy_all(2);
    w.until(7 * MS);
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 1), (6, 0)]);
}

extern "C" fn by_both(_cpu: i32, _prev: Task) {
    let mut first = true;
    for_each(|iter, p| {
        if std::mem::take(&mut first) {
            scx_bpf_dsq_move_vtime(iter, p, SECOND, 0);
        } else {
            scx_bpf_dsq_move(iter, p, SECOND, 0);
        }
    });
}

extern "C" fn local_by_vtime(_cpu: i32, _prev: Task) {
    for_each(|iter, p| assert!(!scx_bpf_dsq_move_vtime(iter, p, DSQ_LOCAL, 0)));
}

extern "C" fn to_nowhere(_cpu: i32, _prev: Task) {
    for_each(|iter, p| assert!(!scx_bpf_dsq_move(iter, p, 77, 0)));
}

#[test]
fn moves_that_eject_the_scheduler() {
    static BY_BOTH: Ops =
        Ops { enqueue: Some(to_shared), dispatch: Some(by_both), init: Some(create_both), ..NONE };
    static LOCAL: Ops = Ops { enqueue: Some(to_shared), dispatch: Some(local_by_vtime), ..NONE };
    static NOWHERE: Ops = Ops { enqueue: Some(to_shared), dispatch: Some(to_nowhere), ..NONE };
    let cases = [
        (&BY_BOTH, "used both as FIFO and by vtime"),
        (&LOCAL, "vtime ordering for built-in"),
        (&NOWHERE, "non-existent DSQ"),
    ];
    for (ops, expected) in cases {
        let mut w = World::new(ops, 1, Costs::free());
        for _ in 0..3 {
            let task = w.spawn(Default::default(), crate::bodies::Program::Busy);
            w.sim.host.wake(task, None);
        }
        match w.sim.run_until(MS) {
            Err(SimError::Refused { reason, .. }) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
}
