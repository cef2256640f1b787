// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext's own mechanisms, with the schedulers of `small.rs` in the place of `bpf/`: queues, direct dispatch, slices, kicks. Schedules computed by hand.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

use std::collections::BTreeMap;

use crate::bodies::Program;
use crate::cpuset::CpuSet;
use crate::error::SimError;
use crate::host::TaskSpec;
use crate::ids::CpuId;
use crate::machine::{Costs, MachineConfig};

use super::dsq::{DSQ_LOCAL, DSQ_LOCAL_ON, ENQ_HEAD, ENQ_LAST, ENQ_PREEMPT, ENQ_WAKEUP};
use super::ffi::Ops;
use super::kfuncs::*;
use super::small::*;
use super::ExtConfig;

const KICK_IDLE: u64 = 1;
const KICK_PREEMPT: u64 = 2;

#[test]
fn a_queue_is_first_in_first_out() {
    let mut w = World::new(&FIFO, 1, Costs::free());
    w.busy_all(3);
    let late = w.spawn(TaskSpec::default(), Program::Busy);
    w.until(4_500 * US);
    w.sim.host.wake(late, None);
    w.until(20 * MS);
    // At 4.5 ms 2 and 0 wait; 3 comes after them, and 1, which runs, after it.
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 1), (6, 2), (9, 0), (12, 3), (15, 1), (18, 2)]);
}

#[test]
fn a_queue_by_virtual_time_goes_by_weight() {
    VTIMES.with_borrow_mut(BTreeMap::clear);
    let mut w = World::new(&BY_VTIME, 1, Costs::free());
    for weight in [1024, 2048, 1024] {
        let task = w.spawn(TaskSpec { weight, ..TaskSpec::default() }, Program::Busy);
        w.sim.host.wake(task, None);
    }
    w.until(25 * MS);
    // What is in the queue when a turn ends; ops.dispatch() comes before the leaving task is put back. Each turn adds 3 to the virtual time, 1.5 to 1's.
    //  3: 1 at 0, 2 at 0    6: 2 at 0, 0 at 3    9: 1 at 1.5, 0 at 3    12: 0 at 3, 2 at 3 (came later)
    // 15: 2 at 3, 1 at 3   18: 1 at 3, 0 at 6   21: 0 at 6, 2 at 6      24: 1 at 4.5, 2 at 6
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 1), (6, 2), (9, 1), (12, 0), (15, 2), (18, 1), (21, 0), (24, 1)]);
}

#[test]
fn the_global_queue_is_for_all_pcpus_that_may() {
    let mut w = World::new(&GLOBAL, 2, Costs::free());
    w.busy_all(4);
    w.until(10 * MS);
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 2), (6, 0), (9, 2)]);
    assert_eq!(w.turns_ms(1), [(0, 1), (3, 3), (6, 1), (9, 3)]);

    let mut w = World::new(&GLOBAL, 2, Costs::free());
    w.busy_all(2);
    let only_1 = Some([CpuId(1)].into_iter().collect::<CpuSet>());
    let pinned = w.spawn(TaskSpec { allowed: only_1, ..TaskSpec::default() }, Program::Busy);
    w.sim.host.wake(pinned, None);
    w.busy();
    w.until(4 * MS);
    // 2 is the first in the queue, but not for pCPU 0.
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 3)]);
    assert_eq!(w.turns_ms(1), [(0, 1), (3, 2)]);
}

extern "C" fn to_shared_and_kick_self(p: Task, flags: u64) {
    to_shared(p, flags);
    if flags & ENQ_LAST != 0 {
        assert!(!scx_bpf_test_and_clear_cpu_idle(0), "it does not idle yet");
        scx_bpf_kick_cpu(0, KICK_IDLE);
    }
}

extern "C" fn last_to_local(p: Task, flags: u64) {
    scx_bpf_dsq_insert(p, if flags & ENQ_LAST != 0 { DSQ_LOCAL } else { SHARED }, SLICE_NS, flags);
}

#[test]
fn the_last_one_goes_on_unless_the_scheduler_wants_to_be_asked() {
    const ASKS: Ops = Ops { flags: 2, select_cpu: Some(idle_first), ..NONE };
    static FORGETS: Ops = Ops { enqueue: Some(to_shared), ..ASKS };
    static KICKS: Ops = Ops { enqueue: Some(to_shared_and_kick_self), ..ASKS };
    static LOCAL: Ops = Ops { enqueue: Some(last_to_local), ..ASKS };
    let idles = vec![(0, Some(0)), (3_000, None)];
    let goes_on = vec![(0, Some(0)), (3_000, None), (3_000, Some(0)), (6_000, None), (6_000, Some(0))];
    for (ops, turns) in
        [(&FIFO, vec![(0, Some(0))]), (&FORGETS, idles.clone()), (&KICKS, goes_on), (&LOCAL, idles)]
    {
        let mut w = World::new(ops, 1, Costs::free());
        w.busy();
        w.until(8 * MS);
        assert_eq!(w.turns_us(0), turns);
    }
}

extern "C" fn to_local_urgently(p: Task, flags: u64) {
    let preempt = if flags & ENQ_WAKEUP != 0 { ENQ_PREEMPT } else { 0 };
    scx_bpf_dsq_insert(p, DSQ_LOCAL, SLICE_NS, flags | preempt);
}

#[test]
fn an_insertion_can_preempt() {
    static OPS: Ops = Ops { select_cpu: Some(idle_first), enqueue: Some(to_local_urgently), ..NONE };
    let mut w = World::new(&OPS, 1, Costs::free());
    w.busy();
    let late = w.spawn(TaskSpec::default(), Program::Busy);
    w.until(1_500 * US);
    w.sim.host.wake(late, None);
    w.until(9 * MS);
    // 1 takes the pCPU from 0 in the middle of its slice. By the tick at 5 ms it has had more than 3 ms; 0 begins with a whole slice again.
    assert_eq!(w.turns_us(0), [(0, Some(0)), (1_500, Some(1)), (5_000, Some(0)), (8_000, Some(1))]);
}

extern "C" fn to_head_of_local(p: Task, flags: u64) {
    let head = if flags & ENQ_WAKEUP != 0 { ENQ_HEAD } else { 0 };
    scx_bpf_dsq_insert(p, DSQ_LOCAL, SLICE_NS, flags | head);
}

#[test]
fn an_insertion_at_the_head_waits_for_the_slices_end() {
    static OPS: Ops = Ops { select_cpu: Some(idle_first), enqueue: Some(to_head_of_local), ..NONE };
    let mut w = World::new(&OPS, 1, Costs::free());
    w.busy_all(2);
    let late = w.spawn(TaskSpec::default(), Program::Busy);
    w.until(1_500 * US);
    w.sim.host.wake(late, None);
    w.until(10 * MS);
    assert_eq!(w.turns_ms(0), [(0, 0), (3, 2), (6, 1), (9, 0)]);
}

extern "C" fn to_pcpu_1(p: Task, flags: u64) {
    scx_bpf_dsq_insert(p, DSQ_LOCAL_ON | 1, SLICE_NS, flags);
}

#[test]
fn a_task_can_be_sent_to_another_pcpus_queue() {
    static OPS: Ops = Ops { enqueue: Some(to_pcpu_1), ..NONE };
    let mut w = World::new(&OPS, 2, slow());
    w.busy_all(2);
    w.until(4 * MS);
    // The interrupt for the idle pCPU, its way out of idle; then both take turns there. pCPU 0 finds nobody.
    assert_eq!(w.turns.borrow()[..], [(2_700, 1, Some(0)), (4 * MS, 1, Some(1))]);
}

extern "C" fn to_shared_and_kick_1(p: Task, flags: u64) {
    to_shared(p, flags);
    scx_bpf_kick_cpu(1, KICK_IDLE);
}

extern "C" fn to_shared_and_preempt_0(p: Task, flags: u64) {
    to_shared(p, flags);
    if flags & ENQ_WAKEUP != 0 {
        scx_bpf_kick_cpu(0, KICK_PREEMPT);
    }
}

#[test]
fn a_kick_brings_an_idle_pcpu() {
    static OPS: Ops = Ops { enqueue: Some(to_shared_and_kick_1), ..NONE };
    let mut w = World::new(&OPS, 2, slow());
    w.busy();
    let late = w.spawn(TaskSpec::default(), Program::Busy);
    w.until(1_500 * US);
    w.sim.host.wake(late, Some(CpuId(0)));
    w.until(2 * MS);
    assert_eq!(w.turns.borrow()[..], [(700, 0, Some(0)), (1_502_700, 1, Some(1))]);
}

#[test]
fn a_kick_can_preempt() {
    static OPS: Ops = Ops { select_cpu: Some(idle_first), enqueue: Some(to_shared_and_preempt_0), ..NONE };
    let mut w = World::new(&OPS, 2, slow());
    w.busy_all(2);
    let late = w.spawn(TaskSpec::default(), Program::Busy);
    w.until(1_500 * US);
    w.sim.host.wake(late, Some(CpuId(1)));
    w.until(2 * MS);
    assert_eq!(w.turns.borrow()[..], [(700, 0, Some(0)), (2_700, 1, Some(1)), (1_502_000, 0, Some(2))]);
}

#[test]
fn a_yield_gives_up_the_slice_unless_the_scheduler_has_its_own() {
    extern "C" fn no(_from: Task, _to: Task) -> bool {
        false
    }
    static STAYS: Ops = Ops { r#yield: Some(no), ..FIFO };
    for (ops, second) in [(&FIFO, 1_500), (&STAYS, 3_000)] {
        let mut w = World::new(ops, 1, Costs::free());
        let first = w.busy();
        w.busy();
        w.until(1_500 * US);
        w.sim.host.yield_now(first);
        w.until(4 * MS);
        assert_eq!(w.turns_us(0), [(0, Some(0)), (second, Some(1))]);
    }
}

#[test]
fn who_is_forgotten_is_seen_by_the_watchdog() {
    static OPS: Ops = Ops { enqueue: Some(to_shared), dispatch: None, ..NONE };
    let mut w = World::new(&OPS, 1, Costs::free());
    w.busy();
    w.until(14_999 * MS);
    // It looks every 5 s for who has waited for more than 10 s.
    match w.sim.run_until(20_000 * MS) {
        Err(SimError::Refused { at_ns, reason, .. }) => {
            assert_eq!(at_ns, 15_000 * MS);
            assert!(reason.contains("runnable task stall"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

fn pick_anywhere(p: Task) -> i32 {
    // SAFETY: a task of the model's, and its mask.
    unsafe { scx_bpf_pick_idle_cpu((*p).cpus_ptr, 0) }
}

extern "C" fn anywhere_idle(p: Task, prev_cpu: i32, _flags: u64) -> i32 {
    let cpu = pick_anywhere(p);
    if cpu < 0 {
        return prev_cpu;
    }
    scx_bpf_dsq_insert(p, DSQ_LOCAL, SLICE_NS, 0);
    cpu
}

/// Two cores of two threads, of which somebody has these: where a task begins that was on `prev`.
fn beside(ops: &'static Ops, busy: &[u32], prev: u32) -> CpuId {
    let machine = MachineConfig { cores_per_socket: 2, threads_per_core: 2, ..MachineConfig::ideal(2) };
    let mut w = World::on(ops, machine, Costs::free(), ExtConfig::default());
    for cpu in busy {
        let allowed = Some([CpuId(*cpu)].into_iter().collect::<CpuSet>());
        let pinned = w.spawn(TaskSpec { allowed, ..TaskSpec::default() }, Program::Busy);
        w.sim.host.wake(pinned, None);
    }
    w.until(500 * US);
    let task = w.spawn(TaskSpec { was_on: Some(CpuId(prev)), ..TaskSpec::default() }, Program::Busy);
    w.sim.host.wake(task, None);
    w.until(600 * US);
    assert!(w.sim.host.is_running(task));
    w.sim.host.cpu_of(task)
}

#[test]
fn a_core_that_idles_as_a_whole_comes_first_then_the_other_thread_of_its_own() {
    assert_eq!(beside(&FIFO, &[1], 0), CpuId(2), "its own pCPU idles, beside a thread that does not");
    assert_eq!(beside(&FIFO, &[1], 3), CpuId(3), "its own core is whole");
    assert_eq!(beside(&FIFO, &[1, 3], 0), CpuId(0), "no core is");
    assert_eq!(beside(&FIFO, &[1, 3], 3), CpuId(2), "of its own core");
    static ANYWHERE: Ops = Ops { select_cpu: Some(anywhere_idle), ..FIFO };
    assert_eq!(beside(&ANYWHERE, &[1], 0), CpuId(2));
    assert_eq!(beside(&ANYWHERE, &[1, 3], 3), CpuId(0));
}
