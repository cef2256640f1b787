// SPDX-License-Identifier: GPL-2.0-only
//! What the rule "the least virtual time first" leads to by itself, and what it needs to lead to everybody's share.

use proptest::prelude::*;

use crate::common::*;
use crate::model::{Charge, Compare, Model, Pick, Rule};
use crate::oracle::Tree;
use crate::partition::{partition, Affinity};

const SIMPLE: Rule = Rule { pick: Pick::First, compare: Compare::Strict, charge: Charge::Before, turn: 4 };
const BEST: Rule = Rule { pick: Pick::Matching, compare: Compare::Lag, charge: Charge::Before, turn: 4 };

/// What each node gets over 10 s, after one to settle.
fn gets(tree: &Tree, rule: Rule) -> Vec<f64> {
    let mut model = Model::new(tree, rule);
    model.run(1_000);
    model.run(10_000)
}

#[test]
fn a_turn_is_to_count_when_it_begins() {
    // A and B have one pCPU each. Counted afterwards, A lacks both at once, and then both of its threads run, of which one weighs next to nothing.
    let mut t = Tree::new(2);
    let (a, b) = (t.entity(0, 100), t.entity(0, 100));
    let (heavy, light) = (t.thread(a, 100, &[0, 1]), t.thread(a, 1, &[0, 1]));
    let _threads = [0; 2].map(|_| t.thread(b, 100, &[0, 1]));
    t.assert_shares(&[(heavy, 1.0 / 1.01), (light, 0.01 / 1.01)]);

    let after = gets(&t, Rule { charge: Charge::After, compare: Compare::Strict, ..BEST });
    assert!(after[light] > 0.3, "{after:?}");
    for rule in [SIMPLE, Rule { charge: Charge::Running, ..SIMPLE }, BEST] {
        assert_near(gets(&t, rule)[light], 0.01, 0.005);
    }
}

#[test]
fn the_free_one_is_to_make_room_for_the_pinned_one() {
    let mut t = Tree::new(2);
    let _free = t.thread(0, 10_000, &[0, 1]);
    let pinned = [t.thread(0, 100, &[0]), t.thread(0, 100, &[1])];
    let without = gets(&t, SIMPLE);
    assert!(without[pinned[0]] < 0.01 || without[pinned[1]] < 0.01, "{without:?}");
    for pick in [Pick::Displace, Pick::Matching] {
        let with = gets(&t, Rule { pick, ..SIMPLE });
        assert_near(with[pinned[0]], 0.5, 0.01);
        assert_near(with[pinned[1]], 0.5, 0.01);
    }
}

#[test]
fn siblings_that_never_meet_are_to_be_compared_by_lag() {
    // Each of two VMs has a vCPU on each of two pCPUs. They are even while one runs here, and the other there, for ever.
    let mut t = Tree::new(2);
    let vms = [t.entity(0, 100), t.entity(0, 100)];
    let threads = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(vm, cpu)| t.thread(vms[vm], 100, &[cpu]));
    let strict = gets(&t, SIMPLE);
    assert_near(strict[vms[0]], 1.0, 0.01);
    assert!(threads.iter().any(|thread| strict[*thread] < 0.01), "{strict:?}");
    let lag = gets(&t, Rule { compare: Compare::Lag, ..SIMPLE });
    threads.iter().for_each(|thread| assert_near(lag[*thread], 0.5, 0.01));
}

proptest! {
    #![proptest_config(cases(16))]

    // Two ways to the same shares, by arithmetic and by simulation: an error in either would show.
    #[test]
    fn with_all_that_the_rule_leads_to_the_oracles_shares(
        partition in prop_oneof![partition(Affinity::None), partition(Affinity::Cpusets), partition(Affinity::Any)],
    ) {
        let (tree, nodes) = partition.tree();
        let (due, got) = (tree.shares(), gets(&tree, BEST));
        for node in nodes.entities() {
            // Inside of groups that take two turns at once the rule is a little off.
            let tolerance = if tree.depth(node) == 1 { 0.005 } else { 0.05 };
            prop_assert!((got[node] - due[node]).abs() <= tolerance, "node {}: {} of {}", node, got[node], due[node]);
        }
    }
}
