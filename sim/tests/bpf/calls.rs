// SPDX-License-Identifier: GPL-2.0-only
//! What an IPI by which a vCPU calls another does (boost ipi).

use cohort_sim::class::ext::Cost;

use crate::boost::*;
use crate::common::*;
use crate::spec::knob::*;
use crate::spec::Knobs;
use crate::world::{TaskId, World};

#[test]
fn a_called_sibling_runs_at_once() {
    let mut w = boosted(1, BOOST_IPI);
    let (caller, waiting) = one_runs_three_wait(&mut w);
    w.call(caller, waiting[2]);
    assert!(w.is_running(waiting[2]), "the sibling that was called does not run");
    let stats = w.stats();
    assert_eq!((stats.boost_called, stats.boost_granted, stats.ple), (1, 1, 0));
    audit(&mut w);
}

#[test]
fn nobody_who_is_called_runs_before_all_have_their_interrupt() {
    let mut w = boosted(2, BOOST_IPI);
    let (_, vcpus) = busy_vm(&mut w, 4);
    introduce(&mut w, &vcpus);
    let (running, waiting): (Vec<_>, Vec<_>) = vcpus.iter().partition(|id| w.is_running(**id));
    for to in &waiting {
        w.begin_call(running[0], *to);
        assert!(running.iter().all(|id| w.is_running(*id)), "one runs that finds nothing to answer");
    }
    w.end_calls(running[0]);
    assert!(waiting.iter().any(|id| w.is_running(*id)), "nobody who is called runs");
    assert_eq!(w.stats().boost_called, 2);
    audit(&mut w);
}

#[test]
fn each_call_is_heard_once() {
    let mut w = boosted(1, BOOST_IPI);
    let (caller, waiting) = one_runs_three_wait(&mut w);
    w.call(caller, waiting[2]);
    assert_eq!(w.stats().boost_called, 1);
    // The pCPU is the caller's again, who calls nobody.
    until_it_runs(&mut w, caller);
    w.end_calls(caller);
    assert_eq!(w.stats().boost_called, 1);
}

#[test]
fn without_the_boost_a_call_changes_nothing() {
    let mut w = boosted(1, BOOST_ANY_MODE | BOOST_CANDIDATE);
    let (caller, waiting) = one_runs_three_wait(&mut w);
    w.call(caller, waiting[2]);
    assert!(w.is_running(caller));
    assert_eq!(w.stats().boost_called, 0);
}

#[test]
fn a_wake_up_by_ipi_is_no_call() {
    let mut w = boosted(1, BOOST_IPI);
    let (caller, waiting) = one_runs_three_wait(&mut w);
    w.send_irq(caller, waiting[2]);
    w.settle();
    assert!(w.is_running(caller));
    assert_eq!(w.stats().boost_called, 0);
}

/// Two siblings on one pCPU.
fn one_sleeps_one_runs(w: &mut World) -> (TaskId, TaskId) {
    let (sleeper, waiting) = one_runs_three_wait(w);
    w.sleep(sleeper);
    w.settle();
    let next = waiting.into_iter().find(|id| w.is_running(*id)).expect("a sibling runs now");
    (sleeper, next)
}

#[test]
fn one_that_sleeps_is_not_boosted() {
    let mut w = boosted(1, BOOST_IPI);
    let (caller, next) = one_sleeps_one_runs(&mut w);
    w.call(next, caller);
    assert!(w.is_running(next));
    assert_eq!(w.stats().boost_called, 0);
}

#[test]
fn one_that_is_woken_by_its_call_is_not_boosted() {
    let mut w = boosted(1, BOOST_IPI);
    let (caller, next) = one_sleeps_one_runs(&mut w);
    w.begin_call(next, caller);
    // KVM wakes it with the interrupt, before that function ends.
    w.wake(caller);
    assert!(w.is_running(next));
    w.end_calls(next);
    assert_eq!(w.stats().boost_called, 0);
}

#[test]
fn the_called_sibling_runs_where_it_waits_and_the_caller_goes_on() {
    let knobs = Knobs {
        boost: Some(BOOST_IPI),
        slice_ns: Some(8 * MS),
        wakeup_gran_ns: Some(30 * MS),
        ..Knobs::default()
    };
    let mut w = world_with(2, knobs);
    let (caller, called, other) = sibling_deserves_its_turn(&mut w);
    let cpu = w.task(other).cpu;
    w.call(caller, called);
    w.settle();
    assert!(w.is_running(called) && w.task(called).cpu == cpu, "the sibling does not run where it waited");
    assert!(w.is_running(caller), "the caller goes on");
    assert_eq!(w.stats().boost_preempted, 1);
    audit(&mut w);
}

#[test]
fn a_call_takes_nothing_from_another_vm() {
    let mut w = boosted(2, BOOST_IPI);
    let (_, a) = busy_vm(&mut w, 2);
    let (_, b) = busy_vm(&mut w, 2);
    introduce(&mut w, &a);
    introduce(&mut w, &b);
    let all = [&a[..], &b[..]].concat();
    let before: Vec<u64> = all.iter().map(|id| w.task(*id).used_ns).collect();
    for _ in 0..40_000 {
        w.run(MS / 10);
        w.call(a[0], a[1]);
        w.call(a[1], a[0]);
    }
    assert!(w.stats().boost_called > 100, "test");
    let used: Vec<u64> = all.iter().zip(before).map(|(id, before)| w.task(*id).used_ns - before).collect();
    let (a, b) = ((used[0] + used[1]) as f64, (used[2] + used[3]) as f64);
    assert!((a / (a + b) - 0.5).abs() < 0.01, "the VM that calls has {:.3} of both pCPUs", a / (a + b));
    audit(&mut w);
}

#[test]
fn a_call_is_answered_within_the_vms_turn_but_does_not_take_the_rest_of_it() {
    let knobs = Knobs {
        boost: Some(BOOST_IPI),
        gang: Some(GANG_ALIGNED),
        slice_ns: Some(16 * MS),
        boost_slice_ns: Some(MS),
        ..Knobs::default()
    };
    let mut w = world_with(1, knobs);
    let (caller, waiting) = one_runs_three_wait(&mut w);
    w.call(caller, waiting[2]);
    w.run(MS / 2);
    assert!(w.is_running(waiting[2]), "the sibling that was called does not run");
    w.run(MS);
    assert!(!w.is_running(waiting[2]), "it runs for longer than a boost");
    audit(&mut w);
}

#[test]
fn nobody_is_disturbed_where_a_call_asks_in_vain() {
    let mut w = boosted(2, BOOST_IPI);
    let (caller, called, other) = sibling_waits_elsewhere(&mut w);
    for _ in 0..10 {
        w.call(caller, called);
    }
    assert!(w.is_running(other) && w.is_running(caller), "test: they deserve their pCPUs");
    assert_eq!((w.stats().boost_called, w.stats().boost_preempted, w.stats().boost_missed), (10, 0, 0));
}

#[test]
fn whether_a_call_asks_in_vain_is_found_out_once() {
    for boost in [BOOST_IPI, BOOST_IPI | BOOST_MIGRATE] {
        let knobs = Knobs {
            boost: Some(boost),
            slice_ns: Some(8 * MS),
            wakeup_gran_ns: Some(30 * MS),
            ..Knobs::default()
        };
        let mut w = world_with(2, knobs);
        let (caller, called, _) = sibling_deserves_its_turn(&mut w);
        let before = w.costs();
        w.call(caller, called);
        assert_eq!(w.stats().boost_called, 1);
        // The other pCPU has not heard of it yet.
        assert_eq!(w.costs().since(&before).total(Cost::TaskFromPid), 1, "boost {boost}");
    }
}
