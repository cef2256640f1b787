// SPDX-License-Identifier: GPL-2.0-only
//! What the vCPUs of a [`World`] tell each other: interrupts, and pages that they touch.

use cohort_sim::VmId;

use crate::world::{TaskId, World};

impl World {
    /// KVM delivers an interrupt that one vCPU, which runs, has sent another.
    pub fn send_irq(&mut self, from: TaskId, to: TaskId) {
        self.sim.host.on_irq(from.real(), to.real(), false);
    }

    /// A vCPU, which runs, calls another by an IPI.
    pub fn call(&mut self, from: TaskId, to: TaskId) {
        if self.is_running(from) {
            self.begin_call(from, to);
            self.end_calls(from);
        }
    }

    /// It calls one of several: KVM has not given the others their interrupt.
    pub fn begin_call(&mut self, from: TaskId, to: TaskId) {
        self.sim.host.on_irq(from.real(), to.real(), true);
        self.done();
    }

    pub fn end_calls(&mut self, from: TaskId) {
        self.sim.host.on_irqs_sent(from.real());
        self.done();
    }

    /// A vCPU, which runs, touches a page that KVM has to map.
    pub fn touch(&mut self, task: TaskId, gfn: u64) {
        self.sim.host.on_fault(task.real(), gfn);
    }

    /// How often each two of a VM's vCPUs have told each other something, as the scheduler has counted.
    pub fn traffic_of(&mut self, vm: usize) -> Vec<(usize, usize, u64)> {
        self.sim.host.traffic_of(VmId::from(vm))
    }

    pub fn traffic_between(&mut self, vm: usize, x: usize, y: usize) -> u64 {
        self.sim.host.traffic_between(VmId::from(vm), x, y)
    }
}
