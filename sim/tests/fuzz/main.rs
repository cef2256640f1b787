// SPDX-License-Identifier: GPL-2.0-only
//! Whatever is asked for: an error of one line or a result, never a panic, a hang, or memory without bound. The same cases every time;
//! `PROPTEST_CASES=1000000 PROPTEST_RNG_SEED=1` asks for more, and for others.

#![allow(clippy::unwrap_used, reason = "tests")]

mod programs;
mod scenarios;
mod values;

use cohort_sim::run::{run, Report, Watch};
use cohort_sim::scenario::Scenario;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config as ProptestConfig, RngSeed, TestRunner};

fn cases() -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let rng_seed = if config.rng_seed == RngSeed::Random { RngSeed::Fixed(20_263) } else { config.rng_seed };
    ProptestConfig { rng_seed, ..config }
}

/// Where, which byte, and what to do with it.
type Edit = (Index, u8, u8);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    proptest::collection::vec((any::<Index>(), any::<u8>(), 0..3u8), 1..8)
}

/// Change, add or remove some bytes.
fn damage(text: String, edits: &[Edit]) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    for (at, byte, what) in edits {
        let at = at.index(bytes.len());
        match what {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, b"0123456789{}[],:\"-"[usize::from(*byte) % 18]),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

fn assert_one_line(said: &str) {
    assert!(!said.is_empty() && !said.contains('\n'), "{said}");
}

/// Runs what can be run, within a test's patience. Returns whether there was a result.
fn attempt(text: &[u8]) -> bool {
    let mut scenario = match Scenario::from_json(text) {
        Ok(scenario) => scenario,
        Err(error) => {
            assert_one_line(&error.to_string());
            return false;
        }
    };
    scenario.duration_ns = scenario.duration_ns.min(5_000_000);
    scenario.events_max = scenario.events_max.min(20_000);
    match run(&scenario, Watch::figures()) {
        Ok(report) => {
            audit(&report);
            true
        }
        Err(error) => {
            assert_one_line(&error.to_string());
            false
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

/// What only ever meets the first check tests nothing: a good part of the cases must get to run, or as far as the events that are allowed.
#[test]
fn many_cases_are_runs() {
    let mut runner = TestRunner::deterministic();
    let mut results = 0;
    for _ in 0..400 {
        let text = scenarios::scenario().new_tree(&mut runner).unwrap().current();
        results += u32::from(attempt(text.as_bytes()));
    }
    assert!(results > 100, "{results} of 400");
}
