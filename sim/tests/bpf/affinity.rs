// SPDX-License-Identifier: GPL-2.0-only
//! Affinities that overlap in part, where who deserves a pCPU most, or cannot use the one that idles, gets it by way of others (`make_way.h`). Found by the survey of
//! random trees; of each the smallest.

use crate::maxmin::{settled, Levels};
use crate::partition::{Cgroup, Mask, Partition, Task, Vm};

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

#[track_caller]
fn fair(partition: &Partition) {
    settled(partition, Levels::All).expect("everybody has its share");
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
