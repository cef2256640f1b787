// SPDX-License-Identifier: GPL-2.0-only
//! Which VMs may use all the pCPUs that VMs use, and which are pinned: what these are due depends on who else is there (docs/metrics.md).

use std::collections::HashSet;

use super::sample::Sample;
use crate::probe::intf;

const WORDS: usize = intf::PROBE_MAX_CPUS as usize / 64;

/// pCPUs, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus([u64; WORDS]);

impl Cpus {
    pub const NONE: Cpus = Cpus([0; WORDS]);

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word & 1 << (cpu % 64) != 0)
    }

    fn add(&mut self, other: &Cpus) {
        self.0.iter_mut().zip(other.0).for_each(|(word, more)| *word |= more);
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Reach {
    /// pCPUs that at least one vCPU may use.
    pub cpus: Cpus,
    /// VMs with a vCPU that may not use all of them.
    pub pinned: HashSet<u64>,
}

impl Reach {
    /// Of a sample's VMs. `allowed`: what a thread may use; None: it is gone.
    pub fn of(sample: &Sample, allowed: impl Fn(u32) -> Option<Cpus>) -> Self {
        let threads = sample.vms.iter().flat_map(|vm| vm.vcpus.iter().map(|vcpu| (vm.id, vcpu.tid)));
        let each: Vec<(u64, Cpus)> = threads.filter_map(|(id, tid)| Some((id, allowed(tid)?))).collect();
        let mut cpus = Cpus::NONE;
        each.iter().for_each(|(_, own)| cpus.add(own));
        let pinned = each.iter().filter(|(_, own)| *own != cpus).map(|(id, _)| *id).collect();
        Reach { cpus, pinned }
    }
}

/// The pCPUs that a thread of this machine may use now. A system call, not a file: it is asked of every vCPU for every sample.
pub fn allowed(tid: u32) -> Option<Cpus> {
    let mut cpus = Cpus::NONE;
    // SAFETY: the kernel writes at most as many bytes as it is told that there are, to memory that lives across the call.
    let written =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&cpus.0), cpus.0.as_mut_ptr()) };
    (written > 0).then_some(cpus)
}

#[cfg(test)]
pub mod tests {
    use super::super::sample::{Vcpu, Vm};
    use super::*;

    pub fn cpus(list: &[u32]) -> Cpus {
        let mut cpus = Cpus::NONE;
        list.iter().for_each(|cpu| cpus.0[*cpu as usize / 64] |= 1 << (cpu % 64));
        cpus
    }

    /// VMs whose vCPUs may use these pCPUs: which of them are pinned?
    fn pinned(vms: &[&[&[u32]]]) -> Vec<u64> {
        let vm = |(id, vcpus): (usize, &&[&[u32]])| {
            let vcpus = (0..vcpus.len()).map(|n| Vcpu { tid: (10 * id + n) as u32, ..Vcpu::default() });
            Vm { id: id as u64, vcpus: vcpus.collect(), ..Vm::default() }
        };
        let sample = Sample { vms: vms.iter().enumerate().map(vm).collect(), ..Sample::default() };
        let allowed = |tid: u32| {
            let list = vms[tid as usize / 10][tid as usize % 10];
            (!list.is_empty()).then(|| cpus(list))
        };
        let mut pinned: Vec<u64> = Reach::of(&sample, allowed).pinned.into_iter().collect();
        pinned.sort_unstable();
        pinned
    }

    #[test]
    fn who_may_not_use_what_another_may_is_pinned() {
        assert_eq!(pinned(&[]), [0u64; 0]);
        assert_eq!(pinned(&[&[&[0, 1], &[0, 1]], &[&[0, 1]]]), [0u64; 0]);
        assert_eq!(pinned(&[&[&[0, 1], &[0, 1]], &[&[0]]]), [1]);
        assert_eq!(pinned(&[&[&[0, 1], &[1]], &[&[0, 1]]]), [0], "one of its vCPUs");
        assert_eq!(pinned(&[&[&[0, 1]], &[&[70, 71]]]), [0, 1], "parts of a host");
        assert_eq!(pinned(&[&[&[0], &[1]]]), [0], "each vCPU on its own");
        assert_eq!(pinned(&[&[&[1, 2], &[]], &[&[1, 2]]]), [0u64; 0], "one that has gone says nothing");
    }

    #[test]
    fn this_thread_may_use_something() {
        let own = allowed(0).unwrap();
        assert!((0..intf::PROBE_MAX_CPUS).any(|cpu| own.contains(cpu)));
        assert!(!own.contains(intf::PROBE_MAX_CPUS) && allowed(u32::MAX / 2).is_none());
    }
}
