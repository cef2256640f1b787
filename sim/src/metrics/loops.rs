// SPDX-License-Identifier: GPL-2.0-only
//! Loops that wait, by what executes them. An interrupt handler's stands on the one that it has interrupted; a preempted task's goes on with it,
//! maybe on another vCPU.

use crate::ids::VcpuId;
use crate::observe::Spin;

use super::layout::Layout;

/// A guest's idle task ([`crate::observe::What::GuestSwitch`]).
const IDLE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Loop<T> {
    /// The guest's task, and where it is the idle one its vCPU.
    of: (u32, u32),
    why: Spin,
    about: T,
}

/// The loops that have begun and not ended, each with what its user wants to know of it.
#[derive(Clone, Debug, Default)]
pub struct Loops<T> {
    bases: Vec<usize>,
    /// The guest's task that each vCPU runs.
    tasks: Vec<u32>,
    open: Vec<Vec<Loop<T>>>,
}

impl<T> Loops<T> {
    pub fn new(layout: &Layout) -> Self {
        let (bases, vcpus) = layout.vcpu_bases();
        let open = layout.vms.iter().map(|_| Vec::new()).collect();
        Self { bases, tasks: vec![IDLE; vcpus], open }
    }

    fn runs(&self, vcpu: VcpuId) -> (u32, u32) {
        let task = self.tasks[self.bases[vcpu.vm.index()] + vcpu.id as usize];
        (task, if task == IDLE { vcpu.id } else { 0 })
    }

    /// Those of what the vCPU runs, the first to begin first: the last one executes.
    pub fn on(&self, vcpu: VcpuId) -> impl DoubleEndedIterator<Item = (Spin, &T)> {
        let of = self.runs(vcpu);
        self.open[vcpu.vm.index()]
            .iter()
            .filter(move |open| open.of == of)
            .map(|open| (open.why, &open.about))
    }

    /// The one that the vCPU executes, if it does.
    pub fn last_on(&mut self, vcpu: VcpuId) -> Option<&mut T> {
        let of = self.runs(vcpu);
        self.open[vcpu.vm.index()].iter_mut().rfind(|open| open.of == of).map(|open| &mut open.about)
    }

    /// All of a VM's.
    pub fn of_vm(&self, vm: usize) -> impl Iterator<Item = &T> {
        self.open[vm].iter().map(|open| &open.about)
    }

    /// The vCPU runs that task of its guest from now on.
    pub fn switch(&mut self, vcpu: VcpuId, next: u32) {
        self.tasks[self.bases[vcpu.vm.index()] + vcpu.id as usize] = next;
    }

    pub fn begin(&mut self, vcpu: VcpuId, why: Spin, about: T) {
        let of = self.runs(vcpu);
        self.open[vcpu.vm.index()].push(Loop { of, why, about });
    }

    pub fn end(&mut self, vcpu: VcpuId, why: Spin) -> Option<T> {
        let of = self.runs(vcpu);
        let open = &mut self.open[vcpu.vm.index()];
        let at = open.iter().rposition(|open| open.of == of && open.why == why)?;
        Some(open.remove(at).about)
    }
}
