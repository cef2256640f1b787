// SPDX-License-Identifier: GPL-2.0-only
//! Texts of scenarios, mostly sensible ones, and the same with bytes changed.

use proptest::prelude::*;
use proptest::sample::Index;

use crate::{attempt, cases, damage, edits};

const POLICIES: [&str; 5] = [
    r#"{"class": "round-robin", "slice_min_ns": 1000, "slice_max_ns": 4000000, "shared_queue": false}"#,
    r#"{"class": "fair"}"#,
    r#"{"class": "fair", "variant": "cfs", "slice_ns": 700000}"#,
    r#"{"class": "ext", "knobs": {}}"#,
    r#"{"class": "ext", "knobs": {"placement": 1, "order": 0, "boost": 15, "gang": 1, "slice_ns": 1000000}}"#,
];

const MODELS: [&str; 6] = ["cpu-hog", "hackbench", "tlb-shootdown", "dbench", "user-spin", "streamcluster"];
const LOCKS: [&str; 6] = ["tas", "ticket", "queued", "pv-ticket", "pv-queued", "preemptable-ticket"];
const TLBS: [&str; 3] = ["ipi", "kvm-pv", "hypercall"];
const IPIS: [&str; 3] = ["trapped", "posted", "virtualized"];
const PLES: [&str; 3] = ["off", "kernel", "any"];

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..6, Just(u64::from(u32::MAX)), Just(u64::MAX >> 1), any::<u64>()]
}

prop_compose! {
    /// A VM, mostly a sensible one.
    fn vm()(
        vcpus in prop_oneof![9 => 1u64..5, 1 => number()],
        weight in prop_oneof![9 => 1u64..300, 1 => number()],
        window in prop_oneof![9 => 1u64..5000, 1 => number()],
        model in any::<Index>(), lock in any::<Index>(), tlb in any::<Index>(), ipi in any::<Index>(), ple in any::<Index>(),
        idle in 0..5u8,
    ) -> String {
        let workload = match idle {
            0 => String::new(),
            _ => format!(r#", "workload": {{"model": "{}"}}"#, model.get(&MODELS)),
        };
        format!(
            r#"{{"name": "v", "vcpus": {vcpus}, "weight": {weight},
                "kvm": {{"ipi": "{}", "ple": {{"mode": "{}", "window_cycles": {window}}}}},
                "guest": {{"lock": "{}", "tlb": "{}"}}{workload}}}"#,
            ipi.get(&IPIS), ple.get(&PLES), lock.get(&LOCKS), tlb.get(&TLBS)
        )
    }
}

prop_compose! {
    /// A scenario's text, mostly a sensible one.
    pub fn scenario()(
        policy in 0..POLICIES.len(),
        seed in any::<u64>(),
        cores in prop_oneof![8 => 1u64..5, 1 => number()],
        threads in prop_oneof![8 => 1u64..3, 1 => number()],
        duration in prop_oneof![4 => 1u64..5_000_000, 1 => number()],
        vms in proptest::collection::vec(vm(), 0..4),
        tasks in proptest::collection::vec(-22i64..22, 0..4),
    ) -> String {
        let tasks: Vec<_> = tasks.iter().map(|nice| format!(r#"{{"name": "t", "nice": {nice}}}"#)).collect();
        format!(
            r#"{{"name": "fuzz", "seed": {seed}, "duration_ns": {duration},
                "machine": {{"cores_per_socket": {cores}, "threads_per_core": {threads}}},
                "policy": {}, "vms": [{}], "tasks": [{}]}}"#,
            POLICIES[policy], vms.join(", "), tasks.join(", ")
        )
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn sensible_scenarios(text in scenario()) {
        attempt(text.as_bytes());
    }

    #[test]
    fn damaged_scenarios(text in scenario(), edits in edits()) {
        attempt(&damage(text, &edits));
    }
}
