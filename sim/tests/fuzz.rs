// SPDX-License-Identifier: GPL-2.0-only
//! Whatever is asked for: an error or a result, never a panic, a hang, or memory without bound. `PROPTEST_CASES=1000000` asks for more.

use cohort_sim::run::{run, Watch};
use cohort_sim::scenario::Scenario;
use proptest::prelude::*;
use proptest::sample::Index;

const POLICIES: [&str; 5] = [
    r#"{"class": "round-robin", "slice_min_ns": 1000, "slice_max_ns": 4000000, "shared_queue": false}"#,
    r#"{"class": "fair"}"#,
    r#"{"class": "fair", "variant": "cfs", "slice_ns": 700000}"#,
    r#"{"class": "ext", "knobs": {}}"#,
    r#"{"class": "ext", "knobs": {"placement": 1, "fair": 1, "boost": 15, "gang": 1, "slice_ns": 1000000}}"#,
];

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..6, Just(u64::from(u32::MAX)), Just(u64::MAX >> 1), any::<u64>()]
}

prop_compose! {
    /// A scenario's text, mostly a sensible one.
    fn scenario()(
        policy in 0..POLICIES.len(),
        seed in any::<u64>(),
        cores in prop_oneof![8 => 1u64..5, 1 => number()],
        threads in prop_oneof![8 => 1u64..3, 1 => number()],
        duration in prop_oneof![4 => 1u64..3_000_000, 1 => number()],
        vms in proptest::collection::vec((prop_oneof![9 => 1u64..5, 1 => number()], prop_oneof![9 => 1u64..300, 1 => number()]), 0..4),
        tasks in proptest::collection::vec(-22i64..22, 0..4),
    ) -> String {
        let vms: Vec<_> = vms.iter().map(|(vcpus, weight)| format!(r#"{{"name": "v", "vcpus": {vcpus}, "weight": {weight}}}"#)).collect();
        let tasks: Vec<_> = tasks.iter().map(|nice| format!(r#"{{"name": "t", "nice": {nice}}}"#)).collect();
        format!(
            r#"{{"name": "fuzz", "seed": {seed}, "duration_ns": {duration},
                "machine": {{"cores_per_socket": {cores}, "threads_per_core": {threads}}},
                "policy": {}, "vms": [{}], "tasks": [{}]}}"#,
            POLICIES[policy], vms.join(", "), tasks.join(", ")
        )
    }
}

/// Runs what can be run, within a test's patience.
fn attempt(text: &[u8]) {
    let Ok(mut scenario) = serde_json::from_slice::<Scenario>(text) else { return };
    scenario.duration_ns = scenario.duration_ns.min(5_000_000);
    scenario.events_max = scenario.events_max.min(20_000);
    // Errors are one line.
    if let Err(error) = run(&scenario, Watch::figures()) {
        let said = error.to_string();
        assert!(!said.is_empty() && !said.contains('\n'), "{said}");
    }
}

proptest! {
    #[test]
    fn sensible_scenarios(text in scenario()) {
        attempt(text.as_bytes());
    }

    #[test]
    fn damaged_scenarios(text in scenario(), edits in proptest::collection::vec((any::<Index>(), any::<u8>(), 0..3u8), 1..8)) {
        let mut bytes = text.into_bytes();
        for (at, byte, what) in edits {
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"0123456789{}[],:\"-"[usize::from(byte) % 18]),
                _ => drop(bytes.remove(at)),
            }
        }
        attempt(&bytes);
    }
}
