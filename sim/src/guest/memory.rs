// SPDX-License-Identifier: GPL-2.0-only
//! Memory that programs touch, page by page, as far as KVM sees it: a page that it has dropped faults once, for whichever vCPU comes first. Nobody drops
//! pages but a search for sets in shared memory (SPCD, "partial" paper, section 2.2); without one nothing is kept of pages.

use std::ops::Range;

use crate::kvm::exit;
use crate::kvm::vcpu::Then;
use crate::Host;

use super::ops::Op;
use super::vm::Vm;

/// A page's number in its VM: the memory's, shifted by this, and its own.
const PAGE_BITS: u32 = 16;

/// Of each memory, by page: the round of dropping since which it is mapped again.
#[derive(Debug, Default)]
pub(super) struct Memory(Vec<Vec<u32>>);

impl Memory {
    /// The first of these pages that is not mapped, now mapped.
    fn map_next(&mut self, memory: u32, pages: Range<u32>, round: u32) -> Option<u32> {
        let memory = memory as usize;
        if self.0.len() <= memory {
            self.0.resize_with(memory + 1, Vec::new);
        }
        let mapped = &mut self.0[memory];
        if mapped.len() < pages.end as usize {
            mapped.resize(pages.end as usize, 0);
        }
        let page = pages.into_iter().find(|page| mapped[*page as usize] != round)?;
        mapped[page as usize] = round;
        Some(page)
    }
}

impl Vm {
    /// Touch these pages of a memory: those that KVM has dropped are mapped, one exit for each.
    pub(super) fn touch(&mut self, host: &mut Host, v: usize, memory: u32, pages: Range<u32>) {
        let round = host.dropped(self.vcpus[v].task);
        if round == 0 {
            return;
        }
        let end = pages.end;
        let Some(page) = self.memory.map_next(memory, pages, round) else { return };
        if page + 1 < end {
            self.frame(v).first(&[Op::Touch { memory, page: page + 1, end }]);
        }
        let gfn = u64::from(memory) << PAGE_BITS | u64::from(page);
        self.begin_exit(host, v, exit::FAULT, self.kvm.costs.fault_ns, Then::Fault(gfn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_mapped_once_each_time_that_it_is_dropped() {
        let mut memory = Memory::default();
        let mut all = |round| {
            let mut found = Vec::new();
            let mut from = 0;
            while let Some(page) = memory.map_next(1, from..3, round) {
                found.push(page);
                from = page + 1;
            }
            found
        };
        assert_eq!(all(1), [0, 1, 2]);
        assert_eq!(all(1), [0u32; 0]);
        assert_eq!(all(2), [0, 1, 2]);
        assert_eq!(memory.map_next(1, 0..5, 2), Some(3), "it may be larger for another");
        assert_eq!(memory.map_next(0, 0..1, 2), Some(0), "another memory");
    }
}
