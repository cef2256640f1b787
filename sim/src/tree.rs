// SPDX-License-Identifier: GPL-2.0-only
//! Ordered sets of small numbers (tasks, scheduling entities): run queues. Many sets share one table of nodes, a number is in one of them at most,
//! and taking it out needs no search. Each node knows the least `value` below it, which is what EEVDF's pick needs (`min_vruntime` in the
//! kernel's augmented tree).
//!
//! A treap (Seidel and Aragon): a binary tree by key and a heap by a fixed hash of the number, so its shape depends on its members alone.

const NONE: u32 = u32::MAX;

/// What a set is ordered by; ties by the second part.
pub type Key = (i64, u64);

#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    value: i64,
    least: i64,
    left: u32,
    right: u32,
    parent: u32,
    priority: u32,
    queued: bool,
}

/// One set.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    root: u32,
    len: u32,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: NONE, len: 0 }
    }
}

impl Tree {
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.root == NONE
    }
}

/// The nodes of all sets.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    nodes: Vec<Node>,
}

fn some(id: u32) -> Option<u32> {
    (id != NONE).then_some(id)
}

impl Forest {
    /// Make room for numbers below `n`.
    pub fn reserve(&mut self, n: usize) {
        for id in self.nodes.len()..n {
            let mut hash = (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
            self.nodes.push(Node {
                key: (0, 0),
                value: 0,
                least: 0,
                left: NONE,
                right: NONE,
                parent: NONE,
                priority: (hash >> 32) as u32,
                queued: false,
            });
        }
    }

    fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    pub fn is_queued(&self, id: u32) -> bool {
        self.nodes.get(id as usize).is_some_and(|node| node.queued)
    }

    pub fn key(&self, id: u32) -> Key {
        self.node(id).key
    }

    fn refresh(&mut self, id: u32) {
        let node = self.node(id);
        let mut least = node.value;
        for child in [node.left, node.right] {
            if child != NONE {
                least = least.min(self.node(child).least);
            }
        }
        self.node_mut(id).least = least;
    }

    /// What hangs at `parent` (or is the root) in place of `old` is `new` from now on.
    fn replace_child(&mut self, tree: &mut Tree, parent: u32, old: u32, new: u32) {
        if parent == NONE {
            tree.root = new;
        } else if self.node(parent).left == old {
            self.node_mut(parent).left = new;
        } else {
            self.node_mut(parent).right = new;
        }
        if new != NONE {
            self.node_mut(new).parent = parent;
        }
    }

    /// `id` takes its parent's place, and the parent becomes its child.
    fn rotate_up(&mut self, tree: &mut Tree, id: u32) {
        let parent = self.node(id).parent;
        let grandparent = self.node(parent).parent;
        let inner = if self.node(parent).left == id {
            let inner = self.node(id).right;
            self.node_mut(parent).left = inner;
            self.node_mut(id).right = parent;
            inner
        } else {
            let inner = self.node(id).left;
            self.node_mut(parent).right = inner;
            self.node_mut(id).left = parent;
            inner
        };
        if inner != NONE {
            self.node_mut(inner).parent = parent;
        }
        self.replace_child(tree, grandparent, parent, id);
        self.node_mut(parent).parent = id;
        self.refresh(parent);
        self.refresh(id);
    }

    /// Put a number that is in no set into this one.
    pub fn insert(&mut self, tree: &mut Tree, id: u32, key: Key, value: i64) {
        debug_assert!(!self.is_queued(id));
        let (mut parent, mut at, mut goes_left) = (NONE, tree.root, false);
        while at != NONE {
            parent = at;
            let node = self.node_mut(at);
            node.least = node.least.min(value);
            goes_left = key < node.key;
            at = if goes_left { node.left } else { node.right };
        }
        let node = self.node_mut(id);
        *node = Node { key, value, least: value, left: NONE, right: NONE, parent, queued: true, ..*node };
        if parent == NONE {
            tree.root = id;
        } else if goes_left {
            self.node_mut(parent).left = id;
        } else {
            self.node_mut(parent).right = id;
        }
        tree.len += 1;
        while let Some(parent) = some(self.node(id).parent) {
            if self.node(parent).priority >= self.node(id).priority {
                break;
            }
            self.rotate_up(tree, id);
        }
    }

    /// Take a number out of the set that it is in.
    pub fn remove(&mut self, tree: &mut Tree, id: u32) {
        debug_assert!(self.is_queued(id));
        loop {
            let Node { left, right, .. } = *self.node(id);
            let child = match (some(left), some(right)) {
                (None, None) => break,
                (Some(only), None) | (None, Some(only)) => only,
                (Some(l), Some(r)) if self.node(l).priority > self.node(r).priority => l,
                (Some(_), Some(r)) => r,
            };
            self.rotate_up(tree, child);
        }
        let parent = self.node(id).parent;
        self.replace_child(tree, parent, id, NONE);
        self.node_mut(id).queued = false;
        tree.len -= 1;
        let mut at = parent;
        while at != NONE {
            self.refresh(at);
            at = self.node(at).parent;
        }
    }

    pub fn first(&self, tree: &Tree) -> Option<u32> {
        let mut at = some(tree.root)?;
        while let Some(left) = some(self.node(at).left) {
            at = left;
        }
        Some(at)
    }

    pub fn last(&self, tree: &Tree) -> Option<u32> {
        let mut at = some(tree.root)?;
        while let Some(right) = some(self.node(at).right) {
            at = right;
        }
        Some(at)
    }

    /// The next number in order.
    pub fn next(&self, id: u32) -> Option<u32> {
        if let Some(mut at) = some(self.node(id).right) {
            while let Some(left) = some(self.node(at).left) {
                at = left;
            }
            return Some(at);
        }
        let mut at = id;
        while let Some(parent) = some(self.node(at).parent) {
            if self.node(parent).left == at {
                return Some(parent);
            }
            at = parent;
        }
        None
    }

    pub fn prev(&self, id: u32) -> Option<u32> {
        if let Some(mut at) = some(self.node(id).left) {
            while let Some(right) = some(self.node(at).right) {
                at = right;
            }
            return Some(at);
        }
        let mut at = id;
        while let Some(parent) = some(self.node(at).parent) {
            if self.node(parent).right == at {
                return Some(parent);
            }
            at = parent;
        }
        None
    }

    /// The first in order with a key not before this one; the last before it, if `backwards`.
    pub fn seek(&self, tree: &Tree, key: Key, backwards: bool) -> Option<u32> {
        let (mut at, mut found) = (tree.root, None);
        while let Some(id) = some(at) {
            let node = self.node(id);
            let before = node.key < key;
            if before == backwards {
                found = Some(id);
            }
            at = if before { node.right } else { node.left };
        }
        found
    }

    /// The first in order whose value passes; the test must pass for every value below one that passes (eligibility: `pick_eevdf()`).
    pub fn first_passing(&self, tree: &Tree, passes: impl Fn(i64) -> bool) -> Option<u32> {
        let mut at = some(tree.root).filter(|root| passes(self.node(*root).least))?;
        loop {
            let node = self.node(at);
            match some(node.left).filter(|left| passes(self.node(*left).least)) {
                Some(left) => at = left,
                None if passes(node.value) => return Some(at),
                None => at = some(node.right)?,
            }
        }
    }

    /// The least value in the set.
    pub fn least(&self, tree: &Tree) -> Option<i64> {
        some(tree.root).map(|root| self.node(root).least)
    }

    /// In order.
    pub fn iter<'a>(&'a self, tree: &Tree) -> impl Iterator<Item = u32> + 'a {
        std::iter::successors(self.first(tree), |id| self.next(*id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Rng, Stream};

    /// Against a sorted list, in a long random history.
    #[test]
    fn behaves_as_a_sorted_list() {
        let (mut forest, mut tree, mut list) =
            (Forest::default(), Tree::default(), Vec::<(Key, u32, i64)>::new());
        forest.reserve(64);
        let mut rng = Rng::derive(1, Stream::Host, 0);
        for step in 0..20_000 {
            let id = rng.below(64) as u32;
            if forest.is_queued(id) {
                forest.remove(&mut tree, id);
                list.retain(|(_, other, _)| *other != id);
            } else {
                let (key, value) = ((rng.below(40) as i64 - 20, step), rng.below(100) as i64);
                forest.insert(&mut tree, id, key, value);
                list.push((key, id, value));
                list.sort_unstable();
            }
            assert_eq!(
                forest.iter(&tree).collect::<Vec<_>>(),
                list.iter().map(|(_, id, _)| *id).collect::<Vec<_>>()
            );
            assert_eq!(tree.len(), list.len());
            assert_eq!(forest.least(&tree), list.iter().map(|(_, _, value)| *value).min());
            let limit = rng.below(100) as i64;
            let expected = list.iter().find(|(_, _, value)| *value <= limit).map(|(_, id, _)| *id);
            assert_eq!(forest.first_passing(&tree, |value| value <= limit), expected);
            let wanted = (rng.below(40) as i64 - 20, 0);
            let (after, before) = (forest.seek(&tree, wanted, false), forest.seek(&tree, wanted, true));
            assert_eq!(after, list.iter().find(|(key, ..)| *key >= wanted).map(|(_, id, _)| *id));
            assert_eq!(before, list.iter().rev().find(|(key, ..)| *key < wanted).map(|(_, id, _)| *id));
        }
    }
}
