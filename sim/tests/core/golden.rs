// SPDX-License-Identifier: GPL-2.0-only
//! A run is a function of what it is given: the same bytes as ever, twice, in any order, and in several threads at once.

use std::thread;

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::MachineConfig;
use cohort_sim::scenario::Outcome;
use cohort_sim::{GroupId, VcpuId};

use crate::common::*;

fn machine() -> MachineConfig {
    MachineConfig { sockets: 2, cores_per_socket: 2, threads_per_core: 2, ..MachineConfig::default() }
}

const CLASSES: usize = 6;

fn of(class: usize) -> AnyClass {
    match class {
        0 => round_robin(3 * MS, true),
        1 => fair(FairConfig::of(Variant::Cfs)),
        2 => fair(FairConfig::of(Variant::Eevdf)),
        3 => fair(FairConfig::of(Variant::EevdfForfeit)),
        4 => fair(FairConfig::of(Variant::EevdfFlat)),
        _ => ext(&machine()),
    }
}

/// Two VMs in cgroups, host tasks that come and go or yield; everything that happened, as a number, and the totals.
fn run(class: usize) -> (u64, Outcome) {
    let mut s = sim(&machine(), of(class), 11);
    let hash = fingerprint(&mut s);
    for (vcpus, weight) in [(4, 100), (6, 300)] {
        let group = s.host.new_group(GroupId(0), weight);
        let vm = s.host.new_vm(vcpus);
        for id in 0..vcpus {
            let spec = TaskSpec { group, vcpu: Some(VcpuId { vm, id }), ..TaskSpec::default() };
            let run_ns = 700 * US + u64::from(id) * 130 * US;
            spawn(&mut s, spec, Program::Cycle { run_ns, sleep_ns: 400 * US });
        }
    }
    for index in 0..5u64 {
        cycle(&mut s, 300 * US + index * 70 * US, 900 * US);
    }
    busy(&mut s);
    // Without yields both forms of EEVDF are one.
    for run_ns in [900 * US, 2_300 * US] {
        spawn(&mut s, TaskSpec::default(), Program::Yields { run_ns });
    }
    s.run_until(400 * MS).unwrap();
    let found = *hash.borrow();
    (found, Outcome::of(&s.host))
}

#[test]
fn twice_is_the_same() {
    for class in 0..CLASSES {
        assert_eq!(run(class), run(class), "class {class}");
    }
}

#[test]
fn two_threads_at_once_give_the_same_bytes() {
    let alone: Vec<_> = (0..CLASSES).map(run).collect();
    let at_once: Vec<_> = (0..4)
        .map(|first| {
            thread::spawn(move || {
                (0..CLASSES)
                    .map(|i| (i + first) % CLASSES)
                    .map(|class| (class, run(class)))
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    for thread in at_once {
        for (class, found) in thread.join().unwrap() {
            assert_eq!(found, alone[class], "class {class}");
        }
    }
}

#[test]
fn two_simulations_in_one_thread_share_nothing() {
    let (_, alone) = run(CLASSES - 1);
    let mut other = sim(&machine(), ext(&machine()), 3);
    busy(&mut other);
    other.run_until(10 * MS).unwrap();
    let (_, beside) = run(CLASSES - 1);
    other.run_until(20 * MS).unwrap();
    assert_eq!(alone, beside);
    assert_eq!(
        other.host.run_ns(cohort_sim::TaskId(0)),
        20 * MS - other.host.core.machine.costs.idle_exit_ns
    );
}

#[test]
fn how_a_run_is_cut_changes_nothing() {
    for class in 0..CLASSES {
        let cut = |step_ns: u64| {
            let mut s = sim(&machine(), of(class), 11);
            let hash = fingerprint(&mut s);
            for index in 0..20u64 {
                cycle(&mut s, 300 * US + index * 170 * US, 900 * US);
            }
            for at_ns in (step_ns..=60 * MS).step_by(step_ns as usize) {
                s.run_until(at_ns).unwrap();
            }
            let found = *hash.borrow();
            (found, Outcome::of(&s.host))
        };
        assert_eq!(cut(60 * MS), cut(100 * US), "class {class}");
    }
}

/// Change these only for a change of the model that is meant, and say which in the commit. Not for `bpf/`: what happens under it changes with each
/// change of it.
#[test]
fn whole_runs_are_what_they_were() {
    let found: Vec<String> = (0..5).map(|class| format!("{:016x}", run(class).0)).collect();
    assert_ne!(found[2], found[3], "a yield forfeits in one and not in the other");
    assert_eq!(
        found,
        ["f0c7f399e91c3fd4", "a129dc1310629c4e", "beaa66c108e3f2d7", "42851ae8fb768443", "ff7530dd65e56b40"]
    );
}
