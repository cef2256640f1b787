// SPDX-License-Identifier: GPL-2.0-only
//! Programs for guests: the models' files and an rt-app file, with bytes changed or with strange values.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use cohort_sim::workload::rt_app::from_rt_app;
use cohort_sim::workload::{parse, Program};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{json, Value};

use crate::values::{change, changes};
use crate::{assert_one_line, attempt, cases, damage, edits};

fn models() -> &'static [String] {
    static TEXTS: OnceLock<Vec<String>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/models");
        let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.iter().map(|file| fs::read_to_string(file).unwrap()).collect()
    })
}

const RT_APP: &str = r#"{
    "tasks": {
        "t": {
            "instance": 2, "loop": 5,
            "phases": {
                "a": { "loop": 3, "run": 1000, "sleep": 2000, "timer": { "ref": "u", "period": 5000 } },
                "b": { "lock": "m", "run1": 100, "unlock": "m", "barrier": "x", "runtime": 300, "yield": "" }
            }
        },
        "other": { "loop": -1, "suspend": "other", "run": 10, "resume": "t", "wait": { "ref": "c", "mutex": "m" } }
    },
    "global": { "duration": 2, "default_policy": "SCHED_OTHER" }
}"#;

/// Run a program, whoever wrote it, on a small host.
fn run(program: &Value, vcpus: u64) {
    let scenario = json!({
        "name": "fuzz", "seed": 1, "duration_ns": 5_000_000, "policy": { "class": "fair" },
        "vms": [{ "name": "v", "vcpus": vcpus, "workload": { "program": program } }],
    });
    attempt(scenario.to_string().as_bytes());
}

fn run_if_right(program: Result<Program, cohort_sim::SimError>, vcpus: u64) {
    match program {
        Ok(program) => run(&serde_json::to_value(program).unwrap(), vcpus),
        Err(error) => assert_one_line(&error.to_string()),
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn damaged_programs(model in any::<Index>(), edits in edits(), vcpus in 1..5u64) {
        let bytes = damage(model.get(models()).clone(), &edits);
        run_if_right(parse("fuzz.toml", &String::from_utf8_lossy(&bytes)), vcpus);
    }

    #[test]
    fn strange_values_in_programs(model in any::<Index>(), changes in changes(), vcpus in 1..5u64) {
        let text: &String = model.get(models());
        let program = parse("model", text).unwrap();
        let mut value = serde_json::to_value(program).unwrap();
        change(&mut value, &changes);
        run(&value, vcpus);
    }

    #[test]
    fn damaged_rt_app(edits in edits(), vcpus in 1..5u64) {
        let bytes = damage(RT_APP.to_string(), &edits);
        run_if_right(from_rt_app("fuzz.json", &String::from_utf8_lossy(&bytes)), vcpus);
    }

    #[test]
    fn strange_values_in_rt_app(changes in changes(), vcpus in 1..5u64) {
        let mut value: Value = serde_json::from_str(RT_APP).unwrap();
        change(&mut value, &changes);
        run_if_right(from_rt_app("fuzz.json", &value.to_string()), vcpus);
    }
}
