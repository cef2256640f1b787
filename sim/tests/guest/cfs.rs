// SPDX-License-Identifier: GPL-2.0-only
//! A guest's tasks compete by CFS: schedules computed by hand.

use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;

use crate::common::*;

/// When which task got vCPU 0, in us, with ticks of 1 ms, a latency of 24 ms and turns of 3 ms at least. Tasks are numbered after the idle one.
fn switches(text: &str, until_ms: u64) -> Vec<(u64, u32)> {
    let mut config = vm(1, text);
    config.guest.tick_ns = MS;
    (config.guest.latency_ns, config.guest.slice_ns) = (24 * MS, 3 * MS);
    let s =
        build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).pin(&[0]).until(until_ms * MS);
    let all = s.list(|what| match what {
        What::GuestSwitch { next, .. } => Some(*next),
        _ => None,
    });
    all.into_iter().map(|(at, next)| (at / US, next)).collect()
}

fn computing(count: u32) -> String {
    format!("[[thread]]\nname = 't'\ncount = {count}\nsteps = [{{ compute = '1s' }}]")
}

#[test]
fn each_has_a_turn_within_the_latency_or_the_least_turn() {
    assert_eq!(switches(&computing(2), 30), [(0, 1), (12_000, 2), (24_000, 1)]);
    assert_eq!(switches(&computing(3), 30), [(0, 1), (8_000, 2), (16_000, 3), (24_000, 1)]);
    let at: Vec<u64> = switches(&computing(12), 11).iter().map(|(at, _)| *at).collect();
    assert_eq!(at, [0, 3_000, 6_000, 9_000]);
}

/// A task computes for 1 ms, sleeps for so long and computes again, beside one that computes all the time. When it runs again, and until when.
fn after_sleep(sleep: &str) -> Vec<(u64, u32)> {
    let text = format!(
        "[[thread]]
        name = 'sleeper'
        steps = [{{ compute = '1ms' }}, {{ sleep = '{sleep}' }}, {{ compute = '1s' }}]
        [[thread]]
        name = 'other'
        steps = [{{ compute = '1s' }}]"
    );
    switches(&text, 120)[2..4].to_vec()
}

#[test]
fn who_has_slept_is_half_a_latency_before_the_others_at_best() {
    // It slept at 1 ms of virtual time; at 4.5 ms it is 2.5 ms behind, which is what it was, and goes at once, until its turn of 12 ms is over with a tick.
    assert_eq!(after_sleep("3500us"), [(4_500, 1), (17_000, 2)]);
    // The other one is at 49.5 ms, so it comes at 37.5 ms: after its turn it is even with it, less what it has just had more.
    assert_eq!(after_sleep("49500us"), [(50_500, 1), (63_000, 2)]);
}

/// Ticks of 1 ms, a latency of 24 ms, a pCPU for each vCPU. The virtual run time of that task at the last tick before `until_us`, in us.
fn vruntime_us(vcpus: u32, text: &str, task: usize, until_us: u64) -> u64 {
    let mut config = vm(vcpus, text);
    (config.guest.tick_ns, config.guest.latency_ns) = (MS, 24 * MS);
    let cpus: Vec<u32> = (0..vcpus).collect();
    let machine = MachineConfig::ideal(vcpus);
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&cpus).until(until_us * US);
    s.sim.bodies.vms[0].tasks[task].vruntime_ns / US
}

const BOUND: &str = "[[thread]]\nname = 'bound'\nvcpu = 0\nsteps = [{ compute = '1s' }]\n";

#[test]
fn who_is_taken_by_another_vcpu_keeps_its_distance_from_the_least() {
    // It runs on vCPU 0 up to 12 ms. At 15 ms it is 9 ms ahead of the other one there; vCPU 1 is at 15 ms and takes it.
    let text = format!(
        "[[thread]]\nname = 'moves'\nsteps = [{{ compute = '1s' }}]
        [[thread]]\nname = 'short'\nvcpu = 1\nsteps = [{{ compute = '15ms' }}]\n{BOUND}"
    );
    assert_eq!(vruntime_us(2, &text, 2, 14_500), 12_000);
    assert_eq!(vruntime_us(2, &text, 2, 16_500), 24_000 + 1_000);
}

#[test]
fn who_wakes_on_another_vcpu_keeps_its_distance_from_the_least() {
    // It sleeps from 2 to 12.5 ms, when the least is at 10 ms on vCPU 1, as of its last tick, and at 11 ms on vCPU 2, which idles.
    let text = format!(
        "{BOUND}[[thread]]\nname = 'sleeper'\nsteps = [{{ compute = '2ms' }}, {{ sleep = '10500us' }}, {{ compute = '1s' }}]
        [[thread]]\nname = 'idles'\nvcpu = 2\nsteps = [{{ compute = '11ms' }}]
        {}",
        BOUND.replace('0', "1")
    );
    assert_eq!(vruntime_us(3, &text, 4, 11_500), 2_000);
    assert_eq!(vruntime_us(3, &text, 4, 13_500), 3_000 + 500);
}
