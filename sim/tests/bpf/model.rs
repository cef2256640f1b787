// SPDX-License-Identifier: GPL-2.0-only
//! A scheduler of the simplest kind, without costs and queues: each node of the tree has a virtual time, charged by what its threads use; of two
//! threads the one is first whose node has less where their paths part. What this rule alone leads to, with one way or another to apply it.

use std::cmp::Ordering;

use crate::oracle::Tree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// At the end of a turn a pCPU takes the first of those that wait and may use it, and of the one that it has.
    First,
    /// As `First`; but whoever would stay, or has to go, moves to the allowed pCPU where it takes a turn from the last, if that lets a better one run.
    Displace,
    /// As `Displace`, with chains of any length: the set that runs is the first that can run together.
    Matching,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Where the paths part.
    Strict,
    /// There too; but within a turn's virtual time it is a tie, and then goes the one that lags more behind its own siblings.
    Lag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// For what was used, when it was.
    After,
    /// For a whole turn when it begins; what is not used of it is given back. So a node that has its share running does not look as if it lacked more.
    Before,
    /// When it was used; but each that runs counts for a turn more.
    Running,
}

#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub charge: Charge,
    pub pick: Pick,
    pub compare: Compare,
    /// In quanta of 1 ms.
    pub turn: usize,
}

pub struct Model<'a> {
    tree: &'a Tree,
    rule: Rule,
    paths: Vec<Vec<usize>>,
    threads: Vec<usize>,
    children: Vec<Vec<usize>>,
    vtime: Vec<f64>,
    /// By pCPU: who runs, and until when.
    runs: Vec<Option<usize>>,
    until: Vec<usize>,
    now: usize,
    used: Vec<f64>,
}

impl<'a> Model<'a> {
    pub fn new(tree: &'a Tree, rule: Rule) -> Self {
        let threads: Vec<usize> = tree.threads().collect();
        let busy = tree.sums(|_| 1.0);
        let children = (0..tree.nodes.len()).map(|node| {
            (1..tree.nodes.len()).filter(|n| tree.nodes[*n].parent == node && busy[*n] > 0.0).collect()
        });
        Self {
            tree,
            rule,
            paths: (0..tree.nodes.len()).map(|node| tree.path(node)).collect(),
            threads,
            children: children.collect(),
            vtime: vec![0.0; tree.nodes.len()],
            runs: vec![None; tree.pcpus],
            // Turns do not end together.
            until: (0..tree.pcpus).map(|cpu| cpu % rule.turn).collect(),
            now: 0,
            used: vec![0.0; tree.nodes.len()],
        }
    }

    /// What each node used in so many ms, in pCPUs.
    pub fn run(&mut self, ms: usize) -> Vec<f64> {
        let before = self.used.clone();
        for _ in 0..ms {
            if self.rule.pick == Pick::Matching {
                self.match_all();
            } else {
                for cpu in 0..self.tree.pcpus {
                    if self.until[cpu] <= self.now {
                        self.pick(cpu);
                    }
                }
            }
            for thread in self.runs.iter().flatten() {
                if self.rule.charge != Charge::Before {
                    charge(&mut self.vtime, self.tree, &self.paths[*thread], 1.0);
                }
                self.used[*thread] += 1.0;
            }
            self.now += 1;
        }
        self.tree.sums(|thread| (self.used[thread] - before[thread]) / ms as f64)
    }

    fn allowed(&self, thread: usize, cpu: usize) -> bool {
        self.tree.nodes[thread].allowed.as_ref().is_some_and(|allowed| allowed.contains(&cpu))
    }

    /// How far the node is behind the mean of itself and its siblings, in ms of its own.
    fn lag(&self, node: usize) -> f64 {
        let siblings = &self.children[self.tree.nodes[node].parent];
        let weight = |node: usize| self.tree.nodes[node].weight;
        let all: f64 = siblings.iter().map(|n| weight(*n)).sum();
        let mean = siblings.iter().map(|n| self.vtime[*n] * weight(*n)).sum::<f64>() / all;
        (mean - self.vtime[node]) * weight(node) / 100.0
    }

    /// What of a turn that was charged is still to come, where this thread runs.
    fn pending(&self, thread: usize) -> f64 {
        match self.runs.iter().position(|runs| *runs == Some(thread)) {
            Some(cpu) if self.rule.charge == Charge::Before => {
                self.until[cpu].saturating_sub(self.now) as f64
            }
            _ => 0.0,
        }
    }

    /// Less is who goes first. Ties end where they occur: otherwise a < b within a group, and both equal to a third outside, were no order.
    fn order(&self, a: usize, b: usize) -> Ordering {
        let (one, other) = (&self.paths[a], &self.paths[b]);
        let parts = one.iter().zip(other).position(|(a, b)| a != b);
        let Some(at) = parts else { return Ordering::Equal };
        let weight = |node: usize| self.tree.nodes[node].weight;
        let vtime = |path: &[usize], thread: usize| {
            let running = self
                .runs
                .iter()
                .flatten()
                .filter(|runs| **runs != thread && self.paths[**runs].contains(&path[at]));
            let ahead = if self.rule.charge == Charge::Running {
                (running.count() * self.rule.turn) as f64
            } else {
                -self.pending(thread)
            };
            self.vtime[path[at]] + ahead * 100.0 / weight(path[at])
        };
        let (mine, its) = (vtime(one, a), vtime(other, b));
        let strict = mine.total_cmp(&its).then(one[at].cmp(&other[at]));
        let heavier = weight(one[at]).max(weight(other[at]));
        if self.rule.compare == Compare::Strict
            || (mine - its).abs() * heavier / 100.0 > self.rule.turn as f64
        {
            return strict;
        }
        // Whose lag at the levels below is more.
        let below = |path: &[usize]| path[at + 1..].iter().map(|node| self.lag(*node)).fold(0.0, f64::max);
        below(other).total_cmp(&below(one)).then(strict)
    }

    fn first(&self, cpu: usize, except: Option<usize>) -> Option<usize> {
        let waits = |thread: &usize| {
            self.allowed(*thread, cpu) && !self.runs.contains(&Some(*thread)) && except != Some(*thread)
        };
        self.threads.iter().copied().filter(waits).min_by(|a, b| self.order(*a, *b))
    }

    fn put(&mut self, cpu: usize, thread: Option<usize>) {
        if let Some(out) = self.runs[cpu] {
            let back = -self.pending(out);
            charge(&mut self.vtime, self.tree, &self.paths[out], back);
        }
        if let (Some(thread), Charge::Before) = (thread, self.rule.charge) {
            charge(&mut self.vtime, self.tree, &self.paths[thread], self.rule.turn as f64);
        }
        self.runs[cpu] = thread;
        self.until[cpu] = self.now + if thread.is_some() { self.rule.turn } else { 1 };
    }

    fn pick(&mut self, cpu: usize) {
        // It has had its turn: while it is compared, it does not count as running.
        let runs = self.runs[cpu].take();
        let first = self.first(cpu, runs);
        let (Some(runs), Some(waits)) = (runs, first) else {
            return self.put(cpu, runs.or(first));
        };
        if self.rule.pick == Pick::First {
            // At a tie whoever runs goes on.
            let stays = self.order(waits, runs) != Ordering::Less;
            return self.put(cpu, Some(if stays { runs } else { waits }));
        }
        // The last of those whose place the one here could take.
        let last = (0..self.tree.pcpus).filter(|other| *other != cpu && self.allowed(runs, *other)).max_by(
            |a, b| match (self.runs[*a], self.runs[*b]) {
                (Some(a), Some(b)) => self.order(a, b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
        );
        let victim = last.map(|other| (other, self.runs[other]));
        let goes = |better: usize| match victim {
            Some((other, Some(victim))) if self.order(better, victim) == Ordering::Less => Some(other),
            Some((other, None)) => Some(other),
            _ => None,
        };
        let better = self.order(waits, runs) == Ordering::Less;
        let other = goes(if better { runs } else { waits });
        if better || other.is_some() {
            other.into_iter().for_each(|other| self.put(other, Some(runs)));
            self.put(cpu, Some(waits));
        } else {
            self.put(cpu, Some(runs));
        }
    }

    /// Who runs is the first set, in order, of which each can have a pCPU.
    fn match_all(&mut self) {
        let mut left = self.threads.clone();
        self.runs.fill(None);
        // Turns of one quantum, all at once: none is pending.
        self.until.fill(self.now);
        while let Some(thread) = left.iter().copied().min_by(|a, b| self.order(*a, *b)) {
            left.retain(|other| *other != thread);
            if self.augment(thread, &mut vec![false; self.tree.pcpus]) && self.rule.charge == Charge::Before {
                charge(&mut self.vtime, self.tree, &self.paths[thread], 1.0);
            }
        }
    }

    fn augment(&mut self, thread: usize, seen: &mut [bool]) -> bool {
        for cpu in 0..self.tree.pcpus {
            if !self.allowed(thread, cpu) || std::mem::replace(&mut seen[cpu], true) {
                continue;
            }
            if self.runs[cpu].is_none_or(|other| self.augment(other, seen)) {
                self.runs[cpu] = Some(thread);
                return true;
            }
        }
        false
    }
}

fn charge(vtime: &mut [f64], tree: &Tree, path: &[usize], ms: f64) {
    path.iter().for_each(|node| vtime[*node] += ms * 100.0 / tree.nodes[*node].weight);
}
