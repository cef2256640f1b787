// SPDX-License-Identifier: GPL-2.0-only
//! What is remembered of a VM from one sample to the next, so that no counter goes back.

use std::collections::HashMap;

use super::bpf::types::probe_vcpu;
use super::intf;
use super::read::{clock_since, TIME_MASK};
use crate::top::counters::Counters;
use crate::top::sample::Vcpu;

/// Of one VM.
#[derive(Default)]
pub(super) struct Known {
    pub skew_max_ns: u64,
    stacked_ns: u64,
    /// By thread and number: what its vCPUs had when they were seen last; and what those had that have been unplugged.
    seen: HashMap<(u32, u32), Counters>,
    gone: Counters,
    /// The same of their chains of pause-loop exits.
    chains_seen: HashMap<(u32, u32), Chains>,
    chains_gone: Chains,
    pub ple_chain_max: u64,
    pub wait_max_ns: u64,
}

/// How many chains ended, by their length.
type Chains = [u64; intf::PROBE_CHAIN_BUCKETS as usize];

fn add(sum: &mut Chains, more: &Chains) {
    sum.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
}

impl Known {
    /// See that no counter of a vCPU goes back: what it was in the middle of may have ended before the moment up to which that was counted. Return what those
    /// had that are gone, so that the VM's sums do not go back either.
    pub fn keep(&mut self, vcpus: &mut [Vcpu]) -> Counters {
        self.seen.retain(|(tid, number), counters| {
            let is_here = vcpus.iter().any(|vcpu| (vcpu.tid, vcpu.vcpu) == (*tid, *number));
            if !is_here {
                self.gone.add(counters);
            }
            is_here
        });
        for vcpu in vcpus {
            let seen = self.seen.entry((vcpu.tid, vcpu.vcpu)).or_default();
            seen.raise_to(&vcpu.counters);
            vcpu.counters = *seen;
        }
        self.gone
    }

    /// All chains of the VM: those of the vCPUs that are here, and of those that have been unplugged.
    pub fn chains(&mut self, found: &[probe_vcpu]) -> Vec<u64> {
        self.chains_seen.retain(|(tid, number), chains| {
            let is_here = found.iter().any(|v| (v.tid, v.vcpu_id) == (*tid, *number));
            if !is_here {
                add(&mut self.chains_gone, chains);
            }
            is_here
        });
        let mut sum = self.chains_gone;
        for v in found {
            let seen = self.chains_seen.entry((v.tid, v.vcpu_id)).or_default();
            // As with the counters: a thread that comes back to a vCPU begins anew.
            seen.iter_mut().zip(v.chain_lengths).for_each(|(seen, now)| *seen = now.max(*seen));
            add(&mut sum, seen);
        }
        sum.to_vec()
    }

    /// Of the time in which vCPUs ran or waited, that for which another one was there already. `present`, for how long at least one was on each pCPU, is
    /// known modulo 2^52, and so is the difference; it grows by far less from one sample to the next.
    pub fn stacked(&mut self, active_ns: u64, present: u64) -> u64 {
        let reading = active_ns.wrapping_sub(present) & TIME_MASK;
        self.stacked_ns += clock_since(self.stacked_ns & TIME_MASK, reading);
        self.stacked_ns
    }
}
