// SPDX-License-Identifier: GPL-2.0-only
//! Per-entity load tracking (kernel/sched/pelt.c): how much an entity or a queue was runnable, the present counting twice as much as 32 ms ago.
//!
//! Time is cut into periods of 1024 us; each counts y times as much as the one after it, y^32 = 1/2. The average is over the weighted periods, the present
//! one as far as it has gone.

use crate::time::Ns;

/// LOAD_AVG_MAX: what the sum of 1024 * y^n comes to, with the kernel's rounding.
const SUM_MAX: u64 = 47_742;
const PERIOD: u64 = 1024;
/// LOAD_AVG_PERIOD: periods in which a contribution halves.
const HALF_LIFE: u64 = 32;
/// 2^(-1/32) * 2^64
const Y: u64 = 0xfa83_b2db_722a_033a;

/// y^n * 2^32 for n below 32.
const POWERS: [u32; HALF_LIFE as usize] = {
    let mut powers = [u32::MAX; HALF_LIFE as usize];
    let (mut power, mut n) = (1u128 << 64, 1);
    while n < powers.len() {
        power = (power * Y as u128) >> 64;
        powers[n] = (power >> 32) as u32;
        n += 1;
    }
    powers
};

/// `decay_load()`
fn decay(value: u64, periods: u64) -> u64 {
    if periods > HALF_LIFE * 63 {
        return 0;
    }
    let value = value >> (periods / HALF_LIFE);
    ((u128::from(value) * u128::from(POWERS[(periods % HALF_LIFE) as usize])) >> 32) as u64
}

/// `struct sched_avg`, without the time of running (utilization).
#[derive(Clone, Copy, Debug, Default)]
pub struct Average {
    /// Up to when it has been counted; 0: never.
    at_ns: Ns,
    /// How far the present period has gone.
    into_period: u64,
    pub load_sum: u64,
    pub runnable_sum: u64,
    /// An entity's: its weight times the part of the time that it was runnable; a queue's: that of all in it. 1024 is one of nice 0, always runnable.
    pub load: u64,
    /// Of a queue: how many were runnable, times 1024.
    pub runnable: u64,
}

impl Average {
    /// What the sums would be, had everything been runnable for ever: `get_pelt_divider()`.
    pub fn divider(&self) -> u64 {
        SUM_MAX - PERIOD + self.into_period
    }

    /// `___update_load_sum()`: since the last call `load` was there and `runnable` ran or waited. Return true if a period has ended: the averages are
    /// to be made anew then.
    pub fn advance(&mut self, now_ns: Ns, load: u64, runnable: u64) -> bool {
        let runnable = if load == 0 { 0 } else { runnable };
        let units = now_ns.saturating_sub(self.at_ns) >> 10;
        if units == 0 {
            return false;
        }
        self.at_ns += units << 10;
        let mut contribution = units;
        let (periods, rest) = ((self.into_period + units) / PERIOD, (self.into_period + units) % PERIOD);
        if periods > 0 {
            self.load_sum = decay(self.load_sum, periods);
            self.runnable_sum = decay(self.runnable_sum, periods);
            if load > 0 {
                let first = decay(PERIOD - self.into_period, periods);
                contribution = first + (SUM_MAX - decay(SUM_MAX, periods) - PERIOD) + rest;
            }
            self.into_period = rest;
        } else {
            self.into_period += units;
        }
        self.load_sum += load * contribution;
        self.runnable_sum += (runnable * contribution) << 10;
        periods > 0
    }

    /// `___update_load_avg()`
    pub fn average(&mut self, weight: u64) {
        let divider = self.divider();
        self.load = weight * self.load_sum / divider;
        self.runnable = self.runnable_sum / divider;
    }

    /// A new task's load counts as if it had always been runnable, until more is known: `init_entity_runnable_average()`. How much it is
    /// runnable is taken from those in its queue, and as half of the time that they leave at most (`post_init_entity_util_avg()`; here who is runnable
    /// stands for who runs).
    pub fn start(weight: u64, queue: &Average) -> Self {
        let busy = queue.runnable.min(1024);
        let rest = (1024 - busy) / 2;
        let runnable = if busy > 0 { (busy * weight / (queue.load + 1)).min(rest) } else { rest };
        Self { load_sum: SUM_MAX - PERIOD, load: weight, runnable, ..Self::default() }
    }

    /// From now on it is part of this queue's average: the same clock, and sums that give the same averages on it (`attach_entity_load_avg()`).
    pub fn align(&mut self, queue: &Average, weight: u64) {
        self.at_ns = queue.at_ns;
        self.into_period = queue.into_period;
        let divider = self.divider();
        self.runnable_sum = self.runnable * divider;
        self.load_sum = self.load * divider / weight.max(1);
    }

    /// Add or take away an entity's part.
    pub fn add(&mut self, entity: &Average, weight: u64) {
        self.load += entity.load;
        self.load_sum += weight * entity.load_sum;
        self.runnable += entity.runnable;
        self.runnable_sum += entity.runnable_sum;
    }

    pub fn take(&mut self, entity: &Average, weight: u64) {
        self.load = self.load.saturating_sub(entity.load);
        self.load_sum = self.load_sum.saturating_sub(weight * entity.load_sum);
        self.runnable = self.runnable.saturating_sub(entity.runnable);
        self.runnable_sum = self.runnable_sum.saturating_sub(entity.runnable_sum);
    }

    pub fn is_decayed(&self) -> bool {
        self.load_sum == 0 && self.runnable_sum == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Ns = 1 << 20;

    fn busy_until(ms: u64) -> Average {
        let mut average = Average::default();
        average.advance(ms * MS, 1, 1);
        average.average(1024);
        average
    }

    #[test]
    fn whoever_is_always_runnable_has_its_weight() {
        let average = busy_until(2000);
        assert_eq!((average.load, average.runnable), (1024, 1024));
    }

    #[test]
    fn half_is_forgotten_in_32_periods() {
        let mut average = busy_until(2000);
        average.advance(2032 * MS, 0, 0);
        average.average(1024);
        assert!(average.load.abs_diff(512) <= 1 && average.runnable.abs_diff(512) <= 1, "{average:?}");
        let half = busy_until(32);
        assert!(half.load.abs_diff(512) <= 12, "{half:?}");
    }

    #[test]
    fn steps_do_not_matter() {
        let mut average = Average::default();
        for step in 1..=2000 * 16 {
            average.advance(step * MS / 16, 1, 1);
        }
        average.average(1024);
        assert_eq!(average.load, 1023);
    }

    #[test]
    fn a_queue_of_two_has_both() {
        let mut queue = Average::default();
        queue.advance(1500 * MS, 2048, 2);
        queue.average(1);
        assert_eq!((queue.load, queue.runnable), (2048, 2048));
        let mut one = busy_until(1500);
        one.align(&queue, 1024);
        queue.take(&one, 1024);
        assert_eq!((queue.load, queue.runnable), (1024, 1024));
    }
}
