// SPDX-License-Identifier: GPL-2.0-only
//! Sets of vCPUs (gang partial), as user space tells the scheduler.

use cohort_sets::{entry, first_of_each};

use crate::host::Host;
use crate::ids::VmId;

extern "C" {
    fn poke_set(number: u32, vcpu: i32, entry: u64);
}

impl Host {
    /// Say which of a VM's vCPUs are to run together. Return false if the scheduler does not know the VM yet.
    pub fn set_sets(&mut self, vm: VmId, sets: &[Vec<u32>]) -> bool {
        let Some(slot) = self.slot_of(vm) else { return false };
        let generation = self.peek_vm(slot).generation as u32;
        let firsts = first_of_each(sets, self.vm(vm).vcpus as usize);
        self.peek(|| {
            for (vcpu, first) in firsts.iter().enumerate() {
                let value = first.map_or(0, |first| entry(generation, slot, first));
                // SAFETY: a look-up with bounds, in a map that is the simulation's.
                unsafe { poke_set(slot, vcpu as i32, value) };
            }
        });
        true
    }
}
