// SPDX-License-Identifier: GPL-2.0-only
//! Order sedf: slices of periods by weight, earliest deadline first, extra time shared.

use proptest::prelude::*;

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::view::State;
use crate::world::{TaskId, World};

const SECOND: u64 = 1_000 * MS;
const PERIOD: u64 = 100 * MS;

fn xen(cpus: usize) -> World {
    let knobs = Knobs {
        placement: Some(knob::PLACEMENT_ANY),
        order: Some(knob::ORDER_SEDF),
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

/// One vCPU that does as the spec says, in a VM of that weight.
fn lone(w: &mut World, weight: u32, spec: Spec) -> TaskId {
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(1));
    w.spawn(spec.vcpu(vm, 0).cgroup(cgroup))
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
fn no_deadline_is_missed_below_full_load() {
    // Slices take up 95 of 100 ms, everybody wants all of its own and more, and periods begin at different times.
    for weights in [vec![100, 100], vec![100, 200, 400, 30], vec![50; 9]] {
        let mut w = xen(1);
        let mut all = Vec::new();
        for weight in &weights {
            all.push(vm_of(&mut w, *weight, 1)[0]);
            w.run(37 * MS);
        }
        w.run(3 * SECOND);
        let missed = w.stats().deadlines_missed;
        let total: u32 = weights.iter().sum();
        for _ in 0..50 {
            // Two periods have one whole period of each in them, whenever it begins.
            let got = used_in(&mut w, 2 * PERIOD, &all);
            for (got, weight) in got.into_iter().zip(&weights) {
                let slice_ns = 95 * MS * u64::from(*weight) / u64::from(total);
                assert!(got + MS / 10 >= slice_ns, "{got} ns of {slice_ns}, weights {weights:?}");
            }
        }
        assert_eq!(w.stats().deadlines_missed, missed, "weights {weights:?}");
    }
}

/// So many VMs of one vCPU, all in all wanting that part of the host, in 100 ms each less than its slice; each begins at another time. Returns the deadlines missed in ten seconds.
fn missed(cpus: usize, vms: u64, load: f64) -> u64 {
    let mut w = xen(cpus);
    let run_ns = (PERIOD as f64 * load * cpus as f64 / vms as f64) as u64;
    for _ in 0..vms {
        lone(&mut w, 100, Spec::cycle(run_ns, PERIOD - run_ns));
        w.run(17 * MS);
    }
    w.run(3 * SECOND);
    let before = w.stats().deadlines_missed;
    w.run(10 * SECOND);
    audit(&mut w);
    w.stats().deadlines_missed - before
}

#[test]
fn no_deadline_is_missed_below_full_load_on_several_pcpus() {
    for cpus in [2, 4] {
        for (per_cpu, load) in [(2, 0.5), (2, 0.7), (2, 0.9), (3, 0.7), (3, 0.9), (5, 0.9)] {
            let missed = missed(cpus, per_cpu * cpus as u64, load);
            println!(
                "{cpus} pCPUs, {per_cpu} VMs each, load {load}: {missed} deadlines missed of 100 for each VM"
            );
            assert_eq!(missed, 0, "{cpus} pCPUs, {per_cpu} VMs each, load {load}");
        }
    }
}

#[test]
fn who_wants_less_than_its_slice_has_it_by_the_deadline() {
    // A fourth of 95 ms is due to each; one wants 20 in each period, the others all they can get.
    let mut w = xen(1);
    let modest = lone(&mut w, 100, Spec::on_demand(20 * MS));
    for _ in 0..3 {
        vm_of(&mut w, 100, 1);
    }
    w.run(3 * SECOND);
    for round in 0..40 {
        // It has slept since it was done.
        assert_eq!(w.task(modest).state, State::Asleep, "round {round}");
        let before_ns = w.task(modest).used_ns;
        w.wake(modest);
        w.run(PERIOD);
        assert_eq!(w.task(modest).used_ns - before_ns, 20 * MS, "round {round}");
        w.run(7 * MS);
    }
}

#[test]
fn a_new_vm_has_no_slice_of_one_that_had_its_number() {
    let mut w = xen(1);
    let cgroup = w.new_cgroup(0, 100);
    let vms = [w.new_vm(1), w.new_vm(1)];
    // It has entered KVM_RUN, and is known when it wakes.
    let new = w.spawn(Spec::busy().vcpu(vms[0], 0).cgroup(cgroup));
    w.sleep(new);
    let old = w.spawn(Spec::busy().vcpu(vms[1], 0).cgroup(cgroup));
    vm_of(&mut w, 100, 1);
    w.run(3 * SECOND);
    let number = w.peek_task(old).leaf;
    w.exit(old);
    // Slices are divided twice a second: the busy one has all there is to give, from the last time on.
    w.run(1_020 * MS);
    assert_eq!(w.task(old).state, State::Dead, "test");
    let missed = w.stats().deadlines_missed;
    w.wake(new);
    w.run(470 * MS);
    assert_eq!(w.peek_task(new).leaf, number, "test: the number is to be taken again");
    assert_eq!(w.stats().deadlines_missed, missed, "two have slices of more than the pCPU together");
}

#[test]
fn to_sleep_takes_nobody_elses_time() {
    // It has used its slice by the end of its period, sleeps over that end, and wants another one at once; or it sleeps just before its slice is used up.
    for runs in [30 * MS, 23 * MS] {
        let mut w = xen(1);
        let sly = lone(&mut w, 100, Spec::cycle(runs, MS));
        let others: Vec<_> = (0..3).map(|_| vm_of(&mut w, 100, 1)[0]).collect();
        w.run(3 * SECOND);
        let missed = w.stats().deadlines_missed;
        let got = shares(&mut w, 10 * SECOND, &[sly, others[0], others[1], others[2]]);
        assert!(got[0] <= 0.26, "it gets {:.3}", got[0]);
        for other in &got[1..] {
            assert!(*other >= 0.245, "another gets {other:.3}");
        }
        assert_eq!(w.stats().deadlines_missed, missed);
    }
}

#[test]
fn who_sleeps_with_a_rest_does_not_carry_it_over() {
    // It wakes just before its period ends, with all of its slice left, which nobody else may pay for.
    let mut w = xen(1);
    let sly = lone(&mut w, 300, Spec::on_demand(10 * SECOND));
    let busy = vm_of(&mut w, 100, 1)[0];
    w.sleep(sly);
    w.run(3 * SECOND);
    let missed = w.stats().deadlines_missed;
    for _ in 0..30 {
        w.wake(sly);
        w.run(2 * MS);
        w.sleep(sly);
        w.run(83 * MS);
        w.wake(sly);
        w.run(60 * MS);
        w.sleep(sly);
        w.run(55 * MS);
    }
    assert_eq!(w.stats().deadlines_missed, missed);
    assert!(w.task(busy).wait_max_ns <= 2 * PERIOD);
}

#[test]
fn whose_period_ends_first_goes_first() {
    let mut w = xen(1);
    let vms = [100, 100].map(|weight| lone(&mut w, weight, Spec::on_demand(20 * MS)));
    let busy = vm_of(&mut w, 100, 1)[0];
    w.run(3 * SECOND);
    // Both begin a period now, one after the other, while somebody else has the pCPU.
    until_it_runs(&mut w, busy);
    w.wake(vms[0]);
    w.run(4 * MS);
    w.wake(vms[1]);
    w.settle();
    until_it_runs(&mut w, vms[0]);
    let before_ns = w.task(vms[1]).used_ns;
    while w.task(vms[0]).state == State::Runnable {
        assert_eq!(w.task(vms[1]).used_ns, before_ns, "the later one runs");
        w.run(MS / 2);
    }
    until_it_runs(&mut w, vms[1]);
}

#[test]
fn extra_time_is_shared_by_slices() {
    // Who is due a half sleeps for most of the time; what it leaves is divided one to two.
    let mut w = xen(1);
    let light = vec![lone(&mut w, 300, Spec::cycle(5 * MS, 95 * MS))];
    let vms = [light, vm_of(&mut w, 100, 1), vm_of(&mut w, 200, 1)];
    let got = of_host(&mut w, &vms);
    assert_near(got[0], 0.05, 0.01);
    assert_near(got[2] / got[1], 2.0, 0.06);
}

#[test]
fn a_cap_is_kept_and_its_rest_divided() {
    let mut w = xen(2);
    let (cgroup, vm) = (w.new_cgroup(0, 400), w.new_vm(2));
    let capped: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect();
    w.set_quota(cgroup, 100_000, 50_000, 0);
    let vms = [capped, vm_of(&mut w, 100, 2), vm_of(&mut w, 200, 2)];
    let got = of_host(&mut w, &vms);
    for (got, due) in got.into_iter().zip([0.25, 0.25, 0.5]) {
        assert_near(got, due, 0.02);
    }
}

#[test]
fn who_wakes_with_a_slice_takes_the_pcpu_from_extra_time() {
    let mut w = xen(1);
    let light = lone(&mut w, 100, Spec::on_demand(MS));
    let busy = vm_of(&mut w, 100, 1)[0];
    w.run(3 * SECOND);
    // Until slices are divided anew it has none.
    w.wake(light);
    w.run(SECOND);
    let mut at_once = 0;
    for round in 0..20 {
        w.run(131 * MS);
        // About half of the time the other one has used up its slice.
        w.wake(light);
        w.settle();
        at_once += u32::from(w.is_running(light));
        w.run(60 * MS);
        assert_eq!(w.task(light).state, State::Asleep, "round {round}");
    }
    assert!(at_once >= 6, "at once {at_once} times of 20");
    assert!(w.task(busy).wait_max_ns <= 10 * MS);
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn any_weights_hold_and_no_deadline_is_missed(weights in prop::collection::vec(50..400u32, 2..8)) {
        let mut w = xen(1);
        let vms: Vec<_> = weights.iter().map(|weight| vm_of(&mut w, *weight, 1)).collect();
        w.run(3 * SECOND);
        let missed = w.stats().deadlines_missed;
        let total: u32 = weights.iter().sum();
        for (got, weight) in of_host(&mut w, &vms).into_iter().zip(&weights) {
            let due = f64::from(*weight) / f64::from(total);
            prop_assert!((got - due).abs() <= 0.01, "{} of {}", got, due);
        }
        prop_assert_eq!(w.stats().deadlines_missed, missed);
    }
}
