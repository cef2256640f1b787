// SPDX-License-Identifier: GPL-2.0-only
//! Order credit: what Xen's credit scheduler does.

use cohort_sim::class::ext::OpKind;
use proptest::prelude::*;

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::view::State;
use crate::world::{TaskId, World};

const SECOND: u64 = 1_000 * MS;
const SLICE: u64 = 30 * MS;

fn xen(cpus: usize) -> World {
    let knobs = Knobs {
        placement: Some(knob::PLACEMENT_ANY),
        order: Some(knob::ORDER_CREDIT),
        spin: Some(knob::SPIN_YIELD),
        boost: Some(0),
        ..Knobs::default()
    };
    world_with(cpus, knobs)
}

/// A busy VM in a cgroup of that weight.
fn vm_of(w: &mut World, weight: u32, vcpus: usize) -> Vec<TaskId> {
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(vcpus));
    (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect()
}

/// What each VM gets of the host in ten seconds, after three to settle.
fn of_host(w: &mut World, vms: &[Vec<TaskId>]) -> Vec<f64> {
    w.run(3 * SECOND);
    let got = shares(w, 10 * SECOND, &vms.concat());
    let cpus = w.cpus.len() as f64;
    let mut got = got.into_iter();
    vms.iter().map(|vm| got.by_ref().take(vm.len()).sum::<f64>() / cpus).collect()
}

#[test]
fn vms_share_by_weight() {
    for (cpus, weights) in
        [(1, vec![100, 200]), (2, vec![100, 100, 100]), (4, vec![100, 200, 500]), (8, vec![100, 300])]
    {
        let mut w = xen(cpus);
        let vms: Vec<_> = weights.iter().map(|weight| vm_of(&mut w, *weight, cpus)).collect();
        let total: u32 = weights.iter().sum();
        for (got, weight) in of_host(&mut w, &vms).into_iter().zip(&weights) {
            assert_near(got, f64::from(*weight) / f64::from(total), 0.01);
        }
    }
}

#[test]
fn a_vm_weighs_the_same_with_one_vcpu() {
    // Xen 3.2: the weight is the domain's. It has one of two pCPUs for its one vCPU.
    let mut w = xen(2);
    let vms = [vm_of(&mut w, 100, 1), vm_of(&mut w, 100, 2)];
    assert_near(of_host(&mut w, &vms)[0], 0.5, 0.01);
}

#[test]
fn what_one_cannot_use_is_divided_by_weight() {
    // The heavy one is due 2.5 of 4 pCPUs and has one vCPU: the others share three, one to two.
    let mut w = xen(4);
    let vms = [vm_of(&mut w, 500, 1), vm_of(&mut w, 100, 4), vm_of(&mut w, 200, 4)];
    let got = of_host(&mut w, &vms);
    for (got, due) in got.into_iter().zip([0.25, 0.25, 0.5]) {
        assert_near(got, due, 0.01);
    }
}

#[test]
fn what_one_leaves_is_divided_by_weight() {
    // It is due a half and sleeps for 7/8 of the time.
    let mut w = xen(1);
    let (cgroup, vm) = (w.new_cgroup(0, 300), w.new_vm(1));
    let light = vec![w.spawn(Spec::cycle(5 * MS, 35 * MS).vcpu(vm, 0).cgroup(cgroup))];
    let vms = [light, vm_of(&mut w, 100, 1), vm_of(&mut w, 200, 1)];
    let got = of_host(&mut w, &vms);
    assert!(got[0] > 0.12, "it gets {:.3}", got[0]);
    assert_near(got[2] / got[1], 2.0, 0.06);
}

#[test]
fn siblings_and_host_tasks_have_their_parts() {
    let mut w = xen(1);
    let vm = vm_of(&mut w, 100, 2);
    let host = [w.spawn(Spec::busy()), w.spawn(Spec::busy().weight(200))];
    w.run(3 * SECOND);
    let got = shares(&mut w, 10 * SECOND, &[vm[0], vm[1], host[0], host[1]]);
    for (got, due) in got.into_iter().zip([0.125, 0.125, 0.25, 0.5]) {
        assert_near(got, due, 0.01);
    }
}

#[test]
fn a_cap_is_kept_and_its_rest_divided() {
    // Due more than its cap, the first one is given more than it may use, and the others get that later: for a period it is more than they can use.
    for (weights, cap_us, due) in [
        ([400, 100, 200], 50_000, [0.25, 0.25, 0.5]),
        ([400, 100, 400], 50_000, [0.25, 0.15, 0.6]),
        ([4_000, 100, 200], 50_000, [0.25, 0.25, 0.5]),
        ([400, 100, 200], 20_000, [0.1, 0.3, 0.6]),
        ([100, 100, 200], 50_000, [0.25, 0.25, 0.5]),
    ] {
        let mut w = xen(2);
        let (cgroup, vm) = (w.new_cgroup(0, weights[0]), w.new_vm(2));
        let capped = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect();
        w.set_quota(cgroup, 100_000, cap_us, 0);
        let vms = [capped, vm_of(&mut w, weights[1], 2), vm_of(&mut w, weights[2], 2)];
        for ((got, due), within) in of_host(&mut w, &vms).into_iter().zip(due).zip([0.003, 0.01, 0.01]) {
            assert_near(got, due, within);
        }
    }
}

#[test]
fn turns_are_of_thirty_milliseconds() {
    let mut w = xen(1);
    let tasks = [w.spawn(Spec::busy()), w.spawn(Spec::busy())];
    w.run(SECOND);
    let switches = w.stats().switches;
    w.run(3 * SECOND);
    assert_eq!(w.stats().switches - switches, 3 * SECOND / SLICE);
    audit(&mut w);
    assert!(tasks.iter().all(|id| w.task(*id).wait_max_ns <= 4 * SLICE));
}

/// How long a VM's vCPU that wakes now has to wait.
fn waits_ns(w: &mut World, id: TaskId) -> u64 {
    let woken_ns = w.now_ns;
    w.wake(id);
    w.settle();
    while !w.is_running(id) {
        w.run(MS / 4);
    }
    w.now_ns - woken_ns
}

#[test]
fn who_wakes_under_is_boosted() {
    let mut w = xen(1);
    let (vm, other) = (w.new_vm(1), vm_of(&mut w, 100, 2));
    let light = w.spawn(Spec::on_demand(2 * MS).vcpu(vm, 0));
    w.run(SECOND);
    for round in 0..20 {
        w.run((71 + round) * MS);
        assert!(waits_ns(&mut w, light) <= MS, "round {round}");
    }
    assert!(other.iter().all(|id| w.task(*id).wait_max_ns < SECOND));
}

#[test]
fn who_wakes_over_is_not() {
    // It has used more than its part until it sleeps, and does not sleep long enough to be given more.
    let mut w = xen(1);
    let (cgroup, vm) = (w.new_cgroup(0, 20), w.new_vm(1));
    let greedy = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(cgroup));
    vm_of(&mut w, 100, 1);
    w.run(2 * SECOND);
    let mut longest_ns = 0;
    for _ in 0..20 {
        until_it_runs(&mut w, greedy);
        w.run(25 * MS);
        w.sleep(greedy);
        w.run(5 * MS);
        longest_ns = longest_ns.max(waits_ns(&mut w, greedy));
    }
    assert!(longest_ns > 20 * MS, "the longest wait is {longest_ns} ns");
}

#[test]
fn a_boost_ends_at_a_tick() {
    let mut w = xen(1);
    let vms = [w.new_vm(1), w.new_vm(1), w.new_vm(1)];
    let [first, second, third] = vms.map(|vm| {
        let id = w.spawn(Spec::on_demand(FOREVER_NS).vcpu(vm, 0));
        w.sleep(id);
        w.run(SECOND);
        id
    });
    vm_of(&mut w, 100, 1);
    w.run(SECOND);
    // Boosted, it takes the pCPU; for as long as it is, nobody else who wakes does.
    assert!(waits_ns(&mut w, first) <= MS);
    w.wake(second);
    w.settle();
    assert_eq!(w.task(second).state, State::Runnable);
    assert!(!w.is_running(second));
    // By now it has lost the boost; who wakes takes the pCPU from it, for the one that came first.
    w.run(16 * MS);
    w.wake(third);
    w.settle();
    assert!(w.is_running(second) && !w.is_running(first));
}

#[test]
fn who_sleeps_at_every_tick_has_no_more_than_its_part() {
    for (weight, due) in [(100, 0.5), (25, 0.2)] {
        let mut w = xen(1);
        // Credit is given every 30 ms from now on, in the middle between two of Xen's ticks.
        w.run(5 * MS);
        let greedy = vm_of(&mut w, weight, 1)[0];
        vm_of(&mut w, 100, 1);
        let mut used_ns = 0;
        for round in 0..600 {
            if round == 100 {
                used_ns = w.task(greedy).used_ns;
            }
            w.run(9 * MS / 2);
            w.sleep(greedy);
            w.run(MS);
            w.wake(greedy);
            w.run(9 * MS / 2);
        }
        audit(&mut w);
        let got = (w.task(greedy).used_ns - used_ns) as f64 / (5 * SECOND) as f64;
        assert!(got < due + 0.1, "it has {got:.3} and is due {due}");
    }
}

const FOREVER_NS: u64 = 100 * SECOND;

#[test]
fn a_new_vm_owes_nothing_of_one_that_had_its_number() {
    let mut w = xen(1);
    let cgroup = w.new_cgroup(0, 100);
    let vms = [w.new_vm(1), w.new_vm(1)];
    // It has entered KVM_RUN, and is known when it wakes.
    let new = w.spawn(Spec::busy().vcpu(vms[0], 0).cgroup(cgroup));
    w.sleep(new);
    vm_of(&mut w, 10_000, 1);
    let old = w.spawn(Spec::busy().vcpu(vms[1], 0).cgroup(cgroup));
    // It ends in debt, which a part of 1 % pays off in seconds.
    until_it_runs(&mut w, old);
    w.run(25 * MS);
    let number = w.peek_task(old).leaf;
    w.exit(old);
    w.run(200 * MS);
    assert_eq!(w.task(old).state, State::Dead, "test");
    w.wake(new);
    w.settle();
    assert_eq!(w.peek_task(new).leaf, number, "test: the number is to be taken again");
    assert!(w.is_running(new), "it is not boosted");
}

#[test]
fn an_idle_pcpu_takes_from_its_peers() {
    let mut w = xen(2);
    let all = vm_of(&mut w, 100, 2);
    let third = w.spawn(Spec::busy().on(&[0]));
    w.run(SECOND);
    // Whoever of the VM waited behind the pinned one runs on the other pCPU as soon as that has nobody.
    let on_1 = *all.iter().find(|id| w.is_running(**id) && w.task(**id).cpu == 1).unwrap();
    let waited = *all.iter().find(|id| **id != on_1).unwrap();
    w.sleep(on_1);
    w.settle();
    assert_eq!(w.cpus[1].curr, Some(waited));
    assert_work_conserving(&mut w);
    assert_eq!((w.cpus[0].curr, w.cpus[1].curr), (Some(third), Some(waited)));
}

#[test]
fn who_spins_yields_to_whoever_waits() {
    let mut w = xen(1);
    let (a, b) = (vm_of(&mut w, 100, 2), vm_of(&mut w, 100, 1));
    introduce(&mut w, &[a.clone(), b.clone()].concat());
    w.run(SECOND);
    for _ in 0..50 {
        let all = [a[0], a[1], b[0]];
        let spinner = the_running_one_spins(&mut w, &all);
        w.settle();
        assert!(!w.is_running(spinner));
        w.run(3 * MS);
    }
    assert_eq!(w.stats().boost_granted, 0);
}

#[test]
fn who_spins_alone_goes_on() {
    let mut w = xen(1);
    let vm = vm_of(&mut w, 100, 1);
    introduce(&mut w, &vm);
    let switches = w.stats().switches;
    for _ in 0..50 {
        the_running_one_spins(&mut w, &vm);
        w.run(MS);
    }
    assert_eq!(w.stats().switches, switches);
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn any_weights_hold(cpus in 1..5usize, weights in prop::collection::vec(50..400u32, 2..5)) {
        let mut w = xen(cpus);
        let vms: Vec<_> = weights.iter().map(|weight| vm_of(&mut w, *weight, cpus)).collect();
        let total: u32 = weights.iter().sum();
        for (got, weight) in of_host(&mut w, &vms).into_iter().zip(&weights) {
            let due = f64::from(*weight) / f64::from(total);
            prop_assert!((got - due).abs() <= 0.01, "{} of {}", got, due);
        }
    }
}

#[test]
fn who_spins_where_nobody_waits_goes_on_without_a_choice() {
    let mut w = xen(2);
    let vm = vm_of(&mut w, 100, 2);
    introduce(&mut w, &vm);
    w.run(5 * MS);
    w.set_guest_kernel(vm[0], true);
    let before = w.costs();
    for _ in 0..100 {
        assert!(w.is_running(vm[0]), "test");
        w.pause_exit(vm[0]);
    }
    assert_eq!(w.stats().ple, 100);
    assert_eq!(w.costs().since(&before).calls(OpKind::Dispatch), 0);
}
