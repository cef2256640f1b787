// SPDX-License-Identifier: GPL-2.0-only
//! Wake-ups that are left to the vCPU where the task will run.

use cohort_sim::class::fair::{Fair, FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::guest::Wakelist;
use cohort_sim::kvm::{vector, Ipi};
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::VmConfig;

use crate::common::*;

/// Long after the others went to sleep, vCPU 0 wakes one of them.
const ONE: &str = "
    [[thread]]
    name = 'waker'
    vcpu = 0
    steps = [{ compute = '30ms' }, { signal = 'c' }, { compute = '100ms' }]
    [[thread]]
    name = 'woken'
    vcpu = 1
    steps = [{ wait = 'c' }, { done = 'woken' }]";

/// ... two, which have slept on vCPU 1.
const TWO: &str = "
    [[thread]]
    name = 'waker'
    vcpu = 0
    steps = [{ compute = '2ms' }, { signal = 'a' }, { signal = 'b' }, { compute = '10ms' }]
    [[thread]]
    name = 'first'
    steps = [{ wait = 'a' }, { compute = '1ms' }]
    [[thread]]
    name = 'others'
    count = 2
    steps = [{ compute = '500us' }]
    [[thread]]
    name = 'second'
    steps = [{ wait = 'b' }, { compute = '1ms' }]";

fn guest(vcpus: u32, program: &str, wakelist: Wakelist) -> VmConfig {
    let mut config = vm(vcpus, program);
    config.guest.wakelist = wakelist;
    config.kvm.ipi = Ipi::Trapped;
    config
}

fn sent(s: &Sim, wanted: u8) -> Vec<(u64, u32)> {
    s.list(|what| match what {
        What::GuestIpiSent { to, vector, .. } if *vector == wanted => Some(to.id),
        _ => None,
    })
}

#[test]
fn each_of_the_two_does_a_half() {
    let times = |wakelist| {
        let mut machine = MachineConfig::ideal(2);
        machine.costs.ipi_ns = 1_000;
        let mut config = guest(2, ONE, wakelist);
        config.guest.costs.wake_ns = 600;
        let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(40 * MS);
        (sent(&s, vector::RESCHED), sent(&s, vector::WAKE), done(&s))
    };
    let at = |ns: u64| 30 * MS + ns;
    assert_eq!(times(Wakelist::None), (vec![(at(600), 1)], vec![], vec![at(1_600)]));
    for left in [Wakelist::Idle, Wakelist::Others] {
        assert_eq!(times(left), (vec![], vec![(at(300), 1)], vec![at(1_600)]));
    }
}

/// Both vCPUs on one pCPU, CFS: the woken one gets it at once. When its task has run, and how long it has spun till then.
fn stacked(wakelist: Wakelist) -> (Vec<u64>, u64) {
    let mut machine = MachineConfig::ideal(1);
    machine.costs.vm_entry_ns = 500;
    let class = AnyClass::Fair(Fair::new(FairConfig::of(Variant::Cfs)));
    let s = build(&machine, class, &[guest(2, ONE, wakelist)], &[], 1).pin(&[0, 0]).until(60 * MS);
    let spun = s.list(|what| match what {
        What::SpinEnd { spun_ns, .. } => Some(*spun_ns),
        _ => None,
    });
    (done(&s), spun.iter().map(|(_, ns)| ns).sum())
}

#[test]
fn who_wakes_holds_no_lock_while_the_woken_vcpu_has_its_pcpu() {
    // Preempted in the exit of its interrupt, the waker holds the lock of the other's queue: that spins for it until the tick after its slice.
    let (woken, spun_ns) = stacked(Wakelist::None);
    assert!(spun_ns >= 2 * MS && woken[0] >= 30 * MS + spun_ns, "{woken:?} {spun_ns}");
    // Each vCPU has entered once.
    assert_eq!(stacked(Wakelist::Idle), (vec![30 * MS + 1_000], 0));
}

#[test]
fn a_vcpu_to_which_a_wake_up_was_left_is_not_idle() {
    // Interrupts take a while. The second goes to another vCPU, though the first has not arrived.
    let mut machine = MachineConfig::ideal(3);
    machine.costs.ipi_ns = 50_000;
    let s = build(&machine, turns_of_a_ms(), &[guest(3, TWO, Wakelist::Idle)], &[], 1)
        .pin(&[0, 1, 2])
        .until(20 * MS);
    let to: Vec<u32> = sent(&s, vector::WAKE).iter().map(|(_, to)| *to).collect();
    assert_eq!(to, [1, 2]);
}

#[test]
fn one_interrupt_serves_all_on_the_list() {
    let both = "
        [[thread]]
        name = 'waker'
        vcpu = 0
        steps = [{ compute = '1ms' }, { signal = 'a' }, { signal = 'b' }, { compute = '10ms' }]
        [[thread]]
        name = 'first'
        vcpu = 1
        steps = [{ wait = 'a' }, { done = 'woken' }]
        [[thread]]
        name = 'second'
        vcpu = 1
        steps = [{ wait = 'b' }, { done = 'woken' }]";
    let mut machine = MachineConfig::ideal(2);
    machine.costs.ipi_ns = 50_000;
    let s = build(&machine, turns_of_a_ms(), &[guest(2, both, Wakelist::Idle)], &[], 1)
        .pin(&[0, 1])
        .until(5 * MS);
    assert_eq!(sent(&s, vector::WAKE), [(MS, 1)]);
    assert_eq!(done(&s), [MS + 50_000; 2]);
}

#[test]
fn wake_ups_come_before_timers_and_devices_and_after_calls() {
    let bits = |vectors: &[u8]| vectors.iter().fold(0, |bits, vector| bits | 1 << vector);
    let all = [vector::CALL, vector::TLB, vector::RESCHED, vector::WAKE, vector::TIMER, vector::IO];
    for (at, wanted) in all.iter().enumerate() {
        assert_eq!(vector::first(bits(&all[at..])), *wanted);
    }
}

#[test]
fn only_idle_vcpus_are_left_their_wake_ups_where_all_share_a_cache() {
    let busy = format!("{ONE}\n[[thread]]\nname = 'busy'\nvcpu = 1\nsteps = [{{ compute = '100ms' }}]");
    let left = |wakelist| {
        let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[guest(2, &busy, wakelist)], &[], 1)
            .pin(&[0, 1])
            .until(90 * MS);
        sent(&s, vector::WAKE).len()
    };
    assert_eq!([Wakelist::None, Wakelist::Idle, Wakelist::Others].map(left), [0, 0, 1]);
}
