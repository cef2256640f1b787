// SPDX-License-Identifier: GPL-2.0-only
//! Whole runs: their fingerprints are what they always were, whatever runs beside them; their figures add up; wrong scenarios are refused.

use cohort_sim::run::{run, Report, Watch};
use cohort_sim::scenario::Scenario;
use cohort_sim::SimError;

fn scenario(text: &str) -> Scenario {
    serde_json::from_str(text).expect("a scenario")
}

/// Three tasks on two pCPUs without costs, in turns of 1 ms.
const TURNS: &str = r#"{
    "name": "turns", "seed": 1, "duration_ns": 100000000,
    "machine": {"cores_per_socket": 2, "costs": {"context_switch_ns": 0, "refill_cache_ns": 0, "ipi_ns": 0, "idle_exit_ns": 0}},
    "policy": {"class": "round-robin", "slice_min_ns": 1000000, "slice_max_ns": 1000000, "shared_queue": true},
    "tasks": [{"name": "a"}, {"name": "b"}, {"name": "c"}]
}"#;

fn everything() -> Watch {
    Watch {
        perfetto_bytes_max: 1 << 20,
        ftrace_bytes_max: 1 << 20,
        timeline_rows_max: 1 << 16,
        ..Watch::figures()
    }
}

fn of(text: &str) -> Report {
    run(&scenario(text), everything()).expect("a run")
}

#[test]
fn is_the_same_as_ever() {
    assert_eq!(of(TURNS).fingerprint.as_deref(), Some("1380e442f2d23600"));
}

#[test]
fn is_the_same_twice_and_from_two_threads_at_once() {
    let first = of(TURNS);
    let threads: Vec<_> = (0..2).map(|_| std::thread::spawn(|| of(TURNS))).collect();
    for other in threads.into_iter().map(|thread| thread.join().unwrap()).chain([of(TURNS)]) {
        assert_eq!(other.fingerprint, first.fingerprint);
        assert_eq!(other.perfetto, first.perfetto);
        assert_eq!(other.ftrace, first.ftrace);
        assert_eq!(
            serde_json::to_string(&other.figures).unwrap(),
            serde_json::to_string(&first.figures).unwrap()
        );
    }
}

#[test]
fn observers_change_nothing() {
    let bare = run(&scenario(TURNS), Watch::default()).unwrap();
    assert_eq!(bare.outcome, of(TURNS).outcome);
    assert_eq!((bare.fingerprint, bare.figures), (None, None));
    let (bare, watched) =
        (late_program(200_000_000, Watch::default()), late_program(200_000_000, Watch::figures()));
    assert_eq!(bare.outcome, watched.outcome);
    assert!(watched.programs.iter().any(|program| program.stats["switches"] > 0));
    assert_eq!(bare.programs.len(), watched.programs.len());
    for (bare, watched) in bare.programs.iter().zip(&watched.programs) {
        assert_eq!((bare.start_ns, &bare.stats), (watched.start_ns, &watched.stats));
    }
}

#[test]
fn time_adds_up() {
    let report = of(TURNS);
    let host = report.figures.unwrap().host;
    assert_eq!(host.busy_ns + host.idle_ns, 200_000_000);
    assert_eq!(host.busy_ns, report.outcome.cpus.iter().map(|cpu| cpu.busy_ns).sum::<u64>());
    assert_eq!(host.busy_ns, report.outcome.tasks.iter().map(|task| task.run_ns).sum::<u64>());
    let timeline = report.timeline.unwrap();
    let runs = (0..timeline.len()).filter(|row| timeline.kind[*row] == 0);
    assert_eq!(runs.map(|row| timeline.end_ns[row] - timeline.start_ns[row]).sum::<u64>(), host.busy_ns);
}

/// Two VMs under the scheduler of `bpf/`: one is busy from the start, the other has a program from 20 ms on.
fn late_program(duration_ns: u64, watch: Watch) -> Report {
    let text = format!(
        r#"{{"name": "late", "seed": 3, "duration_ns": {duration_ns}, "machine": {{"cores_per_socket": 2}},
            "policy": {{"class": "ext", "knobs": {{"placement": 1, "order": 0, "gang": 0, "boost": 15}}}},
            "vms": [
                {{"name": "work", "vcpus": 2, "start_ns": 20000000, "workload": {{"model": "tlb-flush"}}}},
                {{"name": "hog", "vcpus": 2, "workload": {{"model": "cpu-hog"}}}}
            ]}}"#
    );
    run(&scenario(&text), watch).expect("a run")
}

#[test]
fn a_programs_counters_are_of_its_own_time() {
    let report = late_program(60_000_000_000, Watch::figures());
    let program = &report.programs[0];
    let (start_ns, end_ns) = (program.start_ns, program.end_ns.expect("an end"));
    assert!(start_ns > 20_000_000, "{start_ns}");
    // What a run that ends then, or just before, has counted.
    let till = |ns: u64| late_program(ns, Watch::figures()).stats;
    let (before, at_start, just_before, at_end) =
        (till(start_ns - 1), till(start_ns), till(end_ns - 1), till(end_ns));
    assert!(before["switches"] > 0 && program.stats["ple"] > 0);
    for (name, count) in &program.stats {
        let least = just_before[name] - at_start[name];
        let most = at_end[name] - before[name];
        assert!((least..=most).contains(count), "{name}: {count}, not {least} to {most}");
    }
    assert!(program.stats["switches"] < report.stats["switches"]);
}

#[test]
fn a_run_ends_with_the_millisecond_in_which_its_last_program_does() {
    let run = |ns: u64| late_program(ns, Watch::default());
    let whole = run(60_000_000_000);
    let end_ns = whole.programs[0].end_ns.expect("an end");
    assert_eq!(whole.outcome.end_ns, end_ns.next_multiple_of(1_000_000));
    // One that is shorter ends without it.
    assert_eq!(run(end_ns - 1).outcome.end_ns, end_ns - 1);
    assert_eq!(run(end_ns - 1).programs[0].end_ns, None);
}

/// A guest that has never been in user mode told no change of its mode.
#[test]
fn a_guest_that_does_only_its_own_work_is_preempted_in_its_kernel() {
    let text = r#"{
        "name": "own-work", "seed": 1, "duration_ns": 1000000000, "machine": {"cores_per_socket": 1}, "policy": {"class": "fair"},
        "vms": [{"name": "vm", "vcpus": 1, "guest": {"housekeeping_period_ns": 100000000, "housekeeping_work_ns": 50000000}}],
        "tasks": [{"name": "hog"}]
    }"#;
    let figures = run(&scenario(text), Watch::figures()).expect("a run").figures.unwrap();
    let host = &figures.vms[0].host;
    assert!(host.preemptions > 0);
    assert_eq!(host.preemptions_kernel, host.preemptions);
}

#[test]
fn what_is_wrong_is_named() {
    for (right, wrong, said) in [
        (
            "\"duration_ns\": 100000000",
            "\"duration_ns\": 0",
            "duration_ns: 0 is not allowed: must be from 1 to",
        ),
        (
            "\"cores_per_socket\": 2",
            "\"cores_per_socket\": 0",
            "machine.cores_per_socket: is 0; allowed: 1 to",
        ),
        (
            "{\"name\": \"a\"}",
            "{\"name\": \"a\", \"nice\": 20}",
            "tasks[0].nice: 20 is not allowed: must be from -20",
        ),
        (
            "{\"name\": \"a\"}",
            "{\"name\": \"a\", \"cpus\": [2]}",
            "tasks[0].cpus: 2 is not allowed: must be from 0 to 1",
        ),
        ("\"seed\": 1", "\"seed\": 1, \"events_max\": 0", "events_max: 0 is not allowed: must be 1 or more"),
    ] {
        assert!(TURNS.contains(right), "{right}");
        match run(&scenario(&TURNS.replacen(right, wrong, 1)), Watch::default()) {
            Err(SimError::Config(text)) => assert!(text.starts_with(said), "{text}"),
            other => panic!("{wrong}: {other:?}"),
        }
    }
}

#[test]
fn without_cgroups_no_vm_has_what_a_cgroup_has() {
    for (of_vm, said) in [
        ("\"weight\": 200", "vms[0].weight: 200 is not allowed: must be 100: no cgroup has it"),
        ("\"quota_us\": 5000", "vms[0].quota_us: 5000 is not allowed: must be 0: no cgroup has it"),
    ] {
        let of = |groups: bool| {
            format!(
                r#"{{"name": "x", "seed": 1, "duration_ns": 1000000, "policy": {{"class": "fair", "groups": {groups}}},
                "vms": [{{"name": "a", "vcpus": 1, {of_vm}}}]}}"#
            )
        };
        run(&scenario(&of(true)), Watch::default()).expect("with cgroups");
        match run(&scenario(&of(false)), Watch::default()) {
            Err(SimError::Config(text)) => assert_eq!(text, said),
            other => panic!("{of_vm}: {other:?}"),
        }
    }
}

#[test]
fn a_run_of_too_many_events_ends() {
    let text = TURNS.replacen("\"seed\": 1", "\"seed\": 1, \"events_max\": 10", 1);
    assert!(matches!(run(&scenario(&text), Watch::default()), Err(SimError::Limit(_))));
}

#[test]
fn what_would_end_the_process_or_turn_clocks_back_is_refused() {
    for (of_policy, said) in [
        (r#""knobs": {"gang": 1, "slice_ns": 0}"#, "policy.knobs.slice_ns: is 0; allowed: 1 or more"),
        (
            r#""cpu_skew_ns": [0, -1000000000]"#,
            "policy.cpu_skew_ns: -1000000000 is not allowed: must be less than a second",
        ),
    ] {
        let text = format!(
            r#"{{"name": "x", "seed": 1, "duration_ns": 1000000, "policy": {{"class": "ext", {of_policy}}}}}"#
        );
        match run(&scenario(&text), Watch::default()) {
            Err(SimError::Config(text)) => assert_eq!(text, said),
            other => panic!("{of_policy}: {other:?}"),
        }
    }
}

#[test]
fn address_spaces_that_would_take_all_of_the_memory_are_refused() {
    let text = r#"{"name": "x", "seed": 1, "duration_ns": 1, "policy": {"class": "fair"}, "vms": [{"name": "a", "vcpus": 4100,
        "workload": {"program": {"name": "p", "thread": [{"name": "t", "count": 65536, "process": true, "steps": []}]}}}]}"#;
    let said =
        "vms[0].workload: 4100 vCPUs and 65537 address spaces are more than 268435456 pairs; allowed: fewer";
    assert_eq!(run(&scenario(text), Watch::default()).err(), Some(SimError::Config(said.into())));
}
