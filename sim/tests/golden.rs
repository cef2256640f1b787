// SPDX-License-Identifier: GPL-2.0-only
//! Fingerprints of the first 400 ms of runs with guests: whatever changes what happens in a run shows here. A change that was meant to
//! changes this table, in the same commit.

use cohort_sim::run::{run, Watch};
use cohort_sim::scenario::Scenario;

const EEVDF: &str = r#"{"class": "fair"}"#;
const FLAT: &str = r#"{"class": "fair", "variant": "eevdf-flat"}"#;
const CFS: &str = r#"{"class": "fair", "variant": "cfs"}"#;
const COHORT: &str = r#"{"class": "ext", "knobs": {"placement": 1, "order": 0, "gang": 0, "boost": 15}}"#;

/// What happens under the scheduler of `bpf/` changes with each change of it; such a run must only be the same twice.
const BPF: &str = "";

/// Program, locks, TLB flushes, interrupts, policy, fingerprint.
const RUNS: [(&str, &str, &str, &str, &str, &str); 10] = [
    ("hackbench", "tas", "ipi", "trapped", FLAT, "7781df7580a243fe"),
    ("hackbench", "pv-queued", "kvm-pv", "posted", COHORT, BPF),
    ("hackbench", "ticket", "ipi", "virtualized", CFS, "9e20aa2dae4fd5f4"),
    ("tlb-flush", "tas", "ipi", "trapped", EEVDF, "e9bd06ad16276ef1"),
    ("tlb-flush", "tas", "kvm-pv", "trapped", FLAT, "f26b0c4695cf069e"),
    ("tlb-flush", "tas", "hypercall", "trapped", COHORT, BPF),
    ("ebizzy", "queued", "ipi", "trapped", EEVDF, "c4242622fb8be223"),
    ("dbench", "queued", "ipi", "posted", COHORT, BPF),
    ("dbench", "preemptable-ticket", "ipi", "posted", EEVDF, "825e0f14a03ec823"),
    ("user-spin", "pv-ticket", "ipi", "trapped", COHORT, BPF),
];

fn scenario(program: &str, lock: &str, tlb: &str, ipi: &str, policy: &str) -> Scenario {
    let vm = |name: &str, model: &str| {
        format!(
            r#"{{"name": "{name}", "vcpus": 3, "kvm": {{"ipi": "{ipi}"}},
                "guest": {{"lock": "{lock}", "tlb": "{tlb}"}}, "workload": {{"model": "{model}"}}}}"#
        )
    };
    let text = format!(
        r#"{{"name": "golden", "seed": 7, "duration_ns": 400000000, "machine": {{"cores_per_socket": 2}},
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
        let run = || run(&scenario(program, lock, tlb, ipi, policy), Watch::figures()).expect("a run");
        let found = run().fingerprint.expect("a fingerprint");
        if expected == BPF {
            assert_eq!(run().fingerprint, Some(found));
        } else if found != expected {
            changed.push(format!("{program}, {lock}, {tlb}, {ipi}, {policy}: {found}"));
        }
    }
    assert!(changed.is_empty(), "other fingerprints than before:\n{}", changed.join("\n"));
}

#[test]
fn two_threads_at_once_give_the_same() {
    let found = || {
        let run = |&(program, lock, tlb, ipi, policy, _): &(_, _, _, _, _, _)| {
            run(&scenario(program, lock, tlb, ipi, policy), Watch::figures()).expect("a run").fingerprint
        };
        RUNS.iter().map(run).collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(found)).collect();
    let alone = found();
    for thread in threads {
        assert_eq!(thread.join().expect("a thread"), alone);
    }
}
