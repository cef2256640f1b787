// SPDX-License-Identifier: GPL-2.0-only
//! Distributions of times, as HDR histograms: two significant digits at any length, in memory that grows with the longest alone.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::time::Ns;

/// A distribution. Count, sum and extremes are exact, quantiles within 1 %.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    // Made with the first value: most kinds of waits never occur in most VMs.
    histogram: Option<Histogram<u64>>,
    sum_ns: u128,
    min_ns: Ns,
    max_ns: Ns,
}

const DIGITS: u8 = 2;

impl Waits {
    pub fn add(&mut self, ns: Ns) {
        self.sum_ns += u128::from(ns);
        self.max_ns = self.max_ns.max(ns);
        self.min_ns = if self.histogram.is_none() { ns } else { self.min_ns.min(ns) };
        if self.histogram.is_none() {
            self.histogram = Histogram::new(DIGITS).ok();
        }
        if let Some(histogram) = &mut self.histogram {
            // Grows with its longest value; the few lengths beyond its limits count as the nearest.
            if histogram.record(ns).is_err() {
                histogram.saturating_record(ns);
            }
        }
    }

    pub fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::len)
    }

    pub fn sum_ns(&self) -> Ns {
        self.sum_ns.min(u128::from(Ns::MAX)) as Ns
    }

    pub fn max_ns(&self) -> Ns {
        self.max_ns
    }

    pub fn summary(&self) -> Summary {
        let Some(histogram) = self.histogram.as_ref().filter(|histogram| !histogram.is_empty()) else {
            return Summary::default();
        };
        let at = |quantile: f64| histogram.value_at_quantile(quantile).clamp(self.min_ns, self.max_ns);
        Summary {
            count: histogram.len(),
            sum_ns: self.sum_ns(),
            mean_ns: (self.sum_ns / u128::from(histogram.len())) as Ns,
            min_ns: self.min_ns,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.max_ns,
            buckets: histogram
                .iter_recorded()
                .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
                .collect(),
        }
    }
}

/// A distribution as it is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub count: u64,
    pub sum_ns: Ns,
    pub mean_ns: Ns,
    pub min_ns: Ns,
    pub p50_ns: Ns,
    pub p90_ns: Ns,
    pub p99_ns: Ns,
    pub p999_ns: Ns,
    pub max_ns: Ns,
    /// Upper end of each bucket that holds something, and how many it holds.
    pub buckets: Vec<(Ns, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_all_zeroes() {
        assert_eq!(Waits::default().summary(), Summary::default());
    }

    #[test]
    fn sums_and_extremes_are_exact_and_quantiles_near() {
        let mut waits = Waits::default();
        for ns in 1..=1000 {
            waits.add(ns * 1000);
        }
        let summary = waits.summary();
        assert_eq!((summary.count, summary.min_ns, summary.max_ns), (1000, 1000, 1_000_000));
        assert_eq!((summary.sum_ns, summary.mean_ns), (500_500_000, 500_500));
        assert!((495_000..=505_000).contains(&summary.p50_ns), "{}", summary.p50_ns);
        assert!((980_000..=1_000_000).contains(&summary.p99_ns), "{}", summary.p99_ns);
        assert_eq!(summary.buckets.iter().map(|(_, count)| count).sum::<u64>(), 1000);
    }

    #[test]
    fn zero_and_the_longest_time_have_a_place() {
        let mut waits = Waits::default();
        waits.add(0);
        waits.add(Ns::MAX / 4);
        assert_eq!((waits.summary().min_ns, waits.summary().max_ns), (0, Ns::MAX / 4));
    }
}
