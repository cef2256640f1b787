// SPDX-License-Identifier: GPL-2.0-only
//! One pause-loop exit: the program on it, then KVM's own search. Who of the two gives the pCPU away, and that it happens once.

use crate::boost::{boosted, one_runs_three_wait};
use crate::common::*;
use crate::spec::knob::*;
use crate::spec::Knobs;
use crate::world::{TaskId, World};

#[test]
fn a_choice_that_kvm_shares_is_left_to_its_yield() {
    for spin in [SPIN_BOOST, SPIN_PREFER] {
        // Who was preempted in user mode KVM does not offer, also with an interrupt that it may not know of: the program on the exit stops the spinner itself.
        for (in_kernel, irq) in [(true, false), (false, false), (false, true)] {
            let knobs = Knobs { spin: Some(spin), boost: Some(BOOST_ANY_MODE), ..Knobs::default() };
            let mut w = world_with(1, Knobs { slice_ns: Some(8 * MS), ..knobs });
            let (_, vcpus) = busy_vm(&mut w, 2);
            w.run(400 * MS);
            while !w.is_running(vcpus[1]) {
                w.run(MS / 10);
            }
            w.set_guest_kernel(vcpus[1], in_kernel);
            while !w.is_running(vcpus[0]) {
                w.run(MS / 10);
            }
            w.set_guest_kernel(vcpus[0], true);
            w.set_irq_pending(vcpus[1], irq);
            let before = w.stats().boost_offered;
            w.pause_exit(vcpus[0]);
            assert!(w.is_running(vcpus[1]), "{spin} {in_kernel} {irq}: the sibling does not run");
            assert_eq!(w.stats().boost_offered - before, u64::from(in_kernel), "{spin} {irq}");
            audit(&mut w);
        }
    }
}

#[test]
fn what_kvm_did_not_offer_after_all_runs_at_the_next_exit() {
    for spin in [SPIN_BOOST, SPIN_PREFER] {
        let knobs = Knobs { spin: Some(spin), boost: Some(BOOST_ANY_MODE), ..Knobs::default() };
        let mut w = world_with(1, Knobs { slice_ns: Some(8 * MS), ..knobs });
        let (_, vcpus) = busy_vm(&mut w, 4);
        w.run(400 * MS);
        preempt_in_kernel(&mut w, vcpus[1]);
        let spinner = *vcpus.iter().find(|id| w.is_running(**id)).expect("one of them runs");
        w.set_guest_kernel(spinner, true);
        w.pause_exit_in_vain(spinner);
        w.run(MS / 100);
        assert!(w.is_running(spinner));
        w.pause_exit(spinner);
        assert!(w.is_running(vcpus[1]), "{spin}: the one chosen before does not run");
        let stats = w.stats();
        assert_eq!((stats.boost_chosen, stats.boost_granted), (1, 1), "{spin}");
        audit(&mut w);
    }
}

#[test]
fn one_exit_gives_the_pcpu_away_once() {
    let mut w = boosted(1, BOOST_CANDIDATE | BOOST_ANY_MODE);
    let (spinner, waiting) = one_runs_three_wait(&mut w);
    w.pause_exit(spinner);
    assert!(w.is_running(waiting[0]), "the one chosen runs while the spinner is still in its exit");
    at_its_next_turn(&mut w, spinner);
    // KVM's loop goes on where it was: it offers the next sibling.
    let before = w.stats().boost_granted;
    w.yield_to(spinner, waiting[1]);
    assert!(
        w.is_running(spinner),
        "it gave its pCPU away again, without having looked whether it still has to wait"
    );
    assert_eq!(w.stats().boost_granted, before);

    // The next time that it has the pCPU, that exit is over. It yields for another reason, and at once: a hypercall, say.
    while w.is_running(spinner) {
        w.run(MS / 100);
    }
    at_its_next_turn(&mut w, spinner);
    w.yield_to(spinner, waiting[1]);
    assert!(w.is_running(waiting[1]), "a yield that has nothing to do with that exit is refused");
}

/// To 10 us: what an exit has asked for is forgotten soon.
fn at_its_next_turn(w: &mut World, id: TaskId) {
    for _ in 0..100_000 {
        if w.is_running(id) {
            return;
        }
        w.run(MS / 100);
    }
    panic!("it has not run for a second");
}
