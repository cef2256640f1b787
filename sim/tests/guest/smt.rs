// SPDX-License-Identifier: GPL-2.0-only
//! Threads of a core: one that spins leaves more of it to the others than one that works.

use cohort_sim::class::fair::{Fair, FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::kvm::{HaltPoll, Ple, PleMode};
use cohort_sim::machine::{Costs, MachineConfig};
use cohort_sim::observe::What;
use cohort_sim::scenario::TaskConfig;

use crate::common::*;

/// One core: each thread at half speed beside one that works, at this speed beside one that spins.
fn core_with(threads: u32, beside_spinner: Option<u32>) -> MachineConfig {
    let costs = Costs {
        smt_speed_per_mille: 500,
        smt_speed_beside_spinner_per_mille: beside_spinner,
        ..Costs::free()
    };
    MachineConfig { cores_per_socket: 1, threads_per_core: threads, costs, ..MachineConfig::default() }
}

/// When the slow thread has done its work, beside a fast one that waits for it: each on a vCPU, each vCPU on a thread of its own.
fn slow_ends_ns(machine: &MachineConfig, fast: u32, slow: &str, spin: &str, tasks: &[TaskConfig]) -> u64 {
    let text = format!(
        "[[thread]]
         name = 'fast'
         count = {fast}
         steps = [{{ compute = '10us' }}, {{ barrier = {{ name = 'b', spin = {spin} }} }}]
         [[thread]]
         name = 'slow'
         steps = [{{ compute = '{slow}' }}, {{ done = 'x' }}, {{ barrier = {{ name = 'b', spin = {spin} }} }}]"
    );
    let cpus: Vec<u32> = (0..=fast).collect();
    let s = build(machine, turns_of_a_ms(), &[vm(fast + 1, &text)], tasks, 1).pin(&cpus).until(20 * MS);
    done(&s)[0]
}

#[test]
fn who_works_beside_a_spinner_is_faster_than_beside_work() {
    let ends_ns = |beside, spin| slow_ends_ns(&core_with(2, beside), 1, "100us", spin, &[]);
    // Both work for 20 us, at half speed; then 90 us are left, at three quarters.
    assert_eq!(ends_ns(Some(750), "'forever'"), 140 * US);
    assert_eq!(ends_ns(None, "'forever'"), 200 * US);
    // Who sleeps leaves the whole core.
    assert_eq!(ends_ns(Some(750), "0"), 110 * US);
    // Who gives up, after 40 us of the core at half speed: 30 us of work are done meanwhile, 60 are left.
    assert_eq!(ends_ns(Some(750), "'20us'"), 120 * US);
}

/// A pause-loop window is of the TSC, which the core's other thread does not slow down.
#[test]
fn a_window_is_as_long_beside_one_that_works() {
    let text = "[[thread]]
         name = 'spinner'
         steps = [{ compute = '10us' }, { lock = { name = 'l', hold = '10us' } }]
         [[thread]]
         name = 'holder'
         steps = [{ lock = { name = 'l', hold = '100us' } }]";
    let mut config = vm(2, text);
    config.kvm.ple = Ple { mode: PleMode::Kernel, window_cycles: 10_000, grow: 1, ..Ple::default() };
    let s = build(&core_with(2, None), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(MS);
    let exits = s.list(|what| matches!(what, What::Ple { .. }).then_some(()));
    // It spins from 20 us on, at half speed, until the lock is free.
    assert_eq!(exits[..3].iter().map(|(at, ())| at / US).collect::<Vec<_>>(), [30, 40, 50]);
}

#[test]
fn one_that_works_among_spinners_is_felt_as_such() {
    // Two spin from 20 us on: neither of them works beside the slow one.
    assert_eq!(slow_ends_ns(&core_with(3, Some(750)), 2, "100us", "'forever'", &[]), 140 * US);
    // ... and the third of four threads is the host's own, which works.
    let s = [hog(3)];
    assert_eq!(slow_ends_ns(&core_with(4, Some(750)), 2, "100us", "'forever'", &s), 200 * US);
}

#[test]
fn a_host_that_polls_for_a_halted_vcpu_spins() {
    let text = "[[thread]]
         name = 'fast'
         times = 2
         steps = [{ compute = '10us' }, { barrier = { name = 'b', spin = 0 } }]
         [[thread]]
         name = 'slow'
         times = 2
         steps = [{ compute = '100us' }, { done = 'x' }, { barrier = { name = 'b', spin = 0 } }]";
    let second_ns = |beside_spinner, max_ns| {
        let mut config = vm(2, text);
        config.kvm.halt_poll = HaltPoll { max_ns, grow_start_ns: 40 * US, ..HaltPoll::default() };
        done(
            &build(&core_with(2, beside_spinner), turns_of_a_ms(), &[config], &[], 1)
                .pin(&[0, 1])
                .until(20 * MS),
        )[1]
    };
    // The first round ends at 110 us. From it on both work for 20 us; then the host polls for 40 us, after which the core is the slow thread's.
    assert_eq!(second_ns(Some(750), MS), 230 * US);
    assert_eq!(second_ns(None, MS), 240 * US);
    assert_eq!(second_ns(Some(750), 0), 220 * US);
}

/// vCPU 0 spins from 8.4 ms on for a lock, whose holder was preempted at 8 ms by vCPU 1, which spins in user mode. The yield gives the holder that pCPU, and so
/// vCPU 0 another speed at the instant in which it is to go on.
#[test]
fn who_yields_and_keeps_its_pcpu_goes_on_at_another_speed() {
    let text = "[[thread]]
         name = 'waiter'
         vcpu = 0
         steps = [{ compute = '5300us' }, { lock = { name = 'l', hold = '10us' } }, { done = 'x' }, { barrier = { name = 'b', spin = 'forever' } }]
         [[thread]]
         name = 'user'
         vcpu = 1
         steps = [{ barrier = { name = 'b', spin = 'forever' } }]
         [[thread]]
         name = 'holder'
         vcpu = 2
         steps = [{ compute = '100us' }, { lock = { name = 'l', hold = '6ms' } }]";
    let mut config = vm(3, text);
    config.kvm.ple = Ple { mode: PleMode::Kernel, window_cycles: 10_000, grow: 1, ..Ple::default() };
    let class = AnyClass::Fair(Fair::new(FairConfig { slice_ns: MS, ..FairConfig::of(Variant::Eevdf) }));
    let s = build(&core_with(2, Some(750)), class, &[config], &[], 1).pin(&[0, 1, 1]).until(40 * MS);
    let granted = s.list(|what| matches!(what, What::DirectedYield { granted: true, .. }).then_some(()));
    assert!(!granted.is_empty());
    assert_eq!(done(&s).len(), 1);
    assert!(s.end_ns().is_some());
}

/// The spinner has its pCPU for a millisecond, then a process that works has it, and so on.
#[test]
fn a_spinner_that_is_preempted_leaves_nothing() {
    let machine = core_with(2, Some(750));
    // 10 us of work until 20 us, 735 until 1 ms, 500 until 2 ms, 750 until 3 ms: 5 us are left, at half speed.
    assert_eq!(slow_ends_ns(&machine, 1, "2ms", "'forever'", &[hog(0)]), 3_010 * US);
}
