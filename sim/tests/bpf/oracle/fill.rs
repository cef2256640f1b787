// SPDX-License-Identifier: GPL-2.0-only
//! Progressive filling, one level of the tree after the other.

use super::flow::Bounded;
use super::{Tree, EPSILON};

/// What may be missing of demands that are met; below the precision of what outer levels have.
const MISSING: f64 = EPSILON / 100.0;

/// What each node has, in pCPUs.
pub fn shares(tree: &Tree) -> Vec<f64> {
    let busy = tree.sums(|_| 1.0);
    // Nobody's who has no thread.
    let mut has: Vec<Option<f64>> = busy.iter().map(|threads| (*threads == 0.0).then_some(0.0)).collect();
    let depths: Vec<usize> = (0..tree.nodes.len()).map(|node| tree.depth(node)).collect();
    for depth in 1..=depths.iter().copied().max().unwrap_or(0) {
        let nodes: Vec<usize> =
            (1..tree.nodes.len()).filter(|n| depths[*n] == depth && has[*n].is_none()).collect();
        Level { tree, weights: effective_weights(tree, &nodes, &has), nodes, depths: &depths }.fill(&mut has);
    }
    let mut shares: Vec<f64> = has.into_iter().map(|has| has.unwrap_or(0.0)).collect();
    shares[0] = tree.threads().map(|thread| shares[thread]).sum();
    shares
}

/// The depth of the outermost entities that contest pCPUs with others' children: what they have depends on how they are weighed against those. None do below
/// the root: then each entity's children have what is best for them, whatever is inside of others. Inside of which is chosen first, the outer or the inner, is a matter
/// of choice too: what matters is only what the entity itself and those beside it, and above, have been given.
pub fn contested(tree: &Tree, shares: &[f64]) -> Option<usize> {
    let depths: Vec<usize> = (0..tree.nodes.len()).map(|node| tree.depth(node)).collect();
    let of = |parent: usize| -> Vec<usize> {
        (1..tree.nodes.len()).filter(|n| tree.nodes[*n].parent == parent && shares[*n] > EPSILON).collect()
    };
    let is_contested = |parent: &usize| {
        let nodes = of(*parent);
        let mut has: Vec<Option<f64>> = (0..tree.nodes.len())
            .map(|node| {
                let beside = node == 0
                    || tree.path(*parent).iter().any(|at| tree.nodes[*at].parent == tree.nodes[node].parent);
                beside.then_some(shares[node])
            })
            .collect();
        Level { tree, weights: effective_weights(tree, &nodes, &has), nodes: nodes.clone(), depths: &depths }
            .fill(&mut has);
        nodes.iter().any(|node| (has[*node].unwrap_or(0.0) - shares[*node]).abs() > 0.001)
    };
    let parents = (1..tree.nodes.len()).filter(|parent| of(*parent).len() > 1);
    parents.filter(is_contested).map(|parent| depths[parent] + 1).min()
}

/// What each of a level's nodes gets for one unit of filling.
fn effective_weights(tree: &Tree, nodes: &[usize], has: &[Option<f64>]) -> Vec<f64> {
    let weight = |node: &usize| {
        let parent = tree.nodes[*node].parent;
        let siblings = nodes.iter().filter(|n| tree.nodes[**n].parent == parent);
        let all: f64 = siblings.map(|n| tree.nodes[*n].weight).sum();
        tree.nodes[*node].weight / all * if parent == 0 { 1.0 } else { has[parent].unwrap_or(0.0) }
    };
    nodes.iter().map(weight).collect()
}

struct Level<'a> {
    tree: &'a Tree,
    nodes: Vec<usize>,
    weights: Vec<f64>,
    depths: &'a [usize],
}

impl Level<'_> {
    /// Divide among these nodes. Those above have theirs.
    fn fill(&self, has: &mut [Option<f64>]) {
        let (mut open, none): (Vec<usize>, Vec<usize>) =
            (0..self.nodes.len()).partition(|i| self.weights[*i] > EPSILON * EPSILON);
        none.into_iter().for_each(|i| has[self.nodes[i]] = Some(0.0));
        while !open.is_empty() {
            // From too much down to the highest filling that can be carried: each cut says by how much at least (Newton's method).
            let fill_all = |i: &usize| (self.tree.pcpus + 1) as f64 / self.weights[*i];
            let mut filling = open.iter().map(fill_all).fold(0.0, f64::max);
            let mut tight = open.clone();
            loop {
                let mut demands: Vec<f64> = self.nodes.iter().map(|node| has[*node].unwrap_or(0.0)).collect();
                open.iter().for_each(|i| demands[*i] = filling * self.weights[*i]);
                let (missing, lack) = self.carry(&demands, has);
                let blocked: Vec<usize> = open.iter().copied().filter(|i| lack[*i]).collect();
                if missing <= MISSING || blocked.is_empty() {
                    break;
                }
                filling -= missing / blocked.iter().map(|i| self.weights[*i]).sum::<f64>();
                tight = blocked;
            }
            tight.iter().for_each(|i| has[self.nodes[*i]] = Some(filling * self.weights[*i]));
            open.retain(|i| !tight.contains(i));
        }
    }

    /// How much of the demands cannot be carried, and which of them lack it. A flow with lower bounds: those of this level get what they demand at
    /// least, those above exactly what they were given.
    fn carry(&self, demands: &[f64], has: &[Option<f64>]) -> (f64, Vec<bool>) {
        let (tree, depth) = (self.tree, self.depths[self.nodes[0]]);
        let (enter, leave) = (|node: usize| 2 * node, |node: usize| 2 * node + 1);
        let pcpu = |cpu: usize| 2 * tree.nodes.len() + cpu;
        let sink = pcpu(tree.pcpus);
        let mut bounded = Bounded::new(sink + 1);
        bounded.edge(sink, leave(0), 0.0, f64::INFINITY);
        for (node, state) in tree.nodes.iter().enumerate().skip(1) {
            let at = self.nodes.iter().position(|n| *n == node);
            bounded.edge(leave(state.parent), enter(node), at.map_or(0.0, |at| demands[at]), f64::INFINITY);
            let one = if state.allowed.is_some() { 1.0 } else { f64::INFINITY };
            match has[node].filter(|_| self.depths[node] < depth) {
                Some(has) => bounded.edge(enter(node), leave(node), (has - EPSILON).max(0.0), has + EPSILON),
                None => bounded.edge(enter(node), leave(node), 0.0, state.quota.unwrap_or(one).min(one)),
            }
            for cpu in state.allowed.iter().flatten() {
                bounded.edge(leave(node), pcpu(*cpu), 0.0, 1.0);
            }
        }
        (0..tree.pcpus).for_each(|cpu| bounded.edge(pcpu(cpu), sink, 0.0, 1.0));
        let (missing, cut) = bounded.missing();
        let lacks = |node: &usize| cut[enter(*node)] && !cut[leave(tree.nodes[*node].parent)];
        (missing, self.nodes.iter().map(lacks).collect())
    }
}
