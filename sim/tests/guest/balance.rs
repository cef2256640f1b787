// SPDX-License-Identifier: GPL-2.0-only
//! Who moves between a guest's vCPUs, and when.

use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::VmConfig;

use crate::common::*;

/// When tasks came to run on vCPU 1, and which: tasks are numbered after the idle ones.
fn on_vcpu_1(s: &Sim) -> Vec<(u64, u32)> {
    s.list(|what| match what {
        What::GuestSwitch { vcpu, next, .. } if vcpu.id == 1 && *next != u32::MAX => Some(*next),
        _ => None,
    })
}

fn ran(config: VmConfig, ns: u64) -> Sim {
    build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(ns)
}

fn steals(config: &VmConfig, ns: u64) -> u64 {
    ran(config.clone(), ns).sim.bodies.vms[0].counters.steals
}

#[test]
fn who_ran_a_moment_ago_stays_until_a_tick_tells_the_idle_vcpu() {
    // The first has vCPU 0 for 2 ms, the third comes then. vCPU 1 goes idle 0.2 ms after that; at the tick at 3 ms it is long ago.
    let text = "
        [[thread]]
        name = 'first'
        steps = [{ compute = '10ms' }]
        [[thread]]
        name = 'short'
        steps = [{ compute = '2200us' }]
        [[thread]]
        name = 'third'
        steps = [{ compute = '10ms' }]";
    let came = |migration_cost_ns| {
        let mut config = vm(2, text);
        config.guest.tick_ns = MS;
        (config.guest.slice_ns, config.guest.latency_ns) = (2 * MS, 4 * MS);
        config.guest.migration_cost_ns = migration_cost_ns;
        on_vcpu_1(&ran(config, 4 * MS))
    };
    assert_eq!(came(0)[..2], [(0, 3), (2_200 * US, 2)]);
    assert_eq!(came(500 * US)[..2], [(0, 3), (3 * MS, 2)]);
}

#[test]
fn who_sleeps_for_moments_looks_for_nobody() {
    // From 3.05 ms on, when vCPU 1 is busy, somebody waits on vCPU 0.
    let text = "
        [[thread]]
        name = 'later'
        steps = [{ sleep = '3050us' }, { compute = '10ms' }]
        [[thread]]
        name = 'moments'
        times = 100
        steps = [{ compute = '100us' }, { sleep = '20us' }]
        [[thread]]
        name = 'busy'
        steps = [{ compute = '10ms' }]";
    let mut config = vm(2, text);
    assert_eq!(steals(&config, 4 * MS), 1);
    config.guest.costs.newidle_vcpu_ns = 50 * US;
    assert_eq!(steals(&config, 4 * MS), 0);
}

#[test]
fn a_task_more_is_evened_out_when_that_has_failed_once() {
    let mut config = vm(2, "[[thread]]\nname = 't'\ncount = 3\nsteps = [{ compute = '200ms' }]");
    config.guest.tick_ns = 4 * MS;
    // vCPU 1 looks at its first tick, and 28 ms later. Then vCPU 0 has less; it has found all even at 4 ms, and looks at 64 and 92.
    assert_eq!([31, 33, 91, 93].map(|ms| steals(&config, ms * MS)), [0, 1, 1, 2]);
}

#[test]
fn two_tasks_more_are_evened_out_at_once() {
    let text = "
        [[thread]]
        name = 'stays'
        count = 2
        vcpu = 0
        steps = [{ compute = '200ms' }]
        [[thread]]
        name = 'may-go'
        steps = [{ compute = '200ms' }]
        [[thread]]
        name = 'beside'
        steps = [{ compute = '200ms' }]";
    let mut config = vm(2, text);
    config.guest.tick_ns = 4 * MS;
    assert_eq!([3, 5].map(|ms| steals(&config, ms * MS)), [0, 1]);
}

#[test]
fn who_writes_to_a_pipe_is_about_to_sleep() {
    // The reader's vCPU is busy, and so is the writer's. The reader's is free first, and takes nobody: looking costs more than it idles.
    let woken_on = |wakes: &str, waits: &str| {
        let text = format!(
            "
            pipes = {{ p = {{ capacity = 2 }} }}
            [[thread]]
            name = 'writer'
            vcpu = 0
            steps = [{{ compute = '100us' }}, {wakes}, {{ compute = '20ms' }}]
            [[thread]]
            name = 'reader'
            steps = [{waits}, {{ done = 'read' }}]
            [[thread]]
            name = 'beside'
            vcpu = 1
            steps = [{{ compute = '10ms' }}]"
        );
        let mut config = vm(2, &text);
        config.guest.costs.newidle_vcpu_ns = MS;
        done_on(&ran(config, 40 * MS))[0].1
    };
    assert_eq!(woken_on("{ send = 'p' }", "{ recv = 'p' }"), 0);
    assert_eq!(woken_on("{ signal = 'c' }", "{ wait = 'c' }"), 1);
}
