// SPDX-License-Identifier: GPL-2.0-only
//! The models that come with the project: they end, whatever the number of vCPUs; loads do not.

use cohort_sim::class::fair::{Fair, FairConfig, Newidle};
use cohort_sim::class::AnyClass;
use cohort_sim::guest::{GuestConfig, Scheduler};
use cohort_sim::kvm::KvmConfig;
use cohort_sim::machine::MachineConfig;
use cohort_sim::scenario::VmConfig;
use cohort_sim::workload::{model, model_names, parse, Workload};
use cohort_sim::TaskId;

use crate::common::*;

fn alone(name: &str, vcpus: u32) -> Sim {
    let config = VmConfig {
        name: "vm".into(),
        vcpus,
        kvm: KvmConfig::default(),
        guest: GuestConfig::default(),
        workload: model(name),
        ..VmConfig::default()
    };
    let machine = MachineConfig { cores_per_socket: 2, ..MachineConfig::default() };
    let class = AnyClass::Fair(Fair::new(FairConfig::default()));
    let mut s = build(&machine, class, &[config], &[], 1);
    // Without the recorder, which would keep millions of events.
    s.sim.host.core.observers = Default::default();
    s
}

#[test]
fn programs_end() {
    for name in model_names().iter().filter(|name| **name != "cpu-hog") {
        let mut s = alone(name, 3);
        for second in 1..=400 {
            s.sim.run_until(second * 1_000 * MS).unwrap();
            if s.sim.host.core.programs.is_done() {
                break;
            }
        }
        assert!(s.end_ns().is_some(), "{name} does not end: {:?}", s.sim.host.core.programs);
    }
}

/// A program that is one of several is begun again until all have ended.
#[test]
fn programs_begin_again() {
    for name in model_names().iter().filter(|name| **name != "cpu-hog") {
        let config = VmConfig {
            name: "vm".into(),
            vcpus: 2,
            workload: model(name),
            repeat: true,
            ..VmConfig::default()
        };
        let machine = MachineConfig { cores_per_socket: 2, ..MachineConfig::default() };
        let class = AnyClass::Fair(Fair::new(FairConfig::default()));
        let mut s = build(&machine, class, &[config], &[], 1);
        s.sim.host.core.observers = Default::default();
        let mut once_ns = 0;
        while once_ns == 0 && s.sim.host.core.now_ns < 400_000 * MS {
            let at_ns = s.sim.host.core.now_ns + 10 * MS;
            s.sim.run_until(at_ns).unwrap();
            once_ns = s.end_ns().unwrap_or(0);
        }
        assert!(once_ns > 0, "{name} does not end");
        // Of the vCPU that has less to do: one may be busy for ever, as user-spin's reader is.
        let run_ns = |s: &Sim| [0, 1].map(|v| s.sim.host.core.task(TaskId(v)).run_ns);
        let first = run_ns(&s);
        s.sim.run_until(s.sim.host.core.now_ns + 2 * once_ns).unwrap();
        let more = [0, 1].map(|v| run_ns(&s)[v] - first[v]);
        let least = |of: [u64; 2]| of[0].min(of[1]);
        assert!(
            least(more) > least(first),
            "{name} used {first:?} ns the first time, and {more:?} in twice that time"
        );
    }
}

#[test]
fn a_load_does_not() {
    let mut s = alone("cpu-hog", 2);
    s.sim.run_until(1_000 * MS).unwrap();
    assert!(!s.sim.host.core.programs.is_done() && s.end_ns().is_none());
}

/// stress-ng counts what the writer does, and kills the reader when that is enough. The writer is slower while the reader's vCPU is away, for it looks for an
/// answer in vain, and no slower than that. Without the beginning, in which the guest may put the busy process anywhere.
#[test]
fn user_spin_does_not_wait_for_its_reader() {
    let mut text: toml::Table = include_str!("../../../workloads/models/user-spin.toml").parse().unwrap();
    let threads = text["thread"].as_array_mut().unwrap();
    threads.retain(|thread| ["writer", "reader"].contains(&thread["name"].as_str().unwrap()));
    threads.iter_mut().for_each(|thread| drop(thread.as_table_mut().unwrap().remove("first")));
    assert_eq!(threads.len(), 2);
    let program = Some(Workload::Program(parse("user-spin", &text.to_string()).unwrap()));
    let took_ns = |hogs: &[cohort_sim::scenario::TaskConfig]| {
        let config = VmConfig { workload: program.clone(), ..vm(2, "[[thread]]\nname = 't'\nsteps = []") };
        let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], hogs, 1).pin(&[0, 1]);
        s.until(2_000 * MS).end_ns().expect("an end")
    };
    let (answer_ns, looks_ns) = (14 * US, 8_500);
    assert_eq!(took_ns(&[]), 8_000 * answer_ns);
    let beside_ns = took_ns(&[hog(1), hog(1)]);
    assert!((8_000 * answer_ns + 1..=8_000 * (answer_ns + looks_ns)).contains(&beside_ns), "{beside_ns}");
}

/// What the lab measured with each program alone on 2 vCPUs, on a quiet machine (an AMD EPYC of family 26): seconds, or units per second. Each is the median of
/// five medians of five rounds, those of `bench/alone.py lab 5` and of four shapes, which are up to a third apart (mmapfork, 0.46 to 0.61 s). The models'
/// parameters come from such runs, so the models must give these figures again.
const LAB_ALONE: [(&str, f64); 7] = [
    ("hackbench", 0.444),
    ("tlb-shootdown", 0.32),
    ("mmapfork", 0.555),
    ("dbench", 515.0),
    ("pbzip2", 1.11),
    ("user-spin", 0.286),
    ("tlb-flush", 0.286),
];
const NEARLY: f64 = 0.1;

#[test]
fn alone_they_take_as_long_as_in_the_lab() {
    let hardware: toml::Table = include_str!("../../../hardware/lab.toml").parse().unwrap();
    let table = |name: &str| hardware[name].clone();
    let mut machine: MachineConfig = table("machine").try_into().unwrap();
    machine.cores_per_socket = 2;
    let mut misses = Vec::new();
    for (name, measured) in LAB_ALONE {
        // Linux 7.3's, as the lab's is.
        let guest: GuestConfig = table("guest").try_into().unwrap();
        let config = VmConfig {
            name: "vm".into(),
            vcpus: 2,
            kvm: table("kvm").try_into().unwrap(),
            guest: GuestConfig {
                slice_ns: 1_400 * US,
                hrtick: true,
                lag_by_tick: true,
                paid_leave: true,
                newidle: Newidle::Rate,
                yield_forfeits: true,
                scheduler: Scheduler::EevdfDelay,
                lazy_preemption: true,
                ..guest
            },
            workload: model(name),
            ..VmConfig::default()
        };
        let class = AnyClass::Fair(Fair::new(FairConfig::default()));
        let mut s = build(&machine, class, &[config], &[], 1);
        s.sim.host.core.observers = Default::default();
        for step in 1..1_000 {
            s.sim.run_until(step * 10 * MS).unwrap();
            if s.sim.host.core.programs.is_done() {
                break;
            }
        }
        let figure = s.program();
        let seconds = figure.end_ns.unwrap() as f64 / 1e9;
        let found =
            if figure.units > 0 { figure.units as f64 * figure.spec.unit_value / seconds } else { seconds };
        if (found / measured - 1.0).abs() > NEARLY {
            misses.push(format!("{name}: {found:.3}, measured {measured}"));
        }
    }
    assert!(misses.is_empty(), "too far away:\n{}", misses.join("\n"));
}
