// SPDX-License-Identifier: GPL-2.0-only
//! PREEMPT_LAZY: who is to be preempted goes on until it leaves the kernel by itself, or to the tick. Computed by hand; v: virtual run time, in ms.

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::MachineConfig;
use cohort_sim::{CpuId, Ns, TaskId};

use crate::common::*;

/// Task 0 always runs, task 1 for 0.1 ms; both must be on pCPU 0 of two. At 5 ms task 1 is woken by this pCPU. Who got pCPU 0 when.
fn woken_by(cpu: u32, lazy_preemption: bool, then: impl Fn(&mut Sim)) -> Vec<(Ns, Option<u32>)> {
    let config = FairConfig { slice_ns: 3 * MS, lazy_preemption, ..FairConfig::of(Variant::EevdfForfeit) };
    let mut s = sim(&MachineConfig::ideal(2), fair(config), 1);
    let turns = record(&mut s);
    let spec = TaskSpec { allowed: Some([CpuId(0)].into_iter().collect()), ..TaskSpec::default() };
    spawn(&mut s, spec.clone(), Program::Busy);
    spawn(&mut s, spec, Program::Cycle { run_ns: 100 * US, sleep_ns: 100 * MS });
    s.run_until(5 * MS).unwrap();
    // Task 0 ran up to the tick at 4; task 1 then, and slept at v 0.1, the average being 2.05. It comes back behind the average again, and has the turn.
    s.host.wake(TaskId(1), Some(CpuId(cpu)));
    s.run_until(6 * MS).unwrap();
    then(&mut s);
    s.run_until(9 * MS).unwrap();
    turns_us(&turns, 0)
}

#[test]
fn a_wake_up_from_another_pcpu_waits_for_the_tick() {
    let before = [(0, Some(0)), (4_000, Some(1)), (4_100, Some(0))];
    let turns = |at| [&before[..], &[(at, Some(1)), (at + 100, Some(0))]].concat();
    assert_eq!(woken_by(1, false, |_| {}), turns(5_000));
    assert_eq!(woken_by(1, true, |_| {}), turns(8_000));
    // Its own pCPU is in the kernel for that, and on its way out hears of it.
    assert_eq!(woken_by(0, true, |_| {}), turns(5_000));
    // So it is wherever it leaves the kernel: here, for the guest.
    assert_eq!(woken_by(1, true, |s| assert!(s.host.schedules_before_guest(TaskId(0)))), turns(6_000));
}

#[test]
fn an_idle_pcpu_is_woken_at_once() {
    let config =
        FairConfig { slice_ns: 3 * MS, lazy_preemption: true, ..FairConfig::of(Variant::EevdfForfeit) };
    let mut s = sim(&MachineConfig::ideal(2), fair(config), 1);
    let turns = record(&mut s);
    let allowed = Some([CpuId(0)].into_iter().collect());
    let program = Program::Cycle { run_ns: 100 * US, sleep_ns: 100 * MS };
    let task = spawn(&mut s, TaskSpec { allowed, ..TaskSpec::default() }, program);
    s.run_until(5 * MS).unwrap();
    s.host.wake(task, Some(CpuId(1)));
    s.run_until(6 * MS).unwrap();
    assert_eq!(turns_us(&turns, 0), [(0, Some(0)), (100, None), (5_000, Some(0)), (5_100, None)]);
}
