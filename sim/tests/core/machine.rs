// SPDX-License-Identifier: GPL-2.0-only
//! What the machine costs, computed by hand.

use cohort_sim::bodies::Program;
use cohort_sim::class::fair::FairConfig;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::{Costs, MachineConfig};
use cohort_sim::{CpuId, SimError};

use crate::common::*;

fn on(cpu: u32) -> TaskSpec {
    TaskSpec { allowed: Some([CpuId(cpu)].into_iter().collect()), ..TaskSpec::default() }
}

#[test]
fn a_switch_costs_before_the_work_begins() {
    let costs = Costs { context_switch_ns: 1_500, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(1) };
    let mut s = sim(&machine, round_robin(u64::MAX, false), 1);
    let turns = record(&mut s);
    cycle(&mut s, 10 * US, 90 * US);
    s.run_until(200 * US).unwrap();
    let times: Vec<u64> = turns.borrow().iter().map(|turn| turn.0).collect();
    // Work of 10 us, 1.5 us after each start; the sleep begins when it ends.
    assert_eq!(times, [0, 11_500, 101_500, 113_000]);
}

#[test]
fn so_do_the_programs_of_a_sched_ext_scheduler() {
    let costs = Costs { context_switch_ns: 500, bpf_switch_ns: 1_000, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(1) };
    for (class, switch_ns) in [(ext(&machine), 1_500), (fair(FairConfig::default()), 500)] {
        let mut s = sim(&machine, class, 1);
        let turns = record(&mut s);
        spawn(&mut s, TaskSpec::default(), Program::OnDemand { run_ns: 10 * US });
        s.run_until(MS).unwrap();
        let times: Vec<u64> = turns.borrow().iter().map(|turn| turn.0).collect();
        assert_eq!(times, [0, switch_ns + 10 * US]);
    }
}

#[test]
fn threads_of_a_core_slow_each_other() {
    let costs = Costs { smt_speed_per_mille: 500, ..Costs::free() };
    let machine =
        MachineConfig { cores_per_socket: 1, threads_per_core: 2, costs, ..MachineConfig::default() };
    let mut s = sim(&machine, round_robin(u64::MAX, false), 1);
    let turns = record(&mut s);
    // 1 ms of work on each thread; one begins 0.4 ms later.
    spawn(&mut s, on(0), Program::OnDemand { run_ns: MS });
    s.run_until(400 * US).unwrap();
    spawn(&mut s, on(1), Program::OnDemand { run_ns: MS });
    s.run_until(3 * MS).unwrap();
    // The first has 0.6 ms left, which takes 1.2 ms. The second has done 0.6 ms by then, and the other 0.4 ms at full speed.
    assert_eq!(turns_us(&turns, 0), [(0, Some(0)), (1_600, None)]);
    assert_eq!(turns_us(&turns, 1), [(400, Some(1)), (2_000, None)]);
}

#[test]
fn a_migration_refills_caches_once() {
    let costs = Costs { refill_remote_ns: 100 * US, ..Costs::free() };
    let machine = MachineConfig { sockets: 2, cores_per_socket: 1, costs, ..MachineConfig::default() };
    let mut s = sim(&machine, round_robin(u64::MAX, false), 1);
    let turns = record(&mut s);
    let task = spawn(&mut s, on(0), Program::OnDemand { run_ns: MS });
    s.run_until(2 * MS).unwrap();
    s.host.set_affinity(task, Some([CpuId(1)].into_iter().collect()));
    for _ in 0..2 {
        s.host.wake(task, None);
        let now_ns = s.host.now_ns();
        s.run_until(now_ns + 2 * MS).unwrap();
    }
    assert_eq!(turns_us(&turns, 0), [(0, Some(0)), (1_000, None)]);
    assert_eq!(turns_us(&turns, 1), [(2_000, Some(0)), (3_100, None), (4_000, Some(0)), (5_000, None)]);
}

/// Two that alternate every 2 ms on one pCPU: 0.3 ms to refill after a turn of 4 ms and more, half of that after one of 2 ms.
#[test]
fn a_turn_after_somebody_elses_refills_what_the_last_one_touched() {
    let costs = Costs { refill_after_other_ns: 100 * US, refill_turn_ns: 4 * MS, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(1) };
    let mut s = sim(&machine, round_robin(2 * MS, false), 1);
    let turns = record(&mut s);
    let large = TaskSpec { footprint_per_mille: 3000, ..TaskSpec::default() };
    spawn(&mut s, large.clone(), Program::OnDemand { run_ns: 5 * MS });
    spawn(&mut s, TaskSpec { footprint_per_mille: 0, ..large }, Program::OnDemand { run_ns: 5 * MS });
    s.run_until(20 * MS).unwrap();
    // The first turn finds nothing of its own. The first task does 2, 1.85 and, after 0.15 ms, the remaining 1.15 ms.
    let of_first = [(0, Some(0)), (2_000, Some(1)), (4_000, Some(0)), (6_000, Some(1)), (8_000, Some(0))];
    assert_eq!(turns_us(&turns, 0), [&of_first[..], &[(9_300, Some(1)), (10_300, None)]].concat());
}

/// What there is to refill takes longer than a turn: half of each turn is work all the same.
#[test]
fn who_has_more_to_refill_than_a_turn_gets_on_all_the_same() {
    let costs = Costs { refill_after_other_ns: 3 * MS, refill_turn_ns: 2 * MS, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(1) };
    let mut s = sim(&machine, round_robin(2 * MS, false), 1);
    let turns = record(&mut s);
    for _ in 0..2 {
        spawn(&mut s, TaskSpec::default(), Program::OnDemand { run_ns: 3_500 * US });
    }
    s.run_until(40 * MS).unwrap();
    // Both do 2 ms in their first turns, 1 ms in their second, and the rest after 1 ms.
    let of_first = [(0, Some(0)), (2_000, Some(1)), (4_000, Some(0)), (6_000, Some(1)), (8_000, Some(0))];
    assert_eq!(turns_us(&turns, 0), [&of_first[..], &[(9_500, Some(1)), (11_000, None)]].concat());
}

/// Two threads of one process take turns; then another process has the pCPU for 0.5 ms.
#[test]
fn a_process_shares_what_is_there_and_loses_little_by_a_short_turn() {
    let costs = Costs { refill_after_other_ns: 400 * US, refill_turn_ns: 4 * MS, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(1) };
    let mut s = sim(&machine, round_robin(2 * MS, false), 1);
    let turns = record(&mut s);
    let of_it = TaskSpec { tgid: Some(7), ..TaskSpec::default() };
    let first = spawn(&mut s, of_it.clone(), Program::OnDemand { run_ns: 5 * MS });
    spawn(&mut s, of_it, Program::OnDemand { run_ns: 3 * MS });
    s.run_until(10 * MS).unwrap();
    let together = [(0, Some(0)), (2_000, Some(1)), (4_000, Some(0)), (6_000, Some(1)), (7_000, Some(0))];
    assert_eq!(turns_us(&turns, 0), [&together[..], &[(8_000, None)]].concat());
    spawn(&mut s, TaskSpec::default(), Program::OnDemand { run_ns: 500 * US });
    s.run_until(11 * MS).unwrap();
    s.host.wake(first, None);
    s.run_until(20 * MS).unwrap();
    // Its last turn was 1 ms: of 0.4 ms for 4 ms it has lost what goes with 0.5 ms.
    let since = turns_us(&turns, 0).split_off(together.len() + 1);
    assert_eq!(since, [(10_000, Some(2)), (10_500, None), (11_000, Some(0)), (16_050, None)]);
}

/// A guest's TLB entries bear the tag of one vCPU: its sibling's turn of 1.5 ms costs 0.15 ms, as another process' would.
#[test]
fn threads_that_share_nothing_lose_by_a_siblings_turn() {
    let costs = Costs {
        refill_after_other_ns: 400 * US,
        refill_turn_ns: 4 * MS,
        threads_share: false,
        ..Costs::free()
    };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(1) };
    let mut s = sim(&machine, round_robin(2 * MS, false), 1);
    let turns = record(&mut s);
    let of_it = TaskSpec { tgid: Some(7), ..TaskSpec::default() };
    spawn(&mut s, of_it.clone(), Program::OnDemand { run_ns: 3 * MS });
    spawn(&mut s, of_it, Program::OnDemand { run_ns: 1_500 * US });
    s.run_until(10 * MS).unwrap();
    assert_eq!(turns_us(&turns, 0), [(0, Some(0)), (2_000, Some(1)), (3_500, Some(0)), (4_650, None)]);
}

#[test]
fn an_interrupt_takes_time_to_wake_an_idle_pcpu() {
    let costs = Costs { ipi_ns: 2_000, idle_exit_ns: 700, ..Costs::free() };
    let machine = MachineConfig { costs, ..MachineConfig::ideal(2) };
    let mut s = sim(&machine, round_robin(u64::MAX, false), 1);
    let turns = record(&mut s);
    let task = s.host.spawn(on(1));
    s.bodies.add(task, Program::OnDemand { run_ns: MS });
    s.host.wake(task, Some(CpuId(0)));
    s.run_until(MS).unwrap();
    assert_eq!(turns.borrow()[..], [(2_700, 1, Some(0))]);
}

#[test]
fn bad_machines_are_refused_in_one_line() {
    for (machine, field) in [
        (MachineConfig { sockets: 0, ..MachineConfig::default() }, "machine.sockets"),
        (
            MachineConfig { sockets: 1 << 20, cores_per_socket: 1 << 20, ..MachineConfig::default() },
            "machine: has",
        ),
        (MachineConfig { cores_per_cache: 3, ..MachineConfig::default() }, "machine.cores_per_cache"),
    ] {
        match cohort_sim::machine::Machine::new(&machine) {
            Err(SimError::Config(text)) => assert!(text.starts_with(field) && !text.contains('\n'), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}
