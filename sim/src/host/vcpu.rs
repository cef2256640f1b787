// SPDX-License-Identifier: GPL-2.0-only
//! What KVM keeps in `struct kvm_vcpu` that the host's schedulers can see. KVM's behaviour is in [`crate::kvm`]; here are only the fields, and the
//! preempt notifier's part: kvm_sched_in() and kvm_sched_out() of virt/kvm/kvm_main.c.

use crate::ids::{CpuId, TaskId, VmId};
use crate::time::Ns;

use super::class::Class;
use super::task::State;
use super::Host;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuState {
    /// The thread is inside KVM_RUN: KVM's preempt notifier is on its list.
    pub in_kvm: bool,
    /// The mode of the guest's code on this vCPU now. Seen by the host only when it puts the vCPU.
    pub guest_kernel: bool,
    /// `vcpu->preempted`: put while it wanted to run, and not on a pCPU since.
    pub preempted: bool,
    /// `vcpu->arch.preempted_in_kernel`, as of the last preemption: stays when the vCPU runs again and blocks, so worth nothing without `preempted`.
    pub preempted_in_kernel: bool,
    /// `vcpu->ready`: preempted, or woken and not yet on a pCPU.
    pub ready: bool,
    /// `apic->irr_pending`.
    pub irq_pending: bool,
    /// The guest has announced that it holds a lock until then; 0: it has not.
    pub lock_until_ns: Ns,
    /// The longest that a preemption is put off for that.
    pub lock_hint_max_ns: Ns,
}

/// A virtual machine, as far as the host's schedulers see it.
#[derive(Clone, Debug)]
pub struct Vm {
    pub tgid: u32,
    pub vcpus: u32,
    /// The APIC is virtualized in hardware: `irr_pending` says nothing.
    pub apicv: bool,
    /// How often KVM has been made to drop what it has mapped of its memory.
    dropped: u32,
    /// Its threads have numbers from here on: they are made after it.
    first_task: usize,
}

impl<C: Class> Host<C> {
    /// Make a VM. Its vCPU threads are spawned with [`super::TaskSpec::vcpu`], in the process `vm(..).tgid`.
    pub fn new_vm(&mut self, vcpus: u32) -> VmId {
        let id = VmId::from(self.core.vms.len());
        let first_task = self.core.tasks.len();
        self.core.vms.push(Vm { tgid: 1_000_000 + id.0, vcpus, apicv: false, dropped: 0, first_task });
        self.class.vm_new(&mut self.core, id);
        id
    }

    pub fn vm(&self, vm: VmId) -> &Vm {
        &self.core.vms[vm.index()]
    }

    /// Make KVM drop what it has mapped of the VM's memory.
    pub fn drop_memory(&mut self, vm: VmId) {
        self.core.vms[vm.index()].dropped += 1;
    }

    /// How often it has been, of this vCPU's VM.
    pub fn dropped(&self, task: TaskId) -> u32 {
        self.core.task(task).vcpu.map_or(0, |vcpu| self.core.vms[vcpu.vm.index()].dropped)
    }

    /// Virtualize the VM's APICs in hardware.
    pub fn set_apicv(&mut self, vm: VmId, apicv: bool) {
        self.core.vms[vm.index()].apicv = apicv;
        for index in self.core.vms[vm.index()].first_task..self.core.tasks.len() {
            if self.core.tasks[index].vcpu.is_some_and(|vcpu| vcpu.vm == vm) {
                self.class.vcpu_changed(&mut self.core, TaskId::from(index));
            }
        }
    }

    /// The running thread enters or leaves KVM_RUN (KVM_RUN is left for the VMM's device emulation).
    pub fn set_in_kvm(&mut self, task: TaskId, inside: bool) {
        let kvm = &mut self.core.tasks[task.index()].kvm;
        if kvm.in_kvm == inside {
            return;
        }
        kvm.in_kvm = inside;
        self.class.vcpu_changed(&mut self.core, task);
        // vcpu_put(), on the way out of the ioctl.
        if !inside && self.core.task(task).state == State::Running {
            let cpu = self.core.task(task).cpu;
            let before = std::mem::replace(&mut self.core.this_cpu, cpu);
            self.class.vcpu_put(&mut self.core, task);
            self.core.this_cpu = before;
        }
    }

    /// Say what mode the guest's code is in; cheap, to be called at every change.
    pub fn set_guest_kernel(&mut self, task: TaskId, in_kernel: bool) {
        self.core.tasks[task.index()].kvm.guest_kernel = in_kernel;
    }

    /// Say that an interrupt waits in the vCPU's APIC, or no longer.
    pub fn set_irq_pending(&mut self, task: TaskId, pending: bool) {
        let kvm = &mut self.core.tasks[task.index()].kvm;
        if kvm.irq_pending != pending {
            kvm.irq_pending = pending;
            self.class.vcpu_changed(&mut self.core, task);
        }
    }

    /// The guest's kernel has taken a lock, and says until when it will hold it: the host preempts the vCPU later, up to a time. A host kernel that does that
    /// has the guest's word in memory that both see; so it costs no exit.
    pub fn announce_lock(&mut self, task: TaskId, until_ns: Ns, max_ns: Ns) {
        let kvm = &mut self.core.tasks[task.index()].kvm;
        kvm.lock_until_ns = until_ns;
        kvm.lock_hint_max_ns = max_ns;
    }

    /// It holds none any more: what was put off comes now.
    pub fn lock_released(&mut self, task: TaskId) {
        let task = &mut self.core.tasks[task.index()];
        if task.kvm.lock_until_ns == 0 {
            return;
        }
        task.kvm.lock_until_ns = 0;
        let cpu = task.cpu;
        if self.core.cpu(cpu).put_off_since_ns.is_some() {
            self.core.pending.push_back(cpu);
        }
    }

    /// Until when is the preemption of this running task to be put off?
    pub(super) fn put_off_until_ns(&mut self, cpu: CpuId, id: TaskId) -> Option<Ns> {
        let task = self.core.task(id);
        let (kvm, now_ns) = (task.kvm, self.core.now_ns);
        if kvm.lock_until_ns <= now_ns || task.leaving {
            return None;
        }
        let since_ns = *self.core.cpu_mut(cpu).put_off_since_ns.get_or_insert(now_ns);
        Some(kvm.lock_until_ns.min(since_ns + kvm.lock_hint_max_ns)).filter(|until_ns| *until_ns > now_ns)
    }

    /// kvm_sched_in(), on the way out of the switch: after the scheduler has heard that the task runs.
    pub(super) fn vcpu_sched_in(&mut self, task: TaskId) {
        let kvm = &mut self.core.tasks[task.index()].kvm;
        if kvm.in_kvm && (kvm.preempted || kvm.ready) {
            kvm.preempted = false;
            kvm.ready = false;
            self.class.vcpu_changed(&mut self.core, task);
        }
    }

    /// kvm_sched_out(), in the middle of the switch: after the scheduler has put the task into a queue and chosen the next.
    pub(super) fn vcpu_sched_out(&mut self, task: TaskId) {
        let state = self.core.tasks[task.index()].state;
        let kvm = &mut self.core.tasks[task.index()].kvm;
        if kvm.in_kvm && state == State::Waiting {
            kvm.preempted = true;
            kvm.ready = true;
            kvm.preempted_in_kernel = kvm.guest_kernel;
            self.class.vcpu_changed(&mut self.core, task);
        }
        if self.core.tasks[task.index()].kvm.in_kvm {
            self.class.vcpu_put(&mut self.core, task);
        }
    }

    /// kvm_vcpu_wake_up(): a halted vCPU is made runnable.
    pub(super) fn vcpu_woken(&mut self, task: TaskId) {
        let kvm = &mut self.core.tasks[task.index()].kvm;
        if kvm.in_kvm {
            kvm.ready = true;
        }
    }
}
