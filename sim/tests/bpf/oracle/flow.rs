// SPDX-License-Identifier: GPL-2.0-only
//! Max-flow of small graphs with fractional capacities (Dinic).

use super::EPSILON;

/// Residual capacities below it count as none; well below the precision of what is asked.
const NONE: f64 = EPSILON / 100_000.0;

struct Edge {
    to: usize,
    residual: f64,
}

/// Edges come in pairs: one there, and one back.
struct Graph {
    edges: Vec<Edge>,
    out: Vec<Vec<usize>>,
}

impl Graph {
    fn new(vertices: usize) -> Self {
        Self { edges: Vec::new(), out: vec![Vec::new(); vertices] }
    }

    fn edge(&mut self, from: usize, to: usize, capacity: f64) {
        for (from, to, residual) in [(from, to, capacity), (to, from, 0.0)] {
            self.out[from].push(self.edges.len());
            self.edges.push(Edge { to, residual });
        }
    }

    /// Steps from the source along edges that are not full.
    fn levels(&self, source: usize) -> Vec<Option<usize>> {
        let mut level = vec![None; self.out.len()];
        level[source] = Some(0);
        let mut order = vec![source];
        let mut next = 0;
        while let Some(&at) = order.get(next) {
            next += 1;
            for edge in &self.out[at] {
                let Edge { to, residual } = self.edges[*edge];
                if residual > NONE && level[to].is_none() {
                    level[to] = level[at].map(|level| level + 1);
                    order.push(to);
                }
            }
        }
        level
    }

    fn push(
        &mut self,
        at: usize,
        sink: usize,
        most: f64,
        level: &[Option<usize>],
        tried: &mut [usize],
    ) -> f64 {
        if at == sink {
            return most;
        }
        while let Some(&edge) = self.out[at].get(tried[at]) {
            let Edge { to, residual } = self.edges[edge];
            if residual > NONE && level[to] == level[at].map(|level| level + 1) {
                let pushed = self.push(to, sink, most.min(residual), level, tried);
                if pushed > NONE {
                    self.edges[edge].residual -= pushed;
                    self.edges[edge ^ 1].residual += pushed;
                    return pushed;
                }
            }
            tried[at] += 1;
        }
        0.0
    }

    fn max_flow(&mut self, source: usize, sink: usize) -> f64 {
        let mut flow = 0.0;
        loop {
            let level = self.levels(source);
            if level[sink].is_none() {
                return flow;
            }
            let mut tried = vec![0; self.out.len()];
            loop {
                let pushed = self.push(source, sink, f64::INFINITY, &level, &mut tried);
                if pushed <= NONE {
                    break;
                }
                flow += pushed;
            }
        }
    }

    /// After max_flow: the source's side of a smallest cut.
    fn cut(&self, source: usize) -> Vec<bool> {
        self.levels(source).iter().map(Option::is_some).collect()
    }
}

/// A circulation in which edges carry something at least: what they must carry comes from a source of its own, and goes to a sink of its own.
pub struct Bounded {
    graph: Graph,
    source: usize,
    bounds: f64,
}

impl Bounded {
    pub fn new(vertices: usize) -> Self {
        Self { graph: Graph::new(vertices + 2), source: vertices, bounds: 0.0 }
    }

    pub fn edge(&mut self, from: usize, to: usize, least: f64, most: f64) {
        self.graph.edge(from, to, most - least);
        if least > 0.0 {
            self.graph.edge(self.source, to, least);
            self.graph.edge(from, self.source + 1, least);
            self.bounds += least;
        }
    }

    /// What the bounds ask for and the rest cannot carry; and, by vertex, what is on the side of those that ask too much.
    pub fn missing(mut self) -> (f64, Vec<bool>) {
        let flow = self.graph.max_flow(self.source, self.source + 1);
        (self.bounds - flow, self.graph.cut(self.source))
    }
}
