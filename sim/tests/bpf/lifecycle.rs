// SPDX-License-Identifier: GPL-2.0-only
//! Tasks, VMs and pCPUs that come and go.

use crate::common::*;
use crate::spec::{Knobs, Spec};
use crate::view::{Queue, State};
use crate::world::{TaskId, World};

#[test]
fn a_vms_slot_is_freed_with_its_last_vcpu_and_taken_again() {
    let mut w = world(2);
    let (first, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    let slot = w.slot_of(first).unwrap();
    let before = w.peek_vm(slot);
    assert_eq!(before.nr_vcpus, 2);
    w.exit(vcpus[0]);
    w.run(100 * MS);
    audit(&mut w);
    assert_eq!(w.peek_vm(slot).nr_vcpus, 1);
    w.exit(vcpus[1]);
    w.run(100 * MS);
    assert_eq!(w.slot_of(first), None);

    let (second, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    audit(&mut w);
    assert_eq!(w.slot_of(second), Some(slot));
    let after = w.peek_vm(slot);
    assert!(after.generation > before.generation);
    assert!(after.runtime_ns < 10 * MS, "the new VM inherits the old one's {} ms", after.runtime_ns / MS);
}

#[test]
fn a_vmm_thread_outlives_its_vm_as_a_host_task() {
    let mut w = world(1);
    let (vm, vcpus) = busy_vm(&mut w, 1);
    let io = w.spawn(Spec::busy().thread_of(w.vm_tgid(vm)));
    let host = w.spawn(Spec::busy());
    w.run(400 * MS);
    assert_ne!(w.peek_task(io).vm, 0);
    w.exit(vcpus[0]);
    w.run(300 * MS);
    assert_eq!(w.peek_task(io).vm, 0);
    let shares = shares(&mut w, 2_000 * MS, &[io, host]);
    assert_near(shares[0], 0.5, 0.05);

    // The slot's next owner has nothing to do with it.
    let (_, others) = busy_vm(&mut w, 1);
    w.run(400 * MS);
    assert_eq!(w.peek_task(io).vm, 0);
    let used = used_in(&mut w, 3_000 * MS, &[io, host, others[0]]);
    for used in used {
        assert_near(used as f64 / (3_000 * MS) as f64, 1.0 / 3.0, 0.05);
    }
}

#[test]
fn a_vcpu_taken_over_by_a_new_thread_can_be_boosted() {
    // vCPU unplugged and plugged again: QEMU keeps the vCPU and gives it a new thread; the old thread's end may come later.
    let knobs = crate::spec::Knobs { boost: Some(2), ..Default::default() };
    let mut w = world_with(1, knobs);
    let (vm, vcpus) = busy_vm(&mut w, 2);
    w.run(100 * MS);
    w.sleep(vcpus[1]);
    w.run(50 * MS);
    let new = w.spawn(Spec::busy().vcpu(vm, 1));
    w.run(100 * MS);
    w.exit(vcpus[1]);
    w.run(100 * MS);
    assert_eq!(w.task(vcpus[1]).state, State::Dead);
    while !w.is_running(vcpus[0]) {
        w.run(MS);
    }
    w.set_guest_kernel(vcpus[0], true);
    w.pause_exit(vcpus[0]);
    assert!(w.is_running(new), "the new thread is not known as the vCPU");
}

#[test]
fn an_exiting_task_that_is_preempted_goes_on_to_its_end() {
    let mut w = world(1);
    let sleeper = w.spawn(Spec::on_demand(MS));
    w.run(10 * MS);
    let kick = w.spawn(Spec::cycle(10_000, 30_000).kthread().on(&[0]));
    w.spawn(Spec::busy());
    for _ in 0..3 {
        let victim = w.spawn(Spec::busy());
        w.run(50 * MS);
        w.exit(victim);
        w.run(200 * MS);
        assert_eq!(w.task(victim).state, State::Dead);
        audit(&mut w);
    }
    assert!(w.task(kick).used_ns > 0 && w.task(sleeper).state == State::Asleep);
}

#[test]
fn what_waits_for_a_pcpu_that_goes_offline_runs_elsewhere() {
    let mut w = world(3);
    let (_, vcpus) = busy_vm(&mut w, 3);
    let host: Vec<_> = (0..6).map(|_| w.spawn(Spec::busy())).collect();
    w.run(400 * MS);
    w.cpu_offline(2);
    w.settle();
    audit(&mut w);
    let all = [vcpus, host].concat();
    let used = used_in(&mut w, 1_000 * MS, &all);
    assert!(used.iter().all(|ns| *ns > 20 * MS), "{used:?}");
    assert_eq!(used.iter().sum::<u64>(), 2_000 * MS);

    w.cpu_online(2);
    assert_work_conserving(&mut w);
    let used = used_in(&mut w, 500 * MS, &all);
    assert!(used.iter().sum::<u64>() > 1_499 * MS, "{used:?}");
}

#[test]
fn who_comes_into_the_queue_of_a_pcpu_that_has_just_gone_offline_runs_elsewhere() {
    // The pCPU was online when ops.enqueue chose it; the kernel inserts when that is over.
    let mut w = world(2);
    let tasks: Vec<_> = (0..3).map(|_| w.spawn(Spec::busy())).collect();
    w.run(100 * MS);
    w.cpu_offline(1);
    w.settle();
    w.comes_late(0, 1);
    let used = used_in(&mut w, 1_000 * MS, &tasks);
    assert!(used.iter().all(|ns| *ns > 250 * MS), "{used:?}");
}

#[test]
fn what_is_bound_to_a_pcpu_that_goes_offline_runs_elsewhere() {
    let mut w = world(2);
    let bound: Vec<_> = (0..3).map(|_| w.spawn(Spec::busy().on(&[1]))).collect();
    w.spawn(Spec::busy().on(&[0]));
    w.run(100 * MS);
    w.cpu_offline(1);
    let used = used_in(&mut w, 1_000 * MS, &bound);
    assert!(used.iter().all(|ns| *ns > 50 * MS), "{used:?}");
}

#[test]
fn nothing_is_sent_to_an_offline_pcpu() {
    let mut w = world(4);
    w.cpu_offline(3);
    w.cpu_offline(1);
    let (_, vcpus) = busy_vm(&mut w, 4);
    let host: Vec<_> = (0..3).map(|_| w.spawn(Spec::cycle(2 * MS, MS))).collect();
    for _ in 0..300 {
        w.run(MS);
        for id in vcpus.iter().chain(&host) {
            assert!(matches!(w.task(*id).cpu, 0 | 2));
            // Nor queued there: those that are online would find it only once they had nothing else to do.
            if let Some(Queue::User(dsq)) = w.task(*id).queue {
                assert!(matches!(dsq % 4, 0 | 2), "{id:?} waits in queue {dsq}");
            }
        }
        assert_work_conserving(&mut w);
    }
}

#[test]
fn a_pinned_kernel_thread_runs_at_once() {
    let mut w = world(1);
    w.spawn(Spec::busy());
    let kthread = w.spawn(Spec::on_demand(20_000).kthread().on(&[0]));
    w.run(50 * MS);
    let used = w.task(kthread).used_ns;
    w.wake(kthread);
    w.settle();
    w.run(20_000);
    assert_eq!(w.task(kthread).used_ns - used, 20_000);
    assert_eq!(w.task(kthread).state, State::Asleep);
    audit(&mut w);
}

#[test]
fn a_task_with_migration_disabled_stays() {
    let mut w = world(2);
    let stuck = w.spawn(Spec::busy().on(&[0]));
    let other = w.spawn(Spec::busy().on(&[0]));
    w.run(10 * MS);
    until_it_runs(&mut w, stuck);
    // In this order: else it might go to the pCPU that idles, and nobody would ask it to leave that one.
    w.set_migration_disabled(stuck, true);
    w.set_affinity(stuck, &[0, 1]);
    assert_eq!((w.cpus[0].curr, w.cpus[1].curr), (Some(stuck), None));
    assert!(w.task(other).queue.is_some(), "test: the other one is to wait");
    let before = [stuck, other].map(|id| w.task(id).used_ns);
    for _ in 0..100 {
        w.run(MS);
        assert_eq!(w.task(stuck).cpu, 0);
    }
    for (id, before) in [stuck, other].into_iter().zip(before) {
        let used_ns = w.task(id).used_ns - before;
        assert!(used_ns > 16 * MS, "{id:?} had {used_ns} ns of 100 ms");
    }
    // It leaves the section where it runs. When its turn ends it goes.
    until_it_runs(&mut w, stuck);
    w.set_migration_disabled(stuck, false);
    w.run(40 * MS);
    audit(&mut w);
    assert_eq!((w.cpus[0].curr, w.cpus[1].curr), (Some(other), Some(stuck)));
}

/// Which of them runs on pCPU 0.
fn runs_on_0(w: &World, tasks: &[TaskId]) -> TaskId {
    *tasks.iter().find(|id| w.is_running(**id) && w.task(**id).cpu == 0).expect("pCPU 0 is busy")
}

#[test]
fn a_section_that_forbids_migration_is_left_first_if_it_is_short() {
    let mut w = world_with(2, Knobs { slice_ns: Some(4 * MS), ..Knobs::default() });
    let tasks: Vec<_> = (0..4).map(|_| w.spawn(Spec::busy())).collect();
    w.run(10 * MS);
    let runner = runs_on_0(&w, &tasks);
    while w.is_running(runner) {
        w.run(10_000);
    }
    // The next has its whole turn ahead of it, and ends it within a section.
    let inside = runs_on_0(&w, &tasks);
    w.run(3_900_000);
    assert_eq!((runs_on_0(&w, &tasks), w.stats().let_out), (inside, 0));
    w.set_migration_disabled(inside, true);
    w.run(300_000);
    assert!(w.is_running(inside), "it was stopped in its section");
    w.set_migration_disabled(inside, false);
    w.run(400_000);
    assert!(!w.is_running(inside), "it is out of the section, and goes on");
    let let_out = w.stats().let_out;
    assert!((3..=6).contains(&let_out), "{let_out}");

    // One that stays in it ends its turn 1.3 ms late.
    let inside = runs_on_0(&w, &tasks);
    w.set_migration_disabled(inside, true);
    let before = w.task(inside).used_ns;
    w.run(20 * MS);
    let ran_ns = w.task(inside).used_ns - before;
    assert!(ran_ns < 16 * MS, "of 20 ms it had {ran_ns} ns");
    w.set_migration_disabled(inside, false);
    w.run(20 * MS);
    audit(&mut w);
}

/// How long a turn is, of 4 ms or two in a row, in which something about the runner changes so often.
fn turn_with_changes(changes: u64) -> u64 {
    let mut w = world_with(1, Knobs { slice_ns: Some(4 * MS), ..Knobs::default() });
    let (vm, a) = busy_vm(&mut w, 1);
    w.spawn(Spec::busy());
    introduce(&mut w, &a);
    while w.is_running(a[0]) {
        w.run(10_000);
    }
    while !w.is_running(a[0]) {
        w.run(10_000);
    }
    let began_ns = w.now_ns;
    let slot = w.slot_of(vm).unwrap();
    let before = (w.stats().switches, w.peek_vm_told(slot).switches);
    for _ in 0..changes {
        w.set_affinity(a[0], &[0]);
        w.run(3 * MS / changes);
    }
    assert!(w.is_running(a[0]));
    assert_eq!((w.stats().switches, w.peek_vm_told(slot).switches), before);
    audit(&mut w);
    while w.is_running(a[0]) {
        w.run(10_000);
    }
    w.now_ns - began_ns
}

/// The kernel takes it off its run queue and puts it back, and tells of that as of an end and a beginning.
#[test]
fn a_runner_that_changes_goes_on_with_its_turn() {
    assert_eq!(turn_with_changes(30), turn_with_changes(0));
}

#[test]
fn a_runner_that_is_confined_is_known_to_be() {
    let mut w = world(3);
    let (_, a) = busy_vm(&mut w, 2);
    introduce(&mut w, &a);
    assert!(w.is_running(a[0]));
    assert_eq!(w.peek_task(a[0]).restricted, 0);
    let cpu = w.task(a[0]).cpu;
    w.set_affinity(a[0], &[cpu, (cpu + 1) % 3]);
    assert_eq!(w.peek_task(a[0]).restricted, 1);
    w.set_affinity(a[0], &[0, 1, 2]);
    assert_eq!(w.peek_task(a[0]).restricted, 0);
}

#[test]
fn a_runner_that_becomes_real_time_has_left() {
    let mut w = world(2);
    let (_, a) = busy_vm(&mut w, 2);
    introduce(&mut w, &a);
    let before = w.peek_task(a[0]);
    assert!(w.is_running(a[0]) && before.cpu >= 0);
    let running = w.peek_entity(before.run_leaf).nr_running;
    let meanwhile = w.becomes_real_time(a[0]);
    assert_eq!(meanwhile.cpu, -1);
    audit(&mut w);
    assert_eq!(w.peek_entity(before.run_leaf).nr_running, running, "it is back");
    w.run(20 * MS);
    audit(&mut w);
}

#[test]
fn who_waits_and_becomes_real_time_waits_no_more() {
    let mut w = world(1);
    let (_, a) = busy_vm(&mut w, 2);
    introduce(&mut w, &a);
    until_it_waits(&mut w, a[1]);
    assert!(w.peek_task(a[1]).queued_ns > 0);
    assert_eq!(w.becomes_real_time(a[1]).queued_ns, 0);
    w.run(20 * MS);
    audit(&mut w);
}

#[test]
fn the_end_is_told_to_user_space() {
    let mut w = world(1);
    w.spawn(Spec::busy());
    w.run(10 * MS);
    assert_eq!(w.peek_exit().kind, 0, "it runs");
    w.unload(c"unregistered from user space", c"by hand");
    let told = w.peek_exit();
    // SCX_EXIT_UNREG
    assert_eq!(told.kind, 64);
    assert_eq!((told.reason.as_str(), told.msg.as_str()), ("unregistered from user space", "by hand"));
}

#[test]
fn a_cgroup_that_has_anothers_number_has_clocks_of_its_own() {
    let mut w = world(2);
    let before = w.new_cgroup(0, 100);
    let old = w.spawn(Spec::busy().cgroup(before).on(&[1]));
    w.run(20_000 * MS);
    let slot = w.peek_task(old).leaf;
    w.exit(old);
    w.run(100 * MS);
    assert!(w.remove_cgroup(before));
    let after = w.new_cgroup(0, 100);
    // One begins where the old one's clock was far ahead, the other where it was not; then they meet.
    let there = w.spawn(Spec::busy().cgroup(after).on(&[1]));
    let here = w.spawn(Spec::busy().cgroup(after).on(&[0]));
    w.run(100 * MS);
    assert_eq!(w.peek_task(there).leaf, slot, "test: the number is to be taken again");
    w.set_affinity(there, &[0]);
    let shares = shares(&mut w, 2_000 * MS, &[here, there]);
    assert_near(shares[1], 0.5, 0.06);
}

#[test]
fn who_is_hidden_from_other_pcpus_is_found_all_the_same() {
    // Queued at the moment in which the pCPU found its queue empty, and behind who may run there only.
    let mut w = world(2);
    let pinned: Vec<_> = (0..4).map(|id| w.spawn(Spec::busy().on(&[id / 2]))).collect();
    let free = w.spawn(Spec::busy());
    for _ in 0..200 {
        until_it_waits(&mut w, free);
        if w.task(free).queue == Some(Queue::User(0)) {
            w.unmark(0);
            let (runs, waits) = if w.is_running(pinned[2]) { (2, 3) } else { (3, 2) };
            w.set_affinity(pinned[waits], &[0]);
            w.sleep(pinned[runs]);
            w.settle();
            assert!(w.is_running(free), "it waits although a pCPU idles");
            return;
        }
        w.run(MS);
    }
    panic!("test: {free:?} is to wait behind {pinned:?}");
}
