// SPDX-License-Identifier: GPL-2.0-only
//! Every preset of policies.h keeps the shares that it promises, to one part in a hundred over ten seconds.

use cohort_sim::policies::{GANGS, GUARDS, ORDERS, PRESETS, SPINS};

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

/// These say of themselves that they keep no shares.
const WITHOUT_SHARES: [&str; 2] = ["procco", "cpuco"];

fn number(table: &[[&str; 2]], name: &str) -> Option<u32> {
    Some(table.iter().position(|row| row[0] == name).expect("a name of its table") as u32)
}

fn boost(list: &str) -> u32 {
    let kinds = [
        ("off", 0),
        ("candidate", knob::BOOST_CANDIDATE),
        ("any-mode", knob::BOOST_ANY_MODE),
        ("unfair", knob::BOOST_UNFAIR),
        ("migrate", knob::BOOST_MIGRATE),
        ("ipi", knob::BOOST_IPI),
    ];
    let bit = |word: &str| kinds.iter().find(|(name, _)| *name == word).expect("a kind of boost").1;
    list.split(',').map(bit).sum()
}

pub fn knobs(preset: &[&str; 8]) -> Knobs {
    let [_, placement, order, gang, spin, boosts, guard, _] = preset;
    Knobs {
        placement: Some(u32::from(*placement == "balance")),
        order: number(ORDERS, order),
        gang: number(GANGS, gang),
        spin: number(SPINS, spin),
        boost: Some(boost(boosts)),
        guard: number(GUARDS, guard),
        ..Knobs::default()
    }
}

/// A busy VM in a cgroup of that weight.
fn vm_of(w: &mut World, weight: u32, vcpus: usize) -> Vec<TaskId> {
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(vcpus));
    (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect()
}

/// How far VMs of these weights are from what they are due, at most, as a part of the host.
fn error(preset: &[&str; 8], cpus: usize, vcpus: usize, weights: &[u32]) -> f64 {
    let mut w = world_with(cpus, knobs(preset));
    let vms: Vec<Vec<TaskId>> = weights.iter().map(|weight| vm_of(&mut w, *weight, vcpus)).collect();
    // The VM that came first has had a turn or two more than the others, and gives it back.
    w.run(13_000 * MS);
    let got = shares(&mut w, 10_000 * MS, &vms.concat());
    audit(&mut w);
    let total: u32 = weights.iter().sum();
    let mut got = got.into_iter();
    let off = weights.iter().map(|weight| {
        let share = got.by_ref().take(vcpus).sum::<f64>() / cpus as f64;
        (share - f64::from(*weight) / f64::from(total)).abs()
    });
    off.fold(0.0, f64::max)
}

fn check(cpus: usize, vcpus: usize, weights: &[u32]) {
    let mut off = Vec::new();
    for preset in PRESETS.iter().filter(|preset| !WITHOUT_SHARES.contains(&preset[0])) {
        let error = error(preset, cpus, vcpus, weights);
        println!(
            "{:16} {cpus} pCPUs, {vcpus} vCPUs each, weights {weights:?}: {:.2} %",
            preset[0],
            error * 100.0
        );
        if error > 0.01 {
            off.push(format!("{}: {:.3}", preset[0], error));
        }
    }
    assert!(off.is_empty(), "{cpus} pCPUs, {vcpus} vCPUs each, weights {weights:?}: {off:?}");
}

#[test]
fn equal_vms_have_equal_shares_under_every_preset() {
    check(2, 2, &[100, 100]);
    check(2, 4, &[100, 100]);
    check(2, 2, &[100, 100, 100]);
}

/// How far each VM is from its own due, at most, in percent of that. `--nocapture` prints the table of docs/default-policy.md.
#[test]
#[ignore = "long: minutes"]
fn equal_vms_have_what_they_are_due_within_1_percent_on_larger_hosts() {
    println!("| policy | 8 pCPUs, 2 VMs | 24 pCPUs, 3 VMs | 64 pCPUs, 5 VMs |");
    println!("|---|---:|---:|---:|");
    let mut off = Vec::new();
    for preset in PRESETS {
        let name = preset[0];
        let of_due = [(8, 2), (24, 3), (64, 5)].map(|(cpus, vms)| {
            let due = 1.0 / vms as f64;
            100.0 * error(preset, cpus, cpus, &vec![100; vms]) / due
        });
        println!("| `{name}` | {:.2} | {:.2} | {:.2} |", of_due[0], of_due[1], of_due[2]);
        if !WITHOUT_SHARES.contains(&name) && of_due.iter().any(|error| *error > 1.0) {
            off.push(format!("{name}: {of_due:.2?}"));
        }
    }
    assert!(off.is_empty(), "{off:?}");
}

#[test]
fn weights_hold_under_every_preset() {
    check(4, 4, &[100, 300]);
    check(4, 4, &[100, 200, 500]);
}
