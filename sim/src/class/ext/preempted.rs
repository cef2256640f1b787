// SPDX-License-Identifier: GPL-2.0-only
//! Higher classes take pCPUs, with schedulers of a few lines in the place of `bpf/`.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

use std::cell::RefCell;

use crate::bodies::Program;
use crate::cpuset::CpuSet;
use crate::host::TaskSpec;
use crate::ids::CpuId;
use crate::machine::Costs;

use super::dsq::ENQ_REENQ;
use super::ffi::{CpuReleaseArgs, Ops};
use super::kfuncs::*;
use super::small::*;
use super::task::{PID_RT, PID_STOPPER};

const KICK_PREEMPT: u64 = 2;

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn log(what: String) {
    LOG.with_borrow_mut(|log| log.push(what));
}

fn logged() -> Vec<String> {
    LOG.with_borrow_mut(std::mem::take)
}

fn number(p: Task) -> i32 {
    // SAFETY: a task of the model's.
    unsafe { (*p).pid - super::task::PID_FIRST as i32 }
}

extern "C" fn log_stopping(p: Task, runnable: bool) {
    log(format!("{} stops, {runnable}", number(p)));
}

extern "C" fn log_running(p: Task) {
    log(format!("{} runs", number(p)));
}

extern "C" fn log_enqueue(p: Task, flags: u64) {
    log(format!("{} queued{}", number(p), if flags & ENQ_REENQ != 0 { " again" } else { "" }));
    scx_bpf_dsq_insert(p, SHARED, SLICE_NS, flags);
    for cpu in 0..2 {
        if scx_bpf_test_and_clear_cpu_idle(cpu) {
            return scx_bpf_kick_cpu(cpu, 1);
        }
    }
}

extern "C" fn log_dispatch(cpu: i32, prev: Task) {
    log(format!("{cpu} looks"));
    from_shared(cpu, prev);
}

extern "C" fn log_acquire(cpu: i32, _args: *mut u8) {
    log(format!("{cpu} acquired"));
}

extern "C" fn log_release(cpu: i32, args: *mut CpuReleaseArgs) {
    // SAFETY: the model's, for this call.
    let who = unsafe { ((*(*args).task).pid as u32, (*(*args).task).prio) };
    assert!(who == (PID_RT, 49) || who == (PID_STOPPER, 0), "{who:?}");
    log(format!("{cpu} released{}", if who.1 == 0 { " to the stopper" } else { "" }));
}

extern "C" fn release_and_requeue(cpu: i32, args: *mut CpuReleaseArgs) {
    log_release(cpu, args);
    scx_bpf_reenqueue_local___v2___compat();
}

static LOGGED: Ops = Ops {
    enqueue: Some(log_enqueue),
    dispatch: Some(log_dispatch),
    running: Some(log_running),
    stopping: Some(log_stopping),
    cpu_acquire: Some(log_acquire),
    cpu_release: Some(log_release),
    ..NONE
};
static REQUEUES: Ops = Ops { cpu_release: Some(release_and_requeue), ..LOGGED };

fn takes(w: &mut World, cpu: u32) {
    w.sim.host.rt_takes(CpuId(cpu));
    let now_ns = w.sim.host.now_ns();
    w.until(now_ns);
}

fn leaves(w: &mut World, cpu: u32) {
    w.sim.host.rt_leaves(CpuId(cpu));
    let now_ns = w.sim.host.now_ns();
    w.until(now_ns);
}

#[test]
fn a_preempted_task_goes_on_with_the_slice_that_it_had() {
    let mut w = World::new(&FIFO, 1, Costs::free());
    w.busy_all(2);
    w.until(1_500 * US);
    takes(&mut w, 0);
    w.until(4_000 * US);
    leaves(&mut w, 0);
    w.until(7 * MS);
    // It has used 1.5 of 3 ms, and the slice ends at the second tick after it is back.
    assert_eq!(w.turns_us(0), [(0, Some(0)), (1_500, None), (4_000, Some(0)), (6_000, Some(1))]);
    assert_eq!(w.sim.host.cpu_times_ns(CpuId(0)), (4_500 * US, 0));
}

#[test]
fn the_operations_come_in_the_kernels_order() {
    let mut w = World::new(&LOGGED, 2, Costs::free());
    w.busy_all(3);
    logged();
    w.until(1_500 * US);
    takes(&mut w, 0);
    assert_eq!(logged(), ["0 stops, true", "0 released"]);
    takes(&mut w, 0);
    w.until(2 * MS);
    assert_eq!(logged(), [""; 0]);
    leaves(&mut w, 0);
    // It waits at the head of the local queue, so nobody is asked.
    assert_eq!(logged(), ["0 acquired", "0 runs"]);
}

#[test]
fn a_local_queue_is_put_through_the_scheduler_again() {
    let mut w = World::new(&REQUEUES, 2, Costs::free());
    w.busy();
    let stays = w.spawn(
        TaskSpec { allowed: Some([CpuId(0)].into_iter().collect::<CpuSet>()), ..TaskSpec::default() },
        Program::Busy,
    );
    w.sim.host.wake(stays, None);
    w.until(1_500 * US);
    logged();
    takes(&mut w, 0);
    assert_eq!(logged(), ["0 stops, true", "0 released", "0 queued again", "1 looks", "0 runs"]);
    w.until(2 * MS);
    leaves(&mut w, 0);
    assert_eq!(logged(), ["0 acquired", "0 looks", "1 runs"]);
}

#[test]
fn an_idle_pcpu_is_taken_unannounced_and_is_not_idle_meanwhile() {
    let mut w = World::new(&LOGGED, 2, Costs::free());
    w.busy();
    logged();
    takes(&mut w, 1);
    let late = w.spawn(TaskSpec::default(), Program::Busy);
    w.sim.host.wake(late, Some(CpuId(0)));
    w.until(MS);
    // Nobody is sent there.
    assert_eq!(logged(), ["1 queued"]);
    leaves(&mut w, 1);
    assert_eq!(logged(), ["1 looks", "1 runs"]);
    assert_eq!(w.turns_us(1), [(1_000, Some(1))]);
}

extern "C" fn shared_and_preempt(p: Task, flags: u64) {
    to_shared(p, flags);
    scx_bpf_kick_cpu(0, KICK_PREEMPT);
    scx_bpf_kick_cpu(0, 0);
}

#[test]
fn kicks_do_nothing_to_a_higher_class() {
    static OPS: Ops = Ops { enqueue: Some(shared_and_preempt), ..NONE };
    let mut w = World::new(&OPS, 1, slow());
    takes(&mut w, 0);
    w.busy();
    w.until(10 * MS);
    assert_eq!(w.turns_us(0), []);
    leaves(&mut w, 0);
    w.until(11 * MS);
    assert_eq!(w.turns_us(0), [(10_000, Some(0))]);
}

#[test]
fn a_pcpu_that_is_taken_can_go_offline() {
    let mut w = World::new(&FIFO, 2, Costs::free());
    w.busy_all(3);
    w.until(500 * US);
    takes(&mut w, 1);
    w.sim.host.cpu_offline(CpuId(1));
    leaves(&mut w, 1);
    w.until(20 * MS);
    w.sim.host.cpu_online(CpuId(1));
    w.until(30 * MS);
    let used: u64 = (0..3).map(|task| w.sim.host.run_ns(crate::ids::TaskId(task))).sum();
    assert_eq!(used, 30 * MS + 500 * US + 10 * MS);
}

#[test]
fn the_stopper_is_a_higher_class_too() {
    let mut w = World::new(&LOGGED, 2, Costs::free());
    let moved = w.busy();
    w.until(1_500 * US);
    logged();
    w.sim.host.set_affinity(moved, Some([CpuId(1)].into_iter().collect::<CpuSet>()));
    w.until(2 * MS);
    let log = logged();
    // Off the queue and on again for the change; then the stopper.
    assert_eq!(log[..2], ["0 stops, false", "0 runs"]);
    assert_eq!(log[2..4], ["0 stops, true", "0 released to the stopper"]);
    assert!(log[4..].contains(&"0 acquired".to_string()) && log.last().unwrap() == "0 runs", "{log:?}");
}

extern "C" fn log_switch(_preempt: bool, prev: Task, next: Task) {
    // SAFETY: tasks of the model's.
    let who = |p: Task| match unsafe { ((*p).pid, (*p).prio) } {
        (0, 140) => "idle".to_string(),
        (pid, 49) if pid == PID_RT as i32 => "real-time".to_string(),
        (_, prio) => format!("{} {prio}", number(p)),
    };
    log(format!("{} > {}", who(prev), who(next)));
}

#[test]
fn a_program_on_sched_switch_sees_all_of_them() {
    let mut w = World::new(&FIFO, 1, Costs::free());
    match &mut w.sim.host.class {
        crate::class::AnyClass::Ext(ext) => ext.on_switch = Some(log_switch),
        _ => unreachable!(),
    }
    takes(&mut w, 0);
    leaves(&mut w, 0);
    assert_eq!(logged(), ["idle > real-time", "real-time > idle"]);
    let task = w.busy();
    takes(&mut w, 0);
    leaves(&mut w, 0);
    assert_eq!(logged(), ["idle > 0 120", "0 120 > real-time", "real-time > 0 120"]);
    w.sim.host.exit(task);
    w.until(MS);
    assert_eq!(logged(), ["0 120 > idle"]);
}
