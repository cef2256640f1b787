// SPDX-License-Identifier: GPL-2.0-only
//! Whatever is asked for: an error or a result, never a panic, a hang, or memory without bound. `PROPTEST_CASES=1000000` asks for more.

use cohort_sim::run::{run, Report, Watch};
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
    fn scenario()(
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

/// Runs what can be run, within a test's patience.
fn attempt(text: &[u8]) {
    let Ok(mut scenario) = serde_json::from_slice::<Scenario>(text) else { return };
    scenario.duration_ns = scenario.duration_ns.min(5_000_000);
    scenario.events_max = scenario.events_max.min(20_000);
    match run(&scenario, Watch::figures()) {
        Ok(report) => audit(&report),
        // Errors are one line.
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said}");
        }
    }
}

/// The observers' books, kept from events alone, agree with the host's own, and time adds up.
fn audit(report: &Report) {
    let figures = report.figures.as_ref().expect("figures");
    for (task, totals) in report.tasks.iter().zip(&report.outcome.tasks) {
        let (Some(vm), Some(vcpu)) = (task.vm, task.vcpu) else { continue };
        let seen = &figures.vms[vm as usize].vcpus[vcpu.id as usize];
        assert_eq!((seen.run_ns, seen.ready_ns), (totals.run_ns, totals.wait_ns), "{}", task.name);
        assert_eq!(seen.switches, totals.switches, "{}", task.name);
        // A task can be moved once more while it is made, before the run, which is not in the events.
        assert!(totals.migrations.abs_diff(seen.migrations) <= 1, "{}", task.name);
        assert!(seen.run_ns + seen.ready_ns <= report.outcome.end_ns, "{}", task.name);
    }
    let capacity_ns = report.outcome.end_ns * u64::from(figures.host.pcpus);
    assert_eq!(figures.host.busy_ns + figures.host.idle_ns, capacity_ns);
    let busy_ns: u64 = report.outcome.tasks.iter().map(|task| task.run_ns).sum();
    assert_eq!(figures.host.busy_ns, busy_ns);
    for vm in &figures.vms {
        assert!(vm.host.costop_ns <= vm.host.ready_ns && vm.host.cpu_ns >= vm.host.run_ns, "{}", vm.name);
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
