// SPDX-License-Identifier: GPL-2.0-only
//! Windows into what the scheduler remembers (peek.c).

use std::ffi::CStr;
use std::ptr;

use crate::class::AnyClass;
use crate::host::Core;
use crate::ids::{CpuId, TaskId, VmId};
use crate::metrics::window::Counters;
use crate::Host;

use super::ffi::{ExitInfo, TaskStruct};
use super::ops::{one, OpKind, NOBODY};
use super::task::{self, Queue};
use super::{Ext, Other};

/// SCX_EXIT_UNREG
const EXIT_UNREG: i32 = 64;

/// One of the scheduler's VMs.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekVm {
    pub kvm: u64,
    pub generation: u64,
    pub vtime: u64,
    pub runtime_ns: u64,
    pub wait_ns: u64,
    pub switches: u64,
    pub boosts: u64,
    pub stacked: u64,
    pub preempted_in_kernel: u64,
    pub ple: u64,
    /// As which it competes.
    pub entity: u32,
    pub weight: u32,
    pub nr_vcpus: u32,
    pub nr_active: u32,
    pub nr_running: u32,
    /// Of number 0: where the table of VMs ends that was ever used.
    pub end: u32,
}

/// A cgroup or VM, as one of those that compete.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekEntity {
    pub id: u64,
    pub vtime: u64,
    pub nr_periods: u64,
    pub nr_throttled: u64,
    pub throttled_ns: u64,
    pub budget_ns: i64,
    /// The turns that it has paid for: their ends and their number in one.
    pub turns: u64,
    pub kind: u32,
    pub parent: u32,
    pub depth: u32,
    pub weight: u32,
    pub nr_active: i32,
    pub nr_running: u32,
    /// Of number 0: where the table ends that was ever used.
    pub end: u32,
}

/// What the scheduler remembers of a task.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekTask {
    pub vtime: u64,
    pub queued_ns: u64,
    pub backoff_ns: u64,
    /// Address of its vCPU, as the scheduler has it.
    pub kvm_vcpu: u64,
    /// 0: a host task.
    pub vm: u32,
    pub vcpu: i32,
    pub cpu: i32,
    /// Of a vCPU: some pCPUs are forbidden to it.
    pub restricted: u32,
    /// The entity that it is part of.
    pub leaf: u32,
    pub run_leaf: u32,
    /// Those that its present turn is charged to, from below the root.
    pub run_path: [u16; 8],
}

/// A task as order sbco has it.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekSbco {
    /// Where it stands in its queue.
    pub place: u64,
    /// Virtual time lent to siblings; below 0: borrowed.
    pub lent: i64,
    /// What debt lists have for it.
    pub owed: u64,
    /// How many stand ahead of it, if it waits.
    pub ordinate: u32,
    pub dirty: u32,
}

/// Why the scheduler has ended, as peek.c has it.
#[repr(C)]
struct RawExit {
    kind: i32,
    reason: [u8; 128],
    msg: [u8; 1024],
}

/// Why the scheduler has ended, as user space reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeekExit {
    /// As enum scx_exit_kind has it; 0: it has not.
    pub kind: i32,
    pub reason: String,
    pub msg: String,
}

/// Text from C, up to its end.
fn text_of(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned()
}

// The scheduler's counters, of all pCPUs, as enum cohort_stat of bpf/intf.h has them.
include!(concat!(env!("OUT_DIR"), "/counters.rs"));

extern "C" {
    fn peek_vm(number: u32, to: *mut PeekVm);
    fn peek_entity(slot: u32, to: *mut PeekEntity);
    fn peek_vm_on_cpu(number: u32, cpu: i32) -> u32;
    fn peek_untold(p: *mut TaskStruct, number: u32, to: *mut PeekVm);
    fn peek_task(p: *mut TaskStruct, to: *mut PeekTask);
    fn peek_stats(to: *mut u64);
    fn peek_sbco(p: *mut TaskStruct, to: *mut PeekSbco);
    fn poke_sbco_alpha(alpha: u32);
    fn poke_unmark(cpu: u32);
    fn poke_late(from: u32, to: u32);
    fn peek_taken(cpu: u32) -> bool;
    fn poke_vtime(p: *mut TaskStruct, vtime: u64);
    fn peek_domain_tasks() -> u32;
    fn peek_quotas() -> u32;
    fn peek_exit(to: *mut RawExit);
}

impl Host {
    /// Call a window of peek.c; `None` with another class.
    pub(super) fn peek<R>(&mut self, f: impl FnOnce() -> R) -> Option<R> {
        match &mut self.class {
            AnyClass::Ext(ext) => Some(ext.call(&mut self.core, OpKind::UserSpace, NOBODY, f)),
            _ => None,
        }
    }

    /// End the scheduler as user space does: ops.exit().
    pub fn unload(&mut self, reason: &CStr, msg: &CStr) {
        let (reason, msg) = (reason.as_ptr().cast(), msg.as_ptr().cast());
        let mut info = ExitInfo { kind: EXIT_UNREG, exit_code: 0, reason, msg, dump: ptr::null() };
        if let AnyClass::Ext(ext) = &mut self.class {
            ext.op(&mut self.core, OpKind::Exit, NOBODY, |ops| ops.exit.map(|exit| exit(&raw mut info)));
            ext.timers.clear();
        }
    }

    /// An entry of the scheduler's tree.
    pub fn peek_entity(&mut self, slot: u32) -> PeekEntity {
        let mut entity = PeekEntity::default();
        // SAFETY: peek.c fills the struct declared there as here.
        self.peek(|| unsafe { peek_entity(slot, &raw mut entity) });
        entity
    }

    /// An entry of the scheduler's table of VMs, with what its tasks have counted and not told it yet.
    pub fn peek_vm(&mut self, slot: u32) -> PeekVm {
        let mut vm = self.peek_vm_told(slot);
        let AnyClass::Ext(ext) = &self.class else { return vm };
        let tasks: Vec<*mut TaskStruct> = ext.tasks.iter().map(|task| task.ptr()).collect();
        for p in tasks {
            // SAFETY: as above, for tasks that the class holds.
            self.peek(|| unsafe { peek_untold(p, slot, &raw mut vm) });
        }
        vm
    }

    /// An entry of the scheduler's table of VMs, as user space reads it.
    pub fn peek_vm_told(&mut self, slot: u32) -> PeekVm {
        let mut vm = PeekVm::default();
        // SAFETY: peek.c fills the struct declared there as here.
        self.peek(|| unsafe { peek_vm(slot, &raw mut vm) });
        vm
    }

    pub fn peek_task(&mut self, id: TaskId) -> PeekTask {
        let mut task = PeekTask::default();
        let AnyClass::Ext(ext) = &self.class else { return task };
        let p = ext.tasks[id.index()].ptr();
        // SAFETY: as above, for a task that has storage since ops.init_task.
        self.peek(|| unsafe { peek_task(p, &raw mut task) });
        task
    }

    pub fn peek_sbco(&mut self, id: TaskId) -> PeekSbco {
        let mut task = PeekSbco::default();
        let AnyClass::Ext(ext) = &self.class else { return task };
        let p = ext.tasks[id.index()].ptr();
        // SAFETY: as above.
        self.peek(|| unsafe { peek_sbco(p, &raw mut task) });
        task
    }

    /// Change order sbco's alpha, in 1/65536, while the scheduler runs.
    pub fn poke_sbco_alpha(&mut self, alpha: u32) {
        // SAFETY: writes an element of a map.
        self.peek(|| unsafe { poke_sbco_alpha(alpha) });
    }

    /// Does the scheduler believe that a higher class has the pCPU?
    pub fn peek_taken(&mut self, cpu: CpuId) -> bool {
        // SAFETY: a look-up with bounds.
        self.peek(|| unsafe { peek_taken(cpu.0) }).unwrap_or(false)
    }

    /// The real-time tasks that have taken pCPUs become ordinary ones while they run, or real-time ones again.
    pub fn poke_rt_prio(&mut self, ordinary: bool) {
        let AnyClass::Ext(ext) = &mut self.class else { return };
        if let Some(others) = &mut ext.others {
            let prio = if ordinary { task::PRIO_NORMAL } else { task::PRIO_RT };
            others[Other::RealTime as usize].kern_mut().kern.prio = prio;
        }
    }

    /// The real-time tasks that take pCPUs are the kernel's own, as its interrupt threads, or are not.
    pub fn poke_rt_kthread(&mut self, kthread: bool) {
        let AnyClass::Ext(ext) = &mut self.class else { return };
        if let Some(others) = &mut ext.others {
            let flags = &mut others[Other::RealTime as usize].kern_mut().kern.flags;
            *flags = if kthread { *flags | task::PF_KTHREAD } else { *flags & !task::PF_KTHREAD };
        }
    }

    /// A running task becomes a real-time one for a moment, which takes no time: what the scheduler remembers of it meanwhile.
    pub fn peek_real_time(&mut self, id: TaskId) -> PeekTask {
        let mut task = PeekTask::default();
        self.on_cpu(self.core.task(id).cpu, |host| {
            host.change(id, |host| {
                if let AnyClass::Ext(ext) = &mut host.class {
                    let p = ext.tasks[id.index()].ptr();
                    ext.op(&mut host.core, OpKind::Disable, one(id), |ops| ops.disable.map(|op| op(p)));
                }
                task = host.peek_task(id);
            });
        });
        task
    }

    /// A pCPU's queue seems to be empty, as if that had been looked at just before somebody came.
    pub fn poke_unmark(&mut self, cpu: CpuId) {
        // SAFETY: changes a bit of a variable that has one for each pCPU.
        self.peek(|| unsafe { poke_unmark(cpu.0) });
    }

    /// Who waits first for one pCPU comes into the other's queue only now, as if the kernel had been about to put it there.
    pub fn poke_late(&mut self, from: CpuId, to: CpuId) {
        if let AnyClass::Ext(ext) = &mut self.class {
            // SAFETY: moves a waiting task between two queues that exist.
            ext.call(&mut self.core, OpKind::CpuOffline, NOBODY, || unsafe { poke_late(from.0, to.0) });
        }
    }

    /// Change a sleeping task's virtual time.
    pub fn poke_vtime(&mut self, id: TaskId, vtime: u64) {
        let AnyClass::Ext(ext) = &self.class else { return };
        let p = ext.tasks[id.index()].ptr();
        // SAFETY: as above.
        self.peek(|| unsafe { poke_vtime(p, vtime) });
    }

    /// Two VMs' `struct kvm` change places, as for vCPU threads that are spawned from now on: an address is used again.
    pub fn swap_vm_addresses(&mut self, a: VmId, b: VmId) {
        if let AnyClass::Ext(ext) = &mut self.class {
            ext.vms.swap(a.index(), b.index());
        }
    }

    /// The vCPU thread has another `struct kvm_vcpu` from now on, of a VM at the same address.
    pub fn renew_vcpu(&mut self, id: TaskId) {
        if let AnyClass::Ext(ext) = &mut self.class {
            ext.renew_vcpu(&self.core, id);
        }
    }

    /// The scheduler's counters.
    pub fn peek_stats(&mut self) -> PeekStats {
        match &mut self.class {
            AnyClass::Ext(ext) => ext.stats(&mut self.core),
            _ => PeekStats::default(),
        }
    }

    /// How many tasks the domains of orders that have such count as runnable.
    pub fn peek_domain_tasks(&mut self) -> u32 {
        // SAFETY: look-ups with bounds.
        self.peek(|| unsafe { peek_domain_tasks() }).unwrap_or(0)
    }

    /// What the scheduler has told user space of its end.
    pub fn peek_exit(&mut self) -> PeekExit {
        let mut exit = RawExit { kind: 0, reason: [0; 128], msg: [0; 1024] };
        // SAFETY: peek.c fills the struct declared there as here.
        self.peek(|| unsafe { peek_exit(&raw mut exit) });
        PeekExit { kind: exit.kind, reason: text_of(&exit.reason), msg: text_of(&exit.msg) }
    }

    /// How many cgroups have a quota, as the scheduler counts them.
    pub fn peek_quotas(&mut self) -> u32 {
        // SAFETY: it reads a variable.
        self.peek(|| unsafe { peek_quotas() }).unwrap_or(0)
    }

    /// The number under which the scheduler keeps a VM.
    pub fn slot_of(&mut self, vm: VmId) -> Option<u32> {
        let kvm = match &self.class {
            AnyClass::Ext(ext) => ext.vm_kvm(vm),
            _ => return None,
        };
        // Freed numbers are taken again from the first.
        (1..=self.core.vms.len() as u32).find(|slot| self.peek_vm_told(*slot).kvm == kvm)
    }

    /// How many vCPUs of the VM in a slot the scheduler believes to be on a pCPU.
    pub fn peek_vm_on_cpu(&mut self, slot: u32, cpu: CpuId) -> u32 {
        // SAFETY: a look-up with bounds.
        self.peek(|| unsafe { peek_vm_on_cpu(slot, cpu.0 as i32) }).unwrap_or(0)
    }
}

impl Ext {
    /// The scheduler's counters.
    pub(super) fn stats(&mut self, core: &mut Core) -> PeekStats {
        let mut stats = PeekStats::default();
        // SAFETY: peek.c fills as many numbers as the enum has entries, of which the struct was made.
        self.call(core, OpKind::UserSpace, NOBODY, || unsafe { peek_stats((&raw mut stats).cast()) });
        stats
    }

    /// All queues in which a task is; a task believes to be in one at most.
    pub fn queues_with(&self, id: TaskId) -> Vec<Queue> {
        let local = self.cpus.iter().enumerate().filter(|(_, cpu)| cpu.local.contains(&id));
        let mut found: Vec<Queue> = local.map(|(cpu, _)| Queue::Local(cpu)).collect();
        found.extend(self.global.iter().filter(|other| **other == id).map(|_| Queue::Global));
        let user = self.dsqs.iter().enumerate();
        let user = user.filter(|(_, dsq)| self.forest.iter(&dsq.tasks).any(|other| other == id.0));
        found.extend(user.map(|(index, _)| Queue::User(index as u32)));
        found
    }
}
