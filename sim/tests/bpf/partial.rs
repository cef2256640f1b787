// SPDX-License-Identifier: GPL-2.0-only
//! Sets of vCPUs that run together.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::world::{TaskId, World};

fn partial(cpus: usize) -> World {
    world_with(cpus, Knobs { gang: Some(knob::GANG_PARTIAL), boost: Some(0), ..Knobs::default() })
}

/// What was seen in many looks: how often a set ran whole, and how often in part although all of it wanted to run.
#[derive(Debug, Default)]
struct Seen {
    whole: u32,
    torn: u32,
    looks: u32,
}

fn watch(w: &mut World, ms: u64, set: &[TaskId]) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..4 * ms {
        w.run(MS / 4);
        seen.looks += 1;
        let wants = set.iter().filter(|id| w.task(**id).state == crate::view::State::Runnable).count();
        let runs = set.iter().filter(|id| w.is_running(**id)).count();
        seen.whole += u32::from(runs == set.len());
        seen.torn += u32::from(runs > 0 && runs < wants);
    }
    audit(w);
    seen
}

/// The paper's machine and VMs: 8 pCPUs, one VM of 8 vCPUs, one of 4. Returns the CPU time of each in pCPUs, and how the sets were seen.
fn papers_machine(sets: &[&[u32]], order: u32) -> (f64, f64, Vec<Seen>) {
    let knobs = Knobs {
        gang: Some(knob::GANG_PARTIAL),
        order: Some(order),
        boost: Some(0),
        ..Knobs::default()
    };
    let mut w = world_with(8, knobs);
    let (large, a) = busy_vm(&mut w, 8);
    let (small, b) = busy_vm(&mut w, 4);
    introduce(&mut w, &a);
    introduce(&mut w, &b);
    w.set_sets(large, sets);
    w.set_sets(small, &[&[0, 1, 2, 3]]);
    w.run(500 * MS);
    let all: Vec<TaskId> = a.iter().chain(&b).copied().collect();
    let used = shares(&mut w, 6_000 * MS, &all);
    let mut seen: Vec<Seen> = sets
        .iter()
        .map(|set| {
            let ids: Vec<TaskId> = set.iter().map(|id| a[*id as usize]).collect();
            watch(&mut w, 1_000, &ids)
        })
        .collect();
    seen.push(watch(&mut w, 1_000, &b));
    (used[..8].iter().sum(), used[8..].iter().sum(), seen)
}

#[test]
fn a_set_runs_whole_or_not_at_all() {
    for order in [knob::ORDER_VM, knob::ORDER_TASK] {
        for sets in [&[&[0u32, 1, 2, 3, 4, 5, 6, 7][..]][..], &[&[0, 1, 2, 3], &[4, 5, 6, 7]]] {
            let (_, _, seen) = papers_machine(sets, order);
            for seen in seen {
                assert!(seen.whole > seen.looks / 10, "{sets:?}: it hardly ran: {seen:?}");
                // A look may come in the moment in which the pCPUs go over from one to another.
                assert!(seen.torn * 50 < seen.looks, "{sets:?}: {seen:?}");
            }
        }
    }
}

#[test]
fn parts_fill_what_a_whole_vm_leaves_idle() {
    // Of a whole VM at a time the small one leaves half of the machine idle.
    let (large, small, _) = papers_machine(&[&[0, 1, 2, 3, 4, 5, 6, 7]], knob::ORDER_TASK);
    assert_near(large, 4.0, 0.3);
    assert_near(small, 2.0, 0.3);
    // Each of three sets has two thirds of the time: a third more than before.
    let (large, small, _) = papers_machine(&[&[0, 1, 2, 3], &[4, 5, 6, 7]], knob::ORDER_TASK);
    assert_near(large, 16.0 / 3.0, 0.3);
    assert_near(small, 8.0 / 3.0, 0.3);
    // Between VMs: each has half of the machine.
    let (large, small, _) = papers_machine(&[&[0, 1, 2, 3], &[4, 5, 6, 7]], knob::ORDER_VM);
    assert_near(large, 4.0, 0.2);
    assert_near(small, 4.0, 0.2);
}
