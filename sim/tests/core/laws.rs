// SPDX-License-Identifier: GPL-2.0-only
//! What holds for every class, machine and mix of tasks.

use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, RngSeed};

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::host::{State, TaskSpec};
use cohort_sim::machine::{Costs, MachineConfig};
use cohort_sim::scenario::Outcome;
use cohort_sim::{CpuId, GroupId};

use crate::common::*;

#[derive(Clone, Debug)]
struct Case {
    machine: MachineConfig,
    class: u8,
    groups: Vec<u32>,
    /// The fair class knows them.
    cgroups: bool,
    /// Weight, group, mask of pCPUs, run and sleep in us (0: always busy).
    tasks: Vec<(u32, usize, u8, u64, u64)>,
}

fn machine() -> impl Strategy<Value = MachineConfig> {
    (1..3u32, 1..4u32, 1..3u32, any::<bool>()).prop_map(|(sockets, cores, threads, free)| MachineConfig {
        sockets,
        cores_per_socket: cores,
        threads_per_core: threads,
        cores_per_cache: 0,
        costs: if free { Costs::free() } else { Costs::default() },
    })
}

fn case() -> impl Strategy<Value = Case> {
    let groups = prop::collection::vec(10..1_000u32, 0..3);
    let task = (200..4_000u32, 0..4usize, any::<u8>(), 50..6_000u64, 0..6_000u64);
    (machine(), 0..7u8, groups, any::<bool>(), prop::collection::vec(task, 1..16))
        .prop_map(|(machine, class, groups, cgroups, tasks)| Case { machine, class, groups, cgroups, tasks })
}

fn class(case: &Case) -> AnyClass {
    let kernel = |variant| fair(FairConfig { groups: case.cgroups, ..FairConfig::of(variant) });
    match case.class {
        0 => kernel(Variant::Cfs),
        1 => kernel(Variant::Eevdf),
        2 => kernel(Variant::EevdfForfeit),
        3 => kernel(Variant::EevdfFlat),
        4 => round_robin(3 * MS, false),
        5 => round_robin(3 * MS, true),
        _ => ext(&case.machine),
    }
}

fn make(case: &Case) -> Sim {
    let mut s = sim(&case.machine, class(case), 5);
    let cpus = s.host.core.cpus.len();
    let groups: Vec<GroupId> =
        case.groups.iter().map(|weight| s.host.new_group(GroupId(0), *weight)).collect();
    for (weight, group, mask, run_us, sleep_us) in &case.tasks {
        let allowed = (0..cpus)
            .filter(|cpu| mask >> (cpu % 8) & 1 == 1)
            .map(CpuId::from)
            .collect::<cohort_sim::cpuset::CpuSet>();
        let spec = TaskSpec {
            weight: *weight,
            group: groups.get(*group).copied().unwrap_or(GroupId(0)),
            allowed: Some(allowed).filter(|set| !set.is_empty()),
            ..TaskSpec::default()
        };
        let program = match sleep_us {
            0..500 => Program::Busy,
            _ => Program::Cycle { run_ns: run_us * US, sleep_ns: sleep_us * US },
        };
        spawn(&mut s, spec, program);
    }
    s
}

/// Every pCPU runs what believes to run there, and a task is on one pCPU at most.
fn places_agree(s: &Sim) {
    let core = &s.host.core;
    for (index, task) in core.tasks.iter().enumerate() {
        let on: Vec<usize> =
            (0..core.cpus.len()).filter(|cpu| core.cpus[*cpu].curr == Some(index.into())).collect();
        match task.state {
            State::Running => assert_eq!(on, [task.cpu.index()], "task {index}"),
            _ => assert!(on.is_empty(), "task {index} is {:?} and on {on:?}", task.state),
        }
    }
}

/// An idle pCPU leaves no task waiting that may use it. True of shared queues, and of classes that pull when they go idle, for tasks that one
/// of their searches can see.
fn is_work_conserving(s: &Sim, class: u8) {
    if class == 4 {
        return;
    }
    let core = &s.host.core;
    // What has been asked for is on its way.
    let long_ago_ns = core.now_ns.saturating_sub(20 * US);
    for cpu in core.idle.iter().filter(|cpu| !core.cpu(*cpu).needs_resched) {
        let waits = |task: &&cohort_sim::host::Task| {
            task.state == State::Waiting && task.waits_since_ns < long_ago_ns && task.may_use(cpu)
        };
        let idle_long = core.cpu(cpu).idle_since_ns < long_ago_ns;
        if let Some(task) = core.tasks.iter().find(waits).filter(|_| idle_long) {
            // The fair class looks when a pCPU goes idle, if its dice say so, and at the ticks of the pCPU where somebody waits; who was seen running less
            // than half a ms ago is hot at the first three of them. Who waits is told of a pCPU that idles then, so it is from when both do that counts; but nobody
            // waits for long beside one that idles now and then.
            let patience_ns = if class < 4 { 17 * MS } else { 0 };
            let both_since_ns = task.waits_since_ns.max(core.cpu(cpu).idle_since_ns);
            let late = both_since_ns + patience_ns <= core.now_ns
                || task.waits_since_ns + 3 * patience_ns <= core.now_ns;
            assert!(!late, "class {class}, at {} {cpu:?} idles while {task:?} waits", core.now_ns);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        rng_seed: RngSeed::Fixed(20_260),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn time_adds_up_and_nobody_is_in_two_places(case in case()) {
        let mut s = make(&case);
        for step in 1..=200u64 {
            s.run_until(step * 1_300 * US).unwrap();
            places_agree(&s);
            is_work_conserving(&s, case.class);
        }
        let now_ns = s.host.now_ns();
        let mut busy_ns = 0;
        for cpu in 0..s.host.core.cpus.len() {
            let (busy, idle) = s.host.cpu_times_ns(cpu.into());
            prop_assert_eq!(busy + idle, now_ns);
            busy_ns += busy;
        }
        let tasks = 0..s.host.core.tasks.len();
        prop_assert_eq!(tasks.clone().map(|task| s.host.run_ns(task.into())).sum::<u64>(), busy_ns);
        for task in tasks {
            prop_assert!(s.host.run_ns(task.into()) + s.host.run_delay_ns(task.into()) <= now_ns);
        }
    }

    #[test]
    fn nobody_starves_whatever_the_weights(
        class in prop::sample::select(vec![0u8, 1, 2, 3, 4, 5]),
        cpus in 1..4u32,
        weights in prop::collection::vec(256..4_096u32, 2..10),
    ) {
        let tasks = weights.iter().map(|weight| (*weight, 0, 255, 1_000, 0)).collect();
        let case = Case { machine: MachineConfig::ideal(cpus), class, groups: vec![], cgroups: true, tasks };
        let mut s = make(&case);
        // A turn of the lightest moves its virtual time by this; the others, on one pCPU at the worst, must make up for it in turns of their own.
        let turn_ns = if class == 5 { 20 * MS } else { 8 * MS };
        let (sum, least) = (weights.iter().sum::<u32>(), weights.iter().min().copied().unwrap_or(1));
        let patience_ns = 2 * turn_ns * u64::from(sum.div_ceil(least));
        s.run_until(4 * patience_ns).unwrap();
        for (index, task) in Outcome::of(&s.host).tasks.iter().enumerate() {
            let longest_ns = task.wait_max_ns;
            prop_assert!(longest_ns <= patience_ns, "task {index} waited for {longest_ns} ns of {patience_ns}");
        }
    }
}

/// Equal tasks of every class wait no longer than everybody else's turns take.
#[test]
fn nobody_starves() {
    // Round robin with a queue for each pCPU leaves everybody where it began.
    for class in [0, 1, 2, 3, 5, 6] {
        let machine = MachineConfig::ideal(2);
        let case =
            Case { machine, class, groups: vec![], cgroups: true, tasks: vec![(1024, 0, 255, 1_000, 0); 12] };
        let mut s = make(&case);
        s.run_until(3_000 * MS).unwrap();
        for (index, task) in Outcome::of(&s.host).tasks.iter().enumerate() {
            let longest_ns = task.wait_max_ns;
            assert!(longest_ns < 200 * MS, "class {class}: task {index} waited for {} ms", longest_ns / MS);
            let share = task.run_ns as f64 / (3_000 * MS) as f64;
            assert!((share - 1.0 / 6.0).abs() < 0.05, "class {class}: task {index} has {share}");
        }
    }
}
