// SPDX-License-Identifier: GPL-2.0-only
//! A VM whose vCPUs sleep now and then has what it is due beside one that computes all the time.

use cohort_sim::policies::PRESETS;

use crate::common::*;
use crate::presets;
use crate::spec::Spec;
use crate::world::{TaskId, World};

/// How long the first vCPU computes and sleeps, and how long each of the others, in ms.
const CYCLES: [[u64; 4]; 7] =
    [[1, 9, 4, 1], [1, 3, 8, 1], [1, 20, 2, 1], [2, 8, 3, 1], [1, 50, 1, 1], [1, 9, 20, 1], [4, 1, 4, 1]];

fn world_of(preset: &str, cpus: usize) -> World {
    let preset = PRESETS.iter().find(|row| row[0] == preset).expect("a preset");
    world_with(cpus, presets::knobs(preset))
}

/// What the VM has of what it wants and is due, beside a busy one of the same weight and with as many vCPUs as there are pCPUs.
fn part_of_its_due(mut w: World, cpus: usize, sleepers: &[TaskId], wants: f64) -> f64 {
    let (_, busy) = busy_vm(&mut w, cpus);
    introduce(&mut w, &busy);
    w.run(500 * MS);
    let all: Vec<_> = sleepers.iter().chain(&busy).copied().collect();
    let got: f64 = shares(&mut w, 5_000 * MS, &all)[..sleepers.len()].iter().sum();
    audit(&mut w);
    got / wants.min(cpus as f64 / 2.0)
}

/// The same for a VM with as many vCPUs, of that cycle.
fn part_with_cycle(preset: &str, cpus: usize, [run, sleep, runs, sleeps]: [u64; 4]) -> f64 {
    let mut w = world_of(preset, cpus);
    let vm = w.new_vm(cpus);
    let cycle = |id| match id {
        0 => Spec::cycle(run * MS, sleep * MS),
        _ => Spec::cycle(runs * MS, sleeps * MS),
    };
    let vcpus: Vec<_> = (0..cpus).map(|id| w.spawn(cycle(id).vcpu(vm, id))).collect();
    let part = |run: u64, sleep: u64| run as f64 / (run + sleep) as f64;
    let wants = part(run, sleep) + (cpus - 1) as f64 * part(runs, sleeps);
    part_of_its_due(w, cpus, &vcpus, wants)
}

#[track_caller]
fn check(preset: &str, hosts: &[usize], least: f64) {
    for cycle in CYCLES {
        for cpus in hosts {
            let part = part_with_cycle(preset, *cpus, cycle);
            assert!(part >= least, "{preset}, {cpus} pCPUs, {cycle:?}: {part:.2} of what it is due");
        }
    }
}

#[test]
fn a_vm_that_sleeps_has_its_due() {
    check("cohort", &[2, 4, 8], 0.95);
}

#[test]
fn a_vm_that_sleeps_has_its_due_without_turns() {
    check("partial", &[2, 4, 8], 0.9);
    check("relaxed", &[2, 4, 8], 0.9);
}

#[test]
fn a_uniprocessor_vm_that_sleeps_has_its_due() {
    for cpus in [1, 2, 4, 8, 24] {
        for (run_us, sleep_us) in [(300, 3_000), (1_000, 1_000), (4_000, 1_000), (10_000, 2_000)] {
            for weight in [50, 100, 400] {
                let mut w = world_of("cohort", cpus);
                let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(1));
                let vcpu = w.spawn(Spec::cycle(run_us * 1_000, sleep_us * 1_000).vcpu(vm, 0).cgroup(cgroup));
                let wants = run_us as f64 / (run_us + sleep_us) as f64;
                let due = cpus as f64 * f64::from(weight) / f64::from(weight + 100);
                let part =
                    part_of_its_due(w, cpus, &[vcpu], wants) * wants.min(cpus as f64 / 2.0) / wants.min(due);
                assert!(
                    part > 0.9,
                    "{cpus} pCPUs, {run_us} of {} us, weight {weight}: {part:.2}",
                    run_us + sleep_us
                );
            }
        }
    }
}

#[test]
fn who_sleeps_briefly_is_placed_by_its_own_queue_not_by_that_which_is_farthest() {
    // Its sibling sleeps much, so that their pCPUs' clocks differ.
    for cpus in [2, 4] {
        let mut w = world_of("sbco", cpus);
        let vm = w.new_vm(cpus);
        let cycle = |id| if id == 0 { Spec::cycle(MS, 20 * MS) } else { Spec::cycle(2 * MS, MS) };
        let a: Vec<_> = (0..cpus).map(|id| w.spawn(cycle(id).vcpu(vm, id))).collect();
        let (_, b) = busy_vm(&mut w, cpus);
        introduce(&mut w, &b);
        w.run(500 * MS);
        let all: Vec<_> = a.iter().chain(&b).copied().collect();
        let got = shares(&mut w, 10_000 * MS, &all);
        // It wants two thirds of a pCPU and more than its part of what the two VMs share.
        for share in &got[1..cpus] {
            assert!(*share > 0.5, "{cpus} pCPUs: {got:.3?}");
        }
        audit(&mut w);
    }
}
