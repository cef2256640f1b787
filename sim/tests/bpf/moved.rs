// SPDX-License-Identifier: GPL-2.0-only
//! What was used where one competes no more: on other pCPUs, beside others, in another cgroup.

use crate::common::*;
use crate::spec::Spec;
use crate::world::{TaskId, World};

const SECOND: u64 = 1_000 * MS;

/// What competes there, its threads busy on these pCPUs.
type Make = fn(&mut World, &[usize]) -> Vec<TaskId>;

fn vm(w: &mut World, cpus: &[usize]) -> Vec<TaskId> {
    let (scope, vm) = (w.new_cgroup(0, 100), w.new_vm(2));
    (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(scope).on(cpus))).collect()
}

fn cgroup(w: &mut World, cpus: &[usize]) -> Vec<TaskId> {
    let cgroup = w.new_cgroup(0, 100);
    (0..2).map(|_| w.spawn(Spec::busy().cgroup(cgroup).on(cpus))).collect()
}

fn task(w: &mut World, cpus: &[usize]) -> Vec<TaskId> {
    vec![w.spawn(Spec::busy().on(cpus))]
}

/// One alone on pCPU 0, two on pCPU 1. Then one of them goes to the others' pCPU, thread by thread: it shares that from the third second on, at the latest.
fn moves(make: Make, who: usize, to: usize) {
    let mut w = world(2);
    let all = [make(&mut w, &[0]), make(&mut w, &[1]), make(&mut w, &[1])];
    w.run(30 * SECOND);
    for thread in &all[who] {
        w.set_affinity(*thread, &[to]);
        w.run(10 * MS);
    }
    w.run(3 * SECOND);
    let there: Vec<&Vec<TaskId>> = if to == 1 { all.iter().collect() } else { vec![&all[0], &all[who]] };
    let threads: Vec<TaskId> = there.iter().flat_map(|one| one.iter().copied()).collect();
    let used = used_in(&mut w, 3 * SECOND, &threads);
    let mut at = 0;
    for one in &there {
        let share = used[at..at + one.len()].iter().sum::<u64>() as f64 / (3 * SECOND) as f64;
        at += one.len();
        assert_near(share, 1.0 / there.len() as f64, 0.06);
    }
}

#[test]
fn who_was_alone_on_its_pcpu_and_comes_to_others_shares_theirs() {
    for make in [vm, cgroup, task] {
        moves(make, 0, 1);
    }
}

#[test]
fn who_had_half_a_pcpu_and_comes_to_one_that_was_alone_shares_that() {
    for make in [vm, cgroup, task] {
        moves(make, 1, 0);
    }
}

#[test]
fn a_vm_whose_pcpu_goes_offline_shares_another() {
    let mut w = world(2);
    let all = [vm(&mut w, &[0]), vm(&mut w, &[1])];
    w.run(30 * SECOND);
    let third = vm(&mut w, &[1]);
    w.run(30 * SECOND);
    for thread in &all[0] {
        w.set_affinity(*thread, &[0, 1]);
    }
    w.cpu_offline(0);
    w.run(3 * SECOND);
    let used = used_in(&mut w, 3 * SECOND, &[all[0].clone(), all[1].clone(), third].concat());
    for one in used.chunks(2) {
        assert_near(one.iter().sum::<u64>() as f64 / (3 * SECOND) as f64, 1.0 / 3.0, 0.06);
    }
}

#[test]
fn a_vm_that_left_its_share_to_others_does_not_have_it_later_not_in_a_scope_of_its_own_either() {
    // All are in cgroups of their own, as under libvirt.
    let mut w = world(4);
    let scopes: Vec<usize> = (0..3).map(|_| w.new_cgroup(0, 100)).collect();
    let vms: Vec<usize> = (0..3).map(|_| w.new_vm(2)).collect();
    let spawn =
        |w: &mut World, vm: usize, id: usize| w.spawn(Spec::busy().vcpu(vms[vm], id).cgroup(scopes[vm]));
    let busy: Vec<TaskId> = (0..2).map(|id| spawn(&mut w, 0, id)).collect();
    let first = spawn(&mut w, 1, 0);
    // Nobody wants more than there is; the second VM uses half of what the first does.
    w.run(60 * SECOND);
    let second = spawn(&mut w, 1, 1);
    let new: Vec<TaskId> = (0..2).map(|id| spawn(&mut w, 2, id)).collect();
    w.run(SECOND);
    let threads = [busy, vec![first, second], new].concat();
    let used = used_in(&mut w, 3 * SECOND, &threads);
    for vm in used.chunks(2) {
        assert_near(vm.iter().sum::<u64>() as f64 / (3 * SECOND) as f64, 4.0 / 3.0, 0.08);
    }
}

#[test]
fn what_others_ran_while_nobody_wanted_it_delays_no_sleeper_for_long() {
    let mut w = world(6);
    let [batch, machine, system, other] = [0; 4].map(|parent| w.new_cgroup(parent, 100));
    // The machines' cgroup has two that are busy and leaves the batch three of four pCPUs' time, which nobody wants.
    let vms: Vec<usize> = (0..2).map(|_| w.new_vm(8)).collect();
    let scopes = [0, 1].map(|_| w.new_cgroup(machine, 100));
    let spawn =
        |w: &mut World, vm: usize, id: usize| w.spawn(Spec::busy().vcpu(vms[vm], id).cgroup(scopes[vm]));
    for vm in 0..2 {
        spawn(&mut w, vm, 0);
    }
    for _ in 0..4 {
        w.spawn(Spec::busy().cgroup(batch));
    }
    w.run(60 * SECOND);
    for (vm, id) in (0..2).flat_map(|vm| (1..8).map(move |id| (vm, id))) {
        spawn(&mut w, vm, id);
    }
    // Who comes first may wait until that is forgotten.
    let first = w.spawn(Spec::cycle(MS, 200 * MS).cgroup(system));
    w.run(8 * SECOND);
    let second = w.spawn(Spec::cycle(MS, 200 * MS).cgroup(other));
    let used = used_in(&mut w, 10 * SECOND, &[first, second]);
    // Alone they would have 49 bursts each.
    assert!(used.iter().all(|ns| *ns > 40 * MS), "{used:?}");
}
