// SPDX-License-Identifier: GPL-2.0-only
//! A host with PREEMPT_LAZY: a vCPU that is to be preempted goes on in the guest until it exits, or to the tick.

use cohort_sim::class::fair::{Fair, FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::guest::TlbMode;
use cohort_sim::kvm::Ipi;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::{TaskConfig, VmConfig};
use cohort_sim::{CpuId, TaskId};

use crate::common::*;

/// The VM begins at 1 ms. Process `w`, which must be on the pCPU of vCPU 0, is woken by the other one's at 5 ms. When it runs, and all that has happened.
fn beside_w(mut config: VmConfig, lazy_preemption: bool) -> (u64, Sim) {
    config.start_ns = MS;
    // Of the largest weight: its deadline comes first, as soon as it is not ahead of the average.
    let w = TaskConfig {
        name: "w".into(),
        nice: -20,
        cpus: vec![0],
        run_ns: 100 * US,
        sleep_ns: 1_000 * MS,
        random: false,
        vm: None,
        start_ns: 0,
        once: false,
    };
    let fair = FairConfig { slice_ns: 3 * MS, lazy_preemption, ..FairConfig::of(Variant::EevdfForfeit) };
    let class = AnyClass::Fair(Fair::new(fair));
    let mut s = build(&MachineConfig::ideal(2), class, &[config], &[w], 1).pin(&[0, 1]).until(500 * US);
    let last = s.sim.host.core.tasks.len() - 1;
    let w = TaskId::from(last);
    // It has run beside vCPU 0 at 0, and runs alone now, so that it leaves neither ahead nor behind.
    s.sim.host.wake(w, None);
    s = s.until(5 * MS);
    s.sim.host.wake(w, Some(CpuId(1)));
    s = s.until(9 * MS);
    let runs =
        s.list(|what| matches!(what, What::Switch { next: Some(next), .. } if *next == w).then_some(()));
    (runs[2].0, s)
}

/// vCPU 0 computes from 1 to 6 ms and calls vCPU 1 then, which computes too. When `w` runs, and when the call has returned.
fn preempted_at(lazy_preemption: bool, ipi: Ipi) -> (u64, u64) {
    let text = "
        [[thread]]
        name = 'caller'
        steps = [{ compute = '5ms' }, { call = {} }, { done = 'called' }, { compute = '5ms' }]
        [[thread]]
        name = 'called'
        steps = [{ compute = '20ms' }]";
    let mut config = vm(2, text);
    config.kvm.ipi = ipi;
    let (runs_ns, s) = beside_w(config, lazy_preemption);
    (runs_ns, done(&s)[0])
}

#[test]
fn a_vcpu_goes_on_to_its_next_exit_or_the_tick() {
    for ipi in [Ipi::Trapped, Ipi::Virtualized] {
        // The process runs from 5 to 5.1 ms, and the call comes at 6.1 ms.
        assert_eq!(preempted_at(false, ipi), (5 * MS, 6_100 * US), "{ipi:?}");
    }
    // The call is an exit at 6 ms: the process runs before the vCPU goes back. Without an exit the call is answered at once, and the tick is at 8 ms.
    assert_eq!(preempted_at(true, Ipi::Trapped), (6 * MS, 6_100 * US));
    assert_eq!(preempted_at(true, Ipi::Virtualized), (8 * MS, 6 * MS));
}

/// vCPU 0 computes, and at 6 ms its timer comes: an interrupt of the host, between two of the guest's instructions. vCPU 1 flushes at 6.05 ms.
#[test]
fn one_that_an_interrupt_of_the_host_took_out_of_the_guest_is_seen_to_be_preempted() {
    let text = "
        [[thread]]
        name = 'sleeper'
        vcpu = 0
        steps = [{ sleep = '5ms' }]
        [[thread]]
        name = 'other'
        vcpu = 0
        steps = [{ compute = '20ms' }]
        [[thread]]
        name = 'flusher'
        vcpu = 1
        steps = [{ compute = '5050us' }, { shootdown = {} }]";
    let mut config = vm(2, text);
    config.guest.tlb = TlbMode::KvmPv;
    let (runs_ns, s) = beside_w(config, true);
    assert_eq!(runs_ns, 6 * MS);
    // It is told to flush when it has its pCPU again, at 6.1 ms; nobody waits for that.
    assert_eq!(s.flushes(), [(6_050 * US, 0)]);
    assert_eq!(s.flushed(), [(6_100 * US, 0)]);
}
