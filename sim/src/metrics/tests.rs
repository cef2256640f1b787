// SPDX-License-Identifier: GPL-2.0-only
//! Figures of short histories, by hand.

use super::layout::{TaskLayout, VmLayout};
use super::*;
use crate::ids::{CpuId, TaskId, VcpuId, VmId};
use crate::observe::{Spin, Stop};
use crate::time::MS;

const V0: VcpuId = VcpuId { vm: VmId(0), id: 0 };
const V1: VcpuId = VcpuId { vm: VmId(0), id: 1 };

/// A VM of two vCPUs, tasks 0 and 1; task 2 is a process of the host.
fn layout() -> Layout {
    let vm = VmLayout { name: "work".into(), vcpus: 2, weight: 100, pinned: false };
    let vcpu = |vcpu| TaskLayout { vm: Some(0), vcpu: Some(vcpu), ..TaskLayout::default() };
    let tasks = vec![vcpu(V0), vcpu(V1), TaskLayout::default()];
    Layout { pcpus: 2, vms: vec![vm], tasks, ..Layout::default() }
}

fn metrics(events: &[(Ns, What)]) -> Metrics {
    let mut metrics = Metrics::new(layout());
    for (now_ns, what) in events {
        metrics.record(*now_ns, what);
    }
    metrics
}

fn figures(events: &[(Ns, What)], end_ns: Ns) -> Figures {
    metrics(events).figures(end_ns)
}

/// Of the VM's program.
fn window(events: &[(Ns, What)], end_ns: Ns) -> Window {
    metrics(events).window(end_ns, VmId(0)).expect("a start or an end")
}

fn switch(cpu: u32, prev: Option<u32>, why: Stop, next: Option<u32>) -> What {
    What::Switch { cpu: CpuId(cpu), prev: prev.map(TaskId), why, next: next.map(TaskId) }
}

#[test]
fn waiting_costop_skew_and_stacking() {
    let found = figures(
        &[
            (0, What::Wakeup { task: TaskId(0), cpu: CpuId(0) }),
            (0, switch(0, None, Stop::Preempted, Some(0))),
            // Stacked behind its sibling, until it is moved.
            (0, What::Wakeup { task: TaskId(1), cpu: CpuId(0) }),
            (10, What::Migrate { task: TaskId(1), from: CpuId(0), to: CpuId(1) }),
            (12, switch(1, None, Stop::Preempted, Some(1))),
            (15, What::Mode { vcpu: V0, kernel: true }),
            (15, What::LockTaken { vcpu: V0, lock: 0, sleeps: false, waited_ns: 0 }),
            (20, switch(0, Some(0), Stop::Preempted, Some(2))),
            (30, switch(0, Some(2), Stop::Exited, Some(0))),
            (31, What::LockReleased { vcpu: V0, lock: 0, sleeps: false, held_ns: 16 }),
            (35, switch(1, Some(1), Stop::Blocked, None)),
        ],
        40,
    );
    assert_eq!((found.host.busy_ns, found.host.idle_ns), (30 + 23 + 10, 17));
    let vm = &found.vms[0];
    let times: Vec<_> = vm.vcpus.iter().map(|vcpu| (vcpu.run_ns, vcpu.ready_ns)).collect();
    assert_eq!(times, [(30, 10), (23, 12)]);
    assert_eq!((vm.host.cpu_ns, vm.host.run_ns, vm.host.ready_ns), (53, 53, 22));
    // Each waited only while the other ran.
    assert_eq!((vm.host.costop_ns, vm.host.stacked_ns), (22, 10));
    // 12 when vCPU 1 has waited for so long and vCPU 0 not at all; then vCPU 0 waits, too.
    assert_eq!((vm.host.skew_max_ns, vm.host.skew.count), (12, 4));
    // Due 2 pCPUs for 35 and 1 for 5.
    assert_eq!((vm.host.lag_behind_ns, vm.host.lag_ahead_ns), (Some(22), Some(0)));
    assert_eq!((vm.host.preemptions, vm.host.preemptions_kernel, vm.host.preemptions_holder), (1, 1, 1));
    assert_eq!((vm.host.wait_after_wakeup.count, vm.host.wait_after_wakeup.max_ns), (2, 12));
    assert_eq!((vm.host.wait_after_preemption.max_ns, vm.host.wait_in_kernel.max_ns), (10, 10));
    assert_eq!((vm.host.wait_as_holder.max_ns, vm.guest.lock_hold.max_ns), (10, 16));
}

#[test]
fn migrations_by_how_far() {
    // Two sockets of two caches of two pCPUs.
    let mut metrics = Metrics::new(Layout { pcpus: 8, spans: (2, 4), ..layout() });
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 7), (6, 7)] {
        metrics.record(1, &What::Migrate { task: TaskId(2), from: CpuId(from), to: CpuId(to) });
    }
    let host = metrics.figures(2).host;
    assert_eq!((host.migrations, host.migrations_llc, host.migrations_node), (5, 3, 1));
}

#[test]
fn spins_exits_and_yields() {
    let found = figures(
        &[
            (0, switch(0, None, Stop::Preempted, Some(0))),
            (0, switch(1, None, Stop::Preempted, Some(1))),
            (1, What::SpinStart { vcpu: V0, why: Spin::Lock }),
            (2, What::Ple { vcpu: V0, kernel: true }),
            (3, What::DirectedYield { from: V0, to: V1, granted: false }),
            (4, What::Ple { vcpu: V0, kernel: true }),
            (5, What::DirectedYield { from: V0, to: V1, granted: true }),
            // Exits are part of a spin, waiting for a pCPU is not.
            (6, switch(0, Some(0), Stop::Preempted, Some(2))),
            (8, switch(0, Some(2), Stop::Exited, Some(0))),
            (9, What::SpinEnd { vcpu: V0, why: Spin::Lock, spun_ns: 1 }),
            (10, What::SpinStart { vcpu: V0, why: Spin::User }),
            (12, What::SpinEnd { vcpu: V0, why: Spin::User, spun_ns: 2 }),
            (13, What::SpinStart { vcpu: V1, why: Spin::User }),
            (14, What::Ple { vcpu: V1, kernel: false }),
            (15, What::SpinEnd { vcpu: V1, why: Spin::User, spun_ns: 2 }),
        ],
        20,
    );
    let (counts, guest) = (&found.vms[0].guest.counts, &found.vms[0].guest);
    assert_eq!((counts.ple, counts.ple_kernel, counts.ple_chains, counts.ple_chain_max), (3, 2, 2, 2));
    assert_eq!(counts.ple_chain_lengths, [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!((counts.yields_asked, counts.yields_granted), (2, 1));
    assert_eq!((guest.spin_ns, guest.spins["lock"].count, guest.spins["user"].sum_ns), (10, 1, 4));
}

#[test]
fn a_streak_of_exits_ends_with_a_turn_that_has_none() {
    let exit = What::Ple { vcpu: V0, kernel: true };
    let runs = switch(0, Some(2), Stop::Preempted, Some(0));
    let waits = switch(0, Some(0), Stop::Preempted, Some(2));
    let events = [&exit, &exit, &waits, &runs, &exit, &waits, &runs, &waits, &waits, &runs, &exit, &waits];
    let mut told = vec![(0, switch(0, None, Stop::Preempted, Some(0)))];
    told.extend(events.iter().zip(1..).map(|(what, at_ns)| (at_ns, **what)));
    let streaks = |told: &[(Ns, What)]| {
        let counts = figures(told, 20).vms[0].guest.counts.clone();
        (counts.ple_streaks, counts.ple_streak_max, counts.ple_streak_p50)
    };
    // Three exits in two turns, and one that goes on.
    assert_eq!(streaks(&told), (2, 3, 3));
    assert_eq!(streaks(&told[..7]), (1, 3, 3));
    assert_eq!(streaks(&told[..1]), (0, 0, 0));
}

#[test]
fn half_of_the_streaks_is_not_half_of_the_exits() {
    let exit = What::Ple { vcpu: V0, kernel: true };
    let runs = switch(0, Some(2), Stop::Preempted, Some(0));
    let waits = switch(0, Some(0), Stop::Preempted, Some(2));
    // A streak of one exit, one of one, and one of five: each ends with a turn without exits.
    let turn = |exits: usize| [vec![&exit; exits], vec![&waits, &runs, &waits, &runs]].concat();
    let events = [turn(1), turn(1), turn(5)].concat();
    let mut told = vec![(0, switch(0, None, Stop::Preempted, Some(0)))];
    told.extend(events.iter().zip(1..).map(|(what, at_ns)| (at_ns, **what)));
    let counts = figures(&told, 40).vms[0].guest.counts.clone();
    assert_eq!((counts.ple_streaks, counts.ple_streak_p50, counts.ple_streak_exits_p50), (3, 1, 5));
}

#[test]
fn time_in_loops_is_that_of_the_one_that_executes() {
    let spin = |vcpu, why| What::SpinStart { vcpu, why };
    let end = |vcpu, why| What::SpinEnd { vcpu, why, spun_ns: 0 };
    let guest_switch = |vcpu, prev, next| What::GuestSwitch { vcpu, prev, next };
    let found = figures(
        &[
            (0, switch(0, None, Stop::Preempted, Some(0))),
            (0, switch(1, None, Stop::Preempted, Some(1))),
            (0, guest_switch(V0, u32::MAX, 5)),
            (0, guest_switch(V1, u32::MAX, 6)),
            // Task 5 from 10 to 20 on vCPU 0, from 30 to 37 on vCPU 1, less an interrupt handler's loop of 3.
            (10, spin(V0, Spin::Barrier)),
            (15, What::Ple { vcpu: V0, kernel: false }),
            (20, guest_switch(V0, 5, 7)),
            // Task 7 waits at the same time, on the same vCPU, to the end.
            (22, spin(V0, Spin::Barrier)),
            (30, guest_switch(V1, 6, 5)),
            (31, What::Ple { vcpu: V1, kernel: false }),
            (32, spin(V1, Spin::Lock)),
            (35, end(V1, Spin::Lock)),
            (37, end(V1, Spin::Barrier)),
            (42, end(V0, Spin::Barrier)),
        ],
        50,
    );
    let guest = &found.vms[0].guest;
    assert_eq!((guest.spins["barrier"].sum_ns, guest.spins["lock"].sum_ns), ((10 + 4) + 20, 3));
    assert_eq!((guest.spins["barrier"].count, guest.spin_ns), (2, 37));
    assert_eq!((guest.counts.ple_chains, guest.counts.ple_chain_max), (1, 2));
}

#[test]
fn a_mutex_makes_no_vcpu_a_holder_and_what_was_free_was_not_waited_for() {
    let found = figures(
        &[
            (0, switch(0, None, Stop::Preempted, Some(0))),
            (5, What::LockTaken { vcpu: V0, lock: 7, sleeps: true, waited_ns: 0 }),
            (6, What::LockTaken { vcpu: V0, lock: 8, sleeps: true, waited_ns: 3 }),
            (10, switch(0, Some(0), Stop::Preempted, None)),
            // Its task goes on elsewhere.
            (20, What::LockReleased { vcpu: V1, lock: 7, sleeps: true, held_ns: 15 }),
        ],
        30,
    );
    let VmFigures { host, guest, .. } = &found.vms[0];
    assert_eq!((host.preemptions, host.preemptions_holder), (1, 0));
    assert_eq!((guest.lock_wait.count, guest.lock_wait.max_ns, guest.lock_hold.count), (1, 3, 1));
}

#[test]
fn a_loop_that_goes_on_is_time_spun() {
    let events = [
        (0, switch(0, None, Stop::Preempted, Some(0))),
        (10, What::SpinStart { vcpu: V0, why: Spin::Barrier }),
        (15, What::ProgramStart { vcpu: V0, program: 0 }),
        (20, switch(0, Some(0), Stop::Preempted, None)),
        (30, switch(0, None, Stop::Preempted, Some(0))),
        (32, What::SpinEnd { vcpu: V0, why: Spin::Barrier, spun_ns: 0 }),
        (40, What::ProgramEnd { vcpu: V0, program: 0 }),
    ];
    let guest = |told: usize, end_ns| figures(&events[..told], end_ns).vms[0].guest.clone();
    assert_eq!((guest(3, 18).spin_ns, guest(4, 25).spin_ns, guest(5, 31).spin_ns), (8, 10, 11));
    assert!(guest(5, 31).spins.is_empty());
    assert_eq!((guest(7, 40).spin_ns, guest(7, 40).spins["barrier"].sum_ns), (12, 12));
    // Of the loop, what was before the program's start is not of its window.
    assert_eq!(window(&events, 50).vms[&0].guest.spin_ns, 5 + 2);
}

#[test]
fn interrupts_of_one_vector_pend_once() {
    let found = figures(
        &[
            (1, What::ShootdownStart { vcpu: V0, targets: 1 }),
            (2, What::GuestIpiSent { from: V0, to: V1, vector: 1 }),
            (3, What::GuestIpiSent { from: V0, to: V1, vector: 1 }),
            (3, What::GuestIpiSent { from: V0, to: V1, vector: 2 }),
            (12, What::GuestIpiTaken { vcpu: V1, vector: 1 }),
            (12, What::TlbFlushed { vcpu: V1 }),
            (15, What::ShootdownEnd { vcpu: V0, targets: 1, took_ns: 14 }),
        ],
        20,
    );
    let guest = &found.vms[0].guest;
    assert_eq!((guest.ipi.count, guest.ipi.max_ns), (1, 10));
    assert_eq!(
        (guest.counts.ipis_sent, guest.counts.ipis_taken.get(&1), guest.counts.tlb_flushes),
        (3, Some(&1), 1)
    );
    assert_eq!((guest.shootdown.count, guest.shootdown.max_ns, guest.counts.shootdown_targets), (1, 14, 1));
}

#[test]
fn who_waits_from_the_start_is_known() {
    let mut layout = layout();
    layout.tasks[1].waits_on = Some(CpuId(1));
    let mut metrics = Metrics::new(layout);
    metrics.record(4, &switch(1, None, Stop::Preempted, Some(1)));
    assert_eq!(metrics.figures(9).vms[0].vcpus[1].ready_ns, 4);
}

#[test]
fn a_wait_that_goes_on_is_one_of_those_that_are_told() {
    let mut metrics = metrics(&[
        (0, switch(0, None, Stop::Preempted, Some(0))),
        (10 * MS, switch(0, Some(0), Stop::Preempted, Some(2))),
    ]);
    // Told before, it is not told twice.
    for (end_ms, waited_ms) in [(500, 490), (1_000, 990)] {
        let waits = metrics.figures(end_ms * MS).vms[0].host.wait_after_preemption.clone();
        assert_eq!((waits.count, waits.max_ns), (1, waited_ms * MS));
    }
}

#[test]
fn the_end_of_a_program_is_a_moment_of_its_own() {
    let events = [
        (0, switch(0, None, Stop::Preempted, Some(0))),
        (5, What::ProgramEnd { vcpu: V0, program: 0 }),
        (8, switch(0, Some(0), Stop::Blocked, None)),
    ];
    let found = window(&events, 10);
    assert_eq!((found.length_ns, &found.cpu_ns[..], found.idle_ns), (5, &[5][..], 5));
    assert_eq!(figures(&events, 10).host.busy_ns, 8);
    // Of a program that begins with the run nothing is known from before.
    assert!(found.vms.is_empty());
    assert_eq!(metrics(&events[..1]).window(10, VmId(0)), None);
}

#[test]
fn the_window_of_a_program_that_goes_on_ends_now() {
    let events = [
        (0, switch(0, None, Stop::Preempted, Some(0))),
        (5, What::ProgramStart { vcpu: V0, program: 0 }),
        (8, switch(0, Some(0), Stop::Blocked, None)),
    ];
    let found = window(&events, 10);
    assert_eq!((found.length_ns, &found.cpu_ns[..], found.idle_ns), (5, &[3][..], 7));
}

#[test]
fn a_program_whose_start_found_no_room_has_no_window() {
    let vm = |_| VmLayout { vcpus: 1, weight: 100, ..VmLayout::default() };
    let mut metrics = Metrics::new(Layout { pcpus: 1, vms: (0..300).map(vm).collect(), ..Layout::default() });
    let vcpu = |vm| VcpuId { vm: VmId(vm), id: 0 };
    // The first begins with the run, all others at 10.
    for vm in 1..300 {
        metrics.record(10, &What::ProgramStart { vcpu: vcpu(vm), program: 0 });
    }
    for (now_ns, vm) in [(15, 299), (20, 0), (30, 1)] {
        metrics.record(now_ns, &What::ProgramEnd { vcpu: vcpu(vm), program: 0 });
    }
    let found = [0, 1, 2, 299].map(|vm| metrics.window(40, VmId(vm)).map(|window| window.length_ns));
    assert_eq!(found, [Some(20), Some(20), Some(30), None]);
}

#[test]
fn what_is_counted_before_a_program_and_after_it_is_known_apart() {
    let sent = |vector| What::GuestIpiSent { from: V0, to: V1, vector };
    let taken = |vector| What::GuestIpiTaken { vcpu: V1, vector };
    let events = [
        (0, What::Wakeup { task: TaskId(0), cpu: CpuId(0) }),
        (0, What::Wakeup { task: TaskId(1), cpu: CpuId(1) }),
        (2, switch(0, None, Stop::Preempted, Some(0))),
        (3, sent(1)),
        (4, taken(1)),
        // vCPU 1 waits beyond the start, and after the end.
        (10, What::ProgramStart { vcpu: V0, program: 0 }),
        (16, switch(1, None, Stop::Preempted, Some(1))),
        (17, sent(1)),
        (17, sent(2)),
        (18, taken(1)),
        (18, taken(2)),
        (20, switch(1, Some(1), Stop::Preempted, Some(2))),
        (25, What::ProgramEnd { vcpu: V0, program: 0 }),
        (27, sent(1)),
        (28, taken(1)),
    ];
    let (figures, found) = (figures(&events, 30), window(&events, 30));
    assert_eq!((found.ready_ns, figures.vms[0].host.ready_ns), (2 + 16 + 5 - (2 + 10), 2 + 16 + 10));
    let of = |taken: &std::collections::BTreeMap<u8, u64>| (taken.get(&1).copied(), taken.get(&2).copied());
    assert_eq!(of(&found.ipis_taken), (Some(1), Some(1)));
    assert_eq!(of(&figures.vms[0].guest.counts.ipis_taken), (Some(3), Some(1)));
}

#[test]
fn what_the_time_went_to_is_known_between_a_programs_start_and_its_end() {
    let sent = |to| What::GuestIpiSent { from: V0, to, vector: 2 };
    let events = [
        (0, What::Wakeup { task: TaskId(0), cpu: CpuId(0) }),
        (2, switch(0, None, Stop::Preempted, Some(0))),
        (10, What::ProgramStart { vcpu: V0, program: 0 }),
        (10, What::Wakeup { task: TaskId(1), cpu: CpuId(1) }),
        // It was not preempted: the interrupt finds it asleep or waking.
        (11, sent(V1)),
        (13, switch(1, None, Stop::Preempted, Some(1))),
        (14, What::Mode { vcpu: V1, kernel: true }),
        (14, What::SpinStart { vcpu: V1, why: Spin::Lock }),
        (16, What::Ple { vcpu: V1, kernel: true }),
        (17, What::SpinEnd { vcpu: V1, why: Spin::Lock, spun_ns: 3 }),
        (20, switch(1, Some(1), Stop::Preempted, Some(2))),
        (21, sent(V1)),
        (24, sent(V1)),
        // Its own do not count, and it runs.
        (24, sent(V0)),
        (28, switch(1, Some(2), Stop::Exited, Some(1))),
        (30, switch(0, Some(0), Stop::Preempted, Some(2))),
        (40, What::ProgramEnd { vcpu: V1, program: 0 }),
    ];
    let found = window(&events, 50);
    let grown = &found.vms[&0];
    assert_eq!((found.length_ns, grown.vcpus), (30, 2));
    // Before the start vCPU 0 waits for 2 and runs for 8, vCPU 1 is halted.
    assert_eq!((grown.run_ns, grown.ready_ns, grown.halted_ns), (28 + 7 + 12 - 8, 3 + 8 + 10, 0));
    // vCPU 1 waits for 3 and 8, vCPU 0 for 10: the other runs in all of it.
    assert_eq!(grown.costop_ns, 21);
    assert_eq!((grown.preemptions, grown.preemptions_kernel, grown.wait_kernel_ns), (2, 1, 8));
    assert_eq!((grown.wakeups, grown.wait_wakeup_ns), (1, 3));
    assert_eq!((grown.ipis_preempted, grown.ipi_wait_ns), (2, 7 + 4));
    assert_eq!((grown.guest.ipis_sent, grown.guest.ple, grown.guest.spin_ns), (4, 1, 3));
}

#[test]
fn chains_are_counted_by_powers_of_two() {
    let mut counts = guest::Counts::default();
    for exits in [0, 1, 2, 3, 4, 5, 64, 65, 1_000] {
        counts.chain_ends(exits);
    }
    assert_eq!(counts.ple_chain_lengths, [1, 1, 2, 1, 0, 0, 1, 2]);
    assert_eq!((counts.ple_chains, counts.ple_chain_max), (8, 1_000));
}
