// SPDX-License-Identifier: GPL-2.0-only
//! The peers' shape as a bare loop: a heap of eight entries and ring queues, nothing else. What any simulator of this shape can reach at most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

const CPUS: usize = 8;
const PER_CPU: usize = 4;

/// The generator that the peers' scripts use as well, so that all make the same decisions.
#[derive(Clone, Copy)]
pub struct Lcg(u32);

impl Lcg {
    pub fn new(cpu: u32) -> Self {
        Self(cpu.wrapping_mul(2_654_435_761).wrapping_add(12_345))
    }

    pub fn slice_us(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1_000 + u64::from((self.0 >> 16) % 3_001)
    }
}

/// Decisions per second of wall time, over so many seconds of the simulation's.
pub fn decisions_per_s(sim_s: u64) -> f64 {
    let start = Instant::now();
    let mut heap = BinaryHeap::new();
    let mut generators: [Lcg; CPUS] = std::array::from_fn(|cpu| Lcg::new(cpu as u32));
    let (mut heads, mut starts, mut ran_us) = ([0; CPUS], [0u64; CPUS], [0u64; CPUS * PER_CPU]);
    let mut decisions = 0u64;
    for (cpu, generator) in generators.iter_mut().enumerate() {
        heap.push(Reverse((generator.slice_us(), cpu)));
        decisions += 1;
    }
    while let Some(Reverse((at_us, cpu))) = heap.pop() {
        if at_us >= sim_s * 1_000_000 {
            break;
        }
        ran_us[cpu * PER_CPU + heads[cpu]] += at_us - starts[cpu];
        heads[cpu] = (heads[cpu] + 1) % PER_CPU;
        starts[cpu] = at_us;
        heap.push(Reverse((at_us + generators[cpu].slice_us(), cpu)));
        decisions += 1;
    }
    std::hint::black_box(ran_us);
    decisions as f64 / start.elapsed().as_secs_f64()
}
