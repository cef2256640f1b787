// SPDX-License-Identifier: GPL-2.0-only
//! Who counts as preempted in kernel mode. KVM writes its bit at a preemption only, so that it tells an older story of who has run since.

use crate::common::*;
use crate::spec::knob::*;
use crate::spec::{Knobs, Spec};
use crate::world::{TaskId, World};

/// One pCPU, one VM of four in user mode, all busy.
fn one_pcpu() -> (World, Vec<TaskId>) {
    let knobs = Knobs { boost: Some(BOOST_ANY_MODE), slice_ns: Some(8 * MS), ..Knobs::default() };
    let mut w = world_with(1, knobs);
    let (_, vcpus) = busy_vm(&mut w, 4);
    w.run(400 * MS);
    (w, vcpus)
}

/// Somebody other than `not_kernel` spins: of the siblings, all in user mode as far as is known, the one that has waited longest runs.
#[track_caller]
fn the_longest_wait_decides(w: &mut World, vcpus: &[TaskId], not_kernel: TaskId) {
    let waits = |id: &TaskId| w.task(*id).waits_since_ns;
    let oldest = *vcpus.iter().filter(|id| !w.is_running(**id)).min_by_key(|id| waits(id)).unwrap();
    assert!(!w.is_running(not_kernel) && oldest != not_kernel, "test: another one is to wait longer");
    the_running_one_spins(w, vcpus);
    let stats = w.stats();
    assert_eq!((stats.boost_kernel, stats.boost_user, stats.boost_granted), (0, 1, 1));
    assert!(w.is_running(oldest), "the longest waiting sibling does not run");
    audit(w);
}

/// The vCPU gets its turn, halts so late in it that it is too little behind its siblings to preempt one, and is woken: it waits.
fn halts_and_waits(w: &mut World, id: TaskId) {
    until_it_runs(w, id);
    w.run(7 * MS + MS / 2);
    w.sleep(id);
    w.wake(id);
}

#[test]
fn a_vcpu_woken_since_its_preemption_in_kernel_mode_is_one_that_was_woken() {
    // Whatever mode it was in when it halted: KVM does not look.
    for halts_in_kernel in [false, true] {
        let (mut w, vcpus) = one_pcpu();
        preempt_in_kernel(&mut w, vcpus[1]);
        w.set_guest_kernel(vcpus[1], halts_in_kernel);
        halts_and_waits(&mut w, vcpus[1]);
        the_running_one_spins(&mut w, &vcpus);
        assert!(w.is_running(vcpus[1]), "the one that was woken does not run");
        assert_eq!((w.stats().boost_irq, w.stats().boost_kernel), (1, 0));
    }
}

#[test]
fn a_vcpu_preempted_in_its_vmms_code_is_none() {
    let (mut w, vcpus) = one_pcpu();
    preempt_in_kernel(&mut w, vcpus[1]);
    until_it_runs(&mut w, vcpus[1]);
    w.leave_kvm(vcpus[1]);
    until_it_waits(&mut w, vcpus[1]);
    the_longest_wait_decides(&mut w, &vcpus, vcpus[1]);
}

#[test]
fn a_vcpu_preempted_in_kernel_mode_after_it_was_woken_is_one() {
    let (mut w, vcpus) = one_pcpu();
    halts_and_waits(&mut w, vcpus[1]);
    preempt_in_kernel(&mut w, vcpus[1]);
    the_running_one_spins(&mut w, &vcpus);
    assert!(w.is_running(vcpus[1]), "the one preempted in kernel mode does not run");
    assert_eq!(w.stats().boost_kernel, 1);
}

#[test]
fn each_preemption_in_kernel_mode_is_counted_once() {
    let mut w = world(1);
    let (vm, vcpus) = busy_vm(&mut w, 1);
    w.spawn(Spec::busy());
    w.run(400 * MS);
    let (id, slot) = (vcpus[0], w.slot_of(vm).unwrap());
    // Counted when it has a pCPU again.
    let mut counts = vec![w.peek_vm(slot).preempted_in_kernel];
    let mut counted = |w: &mut World| {
        until_it_runs(w, id);
        counts.push(w.peek_vm(slot).preempted_in_kernel);
    };
    counted(&mut w);
    preempt_in_kernel(&mut w, id);
    counted(&mut w);
    // In its VMM's code.
    w.leave_kvm(id);
    until_it_waits(&mut w, id);
    counted(&mut w);
    // Not preempted.
    w.sleep(id);
    w.run(10 * MS);
    w.wake(id);
    counted(&mut w);
    // In kernel mode again, and then in user mode.
    until_it_waits(&mut w, id);
    counted(&mut w);
    w.set_guest_kernel(id, false);
    until_it_waits(&mut w, id);
    counted(&mut w);
    assert_eq!(counts, [0, 0, 1, 1, 1, 2, 2]);
}
