// SPDX-License-Identifier: GPL-2.0-only
//! Who is known as what: addresses that are used again, tables that are full, VMs as large as they may be.

use crate::common::*;
use crate::spec::{limit, Spec};
use crate::world::{TaskId, World};

fn threads(w: &mut World, vm: usize, vcpus: usize) -> Vec<TaskId> {
    (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id))).collect()
}

#[test]
fn the_tables_have_an_end_that_user_space_need_not_read_beyond() {
    let mut w = world(2);
    assert_eq!((w.peek_vm(0).end, w.peek_entity(0).end), (1, 1));
    let vms: Vec<_> = (0..3)
        .map(|_| {
            let (vm, vcpus) = busy_vm(&mut w, 1);
            introduce(&mut w, &vcpus);
            (vm, vcpus)
        })
        .collect();
    let used = |w: &mut World| {
        let vm = (1..20).rev().find(|number| w.peek_vm(*number).kvm != 0).unwrap();
        let entity = (1..40).rev().find(|number| w.peek_entity(*number).kind != 0).unwrap();
        [vm + 1, entity + 1]
    };
    let ends = |w: &mut World| [w.peek_vm(0).end, w.peek_entity(0).end];
    let three = used(&mut w);
    assert_eq!(ends(&mut w), three);
    // A number that is free again is taken before a new one, and the end stays.
    w.exit(vms[2].1[0]);
    w.exit(vms[0].1[0]);
    w.run(100 * MS);
    let (vm, vcpus) = busy_vm(&mut w, 1);
    introduce(&mut w, &vcpus);
    assert_eq!(w.slot_of(vm), Some(1));
    assert_eq!((used(&mut w)[0], ends(&mut w)), (3, three));
}

#[test]
fn a_new_vm_at_the_address_of_one_whose_threads_are_still_there_is_another() {
    let mut w = world(2);
    let (old, before) = busy_vm(&mut w, 2);
    introduce(&mut w, &before);
    let slot = w.slot_of(old).unwrap();
    // KVM has freed its struct kvm; its threads have not ended yet.
    let new = w.new_vm(2);
    w.swap_addresses(old, new);
    let after = threads(&mut w, new, 2);
    introduce(&mut w, &after);
    let new_slot = w.peek_task(after[0]).vm;
    assert!(new_slot != 0 && new_slot != slot, "the newcomer is VM {new_slot}, the old one VM {slot}");
    assert_eq!([slot, new_slot].map(|number| w.peek_vm(number).nr_vcpus), [2, 2]);
    let all = [before.clone(), after.clone()].concat();
    let shares = shares(&mut w, 2_000 * MS, &all);
    assert_near(shares[0] + shares[1], 1.0, 0.03);
    audit(&mut w);

    // The end of the old one takes nothing from the new one.
    for id in before {
        w.exit(id);
    }
    w.run(200 * MS);
    assert_eq!(w.peek_vm(slot).kvm, 0);
    assert_eq!((w.peek_vm(new_slot).nr_vcpus, w.peek_task(after[1]).vm), (2, new_slot));
    audit(&mut w);
}

#[test]
fn a_thread_that_goes_on_as_another_vcpu_is_that_one() {
    let mut w = world(2);
    let (_, before) = busy_vm(&mut w, 2);
    introduce(&mut w, &before);
    let stale = w.peek_task(before[0]).kvm_vcpu;
    // Its process has made a new VM, which KVM has put where the old one was.
    w.renew_vcpu(before[0]);
    w.run(100 * MS);
    let known = w.peek_task(before[0]);
    assert_ne!(known.kvm_vcpu, stale, "the address of a vCPU that is gone is read on");
    assert_eq!((known.vcpu, w.peek_vm(known.vm).nr_vcpus), (0, 2));
    audit(&mut w);
}

#[test]
fn who_found_no_room_is_known_when_a_vm_goes() {
    let mut w = world(2);
    let vms = limit::VMS;
    let first = busy_vm(&mut w, 1).1[0];
    introduce(&mut w, &[first]);
    for _ in 1..vms {
        let vm = w.new_vm(1);
        let id = w.spawn(Spec::on_demand(MS).vcpu(vm, 0));
        introduce(&mut w, &[id]);
    }
    assert_eq!(w.stats().registry_full, 0);
    let late = busy_vm(&mut w, 1).1[0];
    w.run(200 * MS);
    assert_eq!(w.peek_task(late).vm, 0, "there is room for {vms}");
    assert!(w.stats().registry_full >= 1);
    // It is scheduled all the same, as a task.
    let shares = shares(&mut w, 1_000 * MS, &[first, late]);
    assert!(shares[1] > 0.9, "{shares:?}");
    w.exit(first);
    w.run(200 * MS);
    assert_ne!(w.peek_task(late).vm, 0, "a number is free, and it has none");
    audit(&mut w);
}

/// Of so many cgroups it is known whose part they are. One more is the root's, and gives back the entry that it had taken for itself.
#[test]
fn a_cgroup_beyond_those_that_can_be_known_takes_no_entry_with_it() {
    let mut w = world(1);
    // Those below the eighth have no entries of their own.
    let deepest = (0..limit::DEPTH).fold(0, |parent, _| w.new_cgroup(parent, 100));
    for _ in limit::DEPTH..limit::CGROUPS {
        w.new_cgroup(deepest, 100);
    }
    let next = w.peek_entity(0).end - 1;
    assert_eq!(w.peek_entity(next).kind, 0, "test: it is to be free");
    let full = w.stats().registry_full;
    let beyond = w.new_cgroup(0, 100);
    assert_eq!(w.stats().registry_full, full + 1);
    assert!(w.remove_cgroup(beyond));
    assert_eq!(w.peek_entity(next).kind, 0, "its entry is taken for good");
}

#[test]
fn a_vm_of_256_vcpus_is_known_whole_and_its_257th_is_a_task() {
    let mut w = world(8);
    let most = limit::VCPUS;
    let vm = w.new_vm(most + 1);
    let vcpus = threads(&mut w, vm, most);
    introduce(&mut w, &vcpus);
    assert!(vcpus.iter().all(|id| w.peek_task(*id).vcpu >= 0), "all have a number");
    let slot = w.slot_of(vm).unwrap();
    assert_eq!((w.peek_vm(slot).nr_vcpus as usize, w.stats().registry_full), (most, 0));
    let beyond = w.spawn(Spec::busy().vcpu(vm, most));
    w.run(5_000 * MS);
    assert_eq!(w.peek_task(beyond).vcpu, -1);
    assert!(w.stats().registry_full >= 1);
    assert!(w.task(beyond).used_ns > 0, "it runs");
    audit(&mut w);
}

#[test]
fn a_thread_that_set_a_vcpu_up_is_a_vmm_thread_once_another_runs_it() {
    let mut w = world(2);
    let vm = w.new_vm(2);
    // The main thread is in an ioctl of vCPU 1 when the scheduler looks at it.
    let main = w.spawn(Spec::busy().vcpu(vm, 1));
    let first = w.spawn(Spec::busy().vcpu(vm, 0));
    introduce(&mut w, &[main, first]);
    assert_eq!(w.peek_task(main).vcpu, 1);
    until_it_runs(&mut w, main);
    w.ends_ioctl(main);
    let second = w.spawn(Spec::busy().vcpu(vm, 1));
    introduce(&mut w, &[second]);
    w.run(100 * MS);
    let slot = w.slot_of(vm).unwrap();
    let known = w.peek_task(main);
    assert_eq!((known.vcpu, known.vm), (-1, slot), "it is still taken for the vCPU");
    assert_eq!((w.peek_task(second).vcpu, w.peek_vm(slot).nr_vcpus), (1, 2));
    audit(&mut w);
    // Its VM pays for it as before.
    let host = w.spawn(Spec::busy());
    let vm_has: f64 = shares(&mut w, 4_000 * MS, &[main, first, second]).iter().sum();
    assert_near(vm_has, 1.0, 0.05);
    assert!(w.task(host).used_ns > 3_800 * MS);
}

#[test]
fn a_thread_that_looks_at_a_vcpu_does_not_keep_it() {
    let mut w = world(2);
    let (vm, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    // The VM is paused, and its main thread reads the state of vCPU 1 by an ioctl when the scheduler looks at it.
    w.sleep(vcpus[1]);
    let main = w.spawn(Spec::busy().vcpu(vm, 1));
    introduce(&mut w, &[main]);
    assert_eq!(w.peek_task(main).vcpu, 1);
    until_it_runs(&mut w, main);
    w.ends_ioctl(main);
    w.wake(vcpus[1]);
    w.run(100 * MS);
    assert_eq!((w.peek_task(main).vcpu, w.peek_task(vcpus[1]).vcpu), (-1, 1), "which one is the vCPU");
    let slot = w.slot_of(vm).unwrap();
    assert_eq!((w.peek_task(main).vm, w.peek_vm(slot).nr_vcpus), (slot, 2));
    audit(&mut w);
}

#[test]
fn a_vcpu_whose_onlooker_has_ended_is_known_again() {
    let knobs = crate::spec::Knobs { boost: Some(2), ..Default::default() };
    let mut w = world_with(1, knobs);
    let (vm, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    w.sleep(vcpus[1]);
    let slot = w.slot_of(vm).unwrap();
    let onlooker = w.spawn(Spec::busy().vcpu(vm, 1));
    introduce(&mut w, &[onlooker]);
    w.exit(onlooker);
    w.wake(vcpus[1]);
    w.run(200 * MS);
    assert_eq!((w.slot_of(vm), w.peek_vm(slot).nr_vcpus), (Some(slot), 2));
    audit(&mut w);
    // Who spins for it finds it.
    until_it_waits(&mut w, vcpus[1]);
    let granted = w.stats().boost_granted;
    w.set_guest_kernel(vcpus[0], true);
    w.pause_exit(vcpus[0]);
    w.settle();
    assert_eq!(w.stats().boost_granted, granted + 1);
}

#[test]
fn a_vm_shows_the_weight_that_its_cgroup_has_now() {
    let mut w = world(1);
    let (cgroup, other) = (w.new_cgroup(0, 300), w.new_cgroup(0, 200));
    let vm = w.new_vm(1);
    let vcpu = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(cgroup));
    introduce(&mut w, &[vcpu]);
    let slot = w.slot_of(vm).unwrap();
    assert_eq!(w.peek_vm(slot).weight, 300);
    w.set_cgroup_weight(cgroup, 50);
    w.set_cgroup_weight(other, 70);
    assert_eq!(w.peek_vm(slot).weight, 50);
    w.move_to_cgroup(vcpu, other);
    w.run(100 * MS);
    assert_eq!(w.peek_vm(slot).weight, 70);
}
