// SPDX-License-Identifier: GPL-2.0-only
//! What a decision costs, in counts that do not depend on the machine, on hosts of 2 to 1,024 pCPUs. `--nocapture` prints the table of docs/policies.md.

use cohort_sim::class::ext::{Cost, Costs, OpKind};
use cohort_sim::policies::PRESETS;

use crate::common::MS;
use crate::presets;
use crate::spec::{Config, Knobs, Spec};
use crate::world::World;

/// One pCPU gives all turns, and looks at every pCPU for that, whenever somebody wakes: it says so of itself (docs/policies.md).
const GROWING: [&str; 1] = ["strict"];

/// What is counted for each switch: a task put on a pCPU, with all that led there.
#[derive(Clone, Copy, Debug)]
struct PerSwitch {
    look_ups: f64,
    waiters: f64,
    atomics: f64,
    moves: f64,
}

/// What is counted from now on, and how many switches that is.
fn during(w: &mut World, ns: u64) -> (Costs, f64) {
    let (costs, switches) = (w.costs(), w.stats().switches);
    w.run(ns);
    (w.costs().since(&costs), (w.stats().switches - switches) as f64)
}

/// All that is counted while twice as many vCPUs as pCPUs run, in VMs of so many, and how many switches that was. Half of them compute; the others work for 2 ms and
/// sleep for 1 ms.
fn counted(pcpus: usize, vcpus: usize, knobs: Knobs) -> (Costs, f64) {
    let mut w = World::new(Config { knobs, ..Config::cpus(pcpus) });
    for vm in 0..(2 * pcpus / vcpus).max(2) {
        let number = w.new_vm(vcpus);
        for id in 0..vcpus {
            let spec = if vm % 2 == 0 { Spec::busy() } else { Spec::cycle(2 * MS, MS) };
            w.spawn(spec.vcpu(number, id));
        }
    }
    w.run(300 * MS);
    during(&mut w, 200 * MS)
}

/// In VMs of four.
fn measure(pcpus: usize, knobs: Knobs) -> PerSwitch {
    let (costs, switches) = counted(pcpus, 4, knobs);
    let each = |counts: &[Cost]| counts.iter().map(|cost| costs.total(*cost)).sum::<u64>() as f64 / switches;
    PerSwitch {
        look_ups: each(&[Cost::Array, Cost::Hash, Cost::Storage]),
        waiters: each(&[Cost::IterNext]),
        atomics: each(&[Cost::Atomic]),
        moves: each(&[Cost::DsqInsert, Cost::DsqInsertVtime, Cost::DsqMove, Cost::DsqMoveToLocal]),
    }
}

/// Each preset on the smaller hosts and then on the larger ones, which must cost no more than 128 pCPUs: from there on each has all the neighbours that it looks at.
fn compare(preset: &[&str; 8], smaller: &[usize], larger: &[usize]) {
    let name = preset[0];
    let measured = |pcpus: usize| {
        let cost = measure(pcpus, presets::knobs(preset));
        let PerSwitch { look_ups, waiters, atomics, moves } = cost;
        println!("| {name} | {pcpus} | {look_ups:.0} | {waiters:.1} | {atomics:.1} | {moves:.1} |");
        cost
    };
    for pcpus in smaller {
        measured(*pcpus);
    }
    let less = measured(128);
    for pcpus in larger.iter().copied() {
        if GROWING.contains(&name) {
            if pcpus <= 512 {
                measured(pcpus);
            }
            continue;
        }
        let cost = measured(pcpus);
        // One that idles finds a few more queues to look at.
        assert!(cost.look_ups <= 1.15 * less.look_ups, "{name}: {cost:?} on {pcpus}, {less:?} on 128");
        assert!(cost.waiters <= 1.1 * less.waiters + 0.5, "{name}: {cost:?} on {pcpus}, {less:?} on 128");
        assert!(cost.atomics <= 1.1 * less.atomics + 0.5, "{name}: {cost:?} on {pcpus}, {less:?} on 128");
    }
}

/// What can make a difference here: nobody spins, and nobody has sets.
fn differs_in(preset: &[&str; 8]) -> Vec<String> {
    let mut axes: Vec<String> =
        preset[1..].iter().map(|axis| axis.replace("partial-auto", "partial")).collect();
    axes.drain(3..5);
    axes.pop(); // what it is about
    axes
}

#[test]
fn a_partition_that_idles_does_not_look_at_who_waits_in_another() {
    let waiters = |pcpus: usize, beside: usize| {
        let mut w = World::new(Config::cpus(pcpus + beside));
        let here: Vec<usize> = (0..pcpus).collect();
        let there: Vec<usize> = (pcpus..pcpus + beside).collect();
        for _ in 0..beside * 4 {
            w.spawn(Spec::busy().on(&there));
        }
        for _ in 0..pcpus {
            w.spawn(Spec::cycle(200_000, 100_000).on(&here));
        }
        // A VM that may run everywhere passes: one of its vCPUs waits in each queue, since siblings are kept apart.
        let vm = w.new_vm(pcpus + beside);
        let passing: Vec<_> = (0..pcpus + beside).map(|id| w.spawn(Spec::busy().vcpu(vm, id))).collect();
        w.run(50 * MS);
        passing.into_iter().for_each(|id| w.exit(id));
        w.run(400 * MS);
        let (costs, switches) = during(&mut w, 100 * MS);
        costs.total(Cost::IterNext) as f64 / switches
    };
    let (alone, beside) = (waiters(32, 0), waiters(32, 32));
    assert!(
        beside < alone + 4.0,
        "{beside:.1} waiters are looked at for a decision, {alone:.1} without neighbours"
    );
}

/// Its own queue is gone through for each choice, and once more to take somebody out of it; others' now and then.
#[test]
fn who_sleeps_and_wakes_all_the_time_does_not_make_a_pcpu_look_at_others_as_often() {
    let mut w = World::new(Config { knobs: presets::knobs(&PRESETS[0]), ..Config::cpus(2) });
    for cpu in 0..2 {
        for _ in 0..3 {
            w.spawn(Spec::cycle(200_000, 100_000).on(&[cpu]));
        }
        let vm = w.new_vm(2);
        for id in 0..2 {
            w.spawn(Spec::busy().vcpu(vm, id));
        }
    }
    w.run(100 * MS);
    let (costs, switches) = during(&mut w, 200 * MS);
    let queues = costs.total(Cost::IterNew) as f64 / switches;
    assert!(queues < 2.2, "{queues:.2} queues are gone through for each switch");
}

/// Of one that sleeps ops.quiescent() hears, so ops.stopping() has nothing to look up and no clock to read.
#[test]
fn who_goes_to_sleep_is_looked_up_once() {
    let mut w = World::new(Config { knobs: presets::knobs(&PRESETS[0]), ..Config::cpus(2) });
    for cpu in 0..2 {
        w.spawn(Spec::cycle(200_000, 100_000).on(&[cpu]));
    }
    w.run(100 * MS);
    let (costs, _) = during(&mut w, 100 * MS);
    assert!(costs.calls(OpKind::Stopping) > 100, "test: they are to sleep again and again");
    let found = [Cost::Storage, Cost::Now].map(|cost| costs.of(OpKind::Stopping, cost));
    assert_eq!(found, [0, 0]);
}

/// Whoever is chosen where it waits is counted there already.
#[test]
fn who_waits_is_looked_up_once_for_a_choice() {
    let mut w = World::new(Config { knobs: presets::knobs(&PRESETS[0]), ..Config::cpus(1) });
    for _ in 0..2 {
        w.spawn(Spec::busy());
    }
    w.run(100 * MS);
    let (costs, switches) = during(&mut w, 1_000 * MS);
    // The one that has the pCPU and the one that waits, also for a choice by which the same goes on. Whoever is taken is not looked up for that:
    // 4.3, not 5.3.
    let each = costs.of(OpKind::Dispatch, Cost::Storage) as f64 / switches;
    assert!(each < 4.8, "{each:.2} look-ups for each switch");
}

/// A turn begins at one moment, for the order as for the core.
#[test]
fn a_turn_begins_with_one_look_at_the_clock() {
    let (costs, _) = counted(2, 4, presets::knobs(&PRESETS[0]));
    assert_eq!(costs.of(OpKind::Running, Cost::Now), costs.calls(OpKind::Running));
}

/// Whatever a VM's vCPUs share is written by all of them: not more often for each of many.
#[test]
fn vcpus_of_a_large_vm_write_to_what_they_share_as_often_as_those_of_a_small_one() {
    let atomics = |vcpus: usize| {
        let (costs, switches) = counted(128, vcpus, Knobs::default());
        costs.total(Cost::Atomic) as f64 / switches
    };
    let few = atomics(4);
    for vcpus in [64, 128] {
        let many = atomics(vcpus);
        println!("{vcpus} vCPUs: {many:.2} atomic operations for each switch; 4: {few:.2}");
        // Two VMs that each fill the host change places more often than many do. It does not grow with them.
        assert!(many < 1.5 * few, "{many:.2} with {vcpus} vCPUs, {few:.2} with 4");
    }
}

#[test]
fn a_decision_costs_no_more_on_a_large_host() {
    let mut done = Vec::new();
    for preset in PRESETS {
        let axes = differs_in(preset);
        if !GROWING.contains(&preset[0]) && !done.contains(&axes) {
            compare(preset, &[], &[512]);
            done.push(axes);
        }
    }
}

#[test]
#[ignore = "minutes: every preset on five hosts, the table of docs/policies.md"]
fn nor_on_one_of_a_thousand_pcpus() {
    println!("| policy | pCPUs | look-ups | waiters visited | atomics | queued or moved |");
    println!("|---|---:|---:|---:|---:|---:|");
    for preset in PRESETS {
        compare(preset, &[2, 24], &[512, 1_024]);
    }
}

/// What to look at if a decision is to cost less.
#[test]
#[ignore = "a table, for each operation, of `PRESET` (cohort) on `PCPUS` (2)"]
fn by_operation() {
    let name = std::env::var("PRESET").unwrap_or_else(|_| "cohort".into());
    let pcpus = std::env::var("PCPUS").map_or(2, |pcpus| pcpus.parse().expect("PCPUS is a number"));
    let preset = PRESETS.iter().find(|preset| preset[0] == name).expect("PRESET is one of policies.h");
    let (costs, switches) = counted(pcpus, 4, presets::knobs(preset));
    use OpKind::{Dispatch, Enqueue, Quiescent, Running, SelectCpu, Stopping, Tick, Timer};
    let kinds = [SelectCpu, Enqueue, Dispatch, Running, Stopping, Quiescent, Tick, Timer];
    println!("for each switch | all | {kinds:?}");
    for cost in Cost::ALL {
        if costs.total(*cost) > 0 {
            let of = kinds.map(|kind| format!("{:.2}", costs.of(kind, *cost) as f64 / switches));
            println!("{} | {:.2} | {}", cost.name(), costs.total(*cost) as f64 / switches, of.join(" | "));
        }
    }
}
