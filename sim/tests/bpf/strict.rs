// SPDX-License-Identifier: GPL-2.0-only
//! Gang strict: all of a VM's vCPUs that do not sleep run, or none.

use crate::common::*;
use crate::spec::{knob, Config, Knobs, Spec};
use crate::together::watch;
use crate::view::State;
use crate::world::{TaskId, World};

fn strict() -> Knobs {
    Knobs { gang: Some(knob::GANG_STRICT), boost: Some(0), ..Knobs::default() }
}

fn vms(w: &mut World, sizes: &[usize]) -> Vec<Vec<TaskId>> {
    let vms: Vec<Vec<TaskId>> = sizes.iter().map(|vcpus| busy_vm(w, *vcpus).1).collect();
    introduce(w, &vms.concat());
    w.run(200 * MS);
    vms
}

/// All are told to start or stop at one moment, and do when the interrupt arrives; a vCPU that was stopped in the same moment takes one more, and one that has to
/// move for it another. Without being called it would be a period of 1 ms.
fn torn_bound_ns(w: &World) -> u64 {
    3 * w.config.ipi_ns
}

#[test]
fn no_part_of_a_gang_runs() {
    for (cpus, sizes) in [(2, &[2, 2][..]), (4, &[4, 2, 2]), (4, &[3, 3, 1]), (8, &[8, 5, 3, 2, 1])] {
        let mut w = world_with(cpus, strict());
        let vms = vms(&mut w, sizes);
        let watched = watch(&mut w, &vms.iter().map(Vec::as_slice).collect::<Vec<_>>());
        w.run(3_000 * MS);
        audit(&mut w);
        for (vm, seen) in watched.seen(&w).iter().enumerate() {
            assert!(seen.longest_torn_ns <= torn_bound_ns(&w), "{sizes:?} on {cpus}, VM {vm}: {seen:?}");
            assert!(seen.ran_ns > 300 * MS, "{sizes:?} on {cpus}, VM {vm}: {seen:?}");
        }
    }
}

#[test]
fn no_part_of_a_gang_runs_while_vcpus_halt_and_wake() {
    // Many rhythms: now and then a vCPU has to move in the moment in which it is stopped.
    for k in 0..40 {
        let mut w = world_with(4, strict());
        let mut all = Vec::new();
        let vms = [(4, 3_100 + 61 * k, 1_700 + 13 * k), (2, 900 + 17 * k, 450 + 7 * k), (3, 40_000, 9_000)];
        for (vcpus, run_us, sleep_us) in vms {
            let vm = w.new_vm(vcpus);
            let cycle = |id: u64| Spec::cycle((run_us + 37 * id) * 1_000, (sleep_us + 91 * id) * 1_000);
            all.push((0..vcpus).map(|id| w.spawn(cycle(id as u64).vcpu(vm, id))).collect::<Vec<_>>());
        }
        introduce(&mut w, &all.concat());
        w.run(300 * MS);
        let watched = watch(&mut w, &all.iter().map(Vec::as_slice).collect::<Vec<_>>());
        w.run(4_000 * MS);
        audit(&mut w);
        for (vm, seen) in watched.seen(&w).iter().enumerate() {
            assert!(seen.longest_torn_ns <= torn_bound_ns(&w), "rhythm {k}, VM {vm}: {seen:?}");
            assert!(seen.ran_ns > 500 * MS, "rhythm {k}, VM {vm}: {seen:?}");
        }
    }
}

#[test]
fn idle_vcpus_hold_no_pcpu() {
    let mut w = world_with(2, strict());
    let vms = vms(&mut w, &[2, 2]);
    w.sleep(vms[0][1]);
    w.sleep(vms[1][0]);
    w.run(100 * MS);
    // One of each is left, and there is a pCPU for each.
    let shares = shares(&mut w, 2_000 * MS, &[vms[0][0], vms[1][1]]);
    assert_near(shares[0], 1.0, 1e-3);
    assert_near(shares[1], 1.0, 1e-3);
}

#[test]
fn who_halts_makes_room_at_once() {
    let mut w = world_with(2, strict());
    let vms = vms(&mut w, &[1, 1, 1]);
    w.sleep(vms[2][0]);
    w.run(100 * MS);
    for round in 0..20 {
        // One of two that take turns on what the third leaves.
        let (goes, comes) = (vms[1 + round % 2][0], vms[2 - round % 2][0]);
        w.run(3 * MS + 100_000 * round as u64);
        assert!(w.is_running(vms[0][0]) && w.is_running(goes));
        w.sleep(goes);
        w.wake(comes);
        w.settle();
        assert!(w.is_running(comes), "round {round}");
    }
}

#[test]
fn who_wakes_in_its_vms_turn_runs_at_once() {
    let mut w = world_with(2, strict());
    let vms = vms(&mut w, &[2, 2]);
    let mut tried = 0;
    for _ in 0..20 {
        until_it_runs(&mut w, vms[0][0]);
        w.sleep(vms[0][1]);
        w.run(MS / 2);
        if !w.is_running(vms[0][0]) {
            continue;
        }
        w.wake(vms[0][1]);
        w.settle();
        assert!(w.is_running(vms[0][0]) && w.is_running(vms[0][1]));
        tried += 1;
        w.run(17 * MS);
    }
    assert!(tried > 5, "{tried}: test");
}

#[test]
fn shares_are_by_weight() {
    let mut w = world_with(4, strict());
    let mut all = Vec::new();
    for weight in [100, 300] {
        let (cgroup, vm) = (w.new_cgroup(0, weight), w.new_vm(4));
        all.push((0..4).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect::<Vec<_>>());
    }
    introduce(&mut w, &all.concat());
    w.run(1_000 * MS);
    let shares = shares(&mut w, 20_000 * MS, &all.concat());
    assert_near(shares[..4].iter().sum::<f64>() / 4.0, 0.25, 0.01);
    assert_near(shares[4..].iter().sum::<f64>() / 4.0, 0.75, 0.01);
}

#[test]
fn vms_of_one_size_share_equally() {
    for (cpus, sizes) in [(2, vec![2; 2]), (4, vec![4; 3]), (8, vec![4; 5]), (8, vec![3; 5])] {
        let mut w = world_with(cpus, strict());
        let vms = vms(&mut w, &sizes);
        w.run(1_000 * MS);
        let used = used_in(&mut w, 10_000 * MS, &vms.concat());
        let all: u64 = used.iter().sum();
        for vm in used.chunks(sizes[0]) {
            let part = vm.iter().sum::<u64>() as f64 / all as f64 * sizes.len() as f64;
            assert_near(part, 1.0, 0.01);
        }
    }
}

#[test]
fn a_large_vm_is_not_kept_waiting_by_small_ones() {
    let mut w = world_with(4, strict());
    let vms = vms(&mut w, &[4, 1, 1, 1, 1, 1, 1]);
    let watched = watch(&mut w, &[&vms[0]]);
    w.run(5_000 * MS);
    let seen = watched.seen(&w)[0];
    // Seven VMs that are entitled to the same, of which it needs all four pCPUs for that.
    assert!(seen.longest_wait_ns < 250 * MS, "{seen:?}");
}

#[test]
fn host_tasks_get_their_share() {
    let mut w = world_with(2, strict());
    let vms = vms(&mut w, &[2]);
    let host = [w.spawn(Spec::busy().on(&[0])), w.spawn(Spec::busy().on(&[1]))];
    w.run(1_000 * MS);
    let shares = shares(&mut w, 10_000 * MS, &[vms[0][0], vms[0][1], host[0], host[1]]);
    // Three that compete: the VM, and two tasks.
    assert_near(shares[0] + shares[1], 2.0 / 3.0, 0.03);
    assert_near(shares[2], 2.0 / 3.0, 0.03);
    assert_near(shares[3], 2.0 / 3.0, 0.03);
}

#[test]
fn a_wide_vm_that_finds_no_seat_does_not_wait_for_ever() {
    // A thread of its VMM uses all that the VM is due, so that its vCPUs never deserve the pCPU.
    let knobs = Knobs { order: Some(knob::ORDER_CREDIT), slice_ns: Some(MS), ..strict() };
    let mut w = world_with(1, knobs);
    w.spawn(Spec::cycle(2_722_000, 4_675_000).weight(53));
    w.spawn(Spec::busy().weight(976));
    let (vm, vcpus) = busy_vm(&mut w, 4);
    let tgid = w.vm_tgid(vm);
    w.spawn(Spec::cycle(300_000, 900_000).thread_of(tgid));
    w.run(12_000 * MS);
    // Overdue after ten times starve_ns. Who waits speaks for the VM, so one may have to wait for a sibling's time to come.
    let waits_ns = |id: &TaskId| {
        let task = w.task(*id);
        task.wait_max_ns.max(if task.queue.is_some() { w.now_ns - task.waits_since_ns } else { 0 })
    };
    let longest: Vec<u64> = vcpus.iter().map(|id| waits_ns(id) / MS).collect();
    assert!(longest.iter().all(|ms| *ms < 2_200), "{longest:?} ms");
    audit(&mut w);
}

#[test]
fn a_wide_vm_runs_in_parts_that_change() {
    let mut w = world_with(2, strict());
    let (_, wide) = busy_vm(&mut w, 5);
    let (_, other) = busy_vm(&mut w, 2);
    introduce(&mut w, &[wide.clone(), other.clone()].concat());
    w.run(1_000 * MS);
    let shares = shares(&mut w, 10_000 * MS, &[wide, other].concat());
    for part in &shares[..5] {
        assert_near(*part, 0.2, 0.01);
    }
    assert_near(shares[5], 0.5, 0.01);
}

#[test]
fn a_vm_with_the_number_of_a_wide_one_runs_whole() {
    let mut w = world_with(3, strict());
    // Heavy, and so always first: the wide one has the third pCPU, whenever that is.
    let (cgroup, heavy, wide) = (w.new_cgroup(0, 1_000), w.new_vm(2), w.new_vm(4));
    let mut all: Vec<TaskId> =
        (0..2).map(|id| w.spawn(Spec::busy().vcpu(heavy, id).cgroup(cgroup))).collect();
    let parts: Vec<TaskId> = (0..4).map(|id| w.spawn(Spec::busy().vcpu(wide, id))).collect();
    all.extend(&parts);
    introduce(&mut w, &all);
    let watched = watch(&mut w, &[&parts]);
    w.run(1_000 * MS);
    assert!(watched.seen(&w)[0].longest_torn_ns > 10 * MS, "test: it is to run in parts");
    let number = w.slot_of(wide).unwrap();
    parts.iter().for_each(|id| w.exit(*id));
    w.run(500 * MS);
    assert_eq!(w.peek_vm(number).kvm, 0, "test: it is to be gone");
    // Those of the next one sleep before any tick has found them, and are known when they wake.
    let tick_ns = w.config.tick_ns;
    w.run(tick_ns - w.sim_ns() % tick_ns + MS / 10);
    let (vm, vcpus) = busy_vm(&mut w, 2);
    w.settle();
    vcpus.iter().for_each(|id| w.sleep(*id));
    w.run(MS);
    assert!(vcpus.iter().all(|id| w.task(*id).state == State::Asleep), "test: they are to sleep");
    let watched = watch(&mut w, &[&vcpus]);
    vcpus.iter().for_each(|id| w.wake(*id));
    assert_eq!(w.slot_of(vm), Some(number), "test: it is to have the other one's number");
    w.run(1_000 * MS);
    audit(&mut w);
    let seen = watched.seen(&w)[0];
    assert!(seen.longest_torn_ns <= torn_bound_ns(&w), "{seen:?}");
    assert!(seen.ran_ns > 20 * MS, "{seen:?}");
}

#[test]
fn pinned_siblings_take_turns() {
    let mut w = world_with(4, strict());
    let vm = w.new_vm(3);
    let vcpus: Vec<TaskId> = (0..3).map(|id| w.spawn(Spec::busy().on(&[1]).vcpu(vm, id))).collect();
    introduce(&mut w, &vcpus);
    w.run(500 * MS);
    for share in shares(&mut w, 6_000 * MS, &vcpus) {
        assert_near(share, 1.0 / 3.0, 0.01);
    }
}

#[test]
fn a_gang_leaves_a_pcpu_that_a_real_time_task_takes() {
    let mut w = world_with(3, strict());
    let vms = vms(&mut w, &[2]);
    let taken = (0..3).find(|cpu| w.cpus[*cpu].curr == Some(vms[0][1])).unwrap();
    w.rt_takes(taken);
    w.run(3 * MS);
    assert!(w.is_running(vms[0][0]) && w.is_running(vms[0][1]));
    w.rt_leaves(taken);
    w.run(3 * MS);
    assert!(w.is_running(vms[0][0]) && w.is_running(vms[0][1]));
}

#[test]
fn who_waits_for_a_kernel_thread_keeps_its_seat_when_its_affinity_is_set() {
    let mut w = world_with(2, strict());
    let kthread = w.spawn(Spec::on_demand(MS / 2).kthread().on(&[1]));
    w.run(10 * MS);
    let vm = w.new_vm(2);
    let vcpus = [0, 1].map(|id| w.spawn(Spec::busy().vcpu(vm, id).on(&[id])));
    introduce(&mut w, &vcpus);
    // Between two periods, and no tick is near.
    w.run(200 * MS + MS / 4);
    let before = w.stats().gang_stops;
    w.wake(kthread);
    w.settle();
    assert!(w.is_running(vcpus[0]) && !w.is_running(vcpus[1]), "test");
    w.set_affinity(vcpus[1], &[1]);
    w.settle();
    assert!(w.is_running(vcpus[0]), "its VM's turn is over");
    assert_eq!(w.stats().gang_stops, before);
}

#[test]
fn clocks_that_disagree_tear_no_gang() {
    let skew_ns = vec![0, 300_000, -200_000, 700_000];
    let mut w = World::new(Config { knobs: strict(), skew_ns, ..Config::cpus(4) });
    let vms = vms(&mut w, &[4, 2, 2]);
    let watched = watch(&mut w, &vms.iter().map(Vec::as_slice).collect::<Vec<_>>());
    w.run(2_000 * MS);
    for seen in watched.seen(&w) {
        assert!(seen.longest_torn_ns <= torn_bound_ns(&w), "{seen:?}");
        assert!(seen.ran_ns > 100 * MS, "{seen:?}");
    }
}

#[test]
fn a_sibling_that_takes_over_a_seat_starts_with_the_turn() {
    const TURN_NS: u64 = 10 * MS;
    let mut w = world_with(2, Knobs { slice_ns: Some(TURN_NS), ..strict() });
    let vms = vms(&mut w, &[2, 2]);
    // The later one of its VM, so that it does not choose first anyway.
    let (other, pinned) = (vms[0][0], vms[0][1]);
    while w.is_running(pinned) {
        w.run(5_000);
    }
    while !w.is_running(pinned) {
        w.run(5_000);
    }
    let mut turn_ns = w.now_ns;
    vms[1].iter().for_each(|id| w.sleep(*id));
    for round in 0..10 {
        // Too late in the turn for anybody to have noticed that it waits.
        turn_ns += 10 * TURN_NS;
        w.run(turn_ns - MS / 3 - w.now_ns);
        assert!(w.is_running(other) && w.is_running(pinned), "round {round}");
        let to = w.task(other).cpu;
        w.set_affinity(pinned, &[to]);
        w.run(turn_ns + torn_bound_ns(&w) - w.now_ns);
        assert!(w.is_running(other) && w.is_running(pinned), "round {round}");
        assert_eq!(w.task(pinned).cpu, to);
    }
}
