// SPDX-License-Identifier: GPL-2.0-only
//! Lag between VMs: what each was due less what its vCPUs got (docs/metrics.md). The probe sees averages over the time between two samples, not
//! instants: a VM wants as many pCPUs as its vCPUs ran and waited on average, and all VMs share what they had and what was idle.

use std::collections::{HashMap, HashSet};

use super::sample::{Sample, Vm};

/// Figures of a VM that say how far it lags.
const FIELDS: [&str; 3] = ["lag_ns", "lag_behind_ns", "lag_ahead_ns"];

#[derive(Default)]
pub struct Lags {
    /// Of each VM at the sample before: run and ready time.
    before: Option<HashMap<u64, (u64, u64)>>,
    known: HashMap<u64, Lag>,
}

/// Among whom what is shared.
#[derive(Default)]
pub struct Among {
    /// For how long the pCPUs that VMs may use were idle since the sample before.
    pub idle_ns: u64,
    /// VMs that may not use all of these.
    pub pinned: HashSet<u64>,
}

#[derive(Clone, Copy, Default)]
struct Lag {
    now_ns: f64,
    most_ns: f64,
    least_ns: f64,
}

impl Lags {
    /// Put the lags into a sample. Who is pinned has none, and the others share what the pinned ones leave.
    pub fn update(&mut self, sample: &mut Sample, among: &Among) {
        let shares = |vm: &&Vm| !among.pinned.contains(&vm.id);
        if let Some(before) = &self.before {
            let mut used = Vec::new();
            for vm in sample.vms.iter().filter(shares) {
                let (run, ready) =
                    before.get(&vm.id).copied().unwrap_or((vm.total.run_ns, vm.total.ready_ns));
                let run = vm.total.run_ns.saturating_sub(run) as f64;
                used.push((run, run + vm.total.ready_ns.saturating_sub(ready) as f64));
            }
            let capacity = among.idle_ns as f64 + used.iter().map(|(run, _)| run).sum::<f64>();
            let vms = || sample.vms.iter().filter(shares).zip(&used);
            let wants: Vec<(f64, f64)> = vms().map(|(vm, (_, wanted))| (vm.weight, *wanted)).collect();
            for ((vm, (run, _)), due) in vms().zip(max_min(capacity, &wants)) {
                let lag = self.known.entry(vm.id).or_default();
                lag.now_ns += due - run;
                lag.most_ns = lag.most_ns.max(lag.now_ns);
                lag.least_ns = lag.least_ns.min(lag.now_ns);
            }
        }
        let times: HashMap<u64, (u64, u64)> =
            sample.vms.iter().map(|vm| (vm.id, (vm.total.run_ns, vm.total.ready_ns))).collect();
        self.known.retain(|id, _| times.contains_key(id));
        self.before = Some(times);
        for vm in &mut sample.vms {
            if among.pinned.contains(&vm.id) {
                vm.missing.extend(FIELDS.iter().map(ToString::to_string));
                continue;
            }
            let lag = self.known.get(&vm.id).copied().unwrap_or_default();
            vm.lag_ns = lag.now_ns as i64;
            vm.lag_behind_ns = lag.most_ns as i64;
            vm.lag_ahead_ns = -lag.least_ns as i64;
        }
        let pinned = sample.vms.iter().filter(|vm| !shares(vm)).count();
        if pinned > 0 {
            sample.notes.push(format!(
                "how far {pinned} VM(s) lag is not known: they are pinned, and may not use all the pCPUs that VMs use"
            ));
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
    use super::*;

    #[test]
    fn shares_are_the_entitlements_of_the_definition() {
        assert_eq!(max_min(2.0, &[(100.0, 2.0), (100.0, 2.0)]), [1.0, 1.0]);
        assert_eq!(max_min(2.0, &[(300.0, 2.0), (100.0, 2.0)]), [1.5, 0.5]);
        assert_eq!(max_min(2.0, &[(100.0, 0.25), (100.0, 2.0)]), [0.25, 1.75]);
        assert!(max_min(2.0, &[]).is_empty());
    }

    /// VMs 1, 2 and so on that have run and waited for so long.
    fn sample(times: &[(u64, u64)]) -> Sample {
        let vm = |(id, (run_ns, ready_ns)): (u64, &(u64, u64))| Vm {
            id,
            weight: 100.0,
            total: Counters { run_ns: *run_ns, ready_ns: *ready_ns, ..Counters::default() },
            ..Vm::default()
        };
        Sample { vms: (1..).zip(times).map(vm).collect(), ..Sample::default() }
    }

    /// The lags of a sample that is taken now.
    fn updated(lags: &mut Lags, among: &Among, times: &[(u64, u64)]) -> Sample {
        let mut sample = sample(times);
        lags.update(&mut sample, among);
        sample
    }

    #[test]
    fn who_got_less_than_its_due_is_behind() {
        let (mut lags, all) = (Lags::default(), Among::default());
        updated(&mut lags, &all, &[(0, 0), (0, 0)]);
        let then = updated(&mut lags, &all, &[(500, 1_500), (1_500, 500)]);
        assert_eq!((then.vms[0].lag_ns, then.vms[1].lag_ns), (500, -500));
        let later = updated(&mut lags, &all, &[(1_700, 1_600), (2_300, 1_500)]);
        assert_eq!((later.vms[0].lag_behind_ns, later.vms[1].lag_ahead_ns), (500, 500));
        assert!(later.notes.is_empty() && later.vms.iter().all(|vm| vm.missing.is_empty()));
    }

    #[test]
    fn who_is_pinned_has_no_lag_and_the_others_share_what_it_leaves() {
        let mut lags = Lags::default();
        let pinned = Among { idle_ns: 0, pinned: [1].into() };
        updated(&mut lags, &pinned, &[(0, 0), (0, 0), (0, 0)]);
        // VM 1 has a pCPU of its own and waits for nothing; by weight it would be due two thirds of that.
        let then = updated(&mut lags, &pinned, &[(1_000, 0), (400, 600), (600, 400)]);
        assert_eq!((then.vms[0].lag_ns, &then.vms[0].missing), (0, &FIELDS.map(String::from).to_vec()));
        assert_eq!((then.vms[1].lag_ns, then.vms[2].lag_ns), (100, -100));
        assert!(then.vms[1].missing.is_empty() && then.missing.is_empty());
        assert!(then.notes.len() == 1 && then.notes[0].contains("1 VM(s)"), "{:?}", then.notes);
        // It may run everywhere from now on: what it got while it was pinned is no lag.
        let all = Among { idle_ns: 1_000, ..Among::default() };
        let later = updated(&mut lags, &all, &[(1_000, 1_000), (400, 600), (600, 400)]);
        assert_eq!((later.vms[0].lag_ns, later.vms[1].lag_ns), (1_000, 100));
    }

    #[test]
    fn idle_time_is_shared_as_well() {
        let mut lags = Lags::default();
        let idle = Among { idle_ns: 300, ..Among::default() };
        updated(&mut lags, &idle, &[(0, 0)]);
        assert_eq!(updated(&mut lags, &idle, &[(500, 1_000)]).vms[0].lag_ns, 300);
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
            let (mut lags, all) = (Lags::default(), Among::default());
            lags.update(&mut sample(n, 0, 0), &all);
            let mut then = sample(n, 1_000_000, 1_000_000);
            lags.update(&mut then, &all);
            let due_ns = (n as f64 + 1.0) * 1e6 / n as f64;
            assert!((then.vms[0].lag_ns as f64 - (due_ns - 2e6)).abs() < 2.0, "{n}: {:?}", then.vms[0]);
            assert!(then.vms[1..].iter().all(|vm| (vm.lag_ns as f64 - (due_ns - 1e6)).abs() < 2.0), "{n}");
            lags.update(&mut sample(1, 2_000_000, 2_000_000), &all);
            assert_eq!(lags.known.len(), 1, "who has gone is forgotten");
        }
    }
}
