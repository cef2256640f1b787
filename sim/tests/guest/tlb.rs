// SPDX-License-Identifier: GPL-2.0-only
//! TLB shootdown. vCPU 0 flushes; vCPU 1 computes in the same address space, on a pCPU that it shares with a hog where that is said.

use cohort_sim::guest::{LazyTlb, SendIpi, TlbMode};
use cohort_sim::kvm::{exit, vector, Ipi};
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;

use crate::common::*;

fn program(at: &str) -> String {
    format!(
        "[[thread]]
         name = 'flusher'
         steps = [{{ compute = '{at}' }}, {{ shootdown = {{}} }}]
         [[thread]]
         name = 'other'
         background = true
         times = 'forever'
         steps = [{{ compute = '1s' }}]"
    )
}

/// An IPI takes 1 us, an exit 700 ns, an entry 500 ns; the handler 400 ns, half of it before its work; a flush 300 ns in the guest, 150 ns in KVM.
fn run(mode: TlbMode, at: &str, shared: bool, ipi: Ipi) -> Sim {
    let mut machine = MachineConfig::ideal(2);
    machine.costs.ipi_ns = 1_000;
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    let mut config = vm(2, &program(at));
    config.guest.tlb = mode;
    config.guest.costs.irq_ns = 400;
    config.guest.costs.flush_ns = 300;
    config.kvm.costs.flush_ns = 150;
    config.kvm.costs.hypercall_ns = 100;
    config.kvm.ipi = ipi;
    let hogs = if shared { vec![hog(1)] } else { vec![] };
    build(&machine, turns_of_a_ms(), &[config], &hogs, 1).pin(&[0, 1]).until(4 * MS)
}

/// When vCPU 1 has its pCPU again. That began 1 us late, by an interrupt from pCPU 0, so its turns end at 1.001 ms, 2.001 ms, ...
const AGAIN: u64 = 2_001_000;

#[test]
fn ipi_to_one_that_runs() {
    let s = run(TlbMode::Ipi, "10us", false, Ipi::Virtualized);
    // 1 us on the way, 200 ns into the handler, 300 ns for the flush.
    assert_eq!(s.flushes(), [(11_500, 1_500)]);
    assert_eq!(s.flushed(), [(11_500, 1)]);
}

#[test]
fn a_posted_interrupt_costs_the_sender_an_exit() {
    let s = run(TlbMode::Ipi, "10us", false, Ipi::Posted);
    // It leaves after the sender's exit.
    assert_eq!(s.flushes(), [(12_200, 2_200)]);
}

#[test]
fn a_trapped_interrupt_costs_the_receiver_one_too() {
    let s = run(TlbMode::Ipi, "10us", false, Ipi::Trapped);
    assert_eq!(s.flushes(), [(10_000 + 700 + 1_000 + 700 + 500 + 200 + 300, 3_400)]);
}

#[test]
fn ipi_to_a_preempted_one_waits_for_it() {
    let s = run(TlbMode::Ipi, "1500us", true, Ipi::Virtualized);
    // Exit and entry, 200 ns, 300 ns.
    assert_eq!(s.flushes(), [(AGAIN + 1_700, AGAIN + 1_700 - 1_500_000)]);
}

#[test]
fn kvm_pv_does_not_wait_for_a_preempted_one() {
    let s = run(TlbMode::KvmPv, "1500us", true, Ipi::Virtualized);
    // Only its own flush.
    assert_eq!(s.flushes(), [(1_500_300, 300)]);
    // The other one flushes when it enters: after exit and entry.
    assert_eq!(s.flushed(), [(AGAIN + 1_200, 1)]);
    assert!(s
        .list(|what| matches!(what, What::GuestIpiSent { vector: vector::TLB, .. }).then_some(()))
        .is_empty());
}

#[test]
fn kvm_pv_waits_for_one_that_is_preempted_after_the_look() {
    // It looks at 1.0005 ms; at 1.001 ms the other loses its pCPU, with the interrupt on its way until 1.0015 ms.
    let s = run(TlbMode::KvmPv, "1000500ns", true, Ipi::Virtualized);
    assert_eq!(s.flushes(), [(AGAIN + 1_700, AGAIN + 1_700 - 1_000_500)]);
}

#[test]
fn without_steal_time_kvm_pv_knows_nothing() {
    let mut config = vm(2, &program("1500us"));
    config.guest.tlb = TlbMode::KvmPv;
    config.kvm.steal_time = false;
    let s =
        build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[hog(1)], 1).pin(&[0, 1]).until(4 * MS);
    assert_eq!(s.flushes(), [(2 * MS, 500 * US)]);
}

#[test]
fn the_hypercall_waits_for_pcpus_only() {
    let s = run(TlbMode::Hypercall, "10us", false, Ipi::Virtualized);
    // Exit, hypercall, the interrupt's way, the other's exit, entry, its own flush.
    assert_eq!(s.flushes(), [(10_000 + 3_300, 700 + 100 + 1_000 + 700 + 500 + 300)]);
    // The other one: 800 ns and 1 us later it exits, and flushes before it enters.
    assert_eq!(s.flushed(), [(10_000 + 800 + 1_000 + 700 + 500, 1)]);
    let exits = s.list(|what| match what {
        What::Exit { vcpu, ns, .. } if vcpu.id == 1 => Some(*ns),
        _ => None,
    });
    assert_eq!(exits[0], (10_000 + 800 + 1_000 + 700 + 500 + 150, 700 + 500 + 150));
}

#[test]
fn the_hypercall_does_not_wait_for_a_preempted_one() {
    let s = run(TlbMode::Hypercall, "1500us", true, Ipi::Virtualized);
    assert_eq!(s.flushes(), [(1_501_600, 700 + 100 + 500 + 300)]);
    assert_eq!(s.flushed(), [(AGAIN + 1_200, 1)]);
}

#[test]
fn only_who_has_the_address_space_loaded_is_asked() {
    // vCPU 1 runs another process, vCPU 2 idles in the space of a thread that has ended, vCPU 3 runs one in the space.
    let text = |freed: bool| {
        format!(
            "[[thread]]
             name = 'flusher'
             steps = [{{ compute = '100us' }}, {{ shootdown = {{ freed = {freed} }} }}]
             [[thread]]
             name = 'process'
             process = true
             steps = [{{ compute = '1ms' }}]
             [[thread]]
             name = 'short'
             steps = [{{ compute = '10us' }}]
             [[thread]]
             name = 'long'
             steps = [{{ compute = '1ms' }}]"
        )
    };
    for (freed, asked) in [(false, vec![3]), (true, vec![2, 3])] {
        let config = vm(4, &text(freed));
        let s =
            build(&MachineConfig::ideal(4), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2, 3]).until(MS);
        let sent = s.list(|what| match what {
            What::GuestIpiSent { to, vector: vector::TLB, .. } => Some(to.id),
            _ => None,
        });
        assert_eq!(sent.iter().map(|(_, to)| *to).collect::<Vec<_>>(), asked, "freed: {freed}");
    }
}

/// vCPU 1 idles in the space of a thread that has ended, vCPU 2 runs a process after such a one. Who is asked by four flushes, all but the first of which free
/// page tables.
fn asked_again_and_again(lazy_tlb: LazyTlb) -> Vec<(u64, u32)> {
    let text = "
        [[thread]]
        name = 'flusher'
        vcpu = 0
        steps = [{ compute = '100us' }, { shootdown = {} }, { repeat = { times = 3, steps = [
            { compute = '100us' }, { shootdown = { freed = true } }] } }, { compute = '1ms' }]
        [[thread]]
        name = 'short'
        vcpu = 1
        steps = [{ compute = '10us' }]
        [[thread]]
        name = 'left'
        vcpu = 2
        steps = [{ compute = '10us' }]
        [[thread]]
        name = 'process'
        vcpu = 2
        process = true
        steps = [{ compute = '1ms' }]";
    let mut config = vm(3, text);
    config.guest.lazy_tlb = lazy_tlb;
    let s = build(&MachineConfig::ideal(3), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(MS);
    let sent = s.list(|what| match what {
        What::GuestIpiSent { to, vector: vector::TLB, .. } => Some(to.id),
        _ => None,
    });
    assert!(s.flushed().iter().all(|(_, vcpu)| *vcpu == 1), "the other one has nothing to flush");
    sent.into_iter().map(|(at, to)| (at / US, to)).collect()
}

#[test]
fn who_idles_is_asked_once_and_who_has_left_until_told() {
    assert_eq!(asked_again_and_again(LazyTlb::Asked), [(100, 1)]);
    assert_eq!(asked_again_and_again(LazyTlb::Left), []);
    assert_eq!(asked_again_and_again(LazyTlb::Spared), [(200, 1)]);
    // Who idles leaves the space at 200 us, and is told at 300 us that it has.
    assert_eq!(asked_again_and_again(LazyTlb::Late), [(200, 1), (200, 2), (300, 1)]);
}

#[test]
fn who_was_lazy_flushes_when_it_uses_the_space_again() {
    let text = "
        [[thread]]
        name = 'flusher'
        steps = [{ compute = '100us' }, { shootdown = {} }, { compute = '1ms' }]
        [[thread]]
        name = 'sleeper'
        steps = [{ compute = '10us' }, { sleep = '200us' }, { compute = '10us' }, { done = 'late' }]";
    let mut config = vm(2, text);
    config.guest.costs.flush_ns = 300;
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(MS);
    let done = s.list(|what| matches!(what, What::Progress { .. }).then_some(()));
    assert_eq!(done, [(220 * US + 300, ())]);
    assert!(s.flushes().is_empty());
}

#[test]
fn two_that_flush_at_once_answer_each_other() {
    let text = "
        [[thread]]
        name = 'flusher'
        count = 2
        steps = [{ compute = '10us' }, { shootdown = {} }, { compute = '10us' }]";
    let mut machine = MachineConfig::ideal(2);
    machine.costs.ipi_ns = 1_000;
    let s = build(&machine, turns_of_a_ms(), &[vm(2, text)], &[], 1).pin(&[0, 1]).until(MS);
    // vCPU 1 began 1 us late.
    assert_eq!(s.flushes(), [(11 * US, US), (12 * US, US)]);
}

#[test]
fn the_hypercall_sends_to_one_after_the_other_and_waits_for_the_last() {
    let mut machine = MachineConfig::ideal(3);
    machine.costs.ipi_ns = 1_000;
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    let text = program("10us").replace("name = 'other'", "name = 'other'\ncount = 2");
    let mut config = vm(3, &text);
    config.guest.tlb = TlbMode::Hypercall;
    config.kvm.costs.hypercall_ns = 100;
    config.kvm.costs.send_ns = 200;
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(MS);
    // Exit and hypercall; sent 200 and 400 ns later, each with its way and the other's exit, and there the entry.
    assert_eq!(s.flushed(), [(10_800 + 200 + 1_000 + 1_200, 1), (10_800 + 400 + 1_000 + 1_200, 2)]);
    assert_eq!(s.flushes(), [(10_800 + 400 + 1_000 + 700 + 500, 3_400)]);
}

/// Four vCPUs with a pCPU each, the last of which idles if so wished. An IPI takes 1 us, an exit and the entry after it 700 and 500 ns for the sender only;
/// a hypercall 100 ns more; each receiver beyond the first 50 ns. Returns how long the flush took, and how many exits for it.
fn multicast(send_ipi: SendIpi, last_idles: bool) -> (u64, u64, u64) {
    let mut machine = MachineConfig::ideal(4);
    machine.costs.ipi_ns = 1_000;
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    let count = if last_idles { 2 } else { 3 };
    let mut config =
        vm(4, &program("10us").replace("name = 'other'", &format!("name = 'other'\ncount = {count}")));
    config.guest.send_ipi = send_ipi;
    config.kvm.ipi = Ipi::Posted;
    config.kvm.costs.hypercall_ns = 100;
    config.kvm.costs.send_ns = 50;
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2, 3]).until(MS);
    let exits = s.sim.bodies.vms[0].counters.exits;
    (s.flushes()[0].1, exits[usize::from(exit::ICR)], exits[usize::from(exit::HYPERCALL)])
}

#[test]
fn one_exit_sends_to_as_many_as_the_guest_can_address_at_once() {
    // Three receivers. One by one: the third is sent to after two exits and entries and an exit, and answers 1 us later.
    assert_eq!(multicast(SendIpi::Each, false), (2 * 1_200 + 700 + 1_000, 3, 0));
    // All at once: 100 ns more in the exit.
    for send_ipi in [SendIpi::Shorthand, SendIpi::Cluster, SendIpi::KvmPv] {
        assert_eq!(multicast(send_ipi, false), (800 + 1_000, 1, 0), "{send_ipi:?}");
    }
    assert_eq!(multicast(SendIpi::Hypercall, false), (900 + 1_000, 0, 1));
    // Two of three are not all.
    for send_ipi in [SendIpi::Each, SendIpi::Shorthand] {
        assert_eq!(multicast(send_ipi, true), (1_200 + 700 + 1_000, 2, 0), "{send_ipi:?}");
    }
    assert_eq!(multicast(SendIpi::Cluster, true), (750 + 1_000, 1, 0));
    for send_ipi in [SendIpi::KvmPv, SendIpi::Hypercall] {
        assert_eq!(multicast(send_ipi, true), (850 + 1_000, 0, 1), "{send_ipi:?}");
    }
}
