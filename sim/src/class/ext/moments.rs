// SPDX-License-Identifier: GPL-2.0-only
//! Timers and clocks, with schedulers of a few lines in the place of `bpf/`.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

use std::cell::RefCell;

use crate::class::AnyClass;
use crate::ids::CpuId;
use crate::machine::Costs;
use crate::time::Ns;

use super::ffi::Ops;
use super::kfuncs::*;
use super::map_calls::native_map_lookup;
use super::maps::ARRAY;
use super::ops::{OpKind, NOBODY};
use super::small::*;
use super::timers::*;
use super::{ExtConfig, BOOT_NS};

/// Stands for the map's definition; its values are a `struct bpf_timer` and no more.
static TIMERS: u8 = 0;
const KICK_PREEMPT: u64 = 2;

thread_local! {
    /// What happened: the scheduler's clock since the start, and where or which.
    static LOG: RefCell<Vec<(i64, i32)>> = const { RefCell::new(Vec::new()) };
}

fn log(what: i32) {
    LOG.with_borrow_mut(|log| log.push((scx_bpf_now() as i64 - BOOT_NS as i64, what)));
}

fn logged() -> Vec<(i64, i32)> {
    LOG.with_borrow_mut(std::mem::take)
}

fn timer(cpu: u32) -> *mut u64 {
    let key = (&raw const cpu).cast();
    // SAFETY: a key of an array map.
    unsafe { native_map_lookup(&raw const TIMERS as usize, ARRAY, 4, 16, 8, key).cast() }
}

fn make(cpu: u32, callback: Callback) -> i64 {
    let map = &raw const TIMERS as usize;
    // SAFETY: a value of that map.
    unsafe {
        let err = native_timer_init(timer(cpu).cast(), map, CLOCK_MONOTONIC);
        if err == 0 {
            native_timer_set_callback(timer(cpu), callback)
        } else {
            err
        }
    }
}

fn start(cpu: u32, ns: u64, flags: u64) -> i64 {
    // SAFETY: a value of the map.
    unsafe { bpf_timer_start(timer(cpu), ns, flags) }
}

extern "C" fn ends_the_turn(map: usize, key: *mut i32, value: *mut u8) -> i32 {
    // SAFETY: the key is the model's, for this call.
    let key = unsafe { *key };
    assert!(map == &raw const TIMERS as usize && value == timer(key as u32).cast());
    log(key);
    scx_bpf_kick_cpu(key, KICK_PREEMPT);
    0
}

extern "C" fn make_all() -> i32 {
    let made: Vec<i64> = (0..2).map(|cpu| make(cpu, ends_the_turn)).collect();
    assert_eq!(made, [0, 0]);
    assert_eq!(make(0, ends_the_turn), -16, "a second time");
    create_shared()
}

extern "C" fn starts_a_turn(p: Task) {
    assert_eq!(start(scx_bpf_task_cpu(p) as u32, 1_500 * US, START_PINNED), 0);
}

static EXACT: Ops = Ops { running: Some(starts_a_turn), init: Some(make_all), ..FIFO };

#[test]
fn a_turn_ends_when_its_timer_says() {
    let mut w = World::new(&EXACT, 2, Costs::free());
    w.busy_all(3);
    w.until(5 * MS);
    // A slice is 3 ms, and would end with a tick.
    assert_eq!(w.turns_us(0), [(0, Some(0)), (1_500, Some(2)), (3_000, Some(1)), (4_500, Some(0))]);
    assert_eq!(w.turns_us(1), [(0, Some(1)), (1_500, Some(0)), (3_000, Some(2)), (4_500, Some(1))]);
    let at: Vec<(i64, i32)> =
        [1_500, 3_000, 4_500].into_iter().flat_map(|us| [(us * 1_000, 0), (us * 1_000, 1)]).collect();
    assert_eq!(logged(), at);
}

extern "C" fn only_logs(_map: usize, key: *mut i32, _value: *mut u8) -> i32 {
    // SAFETY: the key is the model's, for this call.
    log(unsafe { *key });
    0
}

extern "C" fn make_one() -> i32 {
    make(0, only_logs) as i32
}

static IDLE: Ops = Ops { init: Some(make_one), ..NONE };

/// As an operation of the scheduler on this pCPU that locks no run queue, or one that does.
fn call<R>(w: &mut World, kind: OpKind, cpu: u32, f: impl FnOnce() -> R) -> R {
    w.sim.host.core.this_cpu = CpuId(cpu);
    match &mut w.sim.host.class {
        AnyClass::Ext(ext) => ext.call(&mut w.sim.host.core, kind, NOBODY, f),
        _ => unreachable!(),
    }
}

#[test]
fn a_timer_set_anew_or_cancelled_fires_no_more() {
    let mut w = World::new(&IDLE, 1, Costs::free());
    call(&mut w, OpKind::Dispatch, 0, || (start(0, MS, 0), start(0, 2 * MS, 0)));
    w.until(5 * MS);
    assert_eq!(logged(), [(2_000_000, 0)]);
    call(&mut w, OpKind::Dispatch, 0, || start(0, MS, 0));
    // SAFETY: a value of the map.
    let cancel = || unsafe { (bpf_timer_cancel(timer(0)), bpf_timer_cancel(timer(0))) };
    assert_eq!(call(&mut w, OpKind::CgroupExit, 0, cancel), (1, 0));
    w.until(10 * MS);
    assert_eq!(logged(), []);
}

#[test]
fn a_timer_can_be_for_a_time_of_the_monotonic_clock() {
    let mut w = World::new(&IDLE, 1, Costs::free());
    w.until(3 * MS);
    call(&mut w, OpKind::Running, 0, || start(0, bpf_ktime_get_ns() + 250 * US, START_ABS));
    w.until(4 * MS);
    assert_eq!(logged(), [(3_250_000, 0)]);
    assert_eq!(call(&mut w, OpKind::Running, 0, || start(0, 1, 4)), -22, "unknown flags");
}

#[test]
fn timers_end_with_their_scheduler_and_outlive_their_pcpu() {
    let mut w = World::new(&IDLE, 2, Costs::free());
    call(&mut w, OpKind::Running, 1, || start(0, MS, START_PINNED));
    w.sim.host.cpu_offline(CpuId(1));
    w.until(2 * MS);
    assert_eq!(logged(), [(1_000_000, 0)]);
    call(&mut w, OpKind::Running, 0, || start(0, MS, START_PINNED));
    w.sim.host.unload(c"the end", c"");
    w.until(10 * MS);
    assert_eq!(logged(), []);
}

/// What the scheduler is ejected for.
fn refusal<R>(kind: OpKind, f: impl FnOnce() -> R) -> Option<String> {
    let mut w = World::new(&IDLE, 1, Costs::free());
    call(&mut w, kind, 0, f);
    w.sim.host.check().err().map(|error| error.to_string())
}

#[test]
fn with_a_run_queue_locked_timers_are_only_started() {
    // SAFETY: a value of the map, below.
    let refused = refusal(OpKind::Dispatch, || unsafe { bpf_timer_cancel(timer(0)) });
    assert!(refused.unwrap().contains("bpf_timer_cancel in dispatch"));
    let refused = refusal(OpKind::Running, || make(1, only_logs));
    assert!(refused.unwrap().contains("bpf_timer_init in running"));
    assert_eq!(refusal(OpKind::Running, || start(0, 1, 0)), None);
}

#[test]
fn a_callback_may_what_code_without_locks_may() {
    let sleeps = refusal(OpKind::Timer, || scx_bpf_create_dsq(99, -1));
    assert!(sleeps.unwrap().contains("scx_bpf_create_dsq in timer"));
    let consumes = refusal(OpKind::Timer, || scx_bpf_dsq_move_to_local(SHARED));
    assert!(consumes.unwrap().contains("scx_bpf_dsq_move_to_local in timer"));
    assert_eq!(refusal(OpKind::Timer, || scx_bpf_kick_cpu(0, KICK_PREEMPT)), None);
}

#[test]
fn clocks_can_differ_and_only_what_the_scheduler_reads() {
    let config =
        ExtConfig { cpu_skew_ns: vec![0, -300_000, 700_000], ktime_ahead_ns: 5, ..ExtConfig::default() };
    let mut w = World::with(&FIFO, 4, Costs::free(), config);
    w.until(MS);
    let read = |w: &mut World, cpu| call(w, OpKind::Tick, cpu, || (scx_bpf_now(), bpf_ktime_get_ns()));
    for (cpu, ahead_ns) in [(0, 0), (1, -300_000), (2, 700_000), (3, 0)] {
        let now_ns: Ns = (BOOT_NS + MS).wrapping_add_signed(ahead_ns);
        assert_eq!(read(&mut w, cpu), (now_ns, now_ns + 5));
    }
    assert_eq!(w.sim.host.now_ns(), MS);
}

#[test]
fn random_numbers_are_the_same_in_every_run() {
    let draw = || {
        let mut w = World::new(&FIFO, 1, Costs::free());
        call(&mut w, OpKind::Enqueue, 0, || [bpf_get_prandom_u32(), bpf_get_prandom_u32()])
    };
    let drawn = draw();
    assert_eq!(drawn, draw());
    assert_ne!(drawn[0], drawn[1]);
}
