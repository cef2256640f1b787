// SPDX-License-Identifier: GPL-2.0-only
//! What the papers say of boosts and of detecting spins, on their machine, with programs that wait in one way only: 6 pCPUs, two VMs of 4 vCPUs, one of which computes; pause-loop
//! exits as on a Xeon X5650, in kernel mode after 12 us, and no APIC virtualization. Directions and orders, no figures.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail as the test does")]

use std::collections::BTreeMap;

use cohort_sim::policies::{GUARDS, ORDERS, PRESETS, SPINS};
use cohort_sim::run::{run, Watch};
use cohort_sim::scenario::Scenario;
use serde_json::json;

/// One vCPU has the others flush their TLBs, which compute in user mode: it waits for an IPI's answer.
const IPI: &str = r#"[
    {"name": "flusher", "times": "forever", "steps": [{"compute": {"exp": "100us"}}, {"shootdown": {"pages": 1}}, {"done": "unit"}]},
    {"name": "others", "count": "vcpus-1", "times": "forever", "steps": [{"compute": "1ms"}]}]"#;

/// All take a spin lock of the kernel.
const LOCK: &str = r#"[
    {"name": "all", "count": "vcpus", "times": "forever",
     "steps": [{"compute": {"exp": "20us"}}, {"lock": {"name": "l", "hold": "4us"}}, {"done": "unit"}]}]"#;

/// All wait for each other in user mode, with PAUSE.
const BARRIER: &str = r#"[
    {"name": "all", "count": "vcpus", "times": "forever",
     "steps": [{"compute": {"exp": "100us"}}, {"barrier": {"name": "b", "spin": "forever"}}, {"done": "unit"}]}]"#;

/// A preset's knobs, with a guard if one is named after it.
fn knobs(policy: &str) -> BTreeMap<&'static str, u64> {
    let (preset, guard) = policy.split_once(" + ").unwrap_or((policy, ""));
    let row = PRESETS.iter().find(|row| row[0] == preset).expect("a preset");
    let at = |table: &[[&str; 2]], name: &str| {
        table.iter().position(|row| row[0] == name).expect("a choice") as u64
    };
    let bits = [("candidate", 1), ("any-mode", 2), ("unfair", 4), ("migrate", 8), ("ipi", 16)];
    let boost =
        bits.iter().filter(|(kind, _)| row[5].split(',').any(|word| word == *kind)).map(|(_, bit)| bit).sum();
    BTreeMap::from([
        ("placement", u64::from(row[1] == "balance")),
        ("order", at(ORDERS, row[2])),
        ("spin", at(SPINS, row[4])),
        ("boost", boost),
        ("guard", at(GUARDS, if guard.is_empty() { row[6] } else { guard })),
    ])
}

/// Units per second of the program, the mean of twenty seeds of 2 s, since it matters when the guests' ticks come; and pause-loop exits.
fn rate(preset: &str, program: &str, kvm: &serde_json::Value, guest: &serde_json::Value) -> (f64, u64) {
    let threads: serde_json::Value = serde_json::from_str(program).expect("threads");
    let mut hardware = json!({"ipi": "trapped", "tsc_mhz": 2670, "ple": {
        "mode": "kernel", "window_cycles": 32_768, "window_max_cycles": 32_768, "grow": 1}});
    hardware.as_object_mut().unwrap().extend(kvm.as_object().unwrap().clone());
    let mut kernel = json!({"lock": "queued", "tlb": "ipi"});
    kernel.as_object_mut().unwrap().extend(guest.as_object().unwrap().clone());
    let vm = |name: &str, workload: serde_json::Value| json!({"name": name, "vcpus": 4, "kvm": hardware, "guest": kernel, "workload": workload});
    let (mut units, mut exits) = (0, 0);
    for seed in 1..=20 {
        let scenario = json!({
            "name": "boosts", "seed": seed, "duration_ns": 2_000_000_000u64, "machine": {"cores_per_socket": 6},
            "policy": {"class": "ext", "knobs": knobs(preset)},
            "vms": [
                vm("work", json!({"program": {"name": "work", "metric": {"rate": {"done": "unit", "unit": "units/s"}},
                    "barriers": if program == BARRIER { json!({"b": {"pause": true}}) } else { json!({}) }, "thread": threads}})),
                vm("hog", json!({"model": "cpu-hog"}))]
        });
        let scenario: Scenario = serde_json::from_value(scenario).expect("a scenario");
        let report = run(&scenario, Watch::default()).expect("a run");
        let program = report.programs.iter().find(|program| program.vm == 0).expect("the program");
        units += program.units;
        exits += report.stats["ple"];
    }
    let what = [(IPI, "ipi"), (LOCK, "lock"), (BARRIER, "barrier")]
        .iter()
        .find(|(text, _)| *text == program)
        .unwrap()
        .1;
    // What docs/policies.md has.
    println!("{what} {preset} {kvm} {guest}: {:.0} units/s, {exits} exits", units as f64 / 40.0);
    (units as f64 / 40.0, exits)
}

fn on_intel(preset: &str, program: &str) -> (f64, u64) {
    rate(preset, program, &json!({}), &json!({}))
}

/// Figure 5 of the paper on pause-loop exits: ebizzy and pbzip2.
#[test]
fn who_waits_for_an_ipis_answer_is_helped_by_user_mode_boosts_and_hardly_by_unfair_ones() {
    let [candidate, any, unfair, both] =
        ["ple-candidate", "ple-any", "ple-unfair", "ple-any-unfair"].map(|preset| on_intel(preset, IPI).0);
    assert!(any > 1.2 * candidate, "any-mode {any:.0}, candidate {candidate:.0}");
    assert!(unfair < 1.15 * candidate, "unfair {unfair:.0}, candidate {candidate:.0}");
    assert!(
        both > 1.7 * candidate && both > any,
        "both {both:.0}, any-mode {any:.0}, candidate {candidate:.0}"
    );
}

/// The same: hackbench.
#[test]
fn who_waits_for_a_spin_lock_is_helped_by_unfair_boosts_and_much_less_by_user_mode_ones() {
    let [candidate, any, unfair, both] =
        ["ple-candidate", "ple-any", "ple-unfair", "ple-any-unfair"].map(|preset| on_intel(preset, LOCK));
    assert!(unfair.0 > 1.1 * candidate.0, "unfair {unfair:?}, candidate {candidate:?}");
    let gain = |of: (f64, u64)| of.0 / candidate.0 - 1.0;
    assert!(gain(any) < 0.6 * gain(unfair), "any-mode {any:?}, unfair {unfair:?}, candidate {candidate:?}");
    assert!(both.0 < 1.05 * unfair.0, "both {both:?}, unfair {unfair:?}");
    // Figure 6.
    assert!(unfair.1 * 2 < candidate.1, "exits: {candidate:?} {unfair:?}");
}

#[test]
fn a_loop_in_user_mode_is_cured_by_amds_filter_and_wells_counters_and_not_by_intels() {
    let boosted = |preset: &str, kvm| rate(preset, BARRIER, &kvm, &json!({}));
    for preset in ["ple-any-unfair", "cohort"] {
        let (intel, exits) = boosted(preset, json!({}));
        assert_eq!(exits, 0);
        let amd = boosted(
            preset,
            json!({"ple": {
            "mode": "any", "window_cycles": 32_768, "window_max_cycles": 32_768, "grow": 1}}),
        );
        let wells = boosted(preset, json!({"wells": {"instructions": 12_000}}));
        assert!(amd.0 > 2.0 * intel && wells.0 > 2.0 * intel, "{preset}: {intel:.0} {amd:?} {wells:?}");
    }
}

/// Uhlig's techniques, without pause-loop exits to help.
#[test]
fn who_holds_a_lock_is_better_not_preempted() {
    let off = json!({"ple": {"mode": "off"}});
    for preset in ["vtime", "cohort"] {
        let plain = rate(preset, LOCK, &off, &json!({})).0;
        let guarded = rate(&format!("{preset} + kernel-mode"), LOCK, &off, &json!({})).0;
        let hinted = rate(preset, LOCK, &off, &json!({"lock_hint_ns": 20_000})).0;
        assert!(guarded > 1.15 * plain, "{preset}: guarded {guarded:.0}, not {plain:.0}");
        assert!(hinted > 1.2 * plain, "{preset}: hinted {hinted:.0}, not {plain:.0}");
    }
    // Who computes in user mode is safe to preempt: nothing to gain. Which siblings are stacked is chance, and another with a guard.
    let [plain, guarded] =
        ["vtime", "vtime + kernel-mode"].map(|policy| rate(policy, BARRIER, &off, &json!({})).0);
    assert!(
        guarded < 1.25 * plain && plain < 1.25 * guarded,
        "barrier: guarded {guarded:.0}, not {plain:.0}"
    );
}
