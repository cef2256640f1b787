// SPDX-License-Identifier: GPL-2.0-only
//! Fingerprints of the first 60 ms of runs with guests: whatever changes what happens in a run shows here. A change that was meant to
//! changes this table, in the same commit.

use cohort_sim::run::{run, Watch};
use cohort_sim::scenario::Scenario;

const EEVDF: &str = r#"{"class": "fair"}"#;
const CFS: &str = r#"{"class": "fair", "variant": "cfs"}"#;
const COHORT: &str = r#"{"class": "ext", "knobs": {"placement": 1, "fair": 1, "gang": 0, "boost": 15}}"#;

/// Program, locks, TLB flushes, interrupts, policy, fingerprint.
const RUNS: [(&str, &str, &str, &str, &str, &str); 9] = [
    ("hackbench", "tas", "ipi", "trapped", EEVDF, "de2dc2e0f5182b24"),
    ("hackbench", "pv-queued", "kvm-pv", "posted", COHORT, "eb7a352a631e06cb"),
    ("hackbench", "ticket", "ipi", "virtualized", CFS, "f44d23ec4dd06042"),
    ("tlb-shootdown", "tas", "ipi", "trapped", EEVDF, "9cddf5a457c85943"),
    ("tlb-shootdown", "tas", "kvm-pv", "trapped", EEVDF, "b1bec49aed44befd"),
    ("tlb-shootdown", "tas", "hypercall", "trapped", COHORT, "ba7539f525bd4cda"),
    ("dbench", "queued", "ipi", "posted", COHORT, "1ccf402822871973"),
    ("dbench", "preemptable-ticket", "ipi", "posted", EEVDF, "65130b5de42759ec"),
    ("user-spin", "pv-ticket", "ipi", "trapped", COHORT, "bf6b9b6d8405a14d"),
];

fn scenario(program: &str, lock: &str, tlb: &str, ipi: &str, policy: &str) -> Scenario {
    let vm = |name: &str, model: &str| {
        format!(
            r#"{{"name": "{name}", "vcpus": 3, "kvm": {{"ipi": "{ipi}"}},
                "guest": {{"lock": "{lock}", "tlb": "{tlb}"}}, "workload": {{"model": "{model}"}}}}"#
        )
    };
    let text = format!(
        r#"{{"name": "golden", "seed": 7, "duration_ns": 60000000, "machine": {{"cores_per_socket": 2}},
            "policy": {policy}, "vms": [{}, {}]}}"#,
        vm("work", program),
        vm("hog", "cpu-hog")
    );
    serde_json::from_str(&text).expect("a scenario")
}

#[test]
fn runs_are_the_same_as_ever() {
    let mut changed = Vec::new();
    for (program, lock, tlb, ipi, policy, expected) in RUNS {
        let found = run(&scenario(program, lock, tlb, ipi, policy), Watch::figures()).expect("a run");
        let found = found.fingerprint.expect("a fingerprint");
        if found != expected {
            changed.push(format!("{program}, {lock}, {tlb}, {ipi}, {policy}: {found}"));
        }
    }
    assert!(changed.is_empty(), "other fingerprints than before:\n{}", changed.join("\n"));
}
