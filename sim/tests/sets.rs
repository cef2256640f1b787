// SPDX-License-Identifier: GPL-2.0-only
//! Sets that are found (gang partial-auto), from end to end: programs of a guest send messages, the guest's kernel wakes who waits for them by interrupts, the scheduler
//! counts those, and what is found in that comes back to it.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail as the test does")]

use cohort_sim::policies::GANGS;
use cohort_sim::run::{run, Watch};
use cohort_sim::scenario::Scenario;
use serde_json::{json, Value};

/// Two that send each other messages, each on a vCPU of its own; after every other round they do what is in `after`.
fn pair(name: &str, vcpus: [u32; 2], after: &[Value]) -> [Value; 2] {
    let (ping, pong) = (format!("{name}-ping"), format!("{name}-pong"));
    let asks =
        json!({"repeat": {"times": 2, "steps": [{"compute": "100us"}, {"send": ping}, {"recv": pong}]}});
    let answers = json!([{"recv": ping}, {"compute": "100us"}, {"send": pong}]);
    let steps: Vec<Value> =
        [asks, json!({"done": "round"})].into_iter().chain(after.iter().cloned()).collect();
    [
        json!({"name": format!("{name}-asks"), "vcpu": vcpus[0], "times": "forever", "steps": steps}),
        json!({"name": format!("{name}-answers"), "vcpu": vcpus[1], "times": "forever", "steps": answers}),
    ]
}

/// The sets that a VM of 4 vCPUs has after 11 s, beside one that computes: (0, 2) and (1, 3) are pairs, which tell each other something every other time.
fn found(split: Option<f64>) -> Vec<Vec<u32>> {
    let meets = |first: &str, then: &str| [json!({first: "x"}), json!({then: "y"})];
    let threads = [pair("a", [0, 2], &meets("send", "recv")), pair("b", [1, 3], &meets("recv", "send"))];
    let pipes: serde_json::Map<_, _> = ["a-ping", "a-pong", "b-ping", "b-pong", "x", "y"]
        .map(|name| (name.to_string(), json!({"capacity": 1})))
        .into_iter()
        .collect();
    let vm = |name: &str, workload: Value| json!({"name": name, "vcpus": 4, "kvm": {"ipi": "trapped"}, "guest": {"lock": "queued", "tlb": "ipi"}, "workload": workload});
    let gang = GANGS.iter().position(|row| row[0] == "partial-auto").unwrap();
    let mut policy = json!({"class": "ext", "knobs": {"gang": gang, "spin": 0}});
    if let Some(split) = split {
        policy["split"] = json!(split);
    }
    let scenario = json!({
        "name": "pairs", "seed": 1, "duration_ns": 11_000_000_000u64, "machine": {"cores_per_socket": 4}, "policy": policy,
        "vms": [
            vm("pairs", json!({"program": {"name": "pairs", "metric": {"rate": {"done": "round"}}, "pipes": pipes, "thread": threads.concat()}})),
            vm("hog", json!({"model": "cpu-hog"}))]
    });
    let scenario: Scenario = serde_json::from_value(scenario).unwrap();
    let mut report = run(&scenario, Watch::default()).unwrap();
    assert_eq!(report.sets.len(), 2);
    report.sets.remove(0)
}

#[test]
fn pairs_that_communicate_are_found() {
    assert_eq!(found(None), [vec![0, 2], vec![1, 3]]);
}

#[test]
fn the_split_is_the_users() {
    // A pair depends more on itself than the VM does, but not a hundred times more.
    assert_eq!(found(Some(100.0)), [vec![0, 1, 2, 3]]);
}

/// The sets of a VM of 4 vCPUs whose threads neither call nor wait for one another: (0, 2) and (1, 3) work on the same memory.
fn found_in_memory(traffic: &str) -> Vec<Vec<u32>> {
    let thread = |vcpu: u32, memory: &str| {
        let steps = [
            json!({"touch": {"name": memory, "pages": 50}}),
            json!({"touch": {"name": "all", "pages": 5}}),
            json!({"touch": {"name": format!("own-{vcpu}"), "pages": 200}}),
            json!({"compute": "100us"}),
            json!({"done": "round"}),
        ];
        json!({"name": format!("t{vcpu}-"), "vcpu": vcpu, "times": "forever", "steps": steps})
    };
    let threads = [thread(0, "a"), thread(1, "b"), thread(2, "a"), thread(3, "b")];
    let vm = |name: &str, workload: Value| json!({"name": name, "vcpus": 4, "kvm": {"ipi": "trapped"}, "guest": {"lock": "queued", "tlb": "ipi"}, "workload": workload});
    let gang = GANGS.iter().position(|row| row[0] == "partial-auto").unwrap();
    let scenario = json!({
        "name": "memory", "seed": 1, "duration_ns": 11_000_000_000u64, "machine": {"cores_per_socket": 4},
        "policy": {"class": "ext", "knobs": {"gang": gang, "spin": 0}, "traffic": traffic},
        "vms": [
            vm("pairs", json!({"program": {"name": "pairs", "metric": {"rate": {"done": "round"}}, "thread": threads}})),
            vm("hog", json!({"model": "cpu-hog"}))]
    });
    let scenario: Scenario = serde_json::from_value(scenario).unwrap();
    let mut report = run(&scenario, Watch::default()).unwrap();
    report.sets.remove(0)
}

#[test]
fn pairs_that_share_memory_are_found_by_faults_alone() {
    assert_eq!(found_in_memory("faults"), [vec![0, 2], vec![1, 3]]);
    assert_ne!(found_in_memory("interrupts"), [vec![0, 2], vec![1, 3]]);
}
