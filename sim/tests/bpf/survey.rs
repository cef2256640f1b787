// SPDX-License-Identifier: GPL-2.0-only
//! How far from their shares the entities of many random partitions are, and small examples of the worst: for whoever changes the order.
//!
//! `SURVEY=200 scripts/in-toolchain cargo test --package cohort-sim --test bpf -- survey --ignored --nocapture`

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::common::*;
use crate::maxmin::Shared;
use crate::partition::{partition, Affinity, Partition};

/// By how much more than one part in a hundred the worst entity is off, in ms of 10 s; and which.
fn worst(p: &Partition) -> (f64, String) {
    let mut shared = Shared::new(p);
    shared.world.run(1_000 * MS);
    let (nodes, due, gets) = shared.measure();
    let off = |node: &usize| ((gets[*node] - due[*node]).abs() - 0.01 * due[*node]).max(0.0) * 10_000.0;
    let entities: Vec<usize> = nodes.entities().collect();
    let node = *entities.iter().max_by(|a, b| off(a).total_cmp(&off(b))).unwrap();
    let all: Vec<String> =
        entities.iter().map(|n| format!("{n}: {:.4} of {:.4}", gets[*n], due[*n])).collect();
    (off(&node), format!("worst is {node}, by {:.0} ms; all: {}", off(&node), all.join(", ")))
}

/// The smallest partition found that is as bad.
fn smallest<T: ValueTree<Value = Partition>>(mut value: T, ms: f64) -> Partition {
    let mut best = value.current();
    let mut goes_on = value.simplify();
    for _ in 0..300 {
        if !goes_on {
            break;
        }
        let partition = value.current();
        goes_on = if worst(&partition).0 >= ms {
            best = partition;
            value.simplify()
        } else {
            value.complicate()
        };
    }
    best
}

#[test]
#[ignore = "a tool, not a check"]
fn survey() {
    let count = std::env::var("SURVEY").map_or(50, |count| count.parse().unwrap());
    for affinity in [Affinity::None, Affinity::Cpusets, Affinity::Any] {
        let mut runner = TestRunner::new(cases(1));
        let mut found = Vec::new();
        for _ in 0..count {
            let value = partition(affinity).new_tree(&mut runner).unwrap();
            found.push((worst(&value.current()).0, value));
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let above = |ms: f64| found.iter().filter(|(off, _)| *off > ms).count();
        println!("{affinity:?}: of {count}, so many are off by more than 1 % and");
        for ms in [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 2_000.0] {
            println!("{ms:8} ms: {}", above(ms));
        }
        for (off, value) in found.into_iter().take(4).filter(|(off, _)| *off > 20.0) {
            let example = smallest(value, off * 0.5);
            println!("  {off:.0} ms: {example:?}\n    {}", worst(&example).1);
        }
    }
}
