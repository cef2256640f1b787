// SPDX-License-Identifier: GPL-2.0-only
//! A guest's tasks compete by EEVDF: schedules computed by hand.

use cohort_sim::guest::{GuestConfig, Scheduler};
use cohort_sim::kvm::vector;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;

use crate::common::*;

/// Slices of 3 ms that end on time, the first half as long; no ticks.
fn guest(scheduler: Scheduler) -> GuestConfig {
    let (lag_by_tick, paid_leave) = (true, true);
    GuestConfig {
        scheduler,
        slice_ns: 3 * MS,
        hrtick: true,
        lag_by_tick,
        paid_leave,
        tick_ns: 0,
        ..GuestConfig::ideal()
    }
}

fn run(guest: GuestConfig, vcpus: u32, text: &str, until_ms: u64) -> Sim {
    let mut config = vm(vcpus, text);
    config.guest = guest;
    let cpus: Vec<u32> = (0..vcpus).collect();
    build(&MachineConfig::ideal(vcpus), turns_of_a_ms(), &[config], &[], 1).pin(&cpus).until(until_ms * MS)
}

/// When which task got that vCPU, in us. Tasks are numbered after the idle ones.
fn switches(s: &Sim, v: u32) -> Vec<(u64, u32)> {
    let all = s.list(|what| match what {
        What::GuestSwitch { vcpu, next, .. } if vcpu.id == v => Some(*next),
        _ => None,
    });
    all.into_iter().map(|(at, next)| (at / US, next)).collect()
}

#[test]
fn who_is_behind_and_has_the_earliest_deadline_runs() {
    let text = "[[thread]]\nname = 't'\ncount = 2\nsteps = [{ compute = '20ms' }]";
    let s = run(guest(Scheduler::Eevdf), 1, text, 11);
    assert_eq!(switches(&s, 0), [(0, 1), (1_500, 2), (3_000, 1), (6_000, 2), (9_000, 1)]);
}

/// Task 1 sleeps until 0.5 ms, when task 2 is not ahead: it goes on to the end of its slice, and then task 1 has all of one.
#[test]
fn who_wakes_does_not_take_the_slice_of_one_that_is_not_ahead() {
    let text = "
        [[thread]]
        name = 'woken'
        steps = [{ sleep = '500us' }, { compute = '20ms' }]
        [[thread]]
        name = 'runs'
        steps = [{ compute = '20ms' }]";
    let s = run(guest(Scheduler::Eevdf), 1, text, 6);
    assert_eq!(switches(&s, 0), [(0, 1), (0, 2), (1_500, 1), (4_500, 2)]);
}

/// On vCPU 1: r1 runs to 1.5 ms; w 10 us, so that it sleeps 0.493 ms behind the average; r2 to 3.01 ms; r1. At 4 ms w comes back, at 1.255 ms, with a deadline of
/// 4.255 ms; r2's is 4.5 ms, and r1 is ahead.
const BEHIND: &str = "
    [[thread]]
    name = 'waker'
    vcpu = 0
    steps = [{ compute = '4ms' }, { signal = 'c' }, { compute = '20ms' }]
    [[thread]]
    name = 'r1'
    vcpu = 1
    steps = [{ compute = '20ms' }]
    [[thread]]
    name = 'w'
    vcpu = 1
    steps = [{ compute = '10us' }, { wait = 'c' }, { compute = '1ms' }]
    [[thread]]
    name = 'r2'
    vcpu = 1
    steps = [{ compute = '20ms' }]";

#[test]
fn who_was_behind_when_it_slept_preempts_and_lazily_without_an_interrupt() {
    let run = |lazy_preemption| {
        let guest = GuestConfig { lazy_preemption, ..guest(Scheduler::EevdfDelay) };
        let s = run(guest, 2, BEHIND, 7);
        let sent =
            s.list(|what| matches!(what, What::GuestIpiSent { vector: vector::RESCHED, .. }).then_some(()));
        (switches(&s, 1), sent.len())
    };
    let before = [(0, 3), (1_500, 4), (1_510, 5), (3_010, 3)];
    let (at_once, sent) = run(false);
    assert_eq!((&at_once[..4], at_once[4], sent), (&before[..], (4_000, 4), 1));
    let (lazily, sent) = run(true);
    assert_eq!((&lazily[..4], lazily[4], sent), (&before[..], (6_010, 4), 0));
}

/// Task 2 sleeps from 0.5 to 0.6 ms, ahead of task 4, which is bound to vCPU 0; vCPU 1 idles.
#[test]
fn a_sleeper_that_is_ahead_stays_queued_where_it_was() {
    let text = "
        [[thread]]
        name = 'ahead'
        steps = [{ compute = '500us' }, { sleep = '100us' }, { compute = '1ms' }]
        [[thread]]
        name = 'short'
        steps = [{ compute = '10us' }]
        [[thread]]
        name = 'bound'
        vcpu = 0
        steps = [{ compute = '20ms' }]";
    let ran = |scheduler| {
        let s = run(guest(scheduler), 2, text, 3);
        [0, 1].map(|v| {
            switches(&s, v).into_iter().filter(|(at, next)| *at >= 500 && *next == 2).collect::<Vec<_>>()
        })
    };
    assert_eq!(ran(Scheduler::Eevdf), [vec![], vec![(600, 2)]]);
    // The bound one's slice lasts to 2 ms.
    assert_eq!(ran(Scheduler::EevdfDelay), [vec![(2_000, 2)], vec![]]);
}

/// Without ticks nobody sees on vCPU 1 that a slice is over, until vCPU 0 wakes somebody there.
#[test]
fn a_waker_ends_a_slice_that_it_finds_over() {
    let text = "
        [[thread]]
        name = 'waker'
        vcpu = 0
        steps = [{ compute = '4ms' }, { signal = 'c' }, { compute = '20ms' }]
        [[thread]]
        name = 'sleeper'
        vcpu = 1
        steps = [{ wait = 'c' }]
        [[thread]]
        name = 'r'
        count = 2
        vcpu = 1
        steps = [{ compute = '20ms' }]";
    let run = |lazy_preemption| {
        let guest = GuestConfig { hrtick: false, lazy_preemption, ..guest(Scheduler::Eevdf) };
        let s = run(guest, 2, text, 7);
        let sent =
            s.list(|what| matches!(what, What::GuestIpiSent { vector: vector::RESCHED, .. }).then_some(()));
        (switches(&s, 1), sent)
    };
    assert_eq!(run(false), (vec![(0, 3), (0, 4), (4_000, 5)], vec![(4 * MS, ())]));
    assert_eq!(run(true), (vec![(0, 3), (0, 4)], vec![]));
}

/// Task 1 yields a thousand times while nobody else is queued, and task 2 still gets its turn when task 1's slice is over.
#[test]
fn who_yields_alone_keeps_its_deadline() {
    let text = "
        [[thread]]
        name = 'yields'
        steps = [{ repeat = { times = 1000, steps = [{ compute = '1us' }, { yield = {} }] } }, { compute = '1s' }]
        [[thread]]
        name = 'sleeps'
        times = 2
        steps = [{ sleep = '5ms' }, { compute = '100us' }, { done = 'x' }]";
    let at = done(&run(guest(Scheduler::Eevdf), 1, text, 30));
    assert!(at.len() == 2 && at[1] < 20 * MS, "{at:?}");
}
