// SPDX-License-Identifier: GPL-2.0-only
//! Gangs procco and cpuco: siblings forced onto pCPUs, led by a VM's vCPU 0 or by pCPU 0.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::view::State;
use crate::world::{TaskId, World};

fn forced(gang: u32) -> Knobs {
    Knobs { gang: Some(gang), boost: Some(0), ..Knobs::default() }
}

fn vms(w: &mut World, sizes: &[usize]) -> Vec<Vec<TaskId>> {
    let vms: Vec<Vec<TaskId>> = sizes.iter().map(|vcpus| busy_vm(w, *vcpus).1).collect();
    introduce(w, &vms.concat());
    vms
}

/// At each moment at which `leads` begins to run: do all its siblings run a moment later?
fn follow(
    w: &mut World,
    vms: &[Vec<TaskId>],
    leads: impl Fn(&World, TaskId) -> bool,
    steps: u32,
) -> (u32, u32) {
    let (mut starts, mut followed) = (0, 0);
    let mut before: Vec<TaskId> = Vec::new();
    for _ in 0..steps {
        w.run(MS / 4);
        let now: Vec<TaskId> = w.cpus.iter().filter_map(|cpu| cpu.curr).collect();
        let begins = |id: &TaskId| now.contains(id) && !before.contains(id) && leads(w, *id);
        if let Some(vm) = vms.iter().find(|vm| vm.iter().any(begins)) {
            w.settle();
            starts += 1;
            // Another may have begun in the meantime.
            followed += u32::from(vm.iter().all(|id| w.is_running(*id)));
        }
        before = now;
    }
    (starts, followed)
}

#[test]
fn procco_brings_the_siblings_of_vcpu_0() {
    let [off, procco] = [knob::GANG_OFF, knob::GANG_PROCCO].map(|gang| {
        let mut w = world_with(4, forced(gang));
        let vms = vms(&mut w, &[4, 4, 4]);
        let first: Vec<TaskId> = vms.iter().map(|vm| vm[0]).collect();
        let (starts, followed) = follow(&mut w, &vms, |_, id| first.contains(&id), 8_000);
        audit(&mut w);
        assert!(starts > 30, "{starts}: test");
        f64::from(followed) / f64::from(starts)
    });
    // Where turns end at one tick, some pCPUs have chosen somebody else before vCPU 0 gets its own.
    assert!(off < 0.15, "without a gang {off:.2} of the time: test");
    assert!(procco > 0.25, "{procco:.2} of the time, without a gang {off:.2}");
}

#[test]
fn cpuco_follows_pcpu_0() {
    let mut w = world_with(4, forced(knob::GANG_CPUCO));
    let vms = vms(&mut w, &[4, 4, 4]);
    let (starts, followed) = follow(&mut w, &vms, |w, id| w.cpus[0].curr == Some(id), 8_000);
    audit(&mut w);
    assert!(starts > 30, "{starts}: test");
    assert!(followed * 10 >= starts * 9, "{followed} of {starts}");
}

#[test]
fn cpuco_throws_out_who_works_when_pcpu_0_turns_to_another_vm() {
    let mut w = world_with(4, forced(knob::GANG_CPUCO));
    let vms = vms(&mut w, &[4, 4]);
    let leader = |w: &World| w.cpus[0].curr.filter(|id| vms[0].contains(id));
    while leader(&w).is_none() || !vms[0].iter().all(|id| w.is_running(*id)) {
        w.run(MS);
    }
    let leads = leader(&w).unwrap();
    w.sleep(leads);
    w.settle();
    assert!(vms[1].iter().all(|id| w.is_running(*id)), "all pCPUs follow pCPU 0");
}

/// VM a of four vCPUs, and VM b, which weighs a hundred times as much and computes on every pCPU. Each vCPU is bound to a pCPU of its own: a's number `first` to
/// pCPU 0. All of b run, all of a wait.
fn beside_a_heavy_vm(gang: u32, first: usize) -> (World, Vec<TaskId>, Vec<TaskId>) {
    let mut w = world_with(4, forced(gang));
    let cgroups = [100, 10_000].map(|weight| w.new_cgroup(0, weight));
    let [a, b] = cgroups.map(|cgroup| {
        let vm = w.new_vm(4);
        let on = |id| Spec::busy().vcpu(vm, id).cgroup(cgroup).on(&[(id + 4 - first) % 4]);
        (0..4).map(|id| w.spawn(on(id))).collect::<Vec<_>>()
    });
    introduce(&mut w, &[a.clone(), b.clone()].concat());
    w.run(300 * MS);
    while !b.iter().all(|id| w.is_running(*id)) {
        w.run(MS);
    }
    (w, a, b)
}

/// vCPU `first` of the light VM gets pCPU 0, because who had it sleeps. How many of its three siblings run a moment later?
fn siblings_that_follow(gang: u32, first: usize) -> usize {
    let (mut w, a, b) = beside_a_heavy_vm(gang, first);
    w.sleep(b[first]);
    w.settle();
    assert!(w.is_running(a[first]), "test");
    a.iter().filter(|id| w.is_running(**id)).count() - 1
}

/// Where turns of several pCPUs end together, who gets one for having waited too long may lose it in the same moment to whom another pCPU forces there. Then it
/// still waits since it did before.
#[test]
fn who_loses_its_pcpu_the_moment_it_gets_it_has_not_been_served() {
    let mut w = world_with(2, forced(knob::GANG_CPUCO));
    let (heavy, light) = (w.new_cgroup(0, 10_000), w.new_cgroup(0, 1));
    let vms = [w.new_vm(2), w.new_vm(1)];
    let a = [0, 1].map(|id| w.spawn(Spec::busy().vcpu(vms[0], id).cgroup(heavy).on(&[id])));
    let x = w.spawn(Spec::busy().vcpu(vms[1], 0).cgroup(light).on(&[1]));
    introduce(&mut w, &[a[0], a[1], x]);
    w.run(3_000 * MS);
    while !w.is_running(x) {
        w.run(MS / 20);
    }
    w.sleep(a[0]);
    w.wake(a[0]);
    w.settle();
    assert!(w.is_running(a[1]) && !w.is_running(x), "test: it was not forced off");
    let again = (0..40).any(|_| {
        w.run(MS / 2);
        w.is_running(x)
    });
    assert!(again, "it waits once more for as long as before");
}

/// Two vCPUs of a VM of that weight, each bound to a pCPU of its own.
fn bound_vm(w: &mut World, weight: u32) -> [TaskId; 2] {
    let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(2));
    [0, 1].map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup).on(&[id])))
}

#[test]
fn who_is_forced_is_not_kept_waiting_by_its_own_long_wait() {
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        let mut w = world_with(2, Knobs { slice_ns: Some(400 * MS), ..forced(gang) });
        let late = bound_vm(&mut w, 100);
        // A little more than those have had that come now: it does not take their pCPUs when it wakes, and is not ahead of its share either.
        w.run(7 * MS);
        late.iter().for_each(|id| w.sleep(*id));
        let first = bound_vm(&mut w, 10_000);
        w.run(7 * MS);
        late.iter().for_each(|id| w.wake(*id));
        // Longer than starve_ns, and their turn goes on.
        w.run(200 * MS);
        assert!(first.iter().all(|id| w.is_running(*id)), "test");
        let before = w.stats();
        w.sleep(first[0]);
        w.settle();
        assert!(late.iter().all(|id| w.is_running(*id)), "gang {gang}");
        let now = w.stats();
        let asked = (now.boost_granted - before.boost_granted, now.boost_missed - before.boost_missed);
        assert_eq!(asked, (1, 0), "gang {gang}: granted and missed");
    }
}

#[test]
fn the_leader_is_not_forced_onto_a_siblings_pcpu() {
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        // Nobody goes first for having waited.
        let mut w = world_with(2, Knobs { starve_ns: Some(10_000 * MS), ..forced(gang) });
        let (cgroup, vm) = (w.new_cgroup(0, 100), w.new_vm(2));
        let leads = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(cgroup));
        let follows = w.spawn(Spec::busy().vcpu(vm, 1).cgroup(cgroup).on(&[1]));
        let heavy = bound_vm(&mut w, 10_000);
        introduce(&mut w, &[leads, follows, heavy[0], heavy[1]]);
        w.run(300 * MS);
        while !heavy.iter().all(|id| w.is_running(*id)) {
            w.run(MS);
        }
        w.sleep(heavy[0]);
        w.settle();
        assert!(w.is_running(leads) && w.task(leads).cpu == 0, "test");
        assert!(w.is_running(follows), "gang {gang}: its pCPU is asked to run the leader");
    }
}

#[test]
fn every_sibling_that_waits_is_forced_when_the_leader_is_scheduled() {
    for first in 0..4 {
        assert_eq!(siblings_that_follow(knob::GANG_OFF, first), 0, "without a gang: test");
        assert_eq!(
            siblings_that_follow(knob::GANG_PROCCO, first),
            if first == 0 { 3 } else { 0 },
            "vCPU {first}"
        );
        assert_eq!(siblings_that_follow(knob::GANG_CPUCO, first), 3, "vCPU {first}");
    }
}

#[test]
fn who_was_thrown_out_is_kept_off_until_the_turn_ends() {
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        let (mut w, a, b) = beside_a_heavy_vm(gang, 0);
        w.sleep(b[0]);
        // Once the leader sleeps nobody is forced anew; the turn goes on for a slice, 16 ms.
        w.run(2 * MS);
        w.sleep(a[0]);
        w.run(11 * MS);
        assert!(a[1..].iter().all(|id| w.is_running(*id)), "gang {gang}: after 13 ms");
        w.run(8 * MS);
        assert!(b[1..].iter().all(|id| w.is_running(*id)), "gang {gang}: after 21 ms");
    }
}

/// The last of a sleeps, b has its turn, and its first has just gone to sleep.
fn until_b_has_its_turn(w: &mut World, a: &[TaskId], b: &[TaskId]) {
    // It sleeps as soon as it runs.
    w.sleep(a[3]);
    while w.task(a[3]).state != State::Asleep {
        w.run(MS);
    }
    while !b.iter().all(|id| w.is_running(*id)) {
        w.run(MS);
    }
    w.sleep(b[0]);
}

#[test]
fn who_wakes_in_the_turn_of_pcpu_0s_vm_is_forced_as_well() {
    for (gang, runs) in [(knob::GANG_OFF, false), (knob::GANG_PROCCO, false), (knob::GANG_CPUCO, true)] {
        let (mut w, a, b) = beside_a_heavy_vm(gang, 0);
        until_b_has_its_turn(&mut w, &a, &b);
        w.run(MS);
        assert!(w.is_running(a[0]) && !w.is_running(a[3]), "test");
        w.wake(a[3]);
        w.settle();
        assert_eq!(w.is_running(a[3]), runs, "gang {gang}");
    }
}

#[test]
fn host_tasks_do_not_starve() {
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        let mut w = world_with(2, forced(gang));
        vms(&mut w, &[2, 2, 2, 2]);
        let hosts = [0, 1].map(|cpu| w.spawn(Spec::busy().on(&[cpu])));
        let light = w.spawn(Spec::cycle(200_000, 30 * MS).on(&[1]));
        w.run(10_000 * MS);
        audit(&mut w);
        // A vCPU that is ahead of its share runs after a second at the latest; then a slice of each of the others.
        for id in 0..w.tasks.len() {
            let longest_ms = w.task(TaskId(id)).wait_max_ns / MS;
            assert!(longest_ms < 1_500, "gang {gang}: task {id} waited for {longest_ms} ms");
        }
        for id in [hosts[0], hosts[1], light] {
            let longest_ms = w.task(id).wait_max_ns / MS;
            assert!(longest_ms < 400, "gang {gang}: host task {id:?} waited for {longest_ms} ms");
        }
    }
}

#[test]
fn siblings_bound_to_one_pcpu_take_turns_of_a_slice() {
    // The leader's own pCPU is nobody's to be forced onto: they would throw out one another without end.
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        let mut w = world_with(2, forced(gang));
        let vm = w.new_vm(2);
        let vcpus: Vec<TaskId> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[0]))).collect();
        introduce(&mut w, &vcpus);
        let before = w.stats().switches;
        for slice in 1..=100 {
            w.run(16 * MS);
            let switches = w.stats().switches - before;
            assert!(switches <= slice + 10, "gang {gang}: {switches} switches in {slice} slices");
        }
        audit(&mut w);
    }
}

#[test]
fn the_leader_keeps_its_pcpu_until_the_turn_ends() {
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        let (mut w, a, b) = beside_a_heavy_vm(gang, 0);
        w.sleep(b[0]);
        w.run(2 * MS);
        assert!(w.is_running(a[0]), "test");
        // It deserves the pCPU far more.
        w.wake(b[0]);
        w.run(11 * MS);
        assert!(w.is_running(a[0]), "gang {gang}: after 13 ms");
        w.run(8 * MS);
        assert!(w.is_running(b[0]), "gang {gang}: after 21 ms");
    }
}

#[test]
fn who_wakes_late_in_a_turn_is_forced_for_the_rest_of_it() {
    let (mut w, a, b) = beside_a_heavy_vm(knob::GANG_CPUCO, 0);
    until_b_has_its_turn(&mut w, &a, &b);
    w.run(10 * MS);
    w.wake(a[3]);
    w.settle();
    assert!(w.is_running(a[0]) && w.is_running(a[3]), "test");
    // Then nobody leads.
    w.sleep(a[0]);
    w.run(11 * MS);
    assert!(b[1..].iter().all(|id| w.is_running(*id)), "after 21 ms");
}

#[test]
fn who_has_waited_for_long_is_kept_off_by_no_turn() {
    for gang in [knob::GANG_PROCCO, knob::GANG_CPUCO] {
        // Nobody of its VM can lead.
        let (mut w, a, _) = beside_a_heavy_vm(gang, 0);
        for id in [a[0], a[1], a[3]] {
            w.sleep(id);
        }
        // Its VM is due a hundredth of four pCPUs, and a vCPU that has waited for 100 ms goes first.
        let used = used_in(&mut w, 10_000 * MS, &a[2..3])[0];
        assert!(used > 200 * MS, "gang {gang}: it got {} ms of 10 s", used / MS);
    }
}
