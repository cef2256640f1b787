// SPDX-License-Identifier: GPL-2.0-only
//! Shares computed by hand.

use super::Tree;

#[test]
fn a_pinned_pair_beside_one_alone() {
    // What the one alone uses on its pCPU is none of the pair's business.
    let mut t = Tree::new(2);
    let vms = [(900, 0), (100, 0), (100, 1)].map(|(weight, cpu)| {
        let cgroup = t.entity(0, weight);
        let vm = t.entity(cgroup, 100);
        t.thread(vm, 100, &[cpu]);
        vm
    });
    t.assert_shares(&[(vms[0], 0.9), (vms[1], 0.1), (vms[2], 1.0)]);
}

#[test]
fn a_nested_weight_takes_from_its_siblings_only() {
    let mut t = Tree::new(1);
    let outer = t.entity(0, 100);
    let greedy = t.entity(outer, 10_000);
    let modest = t.entity(outer, 100);
    let a = t.thread(greedy, 100, &[0]);
    let b = t.thread(modest, 100, &[0]);
    let neighbour = t.thread(0, 100, &[0]);
    t.assert_shares(&[(outer, 0.5), (neighbour, 0.5), (a, 0.5 / 1.01), (b, 0.005 / 1.01)]);
}

#[test]
fn a_vm_of_one_vcpu_has_as_much_as_one_of_two() {
    let mut t = Tree::new(2);
    let (one, two) = (t.entity(0, 100), t.entity(0, 100));
    t.thread(one, 100, &[0, 1]);
    let siblings = [t.thread(two, 100, &[0, 1]), t.thread(two, 100, &[0, 1])];
    t.assert_shares(&[(one, 1.0), (two, 1.0), (siblings[0], 0.5), (siblings[1], 0.5)]);
    assert_eq!(t.contested(), None);
}

#[test]
fn what_a_heavy_vm_cannot_use_is_divided_by_weight() {
    let mut t = Tree::new(3);
    let all = [0, 1, 2];
    let heavy = t.entity(0, 10_000);
    t.thread(heavy, 100, &all);
    let others = [100, 300].map(|weight| {
        let vm = t.entity(0, weight);
        let _threads = [0; 2].map(|_| t.thread(vm, 100, &all));
        vm
    });
    t.assert_shares(&[(heavy, 1.0), (others[0], 0.5), (others[1], 1.5)]);
}

#[test]
fn what_a_cgroup_cannot_use_goes_upward() {
    // Of the cgroup's 1.5 pCPUs its one thread uses one; the rest is the neighbours'.
    let mut t = Tree::new(2);
    let cgroup = t.entity(0, 300);
    let inner = t.entity(cgroup, 1);
    t.thread(inner, 100, &[0, 1]);
    let neighbours = [t.thread(0, 50, &[0, 1]), t.thread(0, 50, &[0, 1])];
    t.assert_shares(&[(cgroup, 1.0), (inner, 1.0), (neighbours[0], 0.5), (neighbours[1], 0.5)]);
}

#[test]
fn a_quota_limits_whoever_is_below() {
    // The limited cgroup is entitled to half of 2 pCPUs and may use 0.6; inside it one has a quota of its own.
    let mut t = Tree::new(2);
    let limited = t.limited(0, 100, 0.6);
    let inner = t.limited(limited, 10_000, 0.25);
    let sibling = t.entity(limited, 100);
    let neighbour = t.entity(0, 100);
    for entity in [inner, sibling, neighbour, inner, sibling, neighbour] {
        t.thread(entity, 100, &[0, 1]);
    }
    t.assert_shares(&[(limited, 0.6), (inner, 0.25), (sibling, 0.35), (neighbour, 1.4), (0, 2.0)]);
}

#[test]
fn overlapping_masks() {
    // Equal ones: the free one has both pCPUs to choose from, and each of the three has two thirds.
    let mut t = Tree::new(2);
    let equal = [vec![0, 1], vec![0], vec![1]].map(|mask| t.thread(0, 100, &mask));
    t.assert_shares(&equal.map(|thread| (thread, 2.0 / 3.0)));

    // A heavy free one: its one pCPU's worth is taken from both sides equally.
    let mut t = Tree::new(2);
    let free = t.thread(0, 10_000, &[0, 1]);
    let pinned = [t.thread(0, 100, &[0]), t.thread(0, 100, &[1])];
    t.assert_shares(&[(free, 1.0), (pinned[0], 0.5), (pinned[1], 0.5)]);
}

#[test]
fn a_crowded_pcpu_is_left_to_those_that_have_no_other() {
    // Nine threads of pCPU 0; one that may use both uses the other one alone.
    let mut t = Tree::new(2);
    let crowd: Vec<usize> = (0..9).map(|_| t.thread(0, 100, &[0])).collect();
    let free = t.thread(0, 100, &[0, 1]);
    t.assert_shares(&[(free, 1.0), (crowd[0], 1.0 / 9.0), (crowd[8], 1.0 / 9.0)]);
}

#[test]
fn an_entity_is_served_where_it_is_cheapest_for_the_others() {
    // A has its half of pCPU 0; the nine that share pCPU 1 have less, so that A gets nothing there.
    let mut t = Tree::new(2);
    let a = t.entity(0, 100);
    let threads = [t.thread(a, 100, &[0]), t.thread(a, 100, &[1])];
    let b = t.thread(0, 100, &[0]);
    let crowd: Vec<usize> = (0..9).map(|_| t.thread(0, 100, &[1])).collect();
    t.assert_shares(&[(a, 0.5), (b, 0.5), (crowd[0], 1.0 / 9.0), (threads[0], 0.5), (threads[1], 0.0)]);
}

#[test]
fn what_the_outer_levels_have_stays() {
    // The light cgroup has pCPU 2 for its one thread; that its other one, beside a heavy VM's two, gets nothing of the rest is no reason to take from that.
    let mut t = Tree::new(3);
    let (light, heavy) = (t.entity(0, 1), t.entity(0, 100));
    let (there, here) = (t.thread(light, 100, &[2]), t.thread(light, 100, &[0, 1]));
    let _threads = [0; 2].map(|_| t.thread(heavy, 100, &[0, 1]));
    t.assert_shares(&[(light, 1.0), (heavy, 2.0), (there, 1.0), (here, 0.0)]);
}

#[test]
fn the_insides_of_pinned_vms_are_weighed_against_each_other() {
    // Two VMs, a vCPU of each on each pCPU. Each VM has one pCPU; a's first vCPU is to have three quarters of that, b's vCPUs half of theirs:
    // x/0.75 of what it should have, and (1 - x)/0.5, are equal at 0.6.
    let mut t = Tree::new(2);
    let (a, b) = (t.entity(0, 100), t.entity(0, 100));
    let a_threads = [t.thread(a, 300, &[0]), t.thread(a, 100, &[1])];
    let b_threads = [t.thread(b, 100, &[0]), t.thread(b, 100, &[1])];
    t.assert_shares(&[(a, 1.0), (b, 1.0), (a_threads[0], 0.6), (a_threads[1], 0.4), (b_threads[0], 0.4)]);
    assert_eq!(t.contested(), Some(2));
}

#[test]
fn those_without_threads_do_not_count() {
    let mut t = Tree::new(1);
    let (empty, busy) = (t.entity(0, 10_000), t.entity(0, 1));
    t.entity(empty, 100);
    t.thread(busy, 100, &[0]);
    t.assert_shares(&[(empty, 0.0), (busy, 1.0)]);
}

#[test]
fn fewer_threads_than_pcpus_have_one_each() {
    let mut t = Tree::new(4);
    let vm = t.entity(0, 1);
    let threads = [0; 3].map(|_| t.thread(vm, 100, &[0, 1, 2, 3]));
    t.assert_shares(&[(vm, 3.0), (threads[0], 1.0), (threads[2], 1.0), (0, 3.0)]);
}
