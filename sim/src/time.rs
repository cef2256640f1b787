// SPDX-License-Identifier: GPL-2.0-only
//! Time and work. Everything is integer nanoseconds, so that a run gives the same bytes everywhere.

/// A point in simulated time, or a length of it.
pub type Ns = u64;

pub const US: Ns = 1_000;
pub const MS: Ns = 1_000_000;
pub const SEC: Ns = 1_000_000_000;

/// A quotient, rounded down. Most products fit 64 bits, whose division is several times faster than that of 128.
#[inline]
pub fn quotient(product: u128, by: u64) -> u128 {
    match u64::try_from(product) {
        Ok(product) => u128::from(product / by),
        Err(_) => product / u128::from(by),
    }
}

/// How fast a hardware thread works, relative to one that has its core to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speed(u32);

impl Speed {
    const ONE: u64 = 1 << 16;
    pub const FULL: Self = Self(1 << 16);

    /// 1000 is full speed. At least 1.
    pub const fn per_mille(per_mille: u32) -> Self {
        let raw = per_mille as u64 * Self::ONE / 1000;
        Self(if raw == 0 { 1 } else { raw as u32 })
    }

    /// What gets done in this time; rounded down.
    pub fn work_in(self, elapsed_ns: Ns) -> Ns {
        if self == Self::FULL {
            return elapsed_ns;
        }
        (u128::from(elapsed_ns) * u128::from(self.0) / u128::from(Self::ONE)) as Ns
    }

    /// The time after which so much is done; rounded up, so that then it is.
    pub fn time_for(self, work_ns: Ns) -> Ns {
        if self == Self::FULL {
            return work_ns;
        }
        (u128::from(work_ns) * u128::from(Self::ONE)).div_ceil(u128::from(self.0)) as Ns
    }
}

/// A piece of work that a body is in the middle of: what is left of it, across preemptions and changes of speed.
///
/// ```
/// use cohort_sim::time::{Progress, Speed};
///
/// let mut work = Progress::new(1_000);
/// assert_eq!(work.start(500, Speed::FULL), 1_500);
/// work.stop(800);
/// assert_eq!(work.left_ns(), 700);
/// assert_eq!(work.start(2_000, Speed::per_mille(500)), 3_400);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    left_ns: Ns,
    from_ns: Ns,
    speed: Speed,
    runs: bool,
}

impl Progress {
    /// Work that takes this long at full speed.
    pub const fn new(work_ns: Ns) -> Self {
        Self { left_ns: work_ns, from_ns: 0, speed: Speed::FULL, runs: false }
    }

    /// Go on from this time at this speed. Returns when it will be done. `from_ns` may lie ahead: nothing is done before.
    pub fn start(&mut self, from_ns: Ns, speed: Speed) -> Ns {
        self.from_ns = from_ns;
        self.speed = speed;
        self.runs = true;
        from_ns.saturating_add(speed.time_for(self.left_ns))
    }

    /// Stop, or only bring `left_ns()` up to date before a `start()` at another speed.
    pub fn stop(&mut self, now_ns: Ns) {
        if self.runs {
            self.runs = false;
            self.left_ns =
                self.left_ns.saturating_sub(self.speed.work_in(now_ns.saturating_sub(self.from_ns)));
        }
    }

    /// What is left, as of the last `start()` or `stop()`.
    pub const fn left_ns(&self) -> Ns {
        self.left_ns
    }

    pub const fn is_done(&self) -> bool {
        self.left_ns == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotient_is_the_same_on_both_sides_of_64_bits() {
        let edge = u128::from(u64::MAX);
        for product in [0, 1, 1 << 40, edge - 1, edge, edge + 1, edge * 3, edge * edge] {
            for by in [1, 3, 1 << 20, u64::MAX] {
                assert_eq!(quotient(product, by), product / u128::from(by), "{product} by {by}");
            }
        }
    }
}
