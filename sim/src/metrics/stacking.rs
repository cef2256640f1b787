// SPDX-License-Identifier: GPL-2.0-only
//! Which VMs have vCPUs that run or wait on which pCPU, and how many.

use crate::ids::CpuId;

pub struct Stacking {
    // A pCPU has few VMs at a time: a list is shorter than a map.
    on_cpu: Vec<Vec<(usize, u32)>>,
}

impl Stacking {
    pub fn new(pcpus: usize) -> Self {
        Self { on_cpu: vec![Vec::new(); pcpus] }
    }

    /// One more of the VM's vCPUs is there. Return true if a sibling was.
    pub fn comes_to(&mut self, vm: usize, cpu: CpuId) -> bool {
        let there = &mut self.on_cpu[cpu.index()];
        if let Some((_, count)) = there.iter_mut().find(|(other, _)| *other == vm) {
            *count += 1;
            return true;
        }
        there.push((vm, 1));
        false
    }

    /// One less. Return true if a sibling stays.
    pub fn goes_from(&mut self, vm: usize, cpu: CpuId) -> bool {
        let there = &mut self.on_cpu[cpu.index()];
        let Some(at) = there.iter().position(|(other, _)| *other == vm) else { return false };
        there[at].1 -= 1;
        if there[at].1 == 0 {
            there.swap_remove(at);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_siblings_all_but_one_are_stacked() {
        let mut stacking = Stacking::new(2);
        let moves = [(0, 0, false), (1, 0, false), (0, 0, true), (0, 0, true), (0, 1, false)];
        for (vm, cpu, stacked) in moves {
            assert_eq!(stacking.comes_to(vm, CpuId(cpu)), stacked);
        }
        assert_eq!([0, 0, 0].map(|vm| stacking.goes_from(vm, CpuId(0))), [true, true, false]);
        assert!(!stacking.goes_from(0, CpuId(0)));
        assert!(!stacking.goes_from(1, CpuId(0)));
    }
}
