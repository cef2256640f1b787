// SPDX-License-Identifier: GPL-2.0-only
//! Spin locks. Every vCPU has a pCPU to itself, except where a hog takes turns of 1 ms with it: it runs in [0, 1), [2, 3), ... ms.

use cohort_sim::guest::LockKind;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;

use crate::common::*;

/// Four vCPUs want the lock at 10, 20, 30 and 40 us and hold it for 100 us. The program's lock comes after those of the run queues.
const FOUR: &str = "
    [[thread]]
    name = 'a'
    steps = [{ compute = '10us' }, { lock = { name = 'l', hold = '100us' } }]
    [[thread]]
    name = 'b'
    steps = [{ compute = '20us' }, { lock = { name = 'l', hold = '100us' } }]
    [[thread]]
    name = 'c'
    steps = [{ compute = '30us' }, { lock = { name = 'l', hold = '100us' } }]
    [[thread]]
    name = 'd'
    steps = [{ compute = '40us' }, { lock = { name = 'l', hold = '100us' } }]";
const LOCK: u32 = 4;

fn four(kind: LockKind, change: impl Fn(&mut cohort_sim::scenario::VmConfig)) -> Sim {
    let mut config = vm(4, FOUR);
    config.guest.lock = kind;
    config.guest.spin_threshold_ns = 1_000_000;
    change(&mut config);
    build(&MachineConfig::ideal(4), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2, 3])
}

fn in_turn() -> Vec<(u64, (u32, u64))> {
    vec![(10 * US, (0, 0)), (110 * US, (1, 90 * US)), (210 * US, (2, 180 * US)), (310 * US, (3, 270 * US))]
}

#[test]
fn fifo_locks_go_in_the_order_of_arrival() {
    for kind in [
        LockKind::Ticket,
        LockKind::Queued,
        LockKind::PvTicket,
        LockKind::PvQueued,
        LockKind::PreemptableTicket,
    ] {
        // The preemptable ticket lock's time-outs let nobody pass while the lock is held.
        let s = four(kind, |config| config.guest.ticket_timeout_ns = MS).until(MS);
        assert_eq!(s.taken(LOCK), in_turn(), "{kind:?}");
        assert_eq!(s.end_ns(), Some(410 * US));
    }
}

#[test]
fn tas_goes_to_anybody_at_the_same_times() {
    let s = four(LockKind::Tas, |_| {}).until(MS);
    let times: Vec<u64> = s.taken(LOCK).iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [10 * US, 110 * US, 210 * US, 310 * US]);
    // Over many seeds the order is not always that of arrival.
    let orders = (0..20).map(|seed| {
        let config = {
            let mut config = vm(4, FOUR);
            config.guest.lock = LockKind::Tas;
            config
        };
        let s = build(&MachineConfig::ideal(4), turns_of_a_ms(), &[config], &[], seed)
            .pin(&[0, 1, 2, 3])
            .until(MS);
        s.taken(LOCK).iter().map(|(_, (who, _))| *who).collect::<Vec<u32>>()
    });
    let orders: std::collections::BTreeSet<_> = orders.collect();
    assert!(orders.len() > 2, "{orders:?}");
    assert!(orders.iter().all(|order| order[0] == 0));
}

#[test]
fn costs_of_a_lock_are_its_handover() {
    let s = four(LockKind::Queued, |config| config.guest.costs.handover_ns = 50).until(MS);
    // The line's way is part of the time for which the next one holds the lock.
    let times: Vec<u64> = s.taken(LOCK).iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [10 * US, 110 * US, 210 * US + 50, 310 * US + 100]);
}

/// vCPU 0 wants the lock at 0.9 ms for 0.2 ms, and loses its pCPU in between; vCPU 1 wants it at 0.95 ms.
const HOLDER: &str = "
    [[thread]]
    name = 'a'
    steps = [{ compute = '900us' }, { lock = { name = 'l', hold = '200us' } }]
    [[thread]]
    name = 'b'
    steps = [{ compute = '950us' }, { lock = { name = 'l', hold = '10us' } }]";

fn holder_is_preempted(kind: LockKind, threshold_ns: u64) -> Sim {
    let mut config = vm(2, HOLDER);
    config.guest.lock = kind;
    config.guest.spin_threshold_ns = threshold_ns;
    build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(4 * MS)
}

#[test]
fn a_preempted_holder_keeps_the_lock() {
    for kind in [LockKind::Tas, LockKind::Queued, LockKind::PreemptableTicket] {
        let s = holder_is_preempted(kind, MS);
        assert_eq!(s.taken(2), [(900 * US, (0, 0)), (2_100 * US, (1, 1_150 * US))], "{kind:?}");
        let spun = s.list(|what| match what {
            What::SpinEnd { spun_ns, .. } => Some(*spun_ns),
            _ => None,
        });
        assert_eq!(spun, [(2_100 * US, 1_150 * US)]);
    }
}

#[test]
fn a_pv_waiter_halts_and_is_kicked() {
    for kind in [LockKind::PvTicket, LockKind::PvQueued] {
        let s = holder_is_preempted(kind, 300 * US);
        assert_eq!(s.taken(2)[1], (2_100 * US, (1, 1_150 * US)), "{kind:?}");
        let spun = s.list(|what| match what {
            What::SpinEnd { spun_ns, .. } => Some(*spun_ns),
            _ => None,
        });
        // It spins from 0.95 to 1.25 ms only.
        assert_eq!(spun, [(2_100 * US, 300 * US)]);
        let halts = s.list(|what| match what {
            What::Halt { vcpu, .. } if vcpu.id == 1 => Some((false, vcpu.id)),
            What::Unhalt { vcpu } => Some((true, vcpu.id)),
            What::Kick { from, to } => Some((from.id == 0, to.id)),
            _ => None,
        });
        assert_eq!(halts[..3], [(1_250 * US, (false, 1)), (2_100 * US, (true, 1)), (2_100 * US, (true, 1))]);
    }
}

/// vCPU 1, which is preempted from 1 to 2 ms, is the next in line when the lock becomes free at 1.2 ms; vCPU 2 waits behind it.
const WAITER: &str = "
    [[thread]]
    name = 'a'
    steps = [{ compute = '800us' }, { lock = { name = 'l', hold = '400us' } }]
    [[thread]]
    name = 'b'
    steps = [{ compute = '900us' }, { lock = { name = 'l', hold = '10us' } }]
    [[thread]]
    name = 'c'
    steps = [{ compute = '950us' }, { lock = { name = 'l', hold = '10us' } }]";

fn waiter_is_preempted(kind: LockKind, timeout_ns: u64) -> Vec<(u64, (u32, u64))> {
    let mut config = vm(3, WAITER);
    config.guest.lock = kind;
    config.guest.ticket_timeout_ns = timeout_ns;
    config.guest.spin_threshold_ns = 100 * MS;
    let machine = MachineConfig::ideal(3);
    build(&machine, turns_of_a_ms(), &[config], &[hog(1)], 1).pin(&[0, 1, 2]).until(4 * MS).taken(3)
}

#[test]
fn a_preempted_waiter_holds_up_those_behind_it_in_a_fifo_lock() {
    for kind in [LockKind::Ticket, LockKind::Queued, LockKind::PvTicket, LockKind::PvQueued] {
        let taken = waiter_is_preempted(kind, 2 * US);
        // Granted at 1.2 ms; it has it when it runs again.
        assert_eq!(taken[1..], [(2_000 * US, (1, 1_100 * US)), (2_010 * US, (2, 1_060 * US))], "{kind:?}");
    }
}

#[test]
fn an_unfair_lock_passes_a_preempted_waiter_by() {
    let taken = waiter_is_preempted(LockKind::Tas, 2 * US);
    assert_eq!(taken[1..], [(1_200 * US, (2, 250 * US)), (2_000 * US, (1, 1_100 * US))]);
}

#[test]
fn a_preemptable_ticket_lock_passes_it_by_after_a_time_out() {
    // vCPU 2 has two before it (holder and vCPU 1): 2 x 2 us after 0.95 ms it may go out of turn.
    let taken = waiter_is_preempted(LockKind::PreemptableTicket, 2 * US);
    assert_eq!(taken[1..], [(1_200 * US, (2, 250 * US)), (2_000 * US, (1, 1_100 * US))]);
    // 2 x 150 us: at 1.25 ms it may, and the lock is free since 1.2 ms.
    let taken = waiter_is_preempted(LockKind::PreemptableTicket, 150 * US);
    assert_eq!(taken[1..], [(1_250 * US, (2, 300 * US)), (2_000 * US, (1, 1_100 * US))]);
    // 2 x 1 ms: it would be later than vCPU 1.
    let taken = waiter_is_preempted(LockKind::PreemptableTicket, MS);
    assert_eq!(taken[1..], [(2_000 * US, (1, 1_100 * US)), (2_010 * US, (2, 1_060 * US))]);
}

#[test]
fn a_pv_queued_lock_may_be_stolen_from_a_halted_waiter() {
    // vCPU 1 halts at 0.2 ms. When the lock becomes free at 0.5 ms it takes 0.1 ms to wake up; vCPU 2 comes at 0.55 ms.
    let text = "
        [[thread]]
        name = 'a'
        steps = [{ lock = { name = 'l', hold = '500us' } }]
        [[thread]]
        name = 'b'
        steps = [{ compute = '100us' }, { lock = { name = 'l', hold = '10us' } }]
        [[thread]]
        name = 'c'
        steps = [{ compute = '550us' }, { lock = { name = 'l', hold = '100us' } }]";
    let taken = |kind| {
        let mut config = vm(3, text);
        config.guest.lock = kind;
        config.guest.spin_threshold_ns = 100 * US;
        let mut machine = MachineConfig::ideal(3);
        machine.costs.idle_exit_ns = 100 * US;
        build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(4 * MS).taken(3)
    };
    // All begin 0.1 ms late, because their pCPUs too leave idle.
    let at = |us: u64| (us + 100) * US;
    assert_eq!(taken(LockKind::PvQueued), [(at(0), (0, 0)), (at(550), (2, 0)), (at(650), (1, 550 * US))]);
    assert_eq!(
        taken(LockKind::PvTicket),
        [(at(0), (0, 0)), (at(600), (1, 500 * US)), (at(610), (2, 60 * US))]
    );
}

/// vCPU 1 has the lock from 1 us on for 50 us; vCPU 2 wants it for 20 us, at 6 us; vCPU 0 flushes at 20 us. How long until the others have answered.
fn flush_beside_lock(kind: LockKind, holder_off: bool, waiter_off: bool) -> u64 {
    let text = format!(
        "[[thread]]
        name = 'flusher'
        steps = [{{ compute = '20us' }}, {{ shootdown = {{}} }}]
        [[thread]]
        name = 'holder'
        background = true
        steps = [{{ lock = {{ name = 'l', hold = '50us', irqs_off = {holder_off} }} }}, {{ compute = '1s' }}]
        [[thread]]
        name = 'waiter'
        background = true
        steps = [{{ compute = '5us' }}, {{ lock = {{ name = 'l', hold = '20us', irqs_off = {waiter_off} }} }}, {{ compute = '1s' }}]"
    );
    let mut machine = MachineConfig::ideal(3);
    // The others' pCPUs are woken by pCPU 0.
    machine.costs.ipi_ns = 1_000;
    let mut config = vm(3, &text);
    config.guest.lock = kind;
    config.guest.spin_threshold_ns = 10_000;
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(MS);
    // A waiter that has halted is kicked, which takes an interrupt of the host.
    let next_ns = if kind == LockKind::PvQueued { 52 * US } else { 51 * US };
    assert_eq!(
        s.taken(3).iter().map(|(at, (who, _))| (*at, *who)).collect::<Vec<_>>(),
        [(US, 1), (next_ns, 2)]
    );
    s.flushes()[0].1
}

#[test]
fn who_holds_or_waits_for_a_lock_with_interrupts_off_answers_none() {
    for kind in [LockKind::Tas, LockKind::Ticket, LockKind::Queued, LockKind::PvQueued] {
        // The interrupt's way; both answer where they are.
        assert_eq!(flush_beside_lock(kind, false, false), US, "{kind:?}");
        // The holder answers at 51 us, when it has left the lock; the waiter when it has had it, at 71 us, also if it has halted meanwhile, at 16 us.
        assert_eq!(flush_beside_lock(kind, true, false), 31 * US, "{kind:?}");
        let kick_ns = if kind == LockKind::PvQueued { US } else { 0 };
        assert_eq!(flush_beside_lock(kind, false, true), 51 * US + kick_ns, "{kind:?}");
    }
}

/// Four vCPUs want the lock at 0, 100, 150.5 and 227.6 us, the first for 500 us, the others for 10 us. The threshold is 128 us, so who waits looks every us
/// at the one before. When each halts, and how long the others have spun.
fn halts_behind_a_halted_one(kind: LockKind) -> (Vec<(u64, u32)>, Vec<u64>) {
    let thread = |at: &str, hold: &str| {
        format!("[[thread]]\nname = 't'\nsteps = [{{ compute = '{at}' }}, {{ lock = {{ name = 'l', hold = '{hold}' }} }}]\n")
    };
    let text = [
        thread("0us", "500us"),
        thread("100us", "10us"),
        thread("150500ns", "10us"),
        thread("227600ns", "10us"),
    ]
    .concat();
    let mut config = vm(4, &text);
    config.guest.lock = kind;
    config.guest.spin_threshold_ns = 128 * US;
    let s = build(&MachineConfig::ideal(4), turns_of_a_ms(), &[config], &[], 1)
        .pin(&[0, 1, 2, 3])
        .until(499 * US);
    let halts = s.list(|what| match what {
        What::Halt { vcpu, .. } => Some(vcpu.id),
        _ => None,
    });
    let s = s.until(MS);
    assert_eq!(
        s.taken(LOCK).iter().map(|(at, (who, _))| (*at / US, *who)).collect::<Vec<_>>(),
        [(0, 0), (500, 1), (510, 2), (520, 3)],
        "{kind:?}"
    );
    let spun = s.list(|what| match what {
        What::SpinEnd { spun_ns, .. } => Some(*spun_ns),
        _ => None,
    });
    (halts, spun.into_iter().map(|(_, spun_ns)| spun_ns).collect())
}

#[test]
fn who_is_behind_a_halted_waiter_does_not_spin() {
    // The second sees it when it has spun for 78 us, the third when that has halted.
    let (halts, spun) = halts_behind_a_halted_one(LockKind::PvQueued);
    assert_eq!(halts, [(228 * US, 1), (228_500, 2), (228_600, 3)]);
    assert_eq!(spun, [128 * US, 78 * US, US]);
    // A ticket lock has no such thing.
    let (halts, spun) = halts_behind_a_halted_one(LockKind::PvTicket);
    assert_eq!(halts, [(228 * US, 1), (278_500, 2), (355_600, 3)]);
    assert_eq!(spun, [128 * US; 3]);
}

/// vCPU 0 has the lock from 0.1 to 2.1 ms. vCPU 1 wants it at 0.5 ms, and its pCPU is a hog's from 1 to 2 ms; vCPU 2 stands behind it from 605 us on. The
/// threshold is 1.28 ms, so it looks every 10 us at the one before. When it halts first.
fn halts_behind_a_preempted_one(change: impl Fn(&mut cohort_sim::scenario::VmConfig)) -> u64 {
    let text = "
        [[thread]]
        name = 'a'
        steps = [{ compute = '100us' }, { lock = { name = 'l', hold = '2ms' } }]
        [[thread]]
        name = 'b'
        steps = [{ compute = '500us' }, { lock = { name = 'l', hold = '10us' } }]
        [[thread]]
        name = 'c'
        steps = [{ compute = '605us' }, { lock = { name = 'l', hold = '10us' } }]";
    let mut config = vm(3, text);
    config.guest.lock = LockKind::PvQueued;
    config.guest.spin_threshold_ns = 1_280 * US;
    change(&mut config);
    let machine = MachineConfig::ideal(3);
    let s = build(&machine, turns_of_a_ms(), &[config], &[hog(1)], 1).pin(&[0, 1, 2]).until(4 * MS);
    let order: Vec<(u64, u32)> = s.taken(3).iter().map(|(at, (who, _))| (*at / US, *who)).collect();
    assert_eq!(order, [(100, 0), (2_100, 1), (2_110, 2)]);
    s.list(|what| matches!(what, What::Halt { vcpu, .. } if vcpu.id == 2).then_some(()))[0].0
}

#[test]
fn who_is_behind_a_preempted_waiter_does_not_spin_in_some_kernels() {
    assert_eq!(halts_behind_a_preempted_one(|_| {}), 1_885 * US);
    assert_eq!(halts_behind_a_preempted_one(|config| config.guest.halts_behind_preempted = true), 1_005 * US);
    // Who is not told cannot see it.
    let untold = halts_behind_a_preempted_one(|config| {
        config.guest.halts_behind_preempted = true;
        config.kvm.tells_preempted = false;
    });
    assert_eq!(untold, 1_885 * US);
}

/// vCPU 0 has the lock up to 500 us; vCPU 1 wants it at 0.1 ms, and halts at 0.2 ms; vCPU 2 comes at 0.3 ms, and whoever is said as late as that.
fn beside_a_halted_one(third_holds: &str, more: &str) -> Sim {
    let text = format!(
        "[[thread]]
        name = 'a'
        steps = [{{ lock = {{ name = 'l', hold = '500us' }} }}]
        [[thread]]
        name = 'b'
        steps = [{{ compute = '100us' }}, {{ lock = {{ name = 'l', hold = '10us' }} }}]
        [[thread]]
        name = 'c'
        steps = [{{ compute = '300us' }}, {{ lock = {{ name = 'l', hold = '{third_holds}' }} }}]
        {more}"
    );
    let mut config = vm(4, &text);
    config.guest.lock = LockKind::PvQueued;
    config.guest.spin_threshold_ns = 100 * US;
    let mut machine = MachineConfig::ideal(4);
    machine.costs.idle_exit_ns = 50 * US;
    build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2, 3]).until(4 * MS)
}

#[test]
fn who_comes_while_the_first_is_halted_spins_beside_the_queue() {
    // All begin 50 us late, and a halted one needs as long to wake.
    let at = |us: u64| (us + 50) * US;
    let s = beside_a_halted_one("100us", "");
    // vCPU 2 has the lock the moment that it is free, without having halted in 200 us; vCPU 1, kicked then, spins from 550 us on.
    assert_eq!(s.taken(LOCK), [(at(0), (0, 0)), (at(500), (2, 200 * US)), (at(600), (1, 500 * US))]);
    let kicks = s.list(|what| matches!(what, What::Kick { .. }).then_some(()));
    assert_eq!(kicks, [(at(500), ())], "once");
    // One that still spins when the first is awake stands behind it, with all of its patience: at 550 us.
    let last = "[[thread]]
        name = 'd'
        steps = [{ compute = '510us' }, { lock = { name = 'l', hold = '10us' } }]";
    let s = beside_a_halted_one("100us", last);
    let order: Vec<(u64, u32)> = s.taken(LOCK).iter().map(|(at, (who, _))| (*at, *who)).collect();
    assert_eq!(order, [(at(0), 0), (at(500), 2), (at(600), 1), (at(610), 3)]);
    let halted: Vec<u32> = s
        .list(|what| match what {
            What::Halt { vcpu, .. } => Some(vcpu.id),
            _ => None,
        })
        .into_iter()
        .filter_map(|(when, vcpu)| (when < at(610)).then_some(vcpu))
        .collect();
    assert!(!halted.contains(&3), "{halted:?}");
}

#[test]
fn who_was_kicked_and_lost_the_lock_does_not_halt_again() {
    let s = beside_a_halted_one("900us", "");
    assert_eq!(s.taken(LOCK)[2], (1_450 * US, (1, 1_300 * US)));
    let halts = s.list(|what| matches!(what, What::Halt { vcpu, .. } if vcpu.id == 1).then_some(()));
    assert_eq!(halts[0].0, 250 * US);
    assert!(halts[1..].iter().all(|(at, ())| *at > 1_450 * US), "{halts:?}");
}

/// vCPU 0 has the lock from 0.8 to 1.2 ms, and vCPU 1, next, for 0.1 ms. vCPU 2 stands behind it, on a pCPU that it does not have from 1 to 2 ms, and vCPU 3
/// comes at 1.25 ms.
#[test]
fn the_first_keeps_others_from_stealing_once_it_has_seen_that_it_is() {
    let thread = |at: &str, hold: &str| {
        format!("[[thread]]\nname = 't'\nsteps = [{{ compute = '{at}' }}, {{ lock = {{ name = 'l', hold = '{hold}' }} }}]\n")
    };
    let text = [
        thread("800us", "400us"),
        thread("900us", "100us"),
        thread("950us", "10us"),
        thread("1250us", "10us"),
    ];
    let taken = |kind| {
        let mut config = vm(4, &text.concat());
        config.guest.lock = kind;
        let machine = MachineConfig::ideal(4);
        let s = build(&machine, turns_of_a_ms(), &[config], &[hog(2)], 1).pin(&[0, 1, 2, 3]).until(4 * MS);
        s.taken(LOCK)[2..].iter().map(|(at, (who, _))| (*at / US, *who)).collect::<Vec<_>>()
    };
    assert_eq!(taken(LockKind::PvQueued), [(1_300, 3), (2_000, 2)]);
    assert_eq!(taken(LockKind::Queued), [(2_000, 2), (2_010, 3)]);
}
