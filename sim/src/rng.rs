// SPDX-License-Identifier: GPL-2.0-only
//! Seeded randomness. Each entity has a generator of its own, derived from the run's seed and the entity's name, so that what one entity draws
//! never depends on what others do.
//!
//! xoshiro256** (Blackman and Vigna), seeded by splitmix64. Own code, because the sequence is part of the results: a library may change it.

use crate::time::Ns;

/// What kind of entity draws; part of the derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Stream {
    Host = 1,
    Cpu = 2,
    Task = 3,
    Vm = 4,
    Vcpu = 5,
    /// A guest's task.
    GuestTask = 6,
    /// A workload's arrivals, sizes and the like.
    Workload = 7,
}

#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator of entity number `id` of a kind; a vCPU's number is `vm << 32 | vcpu`.
    pub fn derive(seed: u64, stream: Stream, id: u64) -> Self {
        let mut state = seed;
        let root = splitmix64(&mut state);
        let mut state = root ^ (stream as u64).rotate_left(56);
        let kind = splitmix64(&mut state);
        let mut state = kind ^ id;
        Self { state: std::array::from_fn(|_| splitmix64(&mut state)) }
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Evenly from 0 to below `n` (Lemire's multiplication; the bias is below n / 2^64). 0 for an `n` of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Evenly from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high.max(low) - low).saturating_add(1))
    }

    /// Evenly in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() <= probability
    }

    /// Exponentially distributed with this mean. `libm` gives the same digits on every machine.
    pub fn exponential(&mut self, mean_ns: Ns) -> Ns {
        (-libm::log(self.unit()) * mean_ns as f64) as Ns
    }

    /// Log-normally distributed: the median, and the standard deviation of the logarithm.
    pub fn log_normal(&mut self, median_ns: Ns, sigma: f64) -> Ns {
        // Box and Muller's method; the second value is not kept, so that a draw costs two numbers whatever came before.
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        let normal = radius * libm::cos(2.0 * std::f64::consts::PI * self.unit());
        (median_ns as f64 * libm::exp(sigma * normal)) as Ns
    }
}
