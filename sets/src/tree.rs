// SPDX-License-Identifier: GPL-2.0-only
//! The tree of who depends on whom, and the sets in it ("partial" paper, section 3).

use std::cmp::Ordering;
use std::fmt;

use crate::{Matrix, Sets};

/// A subtree: a vCPU, or two subtrees and how much they depend on each other.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Vcpu(u32),
    Pair { d: f64, left: Box<Node>, right: Box<Node> },
}

impl Node {
    /// How much its two parts depend on each other; 0 for a vCPU.
    pub fn d(&self) -> f64 {
        match self {
            Node::Vcpu(_) => 0.0,
            Node::Pair { d, .. } => *d,
        }
    }

    /// Its vCPUs, in order.
    pub fn vcpus(&self) -> Vec<u32> {
        fn collect(node: &Node, into: &mut Vec<u32>) {
            match node {
                Node::Vcpu(vcpu) => into.push(*vcpu),
                Node::Pair { left, right, .. } => {
                    collect(left, into);
                    collect(right, into);
                }
            }
        }
        let mut vcpus = Vec::new();
        collect(self, &mut vcpus);
        vcpus.sort_unstable();
        vcpus
    }

    /// Split it while a part depends more than `t` times as much on itself as the whole does. Two parts that have never communicated are no set either: the
    /// paper's rule alone would keep a VM together whose vCPUs have nothing to do with one another.
    fn split(&self, t: f64, into: &mut Sets) {
        match self {
            Node::Pair { d, left, right } if *d == 0.0 || left.d() > t * d || right.d() > t * d => {
                left.split(t, into);
                right.split(t, into);
            }
            _ => into.push(self.vcpus()),
        }
    }
}

/// The tree over all vCPUs of a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    pub root: Node,
}

/// A subtree that is not part of another yet.
struct Part {
    node: Node,
    size: u64,
    /// Its lowest vCPU.
    first: u32,
    /// Events with each other part, by the index of that.
    events: Vec<u64>,
}

impl Tree {
    /// Join the two parts that depend most on each other, until one is left. d is the mean of the events of all pairs (equation 1). Of equals those with the
    /// lowest vCPUs are first. None: there are no vCPUs.
    pub fn of(matrix: &Matrix) -> Option<Self> {
        let vcpus = 0..matrix.vcpus();
        let mut parts: Vec<Part> = vcpus
            .clone()
            .map(|x| Part {
                node: Node::Vcpu(x as u32),
                size: 1,
                first: x as u32,
                events: vcpus.clone().map(|y| if x == y { 0 } else { matrix.get(x, y) }).collect(),
            })
            .collect();
        while parts.len() > 1 {
            let pairs = (0..parts.len()).flat_map(|x| (x + 1..parts.len()).map(move |y| (x, y)));
            // Parts are in the order of their first vCPU, so that the first of equal pairs is the one wanted.
            let (x, y) = pairs.reduce(|best, pair| match compare(&parts, best, pair) {
                Ordering::Less => pair,
                _ => best,
            })?;
            join(&mut parts, x, y);
        }
        Some(Self { root: parts.pop()?.node })
    }

    /// The sets, in the order of their first vCPU.
    pub fn sets(&self, t: f64) -> Sets {
        let mut sets = Sets::new();
        self.root.split(t, &mut sets);
        sets.sort();
        sets
    }
}

/// Which of two pairs of parts depends more on each other? Exactly: by whole numbers.
fn compare(parts: &[Part], a: (usize, usize), b: (usize, usize)) -> Ordering {
    let sum = |(x, y): (usize, usize)| u128::from(parts[x].events[y]);
    let pairs = |(x, y): (usize, usize)| u128::from(parts[x].size * parts[y].size);
    (sum(a) * pairs(b)).cmp(&(sum(b) * pairs(a)))
}

/// Make one of parts x and y, x before y.
fn join(parts: &mut Vec<Part>, x: usize, y: usize) {
    let gone = parts.remove(y);
    let d = gone.events[x] as f64 / (gone.size * parts[x].size) as f64;
    for part in parts.iter_mut() {
        let with_gone = part.events.remove(y);
        part.events[x] += with_gone;
    }
    let into = &mut parts[x];
    for (other, events) in gone.events.iter().enumerate().filter(|(other, _)| *other != y) {
        into.events[other - usize::from(other > y)] += events;
    }
    into.events[x] = 0;
    let left = std::mem::replace(&mut into.node, Node::Vcpu(0));
    into.node = Node::Pair { d, left: Box::new(left), right: Box::new(gone.node) };
    into.size += gone.size;
    into.first = into.first.min(gone.first);
}

/// As an outline: each subtree's d, its parts below it.
impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn draw(node: &Node, before: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match node {
                Node::Vcpu(vcpu) => writeln!(f, "vCPU {vcpu}"),
                Node::Pair { d, left, right } => {
                    writeln!(f, "d = {}", short(*d))?;
                    write!(f, "{before}├─ ")?;
                    draw(left, &format!("{before}│  "), f)?;
                    write!(f, "{before}└─ ")?;
                    draw(right, &format!("{before}   "), f)
                }
            }
        }
        draw(&self.root, "", f)
    }
}

/// With two decimals at most.
fn short(d: f64) -> String {
    let text = format!("{d:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SPLIT_DEFAULT;

    /// The paper's Figure 3.
    const FIGURE_3: &str = "- 6 1 9 6\n6 - 1 6 7\n1 1 - 1 1\n9 6 1 - 6\n6 7 1 6 -\n";

    fn tree(text: &str) -> Tree {
        Tree::of(&Matrix::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn the_papers_example_gives_its_tree_and_sets() {
        let tree = tree(FIGURE_3);
        // Figure 4c: (0, 3) with 9 and (1, 4) with 7 are joined with 6, and 2 last, with 1.
        let expected =
            "d = 1\n├─ d = 6\n│  ├─ d = 9\n│  │  ├─ vCPU 0\n│  │  └─ vCPU 3\n│  └─ d = 7\n│     ├─ vCPU 1\n│     └─ vCPU 4\n└─ vCPU 2\n";
        assert_eq!(tree.to_string(), expected);
        // 6 > 1.5 * 1 splits; 9 is not more than 1.5 * 6.
        assert_eq!(tree.sets(SPLIT_DEFAULT), [vec![0, 1, 3, 4], vec![2]]);
        assert_eq!(tree.sets(1.4), [vec![0, 3], vec![1, 4], vec![2]]);
        assert_eq!(tree.sets(7.0), [vec![0, 1, 2, 3, 4]]);
    }

    #[test]
    fn equals_are_joined_from_the_lowest_on() {
        let tree = tree("- 1 1 1\n1 - 1 1\n1 1 - 1\n1 1 1 -\n");
        let Node::Pair { left, .. } = &tree.root else { panic!() };
        assert_eq!(left.vcpus(), [0, 1, 2]);
        assert_eq!(tree.sets(SPLIT_DEFAULT), [vec![0, 1, 2, 3]]);
    }

    #[test]
    fn who_never_communicates_is_alone() {
        assert_eq!(tree("- 0\n0 -\n").sets(SPLIT_DEFAULT), [vec![0], vec![1]]);
        let two = tree("- 8 0 0\n8 - 0 0\n0 0 - 8\n0 0 8 -\n");
        assert_eq!(two.sets(SPLIT_DEFAULT), [vec![0, 1], vec![2, 3]]);
        assert_eq!(tree("-\n").sets(SPLIT_DEFAULT), [vec![0]]);
        assert!(Tree::of(&Matrix::new(0)).is_none());
    }

    #[test]
    fn the_mean_of_all_pairs_counts_and_not_their_sum() {
        // 2 has 3 + 3 events with the pair (0, 1), and 4 with 3.
        let tree = tree("- 9 3 0\n9 - 3 0\n3 3 - 4\n0 0 4 -\n");
        let Node::Pair { left, right, d } = &tree.root else { panic!() };
        assert_eq!((left.vcpus(), right.vcpus()), (vec![0, 1], vec![2, 3]));
        assert!((d - 1.5).abs() < 1e-9, "{d}");
    }

    /// Equation 1 as it is written, for every subtree of random matrices.
    #[test]
    fn every_d_is_equation_1() {
        fn check(node: &Node, matrix: &Matrix) {
            let Node::Pair { d, left, right } = node else { return };
            let (x, y) = (left.vcpus(), right.vcpus());
            let sum: u64 =
                x.iter().flat_map(|a| y.iter().map(|b| matrix.get(*a as usize, *b as usize))).sum();
            assert!((d - sum as f64 / (x.len() * y.len()) as f64).abs() < 1e-9);
            check(left, matrix);
            check(right, matrix);
        }
        let mut state = 1u64;
        for vcpus in 2..20 {
            let mut matrix = Matrix::new(vcpus);
            for x in 0..vcpus {
                for y in 0..x {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    matrix.add(x, y, state >> 60);
                }
            }
            let tree = Tree::of(&matrix).unwrap();
            check(&tree.root, &matrix);
            let mut all: Vec<u32> = tree.sets(SPLIT_DEFAULT).concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..vcpus as u32), "each in one set");
        }
    }
}
