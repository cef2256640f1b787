// SPDX-License-Identifier: GPL-2.0-only
//! What a pause-loop exit does.

use crate::common::*;
use crate::spec::knob::*;
use crate::spec::{Config, Knobs, Spec};
use crate::world::{TaskId, World};

pub fn boosted(cpus: usize, boost: u32) -> World {
    // Some of these tests wait for situations that come up within slices of this length.
    world_with(cpus, Knobs { boost: Some(boost), slice_ns: Some(8 * MS), ..Knobs::default() })
}

/// One pCPU, one VM of four, and a host task as company: one of the VM runs (in kernel mode) and three wait. Returns the spinner and the
/// siblings, the one that has waited longest first.
pub fn one_runs_three_wait(w: &mut World) -> (TaskId, Vec<TaskId>) {
    let (_, vcpus) = busy_vm(w, 4);
    for id in &vcpus {
        w.set_guest_kernel(*id, false);
    }
    w.run(400 * MS);
    let spinner = *vcpus.iter().find(|id| w.is_running(**id)).expect("one of them runs");
    let mut waiting: Vec<_> = vcpus.iter().copied().filter(|id| *id != spinner).collect();
    waiting.sort_by_key(|id| w.task(*id).waits_since_ns);
    w.set_guest_kernel(spinner, true);
    (spinner, waiting)
}

#[test]
fn any_mode_prefers_whom_has_waited_longest_among_user_mode() {
    let mut w = boosted(1, BOOST_ANY_MODE);
    let (spinner, waiting) = one_runs_three_wait(&mut w);
    w.pause_exit(spinner);
    assert!(w.is_running(waiting[0]), "the longest waiting sibling does not run");
    let stats = w.stats();
    assert_eq!((stats.ple, stats.boost_chosen, stats.boost_user, stats.boost_granted), (1, 1, 1, 1));
    audit(&mut w);
}

#[test]
fn any_mode_prefers_kernel_mode_to_user_mode_and_an_interrupt_to_both() {
    let mut w = boosted(1, BOOST_ANY_MODE);
    let (_, vcpus) = busy_vm(&mut w, 4);
    w.run(400 * MS);
    preempt_in_kernel(&mut w, vcpus[1]);
    // Spins now: somebody but 1.
    the_running_one_spins(&mut w, &vcpus);
    assert!(w.is_running(vcpus[1]), "the one preempted in kernel mode does not run");
    assert_eq!(w.stats().boost_kernel, 1);

    // Much later, with an interrupt for one in user mode, who has waited least.
    w.run(100 * MS);
    let spinner = *vcpus.iter().find(|id| w.is_running(**id)).unwrap();
    w.set_guest_kernel(spinner, true);
    let newest =
        *vcpus.iter().filter(|id| **id != spinner).max_by_key(|id| w.task(**id).waits_since_ns).unwrap();
    w.set_irq_pending(newest, true);
    w.pause_exit(spinner);
    assert!(w.is_running(newest), "the one with an interrupt does not run");
    assert_eq!(w.stats().boost_irq, 1);
}

#[test]
fn one_whose_affinity_is_set_while_it_waits_was_not_woken() {
    let mut w = boosted(2, BOOST_ANY_MODE);
    w.cpu_offline(1);
    let (_, vcpus) = busy_vm(&mut w, 4);
    w.run(400 * MS);
    preempt_in_kernel(&mut w, vcpus[1]);
    let waits = *vcpus.iter().find(|id| !w.is_running(**id) && **id != vcpus[1]).unwrap();
    w.set_affinity(waits, &[0]);
    the_running_one_spins(&mut w, &vcpus);
    assert!(w.is_running(vcpus[1]), "the one preempted in kernel mode does not run");
    assert_eq!((w.stats().boost_irq, w.stats().boost_kernel), (0, 1));
}

#[test]
fn any_mode_prefers_one_that_was_woken_until_it_has_run() {
    let mut w = boosted(1, BOOST_ANY_MODE);
    let (_, vcpus) = busy_vm(&mut w, 4);
    w.run(400 * MS);
    preempt_in_kernel(&mut w, vcpus[1]);
    until_it_runs(&mut w, vcpus[3]);
    w.run(6 * MS);
    // Its interrupt cannot be seen. It has waited least, and another was preempted in kernel mode.
    w.sleep(vcpus[3]);
    w.settle();
    w.wake(vcpus[3]);
    assert!(!w.is_running(vcpus[3]));
    the_running_one_spins(&mut w, &vcpus);
    assert!(w.is_running(vcpus[3]), "the one that was woken does not run");
    assert_eq!((w.stats().boost_irq, w.stats().boost_kernel), (1, 0));
    // Preempted in user mode since then: it is one of many.
    w.run(100 * MS);
    until_it_waits(&mut w, vcpus[3]);
    the_running_one_spins(&mut w, &vcpus);
    assert_eq!(w.stats().boost_irq, 1);
}

#[test]
fn an_apic_virtualized_in_hardware_tells_of_interrupts_too() {
    // Whose interrupt is posted, and whose is in the APIC's page; KVM's hint is set for all.
    for with_irq in [None, Some(1), Some(2)] {
        let mut w = boosted(1, BOOST_ANY_MODE);
        let (vm, vcpus) = busy_vm(&mut w, 4);
        w.set_apicv(vm);
        w.run(400 * MS);
        preempt_in_kernel(&mut w, vcpus[3]);
        let wanted = with_irq.unwrap_or(3);
        if wanted != 3 {
            until_it_waits(&mut w, vcpus[wanted]);
            w.set_irq_pending(vcpus[wanted], true);
        }
        the_running_one_spins(&mut w, &vcpus);
        assert!(w.is_running(vcpus[wanted]), "vCPU {wanted} does not run");
        let irq = u64::from(with_irq.is_some());
        assert_eq!((w.stats().boost_irq, w.stats().boost_kernel), (irq, 1 - irq));
    }
}

#[test]
fn without_a_waiting_sibling_nothing_happens() {
    let mut w = boosted(2, BOOST_ANY_MODE | BOOST_CANDIDATE);
    let (_, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    w.set_guest_kernel(vcpus[0], true);
    w.pause_exit(vcpus[0]);
    assert!(w.is_running(vcpus[0]));
    assert_eq!((w.stats().ple_no_sibling, w.stats().boost_chosen), (1, 0));
}

#[test]
fn a_spin_in_user_mode_boosts_nobody() {
    let mut w = boosted(1, BOOST_ANY_MODE);
    let (spinner, _) = one_runs_three_wait(&mut w);
    w.set_guest_kernel(spinner, false);
    w.pause_exit(spinner);
    assert!(w.is_running(spinner));
    assert_eq!((w.stats().ple, w.stats().boost_chosen), (1, 0));
}

#[test]
fn without_boost_an_exit_changes_nothing() {
    let mut w = boosted(1, 0);
    let (spinner, waiting) = one_runs_three_wait(&mut w);
    w.set_irq_pending(waiting[1], true);
    w.pause_exit(spinner);
    assert!(w.is_running(spinner));
    assert_eq!((w.stats().ple, w.stats().boost_granted), (1, 0));
}

#[test]
fn kvms_candidate_is_honoured() {
    let mut w = boosted(1, BOOST_CANDIDATE);
    let (spinner, waiting) = one_runs_three_wait(&mut w);
    // KVM offers only this one: an interrupt waits for it.
    w.set_irq_pending(waiting[1], true);
    w.pause_exit(spinner);
    assert!(w.is_running(waiting[1]), "the offered sibling does not run");
    let stats = w.stats();
    assert_eq!((stats.boost_offered, stats.boost_chosen, stats.boost_granted), (1, 0, 1));
    audit(&mut w);
}

#[test]
fn nobody_of_another_vm_is_boosted() {
    let mut w = boosted(1, BOOST_CANDIDATE | BOOST_ANY_MODE);
    let (_, a) = busy_vm(&mut w, 1);
    let (_, b) = busy_vm(&mut w, 2);
    w.run(400 * MS);
    while !w.is_running(a[0]) {
        w.run(MS);
    }
    w.set_guest_kernel(a[0], true);
    w.pause_exit(a[0]);
    assert!(w.is_running(a[0]));
    w.yield_to(a[0], b[0]);
    assert!(w.is_running(a[0]));
    assert_eq!(w.stats().boost_granted, 0);
}

#[test]
fn a_boosted_vcpu_stays_for_its_boost() {
    // Another VM deserves the pCPU more; nobody may take the boost away before its time.
    let mut w = world_with(
        1,
        Knobs {
            boost: Some(BOOST_ANY_MODE | BOOST_UNFAIR),
            boost_slice_ns: Some(3 * MS),
            ..Knobs::default()
        },
    );
    let (_, a) = busy_vm(&mut w, 2);
    let (_, _b) = busy_vm(&mut w, 1);
    w.run(400 * MS);
    while !w.is_running(a[0]) {
        w.run(MS);
    }
    w.run(500_000);
    assert!(w.is_running(a[0]), "test: a turn is longer than this");
    w.set_guest_kernel(a[0], true);
    w.pause_exit(a[0]);
    assert!(w.is_running(a[1]), "the sibling does not run");
    w.settle();
    assert!(w.is_running(a[1]), "the boost was taken away at once");
}

/// Two pCPUs; both siblings of VM a, one runs on 0, the other waits for 1, where VM b runs. Returns spinner, waiter, and the runner on 1.
pub fn sibling_waits_elsewhere(w: &mut World) -> (TaskId, TaskId, TaskId) {
    let (_, a) = busy_vm(w, 2);
    let (_, b) = busy_vm(w, 2);
    w.run(1_400 * MS);
    for round in 0..2_000 {
        w.run(MS);
        // Left alone both VMs take their turns together.
        if round % 40 == 0 {
            let early = if w.is_running(b[0]) { b[0] } else { a[0] };
            w.sleep(early);
            w.run(3 * MS);
            w.wake(early);
        }
        for (spinner, waiter) in [(a[0], a[1]), (a[1], a[0])] {
            let other = b.iter().find(|id| w.is_running(**id)).copied();
            if w.is_running(spinner) && !w.is_running(waiter) && w.now_ns > 1_400 * MS {
                if let Some(other) = other.filter(|id| w.peek_task(waiter).cpu == w.task(*id).cpu as i32) {
                    w.set_guest_kernel(spinner, true);
                    return (spinner, waiter, other);
                }
            }
        }
    }
    panic!("test: the situation does not come up");
}

#[test]
fn migrate_brings_a_sibling_from_where_its_turn_does_not_come() {
    let mut w = boosted(2, BOOST_ANY_MODE | BOOST_MIGRATE);
    let (_, a) = busy_vm(&mut w, 2);
    // A uniprocessor VM of double weight: it has a pCPU for good.
    let heavy = w.new_cgroup(0, 200);
    let b = w.new_vm(1);
    let full = w.spawn(Spec::busy().vcpu(b, 0).cgroup(heavy));
    introduce(&mut w, &[full]);
    w.run(1_400 * MS);
    let (mut spinner, mut waiter) = (a[0], a[1]);
    while !(w.is_running(spinner) && w.peek_task(waiter).cpu == w.task(full).cpu as i32) {
        w.run(MS);
        (spinner, waiter) = (waiter, spinner);
        assert!(w.now_ns < 4_000 * MS, "test: the situation does not come up");
    }
    let cpu = w.task(spinner).cpu;
    let before = w.stats();
    w.set_guest_kernel(spinner, true);
    w.pause_exit(spinner);
    // KVM offers nobody, so the spinner goes on until it has left the program that asked.
    w.run(20_000);
    assert!(
        w.is_running(waiter) && w.task(waiter).cpu == cpu,
        "the sibling does not run on the spinner's pCPU"
    );
    assert!(w.is_running(full));
    let stats = w.stats();
    assert_eq!(
        (stats.boost_granted - before.boost_granted, stats.boost_migrated - before.boost_migrated),
        (1, 1)
    );
    audit(&mut w);
}

/// As sibling_waits_elsewhere(), and VM a is behind by what both slept, but may not preempt for that.
pub fn sibling_deserves_its_turn(w: &mut World) -> (TaskId, TaskId, TaskId) {
    let (_, a) = busy_vm(w, 2);
    let (_, b) = busy_vm(w, 2);
    w.run(1_400 * MS);
    for _ in 0..100 {
        a.iter().for_each(|id| w.sleep(*id));
        w.run(10 * MS);
        a.iter().for_each(|id| w.wake(*id));
        for _ in 0..10 {
            w.run(MS);
            let runs: Vec<_> = a.iter().map(|id| w.is_running(*id)).collect();
            let other = b.iter().find(|id| w.is_running(**id)).copied();
            if let (Some(spinner), Some(waiter), Some(other)) =
                (runs.iter().position(|r| *r), runs.iter().position(|r| !*r), other)
            {
                if w.peek_task(a[waiter]).cpu == w.task(other).cpu as i32 {
                    w.set_guest_kernel(a[spinner], true);
                    return (a[spinner], a[waiter], other);
                }
            }
        }
    }
    panic!("test: the situation does not come up");
}

/// The sibling that waits elsewhere runs there, at once, and the spinner goes on.
fn the_boosted_runs_where_it_waited(boost: u32) {
    let patient = Some(30 * MS);
    let knobs =
        Knobs { boost: Some(boost), slice_ns: Some(8 * MS), wakeup_gran_ns: patient, ..Knobs::default() };
    let mut w = world_with(2, knobs);
    let (spinner, waiter, other) = sibling_deserves_its_turn(&mut w);
    let cpu = w.task(other).cpu;
    w.pause_exit(spinner);
    w.settle();
    assert!(w.is_running(waiter) && w.task(waiter).cpu == cpu, "the sibling does not run where it waited");
    assert!(w.is_running(spinner), "the spinner goes on");
    assert_eq!((w.stats().boost_granted, w.stats().boost_migrated), (1, 0));
    audit(&mut w);
}

#[test]
fn migrate_leaves_a_sibling_where_its_turn_has_come() {
    the_boosted_runs_where_it_waited(BOOST_ANY_MODE | BOOST_MIGRATE);
}

#[test]
fn unfair_takes_the_pcpu_where_the_sibling_waits() {
    the_boosted_runs_where_it_waited(BOOST_ANY_MODE | BOOST_UNFAIR);
}

#[test]
fn migrate_respects_affinity() {
    // The kernel ejects a scheduler that moves a task to where it may not be.
    for boost in [BOOST_MIGRATE | BOOST_ANY_MODE, BOOST_MIGRATE | BOOST_CANDIDATE, 15] {
        let mut w = boosted(2, boost);
        let (a, b) = (w.new_vm(2), w.new_vm(2));
        let a: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(a, id).on(&[id]))).collect();
        // Only one of them waits at a time: its pCPU is shared, and the spinner's is not.
        w.spawn(Spec::busy().vcpu(b, 0).on(&[1]));
        introduce(&mut w, &a);
        for _ in 0..400 {
            w.run(MS);
            for id in &a {
                w.set_guest_kernel(*id, true);
                w.set_irq_pending(*id, true);
                w.pause_exit(*id);
            }
            w.settle();
        }
        assert!(a.iter().enumerate().all(|(cpu, id)| w.task(*id).cpu == cpu));
        let stats = w.stats();
        assert!(stats.ple > 100);
        // Or there was nobody to move. What is not ours to choose is KVM's to offer.
        let asked = if boost & BOOST_ANY_MODE != 0 { stats.boost_chosen } else { stats.boost_offered };
        assert!(asked > 0, "nobody was to be boosted in {} exits", stats.ple);
        audit(&mut w);
    }
}

#[test]
fn affinity_may_change_between_asking_and_running() {
    let mut w = boosted(2, BOOST_ANY_MODE | BOOST_UNFAIR);
    let (spinner, waiter, other) = sibling_waits_elsewhere(&mut w);
    let (here, there) = (w.task(spinner).cpu, w.task(other).cpu);
    w.pause_exit(spinner);
    // The kick is still under way.
    w.set_affinity(waiter, &[here]);
    w.settle();
    assert_ne!(w.task(waiter).cpu, there);
    audit(&mut w);
}

#[test]
fn back_off_doubles_while_it_spins_on_and_ends_with_the_turn() {
    let mut w = boosted(1, BOOST_ANY_MODE);
    let (_, vcpus) = busy_vm(&mut w, 2);
    w.run(400 * MS);
    let mut backoffs = Vec::new();
    // A ping-pong of two that spin for each other, as soon as each may.
    for _ in 0..400 {
        w.run(50_000);
        the_running_one_spins(&mut w, &vcpus);
        backoffs.push(w.peek_task(vcpus[0]).backoff_ns);
    }
    backoffs.dedup();
    let us: Vec<u64> = backoffs.iter().filter(|ns| **ns > 0).map(|ns| ns / 1_000).collect();
    // Up to boost_slice_ns.
    assert_eq!(us, [50, 100, 200, 400]);
    assert!(w.stats().ple_backoff > 0);
    // After a pause of more than a slice it begins anew.
    w.run(100 * MS);
    let spinner = the_running_one_spins(&mut w, &vcpus);
    assert_eq!(w.peek_task(spinner).backoff_ns, 50_000);
}

#[test]
fn clocks_that_differ_change_nothing() {
    // CLOCK_MONOTONIC and the scheduler's clock drift apart on a host that runs for long.
    let knobs = Knobs { boost: Some(BOOST_ANY_MODE), ..Knobs::default() };
    for ktime_ahead_ns in [0, -20_000_000, -900_000_000, 20_000_000, 1_000_000_000_000] {
        let mut w = World::new(Config { ktime_ahead_ns, knobs: knobs.clone(), ..Config::cpus(1) });
        let (spinner, waiting) = one_runs_three_wait(&mut w);
        w.pause_exit(spinner);
        assert!(w.is_running(waiting[0]), "clocks {ktime_ahead_ns} ns apart");
    }
}

#[test]
fn a_vcpu_thread_that_exits_before_its_boost_is_missed_and_no_more() {
    let mut w = boosted(2, BOOST_ANY_MODE | BOOST_UNFAIR);
    let (spinner, waiter, _) = sibling_waits_elsewhere(&mut w);
    let here = w.task(spinner).cpu;
    w.pause_exit(spinner);
    let stats = w.stats();
    assert_eq!((stats.boost_chosen, stats.boost_missed), (1, 0), "the kick is under way");
    // It stops waiting meanwhile: its affinity takes it to the spinner's queue, and there it exits.
    w.set_affinity(waiter, &[here]);
    w.exit(waiter);
    w.run(400 * MS);
    assert_eq!(w.task(waiter).state, crate::view::State::Dead);
    let stats = w.stats();
    assert_eq!((stats.boost_chosen, stats.boost_granted, stats.boost_missed), (1, 0, 1));
    // The one that is left is due a whole pCPU, as the two of the other VM are together.
    let used_ns = used_in(&mut w, 400 * MS, &[spinner])[0];
    assert!(used_ns > 200 * MS, "it got {used_ns} ns of 400 ms");
}

#[test]
fn no_boost_goes_before_one_that_is_overdue() {
    // A light VM waits behind two that are not: it is overdue in the middle of a turn of the first one.
    let starve_ns = 2 * MS;
    let boost = BOOST_CANDIDATE | BOOST_ANY_MODE | BOOST_MIGRATE;
    let knobs = Knobs { boost: Some(boost), starve_ns: Some(starve_ns), ..Knobs::default() };
    let mut w = world_with(1, knobs);
    let vm = |w: &mut World, weight: u32, vcpus: usize| {
        let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(vcpus));
        (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect::<Vec<_>>()
    };
    let (spins, light) = (vm(&mut w, 100, 2), vm(&mut w, 1, 1)[0]);
    let other = vm(&mut w, 100, 1)[0];
    introduce(&mut w, &[&spins[..], &[light, other]].concat());
    let mut tried = 0;
    for _ in 0..4_000 {
        w.run(MS);
        let since_ns = w.task(light).waits_since_ns;
        let overdue = w.task(light).queue.is_some() && w.now_ns - since_ns > 10 * starve_ns;
        let Some(spinner) = spins.iter().find(|id| w.is_running(**id)).copied().filter(|_| overdue) else {
            continue;
        };
        // One that has waited for longer still may go first.
        if spins.iter().any(|id| *id != spinner && w.task(*id).waits_since_ns < since_ns) {
            continue;
        }
        w.set_guest_kernel(spinner, true);
        w.pause_exit(spinner);
        w.settle();
        let boosted = spins.iter().any(|id| *id != spinner && w.is_running(*id));
        assert!(!boosted, "its sibling runs although the light VM has waited for 20 ms");
        tried += 1;
    }
    assert!(tried > 5, "{tried}");
}
