// SPDX-License-Identifier: GPL-2.0-only
//! What is remembered of a VM from one sample to the next, so that no counter goes back.

use std::collections::{BTreeMap, HashMap};

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
    /// By thread and number: what its vCPUs had when they were seen last.
    seen: HashMap<(u32, u32), Counters>,
    /// By number: what those threads had that serve the vCPU no more, or have ended with it.
    gone: BTreeMap<u32, Counters>,
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
    /// threads had that are gone, by the vCPU that they served, so that its sums do not go back either, nor the VM's.
    pub fn keep(&mut self, vcpus: &mut [Vcpu]) -> BTreeMap<u32, Counters> {
        self.seen.retain(|(tid, number), counters| {
            let is_here = vcpus.iter().any(|vcpu| (vcpu.tid, vcpu.vcpu) == (*tid, *number));
            if !is_here {
                self.gone.entry(*number).or_default().add(counters);
            }
            is_here
        });
        for vcpu in vcpus {
            let seen = self.seen.entry((vcpu.tid, vcpu.vcpu)).or_default();
            // It has served another vCPU meanwhile and come back, to a slot that begins anew: switches are never counted ahead.
            if vcpu.counters.switches < seen.switches {
                self.gone.entry(vcpu.vcpu).or_default().add(seen);
                *seen = Counters::default();
            }
            seen.raise_to(&vcpu.counters);
            vcpu.counters = *seen;
        }
        self.gone.clone()
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
            if seen.iter().zip(v.chain_lengths).any(|(seen, now)| now < *seen) {
                add(&mut self.chains_gone, seen);
                add(&mut sum, seen);
            }
            *seen = v.chain_lengths;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, vcpu: u32, run_ns: u64, switches: u64) -> Vcpu {
        Vcpu { tid, vcpu, counters: Counters { run_ns, switches, ..Counters::default() }, ..Vcpu::default() }
    }

    /// Run time and switches of each vCPU's gone threads.
    fn gone(known: &mut Known, vcpus: &mut [Vcpu]) -> Vec<(u32, u64, u64)> {
        let gone = known.keep(vcpus);
        gone.iter().map(|(vcpu, counters)| (*vcpu, counters.run_ns, counters.switches)).collect()
    }

    #[test]
    fn what_a_thread_had_that_ended_stays_with_its_vcpu() {
        let mut known = Known::default();
        let none: [(u32, u64, u64); 0] = [];
        assert_eq!(gone(&mut known, &mut [thread(7, 0, 100, 1), thread(8, 1, 50, 1)]), none);
        assert_eq!(gone(&mut known, &mut [thread(8, 1, 60, 2), thread(9, 0, 5, 1)]), [(0, 100, 1)]);
        assert_eq!(gone(&mut known, &mut [thread(10, 0, 1, 1)]), [(0, 105, 2), (1, 60, 2)]);
        // A vCPU that is plugged in again has the same number: what is kept does not grow with the threads that there ever were.
        for tid in 11..100 {
            assert_eq!(gone(&mut known, &mut [thread(tid, 0, 1, 1)]).len(), 2);
        }
        assert_eq!(known.seen.len(), 1);
    }

    #[test]
    fn a_thread_that_comes_back_between_two_samples_counts_from_nothing() {
        let mut known = Known::default();
        known.keep(&mut [thread(7, 0, 100, 20)]);
        let mut vcpus = [thread(7, 0, 3, 2)];
        assert_eq!(gone(&mut known, &mut vcpus), [(0, 100, 20)]);
        assert_eq!(vcpus[0].counters.run_ns, 3);
        // What went on at the last look had ended before: that is none.
        let mut vcpus = [thread(7, 0, 2, 2)];
        assert_eq!((gone(&mut known, &mut vcpus), vcpus[0].counters.run_ns), (vec![(0, 100, 20)], 3));
    }
}
