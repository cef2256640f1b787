// SPDX-License-Identifier: GPL-2.0-only
//! KVM's part: what it keeps about a vCPU as its thread is switched out and in, and what it does at a pause-loop exit.

use std::ptr;

use crate::ffi::{self, ListNode};
use crate::ops::OpKind;
use crate::task::{State, TaskId};
use crate::world::{Event, World};

/// What kvm_vcpu_on_spin() tries before it gives up.
const YIELD_TRIES: u32 = 3;

/// One of KVM's structs: zeroed memory whose layout only C knows, and that does not move.
struct Opaque(*mut [u64]);

impl Opaque {
    fn new(bytes: u32) -> Self {
        Self(Box::into_raw(vec![0u64; bytes.div_ceil(8) as usize].into_boxed_slice()))
    }

    fn ptr(&self) -> *mut u64 {
        self.0.cast()
    }
}

impl Drop for Opaque {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw() in new(), and ends with the world that the scheduler runs in.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

struct Vcpu {
    kern: Opaque,
    link: *mut ListNode,
    apic: Opaque,
    task: Option<TaskId>,
    /// Switched out while it wanted to run.
    preempted: bool,
    preempted_in_kernel: bool,
    /// Preempted, or woken and not yet on a pCPU.
    ready: bool,
    irq: bool,
}

pub struct Vm {
    pub tgid: i32,
    /// Its address is the VM's identity.
    kvm: Opaque,
    vcpus: Vec<Vcpu>,
    last_boosted: usize,
    /// The APIC is virtualized in hardware.
    apicv: bool,
}

impl Vm {
    fn new(tgid: i32, vcpus: usize) -> Self {
        let kvm = Opaque::new(8);
        let vcpu = |id| {
            // SAFETY: constants of peek.c, and structs of the sizes that they say.
            let (kern, link, apic) = unsafe {
                let (kern, apic) = (Opaque::new(ffi::native_vcpu_size), Opaque::new(ffi::native_apic_size));
                let link = ffi::poke_vcpu(kern.ptr(), kvm.ptr(), id as i32, apic.ptr());
                (kern, link, apic)
            };
            Vcpu {
                kern,
                link,
                apic,
                task: None,
                preempted: false,
                preempted_in_kernel: false,
                ready: false,
                irq: false,
            }
        };
        let vcpus = (0..vcpus).map(vcpu).collect();
        Self { tgid, kvm, vcpus, last_boosted: 0, apicv: false }
    }
}

impl World {
    /// Make a VM with so many vCPUs, and return its number. Threads for them are spawned with `Spec::vcpu()`.
    pub fn new_vm(&mut self, vcpus: usize) -> usize {
        let vm = self.vms.len();
        self.vms.push(Vm::new(100_000 + vm as i32, vcpus));
        vm
    }

    /// The VM's identity, as the scheduler knows it.
    pub fn vm_kvm(&self, vm: usize) -> u64 {
        self.vms[vm].kvm.ptr() as u64
    }

    pub fn vm_count(&self) -> usize {
        self.vms.len()
    }

    pub fn vm_tgid(&self, vm: usize) -> i32 {
        self.vms[vm].tgid
    }

    fn vcpu_mut(&mut self, id: TaskId) -> Option<&mut Vcpu> {
        let task = self.task(id);
        let vcpu = task.vcpu.filter(|_| task.in_guest)?;
        self.vms[vcpu.vm].vcpus.get_mut(vcpu.id)
    }

    /// Say that an interrupt waits for the vCPU, or no longer.
    pub fn set_irq_pending(&mut self, id: TaskId, pending: bool) {
        let Some(vcpu) = self.vcpu_mut(id) else { return };
        vcpu.irq = pending;
        if let Some(vcpu) = self.task(id).vcpu {
            self.update_apic(vcpu.vm, vcpu.id);
        }
    }

    /// Let the VM's APICs be virtualized in hardware: KVM's hint about interrupts then is always set.
    pub fn set_apicv(&mut self, vm: usize) {
        self.vms[vm].apicv = true;
        for vcpu in 0..self.vms[vm].vcpus.len() {
            self.update_apic(vm, vcpu);
        }
    }

    fn update_apic(&self, vm: usize, vcpu: usize) {
        let (vm, vcpu) = (&self.vms[vm], &self.vms[vm].vcpus[vcpu]);
        // SAFETY: a live struct; the scheduler does not run now.
        unsafe { ffi::poke_apic(vcpu.apic.ptr(), vcpu.irq || vm.apicv, vm.apicv) };
    }

    /// Say what mode the guest's code on this vCPU is in; the host sees it at the next preemption.
    pub fn set_guest_kernel(&mut self, id: TaskId, in_kernel: bool) {
        self.task_mut(id).guest_kernel = in_kernel;
    }

    /// The thread enters KVM_RUN the first time that it runs, and stays there.
    pub(crate) fn sched_in(&mut self, id: TaskId) {
        let task = self.task(id);
        if let Some(vcpu) = task.vcpu.filter(|_| !task.in_guest && !task.is_exiting()) {
            let known = &mut self.vms[vcpu.vm].vcpus[vcpu.id];
            known.task = Some(id);
            let link = known.link;
            let task = self.task_mut(id);
            task.in_guest = true;
            task.kern_mut().preempt_notifiers = link;
        } else if self.task(id).is_exiting() {
            self.task_mut(id).in_guest = false;
            self.task_mut(id).kern_mut().preempt_notifiers = ptr::null_mut();
        }
        if let Some(vcpu) = self.vcpu_mut(id) {
            vcpu.preempted = false;
            vcpu.ready = false;
        }
        if self.task(id).spins {
            self.after(0, Event::Spin(id));
        }
    }

    pub(crate) fn sched_out(&mut self, id: TaskId) {
        let (preempted, in_kernel) = (self.task(id).state == State::Runnable, self.task(id).guest_kernel);
        if let Some(vcpu) = self.vcpu_mut(id).filter(|_| preempted) {
            vcpu.preempted = true;
            vcpu.ready = true;
            vcpu.preempted_in_kernel = in_kernel;
            // SAFETY: a live struct; the scheduler does not run now.
            unsafe { ffi::poke_preempted_in_kernel(vcpu.kern.ptr(), in_kernel) };
        }
    }

    pub(crate) fn vcpu_woken(&mut self, id: TaskId) {
        if let Some(vcpu) = self.vcpu_mut(id) {
            vcpu.ready = true;
        }
    }

    /// The running vCPU takes a pause-loop exit.
    pub fn pause_exit(&mut self, id: TaskId) {
        let in_kernel = self.task(id).guest_kernel;
        let Some(kern) = self.vcpu_mut(id).map(|vcpu| vcpu.kern.ptr()) else { return };
        if !self.is_running(id) {
            return;
        }
        let cpu = self.task(id).cpu;
        self.task_mut(id).spins = true;
        self.on_cpu(cpu, |w| {
            w.update_curr(cpu);
            w.call(OpKind::Tracing, &[], || {
                // SAFETY: the vCPU is alive, and no reference to it is held.
                unsafe { ffi::cohort_on_spin(kern, in_kernel) }
            });
        });
        // Preemption is enabled here: a kick of this pCPU takes effect before KVM goes on.
        if self.cpus[cpu].needs_resched {
            self.schedule(cpu);
        }
        if self.is_running(id) {
            self.pause_goes_on(id);
        }
    }

    /// KVM looks for a sibling to yield to, as kvm_vcpu_on_spin() does.
    pub(crate) fn pause_goes_on(&mut self, id: TaskId) {
        if !self.is_running(id) || !std::mem::take(&mut self.task_mut(id).spins) {
            return;
        }
        let Some(me) = self.task(id).vcpu.filter(|_| self.task(id).in_guest) else { return };
        let spins_in_kernel = self.task(id).guest_kernel;
        let (count, start) = (self.vms[me.vm].vcpus.len(), self.vms[me.vm].last_boosted + 1);
        let mut tries = YIELD_TRIES;
        for sibling in (start..start + count).map(|i| i % count).filter(|i| *i != me.id) {
            let vcpu = &self.vms[me.vm].vcpus[sibling];
            let Some(target) = vcpu.task.filter(|_| vcpu.ready) else { continue };
            if vcpu.preempted && spins_in_kernel && !vcpu.irq && !vcpu.preempted_in_kernel {
                continue;
            }
            match self.yield_to(id, target) {
                Some(true) => {
                    self.vms[me.vm].last_boosted = sibling;
                    break;
                }
                Some(false) => {}
                None => tries -= 1,
            }
            if tries == 0 {
                break;
            }
        }
    }

    /// yield_to(): `None` if there was no point in it.
    pub fn yield_to(&mut self, from: TaskId, to: TaskId) -> Option<bool> {
        let (cpu, to_cpu) = (self.task(from).cpu, self.task(to).cpu);
        if self.rq_len(cpu) == 1 && self.rq_len(to_cpu) == 1 {
            return None;
        }
        if self.is_running(to) || self.task(to).state != State::Runnable {
            return Some(false);
        }
        let (p, target) = (self.task(from).ptr(), self.task(to).ptr());
        let yielded = self.on_cpu(cpu, |w| {
            w.update_curr(cpu);
            let yielded = w.op(OpKind::Yield, &[from, to], |ops| ops.r#yield.is_some_and(|op| op(p, target)));
            if yielded && to_cpu != cpu {
                w.resched(to_cpu);
            }
            yielded
        });
        if yielded {
            self.schedule(cpu);
        }
        Some(yielded)
    }

    /// sched_yield().
    pub fn yield_now(&mut self, id: TaskId) {
        if !self.is_running(id) {
            return;
        }
        let (cpu, p) = (self.task(id).cpu, self.task(id).ptr());
        self.on_cpu(cpu, |w| {
            w.update_curr(cpu);
            w.op(OpKind::Yield, &[id], |ops| ops.r#yield.map(|op| op(p, ptr::null_mut())));
        });
        self.schedule(cpu);
    }

    /// rq->nr_running.
    fn rq_len(&self, cpu: usize) -> usize {
        self.tasks.iter().filter(|task| task.is_queued() && task.cpu == cpu).count()
    }
}
