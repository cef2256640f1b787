// SPDX-License-Identifier: GPL-2.0-only
//! Figures from the stream of events; `docs/metrics.md` defines each. Nothing here can influence a run.
//!
//! | module | what it is |
//! |---|---|
//! | [`fingerprint`] | one number for all that happened |
//! | [`mod@host`], [`lag`] | what pCPUs and vCPUs' threads did: waiting, co-stop, skew, stacking; lag between VMs |
//! | [`guest`] | what the guests did and suffered: spins, pause-loop exits, yields, TLB flushes, locks |
//! | [`waits`] | distributions |
//! | [`layout`] | who is who |

mod distance;
pub mod fingerprint;
pub mod guest;
pub mod host;
pub mod lag;
pub mod layout;
mod stacking;
pub mod totals;
pub mod waits;

use serde::Serialize;

use crate::ids::VcpuId;
use crate::observe::{Observer, What};
use crate::time::Ns;

pub use self::fingerprint::Fingerprint;
pub use self::layout::Layout;
pub use self::waits::{Summary, Waits};

use self::guest::{GuestMetrics, GuestTotals};
use self::host::HostMetrics;
use self::totals::{HostTotals, ProgramTotals, VcpuTotals, VmTotals};

/// All figures of one run.
pub struct Metrics {
    layout: Layout,
    host: HostMetrics,
    guest: GuestMetrics,
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
        Self { host: HostMetrics::new(&layout), guest: GuestMetrics::new(&layout, true), layout }
    }

    /// Of what a host was seen to do: what its guests do inside, when they spin for instance, is not told.
    pub fn seen_from_outside(layout: Layout) -> Self {
        Self { guest: GuestMetrics::new(&layout, false), ..Self::new(layout) }
    }

    fn program_now(&mut self, now_ns: Ns, vcpu: VcpuId, program: u32) -> ProgramTotals {
        let ipis_taken = self.guest.ipis_taken(vcpu.vm.index());
        let mut totals = self.host.program_now(&self.layout, now_ns, vcpu, program);
        for (vm, counts) in &mut totals.vms {
            counts.guest = self.guest.counts(*vm as usize);
        }
        ProgramTotals { ipis_taken, ..totals }
    }

    /// The figures as of `now_ns`; counting can go on.
    pub fn figures(&mut self, now_ns: Ns) -> Figures {
        let (host, vms, mut vcpus) = self.host.totals(&self.layout, now_ns);
        let figures = vms.into_iter().enumerate().map(|(index, totals)| VmFigures {
            name: self.layout.vms[index].name.clone(),
            host: totals,
            guest: self.guest.totals(index),
            vcpus: std::mem::take(&mut vcpus[index]),
        });
        Figures { host, vms: figures.collect() }
    }
}

impl Observer for Metrics {
    fn record(&mut self, now_ns: Ns, what: &What) {
        match *what {
            What::ProgramStart { vcpu, program } => {
                let totals = self.program_now(now_ns, vcpu, program);
                self.host.program_starts(totals);
            }
            What::ProgramEnd { vcpu, program } => {
                let totals = self.program_now(now_ns, vcpu, program);
                self.host.program_ends(totals);
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
