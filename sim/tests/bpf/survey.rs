// SPDX-License-Identifier: GPL-2.0-only
//! How far from their shares the entities of many random partitions are, and small examples of the worst: for whoever changes the order.
//!
//! `SURVEY=200 EXAMPLES=4 SLICE_MS=1 scripts/in-toolchain cargo test --package cohort-sim --test bpf -- survey:: --ignored --nocapture`

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::common::*;
use crate::maxmin::{Error, Levels, Shared, SETTLE_NS};
use crate::partition::{limited_partition, partition, Affinity, Partition};

/// How far the worst entity is from its share, in ms of the window, if that is more than the part allowed; and all.
fn worst(p: &Partition) -> (f64, String) {
    let mut shared = Shared::new(p);
    shared.world.run(SETTLE_NS);
    let errors = shared.errors(Levels::All);
    let words: Vec<String> = errors.iter().map(Error::to_string).collect();
    (errors.first().map_or(0.0, |error| error.ms), words.join("; "))
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

/// Of one kind of partitions: how many have an entity that is off by so much; how many have shares below some depth that are a matter of choice, and are not
/// looked at there; and the worst.
fn table(partitions: impl Strategy<Value = Partition>) {
    let number =
        |name: &str, default: usize| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (count, examples) = (number("SURVEY", 50), number("EXAMPLES", 4));
    let mut runner = TestRunner::new(cases(1));
    let (mut off, mut found, mut contested) = (Vec::new(), Vec::new(), 0);
    for _ in 0..count {
        let value = partitions.new_tree(&mut runner).unwrap();
        let partition = value.current();
        contested += usize::from(partition.tree().0.contested().is_some());
        let (ms, _) = worst(&partition);
        off.push(ms);
        found.push((ms, value));
        // Many values take much memory; the worst are of interest.
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.truncate(examples);
    }
    print!("of {count}, {contested} of them contested, farther than 1 % and N ms:");
    for ms in [2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 2_000.0] {
        print!("  {ms} ms: {}", off.iter().filter(|off| **off > ms).count());
    }
    println!();
    for (off, value) in found.into_iter().filter(|(off, _)| *off > 2.0) {
        let example = smallest(value, off * 0.5);
        println!("  {off:.0} ms: {example:?}\n    {}", worst(&example).1);
    }
}

#[test]
#[ignore = "a tool, not a check"]
fn anywhere() {
    table(partition(Affinity::None));
}

#[test]
#[ignore = "a tool, not a check"]
fn cpusets() {
    table(partition(Affinity::Cpusets));
}

#[test]
#[ignore = "a tool, not a check"]
fn any_masks() {
    table(partition(Affinity::Any));
}

#[test]
#[ignore = "a tool, not a check"]
fn quotas() {
    table(limited_partition(Affinity::None));
}
