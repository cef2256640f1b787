// SPDX-License-Identifier: GPL-2.0-only
//! Lag between VMs: what a VM was due minus what it got, at any moment. Due is what weighted max-min fair sharing of the pCPUs would give it at
//! each instant, where a VM wants as many pCPUs as it has vCPUs that run or wait (generalized processor sharing; EEVDF, RTSS'96, defines lag so
//! for tasks).

use crate::time::Ns;

use super::layout::Layout;

/// How long a window is in which the VMs' lags are compared (SBCO, section V-B4, has 1 to 120 s).
const WINDOW_NS: Ns = 1_000_000_000;

/// More VMs than these are not worth the time: the shares are found anew whenever a VM's wish changes.
const VMS_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
struct VmLag {
    weight: f64,
    wants: u32,
    runs: u32,
    /// pCPUs that it is due now.
    rate: f64,
    due_ns: f64,
    got_ns: Ns,
    got_since_ns: Ns,
    most_behind_ns: f64,
    most_ahead_ns: f64,
    /// Lag at the end of the last window.
    lag_before_ns: f64,
}

/// How far each VM is behind and ahead of its due.
#[derive(Clone, Debug, Default)]
pub struct Lags {
    pcpus: u32,
    vms: Vec<VmLag>,
    at_ns: Ns,
    /// Windows that are over, and what the VM that gained most in each gained more than the one that gained least, all together.
    windows: u64,
    spreads_ns: f64,
}

impl Lags {
    /// `None` where it is not defined: pinned VMs have shares of some pCPUs, not of all.
    pub fn new(layout: &Layout) -> Option<Self> {
        if layout.vms.len() > VMS_MAX || layout.vms.iter().any(|vm| vm.pinned) {
            return None;
        }
        let vms =
            layout.vms.iter().map(|vm| VmLag { weight: f64::from(vm.weight.max(1)), ..VmLag::default() });
        Some(Self { pcpus: layout.pcpus, vms: vms.collect(), ..Self::default() })
    }

    /// From now on the VM has so many vCPUs that run or wait.
    pub fn wants(&mut self, vm: usize, now_ns: Ns, wants: u32) {
        if self.vms[vm].wants == wants {
            return;
        }
        self.pass(now_ns);
        // Beyond the pCPUs there are, one more vCPU changes nothing.
        let same = self.vms[vm].wants.min(self.pcpus) == wants.min(self.pcpus);
        self.vms[vm].wants = wants;
        if !same {
            self.share();
        }
    }

    /// From now on so many of its vCPUs have a pCPU.
    pub fn runs(&mut self, vm: usize, now_ns: Ns, runs: u32) {
        if self.vms[vm].runs == runs {
            return;
        }
        self.pass(now_ns);
        let vm = &mut self.vms[vm];
        vm.got_ns += u64::from(vm.runs) * (now_ns - vm.got_since_ns);
        (vm.got_since_ns, vm.runs) = (now_ns, runs);
        vm.look(now_ns);
    }

    /// Most behind and most ahead so far, ns of CPU time.
    pub fn extremes(&mut self, vm: usize, now_ns: Ns) -> (Ns, Ns) {
        self.pass(now_ns);
        let vm = &mut self.vms[vm];
        vm.look(now_ns);
        (vm.most_behind_ns as Ns, vm.most_ahead_ns as Ns)
    }

    /// By how much the VMs' lags drift apart in a second, on average: the greatest difference of CPU time where all are due the same.
    pub fn spread_ns(&mut self, now_ns: Ns) -> Option<Ns> {
        self.pass(now_ns);
        (self.windows > 0).then(|| (self.spreads_ns / self.windows as f64) as Ns)
    }

    fn pass(&mut self, now_ns: Ns) {
        while self.at_ns / WINDOW_NS < now_ns / WINDOW_NS {
            self.pass_by((self.at_ns / WINDOW_NS + 1) * WINDOW_NS);
            self.end_window();
        }
        self.pass_by(now_ns);
    }

    fn end_window(&mut self) {
        let (mut least_ns, mut most_ns) = (f64::MAX, f64::MIN);
        for vm in &mut self.vms {
            let lag_ns = vm.lag_ns(self.at_ns);
            let gained_ns = lag_ns - vm.lag_before_ns;
            vm.lag_before_ns = lag_ns;
            (least_ns, most_ns) = (least_ns.min(gained_ns), most_ns.max(gained_ns));
        }
        self.windows += 1;
        self.spreads_ns += (most_ns - least_ns).max(0.0);
    }

    fn pass_by(&mut self, now_ns: Ns) {
        let elapsed = (now_ns - self.at_ns) as f64;
        self.at_ns = now_ns;
        if elapsed > 0.0 {
            for vm in &mut self.vms {
                vm.due_ns += vm.rate * elapsed;
            }
        }
    }

    /// Weighted max-min fair: all shares grow together until a VM has what it wants. Lag may turn where a share changes, so it is looked at before.
    fn share(&mut self) {
        for vm in &mut self.vms {
            vm.look(self.at_ns);
        }
        let mut left = f64::from(self.pcpus);
        let mut open: Vec<usize> = Vec::with_capacity(self.vms.len());
        for (index, vm) in self.vms.iter_mut().enumerate() {
            vm.rate = 0.0;
            if vm.wants > 0 {
                open.push(index);
            }
        }
        loop {
            let weights: f64 = open.iter().map(|vm| self.vms[*vm].weight).sum();
            let level = left / weights;
            let content = |vm: &VmLag| f64::from(vm.wants) <= level * vm.weight;
            let (full, hungry): (Vec<usize>, Vec<usize>) =
                open.iter().partition(|vm| content(&self.vms[**vm]));
            if full.is_empty() {
                for vm in hungry {
                    self.vms[vm].rate = level * self.vms[vm].weight;
                }
                return;
            }
            for vm in full {
                self.vms[vm].rate = f64::from(self.vms[vm].wants);
                left -= self.vms[vm].rate;
            }
            open = hungry;
        }
    }
}

impl VmLag {
    fn lag_ns(&self, now_ns: Ns) -> f64 {
        let got_ns = self.got_ns + u64::from(self.runs) * (now_ns - self.got_since_ns);
        self.due_ns - got_ns as f64
    }

    fn look(&mut self, now_ns: Ns) {
        let lag = self.lag_ns(now_ns);
        self.most_behind_ns = self.most_behind_ns.max(lag);
        self.most_ahead_ns = self.most_ahead_ns.max(-lag);
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::VmLayout;
    use super::*;

    fn lags(pcpus: u32, weights: &[u32]) -> Lags {
        let vm = |weight: &u32| VmLayout { vcpus: 2, weight: *weight, ..VmLayout::default() };
        let layout = Layout { pcpus, vms: weights.iter().map(vm).collect(), ..Layout::default() };
        Lags::new(&layout).unwrap()
    }

    #[test]
    fn taking_turns_is_a_lag_of_half_a_turn() {
        // One pCPU, two VMs of a vCPU each: the first runs for 10, then the second for 10.
        let mut lags = lags(1, &[100, 100]);
        lags.wants(0, 0, 1);
        lags.wants(1, 0, 1);
        lags.runs(0, 0, 1);
        lags.runs(0, 10, 0);
        lags.runs(1, 10, 1);
        assert_eq!((lags.extremes(0, 20), lags.extremes(1, 20)), ((0, 5), (5, 0)));
    }

    #[test]
    fn lag_is_looked_at_where_somebody_elses_wish_turns_it() {
        // Two pCPUs. The first VM wants both and has one: 10 behind. From then on it is due half of one, for another wants both.
        let mut lags = lags(2, &[100, 300]);
        lags.wants(0, 0, 2);
        lags.runs(0, 0, 1);
        lags.wants(1, 10, 2);
        assert_eq!(lags.vms[0].rate, 0.5);
        lags.runs(0, 20, 2);
        assert_eq!(lags.extremes(0, 20), (10, 0));
    }

    #[test]
    fn shares_go_by_weight_and_never_beyond_what_is_wanted() {
        let mut lags = lags(4, &[300, 100, 100]);
        lags.wants(0, 0, 1);
        lags.wants(1, 0, 4);
        lags.wants(2, 0, 4);
        let rates: Vec<_> = lags.vms.iter().map(|vm| vm.rate).collect();
        assert_eq!(rates, [1.0, 1.5, 1.5]);
    }

    #[test]
    fn a_window_compares_what_the_vms_gained_in_it() {
        // One pCPU, two VMs of a vCPU each. The first second: 0.6 and 0.4 s. The second one: 0.4 and 0.6 s. Of the third, half: not a window.
        const MS: Ns = 1_000_000;
        let mut lags = lags(1, &[100, 100]);
        lags.wants(0, 0, 1);
        lags.wants(1, 0, 1);
        lags.runs(0, 0, 1);
        lags.runs(0, 600 * MS, 0);
        lags.runs(1, 600 * MS, 1);
        assert_eq!(lags.spread_ns(700 * MS), None);
        lags.runs(1, 1_600 * MS, 0);
        lags.runs(0, 1_600 * MS, 1);
        assert_eq!(lags.spread_ns(2_500 * MS), Some(200 * MS));
    }

    #[test]
    fn who_wants_nothing_is_due_nothing() {
        let mut lags = lags(1, &[100, 100]);
        lags.wants(0, 0, 1);
        lags.runs(0, 0, 1);
        assert_eq!((lags.extremes(0, 50), lags.extremes(1, 50)), ((0, 0), (0, 0)));
    }
}
