// SPDX-License-Identifier: GPL-2.0-only
//! The guest announces for how long it holds a lock, and the host preempts it later.

use cohort_sim::guest::LockKind;
use cohort_sim::machine::MachineConfig;
use cohort_sim::scenario::VmConfig;

use crate::common::*;

/// vCPU 0 holds the lock from 0.5 ms for 1 ms on a pCPU that it shares with a hog; vCPU 1 wants it at 0.98 ms.
const HELD: &str = "
    [[thread]]
    name = 'holder'
    steps = [{ compute = '500us' }, { lock = { name = 'l', hold = '1ms' } }, { compute = '5ms' }]
    [[thread]]
    name = 'spinner'
    steps = [{ compute = '980us' }, { lock = { name = 'l', hold = '10us' } }]";

/// When vCPU 1 has the lock, in us, if the guest announces this, of which the host honours so much.
fn taken_us(hint_us: u64, max_us: u64, text: &str, change: impl Fn(&mut VmConfig)) -> u64 {
    let mut config = vm(2, text);
    config.guest.lock_hint_ns = hint_us * US;
    config.kvm.lock_hint_max_ns = max_us * US;
    change(&mut config);
    let s =
        build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(9 * MS);
    s.taken(2).iter().find(|(_, (vcpu, _))| *vcpu == 1).expect("it gets the lock").0 / US
}

#[test]
fn a_holder_that_says_so_keeps_its_pcpu_until_it_has_released_the_lock() {
    // Preempted from 1 to 2 ms, it has held it for 1 ms at 2.5 ms.
    assert_eq!(taken_us(0, 1_000, HELD, |_| ()), 2_500);
    assert_eq!(taken_us(1_200, 1_000, HELD, |_| ()), 1_500);
}

#[test]
fn it_is_preempted_at_the_time_that_it_has_announced_or_at_the_most_that_is_honoured() {
    // At 1.1 ms, as announced: 0.4 ms are left, from 2.1 ms on. At 1.2 ms, the host's limit: 0.3 ms from 2.2 ms on. Both end at 2.5 ms.
    for (hint_us, max_us, at_us) in [(600, 1_000, 1_100), (1_200, 200, 1_200)] {
        let mut config = vm(2, HELD);
        config.guest.lock_hint_ns = hint_us * US;
        config.kvm.lock_hint_max_ns = max_us * US;
        let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1)
            .pin(&[0, 1])
            .until(4 * MS);
        let off = s.list(|what| match what {
            cohort_sim::observe::What::Switch { cpu: cohort_sim::CpuId(0), prev: Some(prev), .. } => {
                Some(prev.0)
            }
            _ => None,
        });
        assert_eq!(off[0].0 / US, at_us);
    }
    assert_eq!(taken_us(600, 1_000, HELD, |_| ()), 2_500);
}

#[test]
fn what_was_put_off_comes_with_the_release() {
    // The hog has its turn from 1.5 ms on, not when what was announced is over.
    let mut config = vm(2, HELD);
    config.guest.lock_hint_ns = 10 * MS;
    let s =
        build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(4 * MS);
    let off = s.list(|what| match what {
        cohort_sim::observe::What::Switch { cpu: cohort_sim::CpuId(0), prev: Some(_), .. } => Some(()),
        _ => None,
    });
    assert_eq!(off[0].0, 1_500 * US);
}

#[test]
fn nothing_is_honoured_with_a_limit_of_0() {
    assert_eq!(taken_us(1_200, 0, HELD, |_| ()), 2_500);
}

/// vCPU 0 holds `a` and waits for `b`, which vCPU 1 holds: both on one pCPU.
#[test]
fn a_holder_that_spins_for_another_lock_is_not_spared_at_a_pause_loop_exit() {
    let text = "
        [[thread]]
        name = 'both'
        steps = [{ compute = '500us' }, { lock = { name = 'a', hold = '10ms' } }]
        [[thread]]
        name = 'spinner'
        steps = [{ compute = '400us' }, { lock = { name = 'a', hold = '10us' } }]";
    // Without a limit worth the name: 10 ms held in one piece, although the other's turns would have come.
    let mut config = vm(2, text);
    config.guest.lock_hint_ns = 20 * MS;
    config.kvm.lock_hint_max_ns = 100 * MS;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(20 * MS);
    let taken = s.taken(2);
    assert_eq!((taken[0].1 .0, taken[1].1 .0), (0, 1));
    assert_eq!(taken[1].0 - taken[0].0, 10 * MS + 400 * US);
}

/// vCPU 0 holds a lock from 0.5 ms on. Its tick at 1 ms, when its turn ends as well, waits for its run queue's lock: vCPU 1 wakes somebody there from 0.9 ms
/// on, which takes 5 ms. After 0.1 ms of that it halts.
#[test]
fn a_holder_that_halts_in_an_interrupt_leaves_its_pcpu_at_once() {
    let text = "
        [[thread]]
        name = 'sleeper'
        vcpu = 0
        steps = [{ wait = 'c' }]
        [[thread]]
        name = 'holder'
        vcpu = 0
        steps = [{ compute = '500us' }, { lock = { name = 'l', hold = '10ms' } }]
        [[thread]]
        name = 'waker'
        vcpu = 1
        steps = [{ compute = '900us' }, { signal = 'c' }]";
    let mut config = vm(2, text);
    config.guest.lock = LockKind::PvQueued;
    config.guest.spin_threshold_ns = 100 * US;
    config.guest.lock_hint_ns = 20 * MS;
    config.guest.tick_ns = MS;
    config.guest.costs.wake_ns = 5 * MS;
    config.kvm.lock_hint_max_ns = 100 * MS;
    let s =
        build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(0)], 1).pin(&[0, 1]).until(4 * MS);
    let off = s.list(|what| match what {
        cohort_sim::observe::What::Switch { cpu: cohort_sim::CpuId(0), prev: Some(_), .. } => Some(()),
        _ => None,
    });
    assert_eq!(off[0].0, 1_100 * US);
}
