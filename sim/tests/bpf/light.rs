// SPDX-License-Identifier: GPL-2.0-only
//! Light ones beside heavy ones in one cgroup, where a heavy one is due a whole pCPU and the cgroup little more: what is left goes to the light one, and it
//! does not stop the heavy one for that.

use crate::common::MS;
use crate::maxmin::{all_settled, Shared, SETTLE_NS};
use crate::partition::{Cgroup, Partition, Task, Vm};

fn cgroup(parent: usize, weight: u32) -> Cgroup {
    Cgroup { parent, weight, quota: None }
}

fn vm(cgroup: usize, vcpus: usize) -> Vm {
    Vm { cgroup, vcpus: vec![0; vcpus] }
}

fn task(cgroup: usize, weight: u32) -> Task {
    Task { cgroup, weight, mask: 0 }
}

#[test]
fn a_light_vm_does_not_stop_a_heavy_task() {
    let partition = Partition {
        pcpus: 2,
        cgroups: vec![cgroup(0, 550)],
        vms: vec![vm(1, 1), vm(0, 4)],
        tasks: vec![task(0, 100), task(1, 519)],
    };
    all_settled(&partition);
}

#[test]
fn a_light_cgroup_does_not_stop_a_heavy_task() {
    let partition = Partition {
        pcpus: 2,
        cgroups: vec![cgroup(0, 100), cgroup(0, 327), cgroup(1, 485)],
        vms: vec![vm(1, 2), vm(0, 2)],
        tasks: vec![task(3, 100), task(2, 868), task(2, 5128)],
    };
    all_settled(&partition);
}

#[test]
fn who_may_take_a_light_ones_place_does_not_take_a_heavy_ones() {
    // All in one cpuset of a larger host. When a vCPU waits where the heavy task runs, that must not go to the light one's pCPU and leave its own to it.
    let on = |cgroup, weight| Task { cgroup, weight, mask: 3 };
    let partition = Partition {
        pcpus: 4,
        cgroups: vec![cgroup(0, 394)],
        vms: vec![Vm { cgroup: 0, vcpus: vec![3, 3] }],
        tasks: vec![on(1, 100), on(1, 1)],
    };
    all_settled(&partition);
}

#[test]
fn the_limit_on_waiting_takes_moments_from_a_heavy_task() {
    let partition = Partition {
        pcpus: 2,
        cgroups: vec![cgroup(0, 150)],
        vms: vec![vm(0, 3), vm(1, 4)],
        tasks: vec![task(0, 1), task(1, 428)],
    };
    // The default turns, and the default limit: each of the light VM's vCPUs reaches it.
    let mut shared = Shared::timed(&partition, 16 * MS, 100 * MS);
    shared.world.run(SETTLE_NS);
    let (nodes, due, gets) = shared.measure();
    let heavy = *nodes.threads.last().expect("a task");
    assert!(gets[heavy] > 0.97 * due[heavy], "{:.4} of {:.4}", gets[heavy], due[heavy]);
}

#[test]
fn of_many_that_are_ahead_of_their_share_each_has_a_moment() {
    // A turn of any of its vCPUs is more than the light VM is due in a second, and after one second each has waited for too long.
    let partition = Partition {
        pcpus: 1,
        cgroups: vec![cgroup(0, 1)],
        vms: vec![vm(1, 8)],
        tasks: vec![task(0, 10_000)],
    };
    let mut shared = Shared::timed(&partition, 16 * MS, 100 * MS);
    shared.world.run(SETTLE_NS);
    let (nodes, _, gets) = shared.measure();
    let light: f64 = nodes.threads[..8].iter().map(|node| gets[*node]).sum();
    // 0.25 ms each about once a second; 1 ms were 0.008.
    assert!((0.0010..0.0025).contains(&light), "{light:.4}");
}
