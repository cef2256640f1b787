// SPDX-License-Identifier: GPL-2.0-only
//! Figures from the stream of events; `docs/metrics.md` defines each. Nothing here can influence a run.
//!
//! | module | what it is |
//! |---|---|
//! | [`fingerprint`] | one number for all that happened |
//! | [`mod@host`], [`lag`] | what pCPUs and vCPUs' threads did: waiting, co-stop, skew, stacking; lag between VMs |
//! | [`guest`] | what the guests did and suffered: spins, pause-loop exits, yields, TLB flushes, locks |
//! | [`loops`] | loops that wait, by what executes them |
//! | [`waits`] | distributions |
//! | [`window`] | what was counted from a program's start to its end |
//! | [`layout`] | who is who |

mod distance;
pub mod fingerprint;
pub mod guest;
pub mod host;
pub mod lag;
pub mod layout;
pub mod loops;
mod stacking;
pub mod totals;
pub mod waits;
pub mod window;

use serde::Serialize;

use crate::ids::VmId;
use crate::observe::{Observer, What};
use crate::time::Ns;

pub use self::fingerprint::Fingerprint;
pub use self::layout::Layout;
pub use self::waits::{Summary, Waits};

use self::guest::{GuestMetrics, GuestTotals};
use self::host::HostMetrics;
use self::totals::{HostTotals, VcpuTotals, VmTotals};
use self::window::{Mark, Marks, Window};

/// All figures of one run.
pub struct Metrics {
    layout: Layout,
    host: HostMetrics,
    guest: GuestMetrics,
    marks: Marks,
}

/// What [`Metrics`] says at the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub host: HostTotals,
    pub vms: Vec<VmFigures>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmFigures {
    pub name: String,
    #[serde(flatten)]
    pub host: VmTotals,
    #[serde(flatten)]
    pub guest: GuestTotals,
    pub vcpus: Vec<VcpuTotals>,
}

impl Figures {
    /// Leave of each distribution its count, sum, extremes and quantiles.
    pub fn drop_buckets(&mut self) {
        for VmFigures { host, guest, .. } in &mut self.vms {
            let waits = [&mut host.wait_after_wakeup, &mut host.wait_after_preemption];
            let bad_waits = [&mut host.wait_in_kernel, &mut host.wait_as_holder, &mut host.skew];
            let of_guest = [&mut guest.shootdown, &mut guest.ipi, &mut guest.lock_wait, &mut guest.lock_hold];
            let more = guest.spins.values_mut().chain(guest.progress.values_mut());
            for summary in waits.into_iter().chain(bad_waits).chain(of_guest).chain(more) {
                summary.buckets = Vec::new();
            }
        }
    }
}

impl Metrics {
    pub fn new(layout: Layout) -> Self {
        Self::with(layout, true)
    }

    /// Of what a host was seen to do: what its guests do inside, when they spin for instance, is not told.
    pub fn seen_from_outside(layout: Layout) -> Self {
        Self::with(layout, false)
    }

    fn with(layout: Layout, inside: bool) -> Self {
        let (host, guest) = (HostMetrics::new(&layout, inside), GuestMetrics::new(&layout, inside));
        Self { host, guest, layout, marks: Marks::default() }
    }

    fn mark(&mut self, now_ns: Ns, vm: VmId) -> Mark {
        let mut mark = self.host.mark(&self.layout, now_ns, vm.index());
        for (vm, counts) in &mut mark.vms {
            counts.guest = self.guest.counts(now_ns, *vm as usize);
        }
        Mark { ipis_taken: self.guest.ipis_taken(vm.index()), ..mark }
    }

    /// What was counted while the VM's program ran, as of `now_ns`.
    pub fn window(&mut self, now_ns: Ns, vm: VmId) -> Option<Window> {
        let pcpus = self.layout.pcpus;
        self.with_marks(|marks, metrics| marks.window(vm, pcpus, || metrics.mark(now_ns, vm)))
    }

    /// Marks are made of all the rest.
    fn with_marks<T>(&mut self, look: impl FnOnce(&mut Marks, &mut Self) -> T) -> T {
        let mut marks = std::mem::take(&mut self.marks);
        let result = look(&mut marks, self);
        self.marks = marks;
        result
    }

    /// The figures as of `now_ns`; counting can go on.
    pub fn figures(&mut self, now_ns: Ns) -> Figures {
        let (host, vms, mut vcpus) = self.host.totals(&self.layout, now_ns);
        let figures = vms.into_iter().enumerate().map(|(index, totals)| VmFigures {
            name: self.layout.vms[index].name.clone(),
            host: totals,
            guest: self.guest.totals(now_ns, index),
            vcpus: std::mem::take(&mut vcpus[index]),
        });
        Figures { host, vms: figures.collect() }
    }
}

impl Observer for Metrics {
    fn record(&mut self, now_ns: Ns, what: &What) {
        match *what {
            What::ProgramStart { vcpu, .. } => {
                self.with_marks(|marks, metrics| {
                    marks.starts(vcpu.vm, || metrics.mark(now_ns, vcpu.vm));
                });
            }
            What::ProgramEnd { vcpu, .. } => {
                self.with_marks(|marks, metrics| {
                    marks.ends(vcpu.vm, || metrics.mark(now_ns, vcpu.vm));
                });
            }
            _ => {
                self.host.record(&self.layout, now_ns, what);
                self.guest.record(&self.layout, now_ns, what);
            }
        }
    }
}

#[cfg(test)]
mod tests;
