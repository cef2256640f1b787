// SPDX-License-Identifier: GPL-2.0-only
//! Pause-loop exits and directed yield.

use cohort_sim::class::fair::{Fair, FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::guest::LockKind;
use cohort_sim::kvm::{exit, Ipi, Ple, PleMode};
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::VmConfig;
use cohort_sim::CpuId;

use crate::common::*;

/// One flushes at 1.5 ms; the other computes.
const FLUSHER: &str = "
    [[thread]]
    name = 'flusher'
    steps = [{ compute = '1500us' }, { shootdown = {} }]
    [[thread]]
    name = 'other'
    background = true
    steps = [{ compute = '1s' }]";

fn eevdf() -> AnyClass {
    AnyClass::Fair(Fair::new(FairConfig { slice_ns: MS, ..FairConfig::of(Variant::Eevdf) }))
}

/// A window of 10 us that does not grow.
fn with_ple(mut config: VmConfig, mode: PleMode) -> VmConfig {
    config.kvm.ple = Ple { mode, window_cycles: 10_000, grow: 1, ..Ple::default() };
    config
}

fn ples(s: &Sim) -> Vec<(u64, (u32, bool))> {
    s.list(|what| match what {
        What::Ple { vcpu, kernel } => Some((vcpu.id, *kernel)),
        _ => None,
    })
}

fn yields(s: &Sim) -> Vec<(u64, (u32, u32, bool))> {
    s.list(|what| match what {
        What::DirectedYield { from, to, granted } => Some((from.id, to.id, *granted)),
        _ => None,
    })
}

/// vCPU 0 holds the lock from 0.5 ms for 1 ms on a pCPU that it shares with a hog; vCPU 1 wants it at 0.98 ms.
const HELD: &str = "
    [[thread]]
    name = 'holder'
    steps = [{ compute = '500us' }, { lock = { name = 'l', hold = '1ms' } }]
    [[thread]]
    name = 'spinner'
    steps = [{ compute = '980us' }, { lock = { name = 'l', hold = '10us' } }]";

#[test]
fn a_loop_exits_after_each_window() {
    let mut machine = MachineConfig::ideal(2);
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    let mut config = with_ple(vm(2, HELD), PleMode::Kernel);
    config.kvm.costs.on_spin_ns = 300;
    let s = build(&machine, turns_of_a_ms(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(MS + 30 * US);
    // 10 us of spinning, 1.5 us in KVM, again.
    assert_eq!(
        ples(&s).iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        [990 * US, 1_001_500, 1_013_000, 1_024_500]
    );
    let exits = s.list(|what| match what {
        What::Exit { reason: exit::PAUSE, ns, .. } => Some(*ns),
        _ => None,
    });
    assert_eq!(exits[..2], [(991_500, 1_500), (1_003_000, 1_500)]);
}

#[test]
fn the_window_grows_with_each_exit_and_is_reset_by_a_turn_without_the_pcpu() {
    let mut config = with_ple(vm(2, HELD), PleMode::Kernel);
    config.kvm.ple.grow = 2;
    // Both share their pCPUs: the spinner too is off from 1 to 2 ms.
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0), hog(1)], 1)
        .pin(&[0, 1])
        .until(3 * MS);
    // 10 us after 0.98 ms; 20 us later would be at 1.01 ms. From 2 ms on: 10, 20, 40, ... until the lock is free at 2.5 ms.
    let at: Vec<u64> = ples(&s).iter().map(|(at, _)| *at / US).collect();
    assert_eq!(at, [990, 2_010, 2_030, 2_070, 2_150, 2_310]);
}

#[test]
fn intel_sees_the_kernels_loops_only_and_amd_those_with_pause() {
    let text = |pause: bool| {
        format!(
            "barriers = {{ b = {{ pause = {pause} }} }}
             [[thread]]
             name = 't'
             count = 2
             steps = [{{ repeat = {{ times = 1, steps = [{{ compute = '10us' }}] }} }}, {{ barrier = {{ name = 'b', spin = 'forever' }} }}]
             [[thread]]
             name = 'late'
             steps = [{{ compute = '65us' }}, {{ barrier = {{ name = 'b', spin = 'forever' }} }}]"
        )
    };
    let count = |mode, pause| {
        let config = with_ple(vm(3, &text(pause)), mode);
        let s = build(&MachineConfig::ideal(3), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(MS);
        assert_eq!(s.end_ns(), Some(65 * US));
        assert!(ples(&s).iter().all(|(_, (_, kernel))| !kernel));
        ples(&s).len()
    };
    assert_eq!(count(PleMode::Kernel, true), 0);
    assert_eq!(count(PleMode::Any, false), 0);
    // From 10 to 65 us, two vCPUs, every 10 us.
    assert_eq!(count(PleMode::Any, true), 10);
    assert_eq!(count(PleMode::Off, true), 0);
}

/// KVM does not look at what a spinner has used: with exits at which nobody is found to yield to its turns end as they do without.
#[test]
fn an_exit_that_finds_nobody_ends_no_turn() {
    let text = "
        [[thread]]
        name = 'spinner'
        vcpu = 0
        steps = [{ compute = '10us' }, { lock = { name = 'l', hold = '10us' } }]
        [[thread]]
        name = 'holder'
        vcpu = 1
        steps = [{ lock = { name = 'l', hold = '50ms' } }]";
    let turns = |mode| {
        let config = with_ple(vm(2, text), mode);
        let s = build(&MachineConfig::ideal(2), eevdf(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(40 * MS);
        let turns = s.list(|what| match what {
            What::Switch { cpu: CpuId(0), prev, next, .. } => Some((*prev, *next)),
            _ => None,
        });
        (turns, ples(&s).len(), yields(&s))
    };
    let (without, none, _) = turns(PleMode::Off);
    let (with, some, asked) = turns(PleMode::Kernel);
    assert!(none == 0 && some > 100 && asked.is_empty(), "{none}, {some}, {asked:?}");
    assert!(without.len() > 4, "{without:?}");
    assert_eq!(with, without);
}

/// Both vCPUs on one pCPU, ticks every 4 ms. The holder is preempted by the tick at 4 ms with 6 ms to go.
const ONE_PCPU: &str = "
    [[thread]]
    name = 'holder'
    steps = [{ lock = { name = 'l', hold = '10ms' } }]
    [[thread]]
    name = 'spinner'
    steps = [{ lock = { name = 'l', hold = '10us' } }]";

/// On pCPU 0 a vCPU in user mode and one that spins for a lock, which a third one has.
#[test]
fn before_4_14_who_was_preempted_in_user_mode_was_asked_too() {
    let text = "
        [[thread]]
        name = 'user'
        background = true
        steps = [{ compute = '1s' }]
        [[thread]]
        name = 'holder'
        steps = [{ lock = { name = 'l', hold = '50ms' } }]
        [[thread]]
        name = 'spinner'
        steps = [{ lock = { name = 'l', hold = '10us' } }]";
    let granted = |asks_kernel_only| {
        let mut config = with_ple(vm(3, text), PleMode::Kernel);
        config.kvm.asks_kernel_only = asks_kernel_only;
        let s = build(&MachineConfig::ideal(2), eevdf(), &[config], &[], 1).pin(&[0, 1, 0]).until(40 * MS);
        yields(&s).into_iter().any(|(_, (from, to, granted))| (from, to, granted) == (2, 0, true))
    };
    assert!(!granted(true));
    assert!(granted(false));
}

#[test]
fn the_preempted_holder_gets_the_spinners_turn() {
    let config = with_ple(vm(2, ONE_PCPU), PleMode::Kernel);
    let s = build(&MachineConfig::ideal(1), eevdf(), &[config], &[], 1).until(20 * MS);
    assert!(yields(&s).iter().any(|(_, (_, _, granted))| *granted));
    let first = s.taken(2)[0];
    let second = s.taken(2)[1];
    assert_eq!(first.0, 0);
    // The holder needs 10 ms; whatever is beyond that the spinner has burnt in windows of 10 us.
    let exits = ples(&s).len() as u64;
    assert_eq!(second.0, 10 * MS + exits * 10 * US, "{:?}", ples(&s));
    let without = build(&MachineConfig::ideal(1), eevdf(), &[vm(2, ONE_PCPU)], &[], 1).until(40 * MS);
    // Turns from tick to tick: 4 ms held, 4 ms spun, 4 ms held, 4 ms spun, 2 ms held.
    assert_eq!(without.taken(2)[1].0, 18 * MS);
}

/// Three vCPUs on pCPU 0, which are preempted in user mode, in kernel mode with the lock, and in user mode; a spinner on pCPU 1.
fn choice(bug: bool) -> Sim {
    let text = "
        [[thread]]
        name = 'user'
        steps = [{ compute = '100ms' }]
        [[thread]]
        name = 'holder'
        steps = [{ lock = { name = 'l', hold = '10ms' } }]
        [[thread]]
        name = 'user2'
        steps = [{ compute = '100ms' }]
        [[thread]]
        name = 'spinner'
        steps = [{ compute = '3200us' }, { lock = { name = 'l', hold = '10us' } }]";
    let mut config = with_ple(vm(4, text), PleMode::Kernel);
    config.kvm.on_spin_bug = bug;
    build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 0, 0, 1]).until(4 * MS)
}

#[test]
fn only_who_was_preempted_in_kernel_mode_is_asked() {
    let s = choice(false);
    // The host's round robin grants nothing, so every exit from 3.21 ms on asks again. vCPU 0 runs, 1 and 2 wait.
    let asked = yields(&s);
    assert_eq!(asked.len(), 79);
    assert!(asked.iter().all(|(_, (from, to, granted))| *from == 3 && *to == 1 && !granted), "{asked:?}");
}

/// vCPU 0 flushes at 1.5 ms and waits for vCPU 1, which was preempted in user mode and has the interrupt waiting.
#[test]
fn one_with_an_interrupt_waiting_is_asked_in_any_mode_if_the_apic_is_virtualized() {
    let asked = |ipi, asks_interrupted| {
        let mut config = with_ple(vm(2, FLUSHER), PleMode::Kernel);
        config.kvm.ipi = ipi;
        config.kvm.asks_interrupted = asks_interrupted;
        let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(1)], 1)
            .pin(&[0, 1])
            .until(2 * MS);
        // The exits are the same: every 10 us from 1.51 to 1.99 ms.
        assert_eq!(ples(&s).len(), 49);
        yields(&s).len()
    };
    assert_eq!(asked(Ipi::Trapped, true), 0);
    assert_eq!(asked(Ipi::Posted, true), 49);
    assert_eq!(asked(Ipi::Virtualized, true), 49);
    // Before 5.13.
    assert_eq!(asked(Ipi::Posted, false), 0);
}

/// vCPU 0 slept, is woken at 1.2 ms and waits for its pCPU, which a hog has until 2.1 ms. Whom does vCPU 2 ask, which spins for vCPU 1's lock from 1.3 ms on?
fn asked_beside_one_that_was_woken(yields_to_woken: bool) -> Vec<(u32, u32, bool)> {
    let text = "
        [[thread]]
        name = 'sleeper'
        vcpu = 0
        background = true
        steps = [{ compute = '100us' }, { sleep = '1100us' }, { compute = '1ms' }]
        [[thread]]
        name = 'holder'
        vcpu = 1
        steps = [{ compute = '1ms' }, { lock = { name = 'l', hold = '1ms' } }]
        [[thread]]
        name = 'spinner'
        vcpu = 2
        steps = [{ compute = '1300us' }, { lock = { name = 'l', hold = '10us' } }]";
    let mut config = with_ple(vm(3, text), PleMode::Kernel);
    config.kvm.yields_to_woken = yields_to_woken;
    let s = build(&MachineConfig::ideal(3), turns_of_a_ms(), &[config], &[hog(0)], 1)
        .pin(&[0, 1, 2])
        .until(1_999 * US);
    yields(&s).into_iter().map(|(_, asked)| asked).collect()
}

#[test]
fn who_was_woken_and_waits_is_asked_since_5_3() {
    // Every 10 us.
    assert_eq!(asked_beside_one_that_was_woken(true), [(2, 0, false); 69]);
    assert_eq!(asked_beside_one_that_was_woken(false), []);
}

#[test]
fn one_in_a_pause_loop_exit_is_eligible_every_other_time() {
    use cohort_sim::kvm::vcpu::Vcpu;
    use cohort_sim::{TaskId, VcpuId, VmId};
    let mut vcpu = Vcpu::new(TaskId(0), VcpuId { vm: VmId(0), id: 0 }, 4_096);
    assert!(vcpu.eligible_for_directed_yield() && vcpu.eligible_for_directed_yield());
    vcpu.in_spin_loop = true;
    let seen: Vec<bool> = (0..4).map(|_| vcpu.eligible_for_directed_yield()).collect();
    assert_eq!(seen, [false, true, false, true]);
}

/// Four holders of four locks, all preempted in kernel mode on pCPU 0, and a spinner on pCPU 1 that yields to one after another.
#[test]
fn the_round_robin_goes_on_behind_the_last_boosted_one_unless_it_has_the_bug() {
    let holder = |n: u32| {
        format!("[[thread]]\nname = 'h{n}'\nsteps = [{{ lock = {{ name = 'l{n}', hold = '200ms' }} }}]\n")
    };
    let text = format!(
        "{}{}{}[[thread]]\nname = 'spinner'\nsteps = [{{ compute = '20ms' }}, {{ lock = {{ name = 'l1', hold = '10us' }} }}]",
        holder(0),
        holder(1),
        holder(2)
    );
    let first_grants = |bug: bool| {
        let mut config = with_ple(vm(4, &text), PleMode::Kernel);
        config.kvm.on_spin_bug = bug;
        let s = build(&MachineConfig::ideal(1), eevdf(), &[config], &[], 1).until(150 * MS);
        let granted = yields(&s).into_iter().filter(|(_, (from, _, granted))| *from == 3 && *granted);
        granted.map(|(_, (_, to, _))| to).take(4).collect::<Vec<u32>>()
    };
    // `last_boosted_vcpu` begins at 0, so the first one asked is 1. With the bug the number of tries is stored: 1 is found at the first try, number 0, so the
    // next begins at 1 again.
    assert_eq!(first_grants(false), [1, 2, 0, 1]);
    assert_eq!(first_grants(true), [1, 1, 1, 1]);
}

/// vCPUs 0 and 1 on one pCPU, others on one of their own. vCPU 0 flushes after 5 ms of its time, at 9 ms, while vCPU 1 waits for its turn from 12 ms on.
#[test]
fn a_yield_by_hypercall_brings_the_one_that_has_to_answer() {
    let flushes = |sched_yield, others: u32| {
        let text = format!(
            "[[thread]]
            name = 'flusher'
            steps = [{{ compute = '5ms' }}, {{ shootdown = {{}} }}]
            [[thread]]
            name = 'other'
            count = {others}
            background = true
            steps = [{{ compute = '1s' }}]"
        );
        let mut config = vm(1 + others, &text);
        config.kvm.ipi = Ipi::Virtualized;
        config.kvm.steal_time = true;
        config.kvm.sched_yield = sched_yield;
        let s = build(&MachineConfig::ideal(2), eevdf(), &[config], &[], 1);
        s.pin(&[0, 0, 1][..1 + others as usize]).until(30 * MS).flushes()
    };
    // It spins from 9 to 12 ms; the other one answers; it sees that when it runs again.
    assert_eq!(flushes(false, 2), [(16 * MS, 7 * MS)]);
    // The other one runs at once, and has the pCPU until the tick.
    assert_eq!(flushes(true, 2), [(12 * MS, 3 * MS)]);
    assert_eq!(flushes(true, 1), [(16 * MS, 7 * MS)], "the hypercall is for calls to several");
}

/// vCPU 0 flushes at 1.5 ms, while vCPU 1 waits for its pCPU, which a hog has; vCPU 2 runs. Whom it asks to run, and when; round robin grants nothing.
fn asked_by_hypercall(lone_yields_not: bool, hogs: &[u32]) -> Vec<(u64, (u32, u32, bool))> {
    let mut machine = MachineConfig::ideal(3);
    machine.costs.vm_exit_ns = 700;
    let mut config = vm(3, &FLUSHER.replace("name = 'other'", "name = 'other'\ncount = 2"));
    config.kvm.costs.hypercall_ns = 100;
    config.kvm.sched_yield = true;
    config.kvm.lone_yields_not = lone_yields_not;
    let hogs: Vec<_> = hogs.iter().copied().map(hog).collect();
    yields(&build(&machine, turns_of_a_ms(), &[config], &hogs, 1).pin(&[0, 1, 2]).until(4 * MS))
}

#[test]
fn who_has_a_pcpu_to_itself_yields_to_nobody_by_hypercall() {
    assert_eq!(asked_by_hypercall(true, &[1]), []);
    // Kernels before 5.13 look at the target's queue only.
    assert_eq!(asked_by_hypercall(false, &[1]), [(1_500_800, (0, 1, false))]);
    // Two hogs have pCPU 0 from 1 to 3 ms, and vCPU 0 goes on after an exit.
    assert_eq!(asked_by_hypercall(true, &[0, 0, 1]), [(3_500_700 + 800, (0, 1, false))]);
}

#[test]
fn whoever_kicks_a_halted_waiter_yields_to_it_since_5_4() {
    let text = "
        [[thread]]
        name = 'holder'
        steps = [{ compute = '900us' }, { lock = { name = 'l', hold = '200us' } }]
        [[thread]]
        name = 'waiter'
        steps = [{ compute = '950us' }, { lock = { name = 'l', hold = '10us' } }]";
    let asked = |kick_yields| {
        let mut config = vm(2, text);
        config.guest.lock = LockKind::PvQueued;
        config.guest.spin_threshold_ns = 300 * US;
        config.kvm.kick_yields = kick_yields;
        let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1)
            .pin(&[0, 1])
            .until(3 * MS);
        assert_eq!(s.taken(2)[1], (2_100 * US, (1, 1_150 * US)));
        yields(&s)
    };
    // The holder is off its pCPU from 1 to 2 ms. The waiter halts at 1.25 ms, and at 2.1 ms is kicked.
    assert_eq!(asked(true), [(2_100 * US, (0, 1, false))]);
    assert_eq!(asked(false), []);
}

/// Two vCPUs wait in user mode from 10 to 65 us, with a PAUSE every 200 ns. How often the processor ends that, with a cycle of 1 ns.
fn waits_with_gaps(ple: Ple) -> usize {
    let text = "
        barriers = { b = { pause = true, pause_every = '200ns' } }
        [[thread]]
        name = 't'
        count = 2
        steps = [{ compute = '10us' }, { barrier = { name = 'b', spin = 'forever' } }]
        [[thread]]
        name = 'late'
        steps = [{ compute = '65us' }, { barrier = { name = 'b', spin = 'forever' } }]";
    let mut config = vm(3, text);
    config.kvm.ple = ple;
    let s = build(&MachineConfig::ideal(3), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(MS);
    ples(&s).len()
}

#[test]
fn pauses_further_apart_than_the_gap_are_no_loop() {
    let ple = |gap_cycles| Ple { gap_cycles, ..with_ple(vm(1, ONE_PCPU), PleMode::Any).kvm.ple };
    // Two vCPUs, every 10 us.
    assert_eq!(waits_with_gaps(ple(200)), 10);
    assert_eq!(waits_with_gaps(ple(199)), 0);
    assert_eq!(waits_with_gaps(ple(0)), 10, "no threshold");
}

#[test]
fn amds_filter_counts_pauses() {
    let counts = |gap_cycles| Ple {
        mode: PleMode::Any,
        gap_cycles,
        pause_cycles: 40,
        window_pauses: 100,
        grow: 1,
        ..Ple::default()
    };
    // 100 of them are 20 us: at 30 and 50 us. The threshold counts for these, too.
    assert_eq!(waits_with_gaps(counts(200)), 4);
    assert_eq!(waits_with_gaps(counts(199)), 0);
    // In the kernel they come every 40 ns: 4 us, from 980 us on.
    let mut config = vm(2, HELD);
    config.kvm.ple = counts(128);
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(MS);
    assert_eq!(ples(&s).iter().map(|(at, _)| *at / US).collect::<Vec<_>>(), [984, 988, 992, 996, 1_000]);
}
