// SPDX-License-Identifier: GPL-2.0-only
//! What each entity is entitled to: the weighted, hierarchical max-min fair division of the pCPUs among threads that never sleep.
//!
//! The entities form a tree. Inside a cgroup compete its child cgroups, the VMs whose threads sit in it, and its other tasks; inside a VM, its
//! threads. What an entity has is divided among its children by weight; what a child cannot use, for it has too few threads, a quota, or no pCPU that
//! it may use, goes to its siblings, and what they cannot use goes upward.
//!
//! Affinity makes "can use" a matter of flow: a set of demands can be met if a flow through tree, threads (one pCPU each) and pCPUs (capacity one each)
//! carries it. And it makes the division ambiguous: what a VM's one thread gets on a pCPU, another VM's thread does not get there, although both VMs
//! have the same in sum. The choice made here: **level by level from the root, the lexicographic max-min of service ÷ effective weight, over all
//! entities of that level at once.** An entity's effective weight is its part of its siblings' weights times what its parent has been given; what the
//! levels above have been given is never changed by those below. So an outer entity's share does not depend on how anybody's inside is cut.
//!
//! What the outermost level can have is a polymatroid (flows out of one source), so its division is unique and uses as much as can be used at all. The sets that
//! the other levels choose from are convex, so theirs are unique as well.

mod fill;
mod flow;
mod tests;

use crate::common::assert_near;

/// The precision of shares, in pCPUs.
const EPSILON: f64 = 1e-8;

#[derive(Clone, Debug)]
pub struct Node {
    pub parent: usize,
    /// Among its siblings; 100 is usual.
    pub weight: f64,
    /// In pCPUs.
    pub quota: Option<f64>,
    /// Of a thread: the pCPUs that it may use. Anything else has none.
    pub allowed: Option<Vec<usize>>,
}

/// Node 0 is the root; parents come before their children.
#[derive(Clone, Debug)]
pub struct Tree {
    pub pcpus: usize,
    pub nodes: Vec<Node>,
}

impl Tree {
    pub fn new(pcpus: usize) -> Self {
        Self { pcpus, nodes: vec![Node { parent: 0, weight: 100.0, quota: None, allowed: None }] }
    }

    fn add(&mut self, node: Node) -> usize {
        assert!(node.parent < self.nodes.len() && self.nodes[node.parent].allowed.is_none());
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// A cgroup or a VM.
    pub fn entity(&mut self, parent: usize, weight: u32) -> usize {
        self.add(Node { parent, weight: f64::from(weight), quota: None, allowed: None })
    }

    pub fn limited(&mut self, parent: usize, weight: u32, quota: f64) -> usize {
        let node = self.entity(parent, weight);
        self.nodes[node].quota = Some(quota);
        node
    }

    /// A thread that never sleeps.
    pub fn thread(&mut self, parent: usize, weight: u32, allowed: &[usize]) -> usize {
        assert!(!allowed.is_empty() && allowed.iter().all(|cpu| *cpu < self.pcpus));
        self.add(Node { parent, weight: f64::from(weight), quota: None, allowed: Some(allowed.to_vec()) })
    }

    pub fn threads(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].allowed.is_some())
    }

    /// The node and those above it, without the root; the outermost first.
    pub fn path(&self, node: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(node), |node| Some(self.nodes[*node].parent))
            .take_while(|node| *node != 0)
            .collect();
        path.reverse();
        path
    }

    pub fn depth(&self, node: usize) -> usize {
        self.path(node).len()
    }

    /// What a node's threads have, summed.
    pub fn sums(&self, by_thread: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.nodes.len()];
        for thread in self.threads() {
            let has = by_thread(thread);
            sums[0] += has;
            self.path(thread).into_iter().for_each(|node| sums[node] += has);
        }
        sums
    }

    /// What each node is entitled to, in pCPUs.
    pub fn shares(&self) -> Vec<f64> {
        fill::shares(self)
    }

    /// The depth from which on shares are a matter of the choice above, and not of each entity's own children alone.
    pub fn contested(&self) -> Option<usize> {
        fill::contested(self, &self.shares())
    }

    #[track_caller]
    pub fn assert_shares(&self, expected: &[(usize, f64)]) {
        let shares = self.shares();
        for (node, share) in expected {
            assert_near(shares[*node], *share, 1e-6);
        }
    }
}
