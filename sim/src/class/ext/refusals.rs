// SPDX-License-Identifier: GPL-2.0-only
//! The model refuses what the kernel refuses: a scheduler that did these things would be ejected.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

use crate::bodies::{Program, Simple};
use crate::class::AnyClass;
use crate::cpuset::CpuSet;
use crate::error::SimError;
use crate::host::TaskSpec;
use crate::ids::{CpuId, TaskId};
use crate::machine::MachineConfig;
use crate::sim::Simulation;
use crate::Host;

use super::dsq::{DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_PRIQ};
use super::ffi::{DsqIter, TaskStruct};
use super::kfuncs::*;
use super::ops::{one, OpKind, NOBODY};
use super::verdicts::task_at;
use super::{Ext, ExtConfig};

type World = Simulation<Simple>;

fn world(cpus: u32) -> World {
    let machine = MachineConfig::ideal(cpus);
    let ext = Ext::new(ExtConfig::default(), &machine).unwrap();
    Simulation::new(Host::new(&machine, AnyClass::Ext(ext), 1).unwrap(), Simple::default())
}

fn spawn(w: &mut World, cpus: &[u32]) -> TaskId {
    let allowed = Some(cpus.iter().copied().map(CpuId).collect::<CpuSet>());
    let task = w.host.spawn(TaskSpec { allowed, ..TaskSpec::default() });
    w.bodies.add(task, Program::Busy);
    w.host.wake(task, None);
    task
}

fn pointer(w: &World, id: TaskId) -> *mut TaskStruct {
    match &w.host.class {
        AnyClass::Ext(ext) => ext.pointer(Some(id)),
        _ => unreachable!(),
    }
}

fn call<R>(w: &mut World, kind: OpKind, subjects: [Option<TaskId>; 2], f: impl FnOnce() -> R) -> R {
    match &mut w.host.class {
        AnyClass::Ext(ext) => ext.call(&mut w.host.core, kind, subjects, f),
        _ => unreachable!(),
    }
}

/// One running task on pCPU 0, and one that waits in its queue and may run only there.
fn one_runs_one_waits() -> (World, TaskId, TaskId) {
    let mut w = world(2);
    let running = spawn(&mut w, &[0]);
    let waiting = spawn(&mut w, &[0]);
    w.run_until(1_000_000).unwrap();
    assert!(w.host.is_running(running));
    (w, running, waiting)
}

/// What an operation about these tasks that does `f` is refused for.
fn refusal<R>(
    w: &mut World,
    kind: OpKind,
    subjects: [Option<TaskId>; 2],
    f: impl FnOnce() -> R,
) -> Option<String> {
    call(w, kind, subjects, f);
    match w.host.check() {
        Err(SimError::Refused { reason, .. }) => Some(reason),
        _ => None,
    }
}

fn assert_refused(refusal: Option<String>, reason: &str) {
    let text = refusal.unwrap_or_else(|| panic!("not refused: {reason}"));
    assert!(text.contains(reason), "refused for another reason than '{reason}': {text}");
}

fn walk(dsq: u64) -> DsqIter {
    let mut iter = DsqIter::default();
    bpf_iter_scx_dsq_new(&mut iter, dsq, 0);
    iter
}

#[test]
fn functions_are_for_certain_operations() {
    let (mut w, running, waiting) = one_runs_one_waits();
    let p = pointer(&w, waiting);
    for kind in [OpKind::Yield, OpKind::Running, OpKind::Tick, OpKind::Tracing, OpKind::CpuOffline] {
        let refused = refusal(&mut w, kind, one(running), || scx_bpf_dsq_insert(p, 0, 0, 0));
        assert_refused(refused, "scx_bpf_dsq_insert");
    }
    for kind in [OpKind::Yield, OpKind::Enqueue, OpKind::Tracing] {
        let refused = refusal(&mut w, kind, one(running), || scx_bpf_dsq_move(&mut walk(0), p, DSQ_LOCAL, 0));
        assert_refused(refused, "scx_bpf_dsq_move");
        let refused = refusal(&mut w, kind, one(running), || scx_bpf_dsq_move_to_local(0));
        assert_refused(refused, "scx_bpf_dsq_move_to_local");
    }
    let refused = refusal(&mut w, OpKind::Dispatch, NOBODY, || scx_bpf_create_dsq(77, -1));
    assert_refused(refused, "scx_bpf_create_dsq");
    let refused = refusal(&mut w, OpKind::Enqueue, one(running), || scx_bpf_task_cgroup(p));
    assert_refused(refused, "scx_bpf_task_cgroup");
}

#[test]
fn a_task_is_inserted_once_and_only_the_one_being_enqueued() {
    let (mut w, running, waiting) = one_runs_one_waits();
    let (p, other) = (pointer(&w, running), pointer(&w, waiting));
    let refused = refusal(&mut w, OpKind::Enqueue, one(running), || {
        scx_bpf_dsq_insert(p, 0, 0, 0);
        scx_bpf_dsq_insert(p, 0, 0, 0);
    });
    assert_refused(refused, "already direct-dispatched");
    let refused = refusal(&mut w, OpKind::Enqueue, one(running), || scx_bpf_dsq_insert(other, 0, 0, 0));
    assert_refused(refused, "trying to direct-dispatch");
}

#[test]
fn queues_exist_and_local_ones_are_in_order_of_arrival() {
    let (mut w, running, _) = one_runs_one_waits();
    let p = pointer(&w, running);
    let refused = refusal(&mut w, OpKind::Enqueue, one(running), || scx_bpf_dsq_insert(p, 99, 0, 0));
    assert_refused(refused, "non-existent DSQ");
    let refused =
        refusal(&mut w, OpKind::Enqueue, one(running), || scx_bpf_dsq_insert_vtime(p, DSQ_LOCAL, 0, 5, 0));
    assert_refused(refused, "vtime ordering for built-in");
    let refused =
        refusal(&mut w, OpKind::Enqueue, one(running), || scx_bpf_dsq_insert(p, 0, 0, 1 << 60 | ENQ_PRIQ));
    assert_refused(refused, "invalid enq_flags");
}

#[test]
fn a_queued_tasks_virtual_time_is_left_alone() {
    let (mut w, _, waiting) = one_runs_one_waits();
    let p = pointer(&w, waiting);
    let refused = refusal(&mut w, OpKind::Enqueue, one(waiting), || scx_bpf_dsq_insert_vtime(p, 0, 0, 5, 0));
    assert_refused(refused, "dsq_vtime of a queued task");
}

#[test]
fn a_task_goes_where_it_is_allowed() {
    let (mut w, _, waiting) = one_runs_one_waits();
    let p = pointer(&w, waiting);
    let to_1 = || scx_bpf_dsq_move(&mut walk(0), p, DSQ_LOCAL_ON | 1, 0);
    assert_refused(refusal(&mut w, OpKind::Dispatch, NOBODY, to_1), "target CPU 1 not allowed");
    w.host.set_migration_disabled(waiting, true);
    let to_1 = || scx_bpf_dsq_move(&mut walk(0), p, DSQ_LOCAL_ON | 1, 0);
    assert_refused(refusal(&mut w, OpKind::Dispatch, NOBODY, to_1), "cannot move migration disabled");
}

#[test]
fn a_move_of_what_has_been_queued_anew_fails_quietly() {
    let (mut w, _, waiting) = one_runs_one_waits();
    let p = pointer(&w, waiting);
    let mut iter = walk_in(&mut w, 0);
    // Off the queue and on again: another place in the order.
    w.host.set_affinity(waiting, Some(CpuSet::first(2)));
    let moved = call(&mut w, OpKind::Dispatch, NOBODY, || scx_bpf_dsq_move(&mut iter, p, DSQ_LOCAL, 0));
    assert!(!moved);
}

fn walk_in(w: &mut World, dsq: u64) -> DsqIter {
    call(w, OpKind::Dispatch, NOBODY, || walk(dsq))
}

#[test]
fn walks_go_both_ways_over_what_was_there() {
    let mut w = world(1);
    let tasks: Vec<TaskId> = (0..4).map(|_| spawn(&mut w, &[0])).collect();
    w.run_until(10_000).unwrap();
    let pids = |w: &mut World, flags: u32| -> Vec<TaskId> {
        let mut found = Vec::new();
        let mut iter = walk_in(w, 0);
        iter.flags = flags;
        loop {
            let p = call(w, OpKind::Dispatch, NOBODY, || bpf_iter_scx_dsq_next(&mut iter));
            match task_at(p) {
                Some(id) => found.push(id),
                None => return found,
            }
        }
    };
    let forwards = pids(&mut w, 0);
    let mut backwards = pids(&mut w, 1 << 16);
    backwards.reverse();
    assert_eq!(forwards, backwards);
    assert_eq!(forwards, tasks[1..]);
}

#[test]
fn kicks_are_of_one_kind_and_of_a_pcpu_that_exists() {
    let (mut w, ..) = one_runs_one_waits();
    let refused = refusal(&mut w, OpKind::Dispatch, NOBODY, || scx_bpf_kick_cpu(0, 3));
    assert_refused(refused, "cannot be used with SCX_KICK_IDLE");
    let refused = refusal(&mut w, OpKind::Dispatch, NOBODY, || scx_bpf_kick_cpu(7, 0));
    assert_refused(refused, "invalid CPU 7");
}

#[test]
fn an_error_of_the_scheduler_is_an_end() {
    let (mut w, ..) = one_runs_one_waits();
    let refused = refusal(&mut w, OpKind::Dispatch, NOBODY, || {
        // SAFETY: a C string, and no arguments.
        unsafe { scx_bpf_error_bstr(c"something is wrong".as_ptr(), std::ptr::null(), 0) }
    });
    assert_refused(refused, "something is wrong");
}

#[test]
fn an_ejected_schedulers_tasks_go_on_under_the_fair_class() {
    for fall_back in [false, true] {
        let machine = MachineConfig::ideal(2);
        let ext = Ext::new(ExtConfig { fall_back, ..ExtConfig::default() }, &machine).unwrap();
        let mut w = Simulation::new(Host::new(&machine, AnyClass::Ext(ext), 1).unwrap(), Simple::default());
        let tasks: Vec<TaskId> = (0..4).map(|_| spawn(&mut w, &[0, 1])).collect();
        w.run_until(10_000_000).unwrap();
        call(&mut w, OpKind::Dispatch, NOBODY, || scx_bpf_kick_cpu(7, 0));
        let result = w.run_until(410_000_000);
        assert_eq!(result.is_ok(), fall_back);
        if fall_back {
            assert!(matches!(w.host.class, AnyClass::Fair(_)) && w.host.core.ejected.is_some());
            let used: Vec<u64> = tasks.iter().map(|task| w.host.run_ns(*task)).collect();
            assert_eq!(used.iter().sum::<u64>(), 820_000_000);
            assert!(used.iter().all(|ns| *ns > 150_000_000), "{used:?}");
        }
    }
}
