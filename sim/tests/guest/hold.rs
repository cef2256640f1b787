// SPDX-License-Identifier: GPL-2.0-only
//! VMs that may not run now: paused in a rhythm, or beyond their quota; programs that begin anew; vCPUs with pCPUs of their own.

use cohort_sim::class::fair::{Fair, FairConfig};
use cohort_sim::class::AnyClass;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::{Rhythm, VmConfig};

use crate::common::*;

const HOG: &str = "
    [[thread]]
    name = 'hog'
    count = 'vcpus'
    pin = true
    times = 'forever'
    steps = [{ compute = '1ms' }]";

/// Four times 1 ms of work, each with a message to the other task.
const PAIR: &str = "
    [[thread]]
    name = 'sender'
    times = 4
    steps = [{ compute = '1ms' }, { send = 'p' }, { done = 'sent' }]
    [[thread]]
    name = 'receiver'
    times = 3
    steps = [{ recv = 'p' }]";

fn fair() -> AnyClass {
    AnyClass::Fair(Fair::new(FairConfig::default()))
}

fn run_ns(s: &Sim, vm: usize) -> u64 {
    s.sim.bodies.vms[vm].vcpus.iter().map(|vcpu| s.sim.host.run_ns(vcpu.task)).sum()
}

fn close(found_ns: u64, wanted_ns: u64) -> bool {
    found_ns.abs_diff(wanted_ns) <= wanted_ns / 100
}

#[test]
fn a_vm_with_a_rhythm_runs_and_is_paused_in_turn() {
    let paused = VmConfig {
        start_ns: 10 * MS,
        rhythm: Some(Rhythm { run_ns: 30 * MS, pause_ns: 10 * MS }),
        ..vm(2, HOG)
    };
    let s = build(&MachineConfig::ideal(2), fair(), &[paused], &[], 1).until(1_010 * MS);
    // 25 times 40 ms, from the start on.
    assert!(close(run_ns(&s, 0), 2 * 25 * 30 * MS), "{}", run_ns(&s, 0));
}

#[test]
fn what_a_paused_vm_leaves_the_other_has() {
    let paused = VmConfig { rhythm: Some(Rhythm { run_ns: 400 * MS, pause_ns: 400 * MS }), ..vm(2, HOG) };
    let s = build(&MachineConfig::ideal(2), fair(), &[paused, vm(2, HOG)], &[], 1).until(4_000 * MS);
    assert!(close(run_ns(&s, 0) + run_ns(&s, 1), 8_000 * MS));
    // All of the time in which the other is paused, and its half of the rest; who comes back is given a little more at first.
    assert!(run_ns(&s, 1).abs_diff(6_000 * MS) < 200 * MS, "{}", run_ns(&s, 1));
}

#[test]
fn a_quota_holds_on_average_under_the_kernels_own_class() {
    for quota_us in [30_000, 75_000, 150_000, 199_000] {
        let capped = VmConfig { quota_us, ..vm(2, HOG) };
        let s = build(&MachineConfig::ideal(2), fair(), &[capped], &[], 1).until(5_000 * MS);
        assert!(close(run_ns(&s, 0), 50 * quota_us * US), "{quota_us}: {}", run_ns(&s, 0));
    }
}

#[test]
fn wake_ups_of_a_paused_vm_are_not_lost() {
    let steps = "[[thread]]\nname = 't'\ntimes = 100\nsteps = [{ sleep = '7ms' }, { compute = '10us' }, { done = 'x' }]";
    let rhythm = Some(Rhythm { run_ns: 3 * MS, pause_ns: 50 * MS });
    let s = build(&MachineConfig::ideal(1), fair(), &[VmConfig { rhythm, ..vm(2, steps) }], &[], 1)
        .until(10_000 * MS);
    let done = s.list(|what| matches!(what, What::Progress { .. }).then_some(()));
    assert_eq!(done.len(), 100);
    assert!(done.iter().all(|(at, ())| at % (53 * MS) <= 3 * MS + 20 * US), "only while it may run");
}

#[test]
fn a_program_that_repeats_keeps_its_first_figure_and_begins_with_empty_pipes() {
    for vcpus in [1, 2] {
        let once =
            build(&MachineConfig::ideal(2), turns_of_a_ms(), &[vm(vcpus, PAIR)], &[], 1).until(100 * MS);
        let again = VmConfig { repeat: true, ..vm(vcpus, PAIR) };
        let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[again], &[], 1).until(100 * MS);
        let (first, known) = (s.program(), once.program());
        assert_eq!((first.end_ns, first.units), (known.end_ns, known.units));
        assert_eq!(first.end_ns, Some(4 * MS));
        let sent = s.list(|what| matches!(what, What::Progress { .. }).then_some(()));
        assert!(sent.len() >= 99, "it goes on: {}", sent.len());
        assert!(s.sim.bodies.vms[0].pipes[0].filled <= 4, "one message of each time is left over");
        let ends = s.list(|what| matches!(what, What::ProgramEnd { .. }).then_some(()));
        assert_eq!(ends.len(), 1);
    }
}

#[test]
fn who_ends_beside_a_program_that_repeats_begins_again_with_it() {
    // The program's own 10 ms, and each time 4 ms beside it; both are on one vCPU after the first time.
    let beside = "
        [[thread]]
        name = 'own'
        vcpu = 0
        steps = [{ compute = '10ms' }]
        [[thread]]
        name = 'beside'
        vcpu = 1
        background = true
        steps = [{ compute = '4ms' }, { done = 'beside' }]";
    let again = VmConfig { repeat: true, ..vm(2, beside) };
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[again], &[], 1).until(140 * MS);
    assert_eq!(done(&s).len(), 10);
}

#[test]
fn the_run_waits_for_those_that_are_measured() {
    let load = VmConfig { repeat: true, measured: false, ..vm(1, PAIR) };
    let slow = vm(1, "[[thread]]\nname = 't'\nsteps = [{ compute = '20ms' }]");
    let s = build(&MachineConfig::ideal(2), fair(), &[load, slow], &[], 1).until(10 * MS);
    assert!(s.program().end_ns.is_some() && !s.sim.host.core.programs.is_done());
    assert!(s.until(100 * MS).sim.host.core.programs.is_done());
}

#[test]
fn each_vcpu_stays_on_its_own_pcpus() {
    let pinned = VmConfig { vcpu_cpus: vec![vec![1], vec![0, 2]], ..vm(2, HOG) };
    let s = build(&MachineConfig::ideal(3), fair(), &[pinned, vm(3, HOG)], &[], 1).until(500 * MS);
    let tasks: Vec<_> = s.sim.bodies.vms[0].vcpus.iter().map(|vcpu| vcpu.task).collect();
    let used = s.list(|what| match what {
        What::Switch { cpu, next: Some(next), .. } => {
            tasks.iter().position(|t| t == next).map(|v| (v, cpu.0))
        }
        _ => None,
    });
    assert!(used.iter().all(|(_, (v, cpu))| if *v == 0 { *cpu == 1 } else { *cpu != 1 }));
    assert!([0, 1].iter().all(|v| used.iter().any(|(_, (of, _))| of == v)), "both have run");
}
