// SPDX-License-Identifier: GPL-2.0-only
//! Affinities that overlap in part, where who deserves a pCPU most, or cannot use the one that idles, gets it by way of others (`make_way.h`). Found by the survey of
//! random trees; of each the smallest.

use crate::common::*;
use crate::maxmin::all_settled as fair;
use crate::partition::{Cgroup, Mask, Partition, Task, Vm};
use crate::spec::Spec;

fn cgroup(parent: usize, weight: u32) -> Cgroup {
    Cgroup { parent, weight, quota: None }
}

/// 0: anywhere.
fn vm(cgroup: usize, vcpus: &[Mask]) -> Vm {
    Vm { cgroup, vcpus: vcpus.to_vec() }
}

fn task(cgroup: usize, weight: u32, mask: Mask) -> Task {
    Task { cgroup, weight, mask }
}

#[test]
fn as_many_threads_as_pcpus_have_one_each() {
    // The vCPU that may run on 0, 1 and 4 goes to 1, if one that may run anywhere leaves it for an idle pCPU.
    fair(&Partition {
        pcpus: 5,
        cgroups: vec![cgroup(0, 1000)],
        vms: vec![vm(1, &[0b1_0011, 0b1, 0, 0]), vm(0, &[0b1_0000])],
        tasks: vec![],
    });
}

#[test]
fn fewer_threads_than_pcpus_have_one_each() {
    fair(&Partition {
        pcpus: 6,
        cgroups: vec![],
        vms: vec![vm(0, &[0b10_1010]), vm(0, &[0b10_0010, 0]), vm(0, &[0b100])],
        tasks: vec![task(0, 100, 0b10_0000)],
    });
}

#[test]
fn a_light_task_has_the_pcpu_that_nobody_needs() {
    fair(&Partition {
        pcpus: 6,
        cgroups: vec![],
        vms: vec![vm(0, &[0b11_0001; 3])],
        tasks: vec![task(0, 100, 0), task(0, 100, 0b11_1010), task(0, 1, 0b01_1000)],
    });
}

#[test]
fn siblings_have_pcpus_of_their_own() {
    fair(&Partition {
        pcpus: 6,
        cgroups: vec![cgroup(0, 100), cgroup(1, 267), cgroup(1, 270)],
        vms: vec![vm(2, &[0b01_1011]), vm(0, &[0b1011; 3])],
        tasks: vec![task(3, 100, 0b11_0000)],
    });
}

#[test]
fn a_pinned_task_has_its_part_of_a_cgroup_that_runs_elsewhere() {
    // On its pCPU runs one that is due a whole one, and may go everywhere but where the cgroup's VM runs.
    fair(&Partition {
        pcpus: 6,
        cgroups: vec![cgroup(0, 1), cgroup(0, 100), cgroup(2, 100)],
        vms: vec![vm(1, &[0]), vm(2, &[0, 0, 0, 0b11_1110])],
        tasks: vec![task(2, 100, 0), task(1, 64, 0b1_0000)],
    });
}

#[test]
fn who_may_go_everywhere_goes_where_somebody_has_too_much() {
    // Of those that take turns on two pCPUs only one could use what is left if he goes; the more they are, the seldomer he is the one that waits just then.
    for others in [2, 4] {
        fair(&Partition {
            pcpus: 5,
            cgroups: vec![cgroup(0, 100), cgroup(1, 60)],
            vms: vec![vm(2, &[0b1_0110; 2]), vm(1, &vec![0b1_0001; others]), vm(1, &[0, 0b1001])],
            tasks: vec![],
        });
    }
}

#[test]
fn nobody_makes_room_where_others_come_first() {
    // The cgroup's task deserves a whole pCPU. Two siblings in a VM beside it would have its turns, each in the other's place.
    fair(&Partition {
        pcpus: 5,
        cgroups: vec![cgroup(0, 100)],
        vms: vec![vm(0, &[0, 0, 0]), vm(1, &[0, 0b110, 0b1011, 0b1])],
        tasks: vec![task(0, 72, 0), task(1, 100, 0b1_1101)],
    });
}

#[test]
fn a_light_task_has_no_part_of_what_is_left_to_those_that_run_elsewhere() {
    // The cgroup's VM has a pCPU for each vCPU, nearly, and leaves the third to the other VM. The light task may use the pinned vCPU's only.
    fair(&Partition {
        pcpus: 3,
        cgroups: vec![cgroup(0, 2123)],
        vms: vec![vm(1, &[0, 0b1]), vm(0, &[0])],
        tasks: vec![task(0, 14, 0b1)],
    });
}

#[test]
fn a_neighbour_takes_its_turn_from_who_has_too_much() {
    // On pCPU 4 it would be the pinned vCPU's, which is due all of it; the other VM of that cgroup has two pCPUs.
    fair(&Partition {
        pcpus: 5,
        cgroups: vec![cgroup(0, 562), cgroup(1, 100)],
        vms: vec![vm(0, &[0b1010; 2]), vm(1, &[0b11; 2]), vm(1, &[0b1_0000])],
        tasks: vec![task(0, 100, 0b1_0010)],
    });
}

#[test]
fn a_neighbour_takes_its_turn_from_a_pinned_task_in_time() {
    fair(&Partition {
        pcpus: 4,
        cgroups: vec![cgroup(0, 100)],
        vms: vec![vm(0, &[0, 0, 0, 0b1]), vm(0, &[0, 0])],
        tasks: vec![task(1, 238, 0), task(1, 100, 0b10)],
    });
}

#[test]
fn who_is_on_the_way_to_a_place_is_not_taken_elsewhere() {
    // The last task comes before the cgroup everywhere, and moves so that the other two, which may not go everywhere, have their turns. To pCPU 1 a vCPU is
    // pinned that is due all of it.
    fair(&Partition {
        pcpus: 3,
        cgroups: vec![cgroup(0, 100)],
        vms: vec![vm(1, &[0, 0, 0]), vm(0, &[0b10])],
        tasks: vec![task(1, 100, 0b110), task(1, 17, 0b11), task(0, 107, 0)],
    });
}

/// On pCPU 12 of 24 one that may run everywhere keeps another from running who may run there alone, and `idle` loses its only task.
fn on_two_of_many(idle: usize) {
    let mut w = world(24);
    let hogs: Vec<_> =
        (0..24).filter(|cpu| *cpu != 12).map(|cpu| (cpu, w.spawn(Spec::busy().on(&[cpu])))).collect();
    let runner = w.spawn(Spec::busy().weight(10_000).on(&[12]));
    w.run(MS);
    let waiter = w.spawn(Spec::busy().weight(1).on(&[12]));
    w.run(MS);
    w.set_affinity(runner, &(0..24).collect::<Vec<_>>());
    w.run(48 * MS);
    assert!(w.is_running(runner) && w.task(runner).cpu == 12);
    for (_, hog) in hogs.iter().filter(|(cpu, _)| *cpu == idle) {
        w.exit(*hog);
    }
    w.run(20 * MS);
    let used = used_in(&mut w, 40 * MS, &[runner, waiter]);
    assert!(used.iter().all(|ns| *ns > 38 * MS), "{used:?} with {idle}");
    audit(&mut w);
}

#[test]
fn who_keeps_another_from_running_goes_to_an_idle_pcpu_near() {
    // pCPU 12 is among those near 6, and 6 not among those near 12; with 14 it is the other way round.
    [6, 14].into_iter().for_each(on_two_of_many);
}

#[test]
fn who_keeps_another_from_running_goes_to_an_idle_pcpu_wherever_that_is() {
    [0, 2].into_iter().for_each(on_two_of_many);
}

#[test]
fn an_idle_pcpu_moves_nobody_for_whose_pcpu_nobody_waits() {
    let mut w = world(2);
    let hog = w.spawn(Spec::busy().on(&[0]));
    let second = w.spawn(Spec::busy().on(&[0]));
    w.run(100 * MS);
    // It has waited in a queue, which may keep its mark until its pCPU chooses anew.
    w.exit(second);
    w.set_affinity(hog, &[0, 1]);
    w.spawn(Spec::cycle(100_000, 100_000));
    w.run(100 * MS);
    let (mut moves, mut cpu) = (0, w.task(hog).cpu);
    for _ in 0..4_000 {
        w.run(50_000);
        let now = w.task(hog).cpu;
        moves += u32::from(now != cpu);
        cpu = now;
    }
    assert!(moves <= 4, "{moves} moves in 200 ms");
    audit(&mut w);
}
