// SPDX-License-Identifier: GPL-2.0-only
//! Lag between VMs: what each was due less what its vCPUs got (docs/metrics.md). The probe sees averages over the time between two samples, not
//! instants: a VM wants as many pCPUs as its vCPUs ran and waited on average, and all VMs share what they had and what was idle.

use std::collections::HashMap;

use super::sample::Sample;

#[derive(Default)]
pub struct Lags {
    before: Option<Before>,
    known: HashMap<u64, Lag>,
}

struct Before {
    idle_ns: u64,
    /// Of each VM: run and ready time.
    times: HashMap<u64, (u64, u64)>,
}

#[derive(Clone, Copy, Default)]
struct Lag {
    now_ns: f64,
    most_ns: f64,
    least_ns: f64,
}

impl Lags {
    /// Put the lags into a sample.
    pub fn update(&mut self, sample: &mut Sample) {
        if let Some(before) = &self.before {
            let idle = sample.idle_ns.saturating_sub(before.idle_ns) as f64;
            let mut used = Vec::new();
            for vm in &sample.vms {
                let (run, ready) =
                    before.times.get(&vm.id).copied().unwrap_or((vm.total.run_ns, vm.total.ready_ns));
                let run = vm.total.run_ns.saturating_sub(run) as f64;
                used.push((run, run + vm.total.ready_ns.saturating_sub(ready) as f64));
            }
            let capacity = idle + used.iter().map(|(run, _)| run).sum::<f64>();
            let wants: Vec<(f64, f64)> =
                sample.vms.iter().zip(&used).map(|(vm, (_, wanted))| (vm.weight, *wanted)).collect();
            for ((vm, (run, _)), due) in sample.vms.iter().zip(&used).zip(max_min(capacity, &wants)) {
                let lag = self.known.entry(vm.id).or_default();
                lag.now_ns += due - run;
                lag.most_ns = lag.most_ns.max(lag.now_ns);
                lag.least_ns = lag.least_ns.min(lag.now_ns);
            }
        }
        let times: HashMap<u64, (u64, u64)> =
            sample.vms.iter().map(|vm| (vm.id, (vm.total.run_ns, vm.total.ready_ns))).collect();
        self.known.retain(|id, _| times.contains_key(id));
        self.before = Some(Before { idle_ns: sample.idle_ns, times });
        for vm in &mut sample.vms {
            let lag = self.known.get(&vm.id).copied().unwrap_or_default();
            vm.lag_ns = lag.now_ns as i64;
            vm.lag_behind_ns = lag.most_ns as i64;
            vm.lag_ahead_ns = -lag.least_ns as i64;
        }
    }
}

/// Weighted max-min fair shares of a capacity: of each (weight, wanted). It sorts once, so that it is cheap with any number of VMs.
fn max_min(capacity: f64, wants: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    let level = |i: &usize| wants[*i].1 / wants[*i].0.max(f64::MIN_POSITIVE);
    order.sort_by(|a, b| level(a).total_cmp(&level(b)));
    let mut left = capacity;
    let mut weights: f64 = wants.iter().map(|(weight, _)| weight).sum();
    let mut shares = vec![0.0; wants.len()];
    for i in order {
        let (weight, wanted) = wants[i];
        let share = if weights > 0.0 { wanted.min(left * weight / weights) } else { 0.0 };
        shares[i] = share;
        left -= share;
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::super::sample::Vm;
    use super::*;

    #[test]
    fn shares_are_the_entitlements_of_the_definition() {
        assert_eq!(max_min(2.0, &[(100.0, 2.0), (100.0, 2.0)]), [1.0, 1.0]);
        assert_eq!(max_min(2.0, &[(300.0, 2.0), (100.0, 2.0)]), [1.5, 0.5]);
        assert_eq!(max_min(2.0, &[(100.0, 0.25), (100.0, 2.0)]), [0.25, 1.75]);
        assert!(max_min(2.0, &[]).is_empty());
    }

    #[test]
    fn who_got_less_than_its_due_is_behind() {
        let sample = |a: (u64, u64), b: (u64, u64)| Sample {
            vms: [(1, a), (2, b)]
                .map(|(id, (run_ns, ready_ns))| Vm {
                    id,
                    weight: 100.0,
                    total: Counters { run_ns, ready_ns, ..Counters::default() },
                    ..Vm::default()
                })
                .into(),
            ..Sample::default()
        };
        let mut lags = Lags::default();
        lags.update(&mut sample((0, 0), (0, 0)));
        let mut then = sample((500, 1_500), (1_500, 500));
        lags.update(&mut then);
        assert_eq!((then.vms[0].lag_ns, then.vms[1].lag_ns), (500, -500));
        let mut later = sample((1_700, 1_600), (2_300, 1_500));
        lags.update(&mut later);
        assert_eq!((later.vms[0].lag_behind_ns, later.vms[1].lag_ahead_ns), (500, 500));
    }
    #[test]
    fn however_many_vms_there_are_each_has_its_lag() {
        // All wait as long as they run, but for the first, which ran for twice its due and waited for nothing.
        let sample = |n: u64, run_ns: u64, ready_ns: u64| Sample {
            vms: (0..n)
                .map(|id| Vm {
                    id,
                    weight: 100.0,
                    total: Counters {
                        run_ns: if id == 0 { 2 * run_ns } else { run_ns },
                        ready_ns: if id == 0 { 0 } else { ready_ns },
                        ..Counters::default()
                    },
                    ..Vm::default()
                })
                .collect(),
            ..Sample::default()
        };
        for n in [64, 65, 1000] {
            let mut lags = Lags::default();
            lags.update(&mut sample(n, 0, 0));
            let mut then = sample(n, 1_000_000, 1_000_000);
            lags.update(&mut then);
            let due_ns = (n as f64 + 1.0) * 1e6 / n as f64;
            assert!((then.vms[0].lag_ns as f64 - (due_ns - 2e6)).abs() < 2.0, "{n}: {:?}", then.vms[0]);
            assert!(then.vms[1..].iter().all(|vm| (vm.lag_ns as f64 - (due_ns - 1e6)).abs() < 2.0), "{n}");
            lags.update(&mut sample(1, 2_000_000, 2_000_000));
            assert_eq!(lags.known.len(), 1, "who has gone is forgotten");
        }
    }
}
