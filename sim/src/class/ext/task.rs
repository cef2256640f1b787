// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler sees of tasks, vCPUs and cgroups: the kernel's structs, kept up to date with the host's state.

use std::ptr::{self, NonNull};

use crate::cpuset::CpuSet;
use crate::host::{Core, Task};
use crate::ids::{TaskId, VmId};

use super::ffi::{self, CpuMask, ListNode, SchedEntity, ScxEntity, TaskStruct};
use super::maps::Storages;

pub const PF_EXITING: u32 = 0x4;
pub const PF_KTHREAD: u32 = 0x0020_0000;
const QUEUED: u32 = 1;
pub const SLICE_DEFAULT_NS: u64 = 20_000_000;
/// Tasks that the model knows by name only.
pub const ID_IDLE: u32 = u32::MAX;
pub const ID_RT: u32 = u32::MAX - 1;
pub const ID_STOPPER: u32 = u32::MAX - 2;
pub const PID_RT: u32 = 50;
pub const PID_STOPPER: u32 = 18;
pub const PRIO_NORMAL: i32 = 120;
pub const PRIO_RT: i32 = 49;
pub const PRIO_IDLE: i32 = 140;
/// pids are task numbers from here on.
pub const PID_FIRST: u32 = 100;

/// A `task_struct` with what belongs to it; the scheduler's pointers are to its first field.
#[repr(C)]
pub struct KernTask {
    pub kern: TaskStruct,
    pub id: TaskId,
    mask: CpuMask,
    pub storages: Storages,
}

/// sched_weight_to_cgroup(): 100 is nice 0.
fn to_cgroup_weight(weight: u32) -> u32 {
    ((u64::from(weight) * 100 + 512) / 1024).clamp(1, 10_000) as u32
}

/// Where a waiting task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Local(usize),
    Global,
    /// By its number in the table of queues.
    User(u32),
}

/// A task, as sched_ext has it.
pub struct ExtTask {
    kern: NonNull<KernTask>,
    pub queue: Option<Queue>,
    pub vtime: u64,
    pub dsq_seq: u64,
    /// Where ops.select_cpu() or ops.enqueue() put it, and with which flags, until the kernel does it.
    pub verdict: Option<(u64, u64)>,
    pub vcpu: Option<Vcpu>,
}

impl ExtTask {
    pub fn new(id: TaskId, task: &Task, pid: u32, cpus: usize) -> Self {
        let kern = Box::new(KernTask {
            kern: TaskStruct {
                se: SchedEntity { sum_exec_runtime: 0 },
                flags: if task.kthread { PF_KTHREAD } else { 0 },
                exit_state: 0,
                pid: pid as i32,
                tgid: task.tgid as i32,
                prio: PRIO_NORMAL,
                nr_cpus_allowed: 0,
                cpus_ptr: ptr::null(),
                migration_disabled: 0,
                preempt_notifiers: ptr::null_mut(),
                scx: ScxEntity { flags: 0, weight: to_cgroup_weight(task.weight), slice: SLICE_DEFAULT_NS },
            },
            id,
            mask: CpuMask::of(&CpuSet::new()),
            storages: Storages::default(),
        });
        let mut new = Self {
            kern: NonNull::from(Box::leak(kern)),
            queue: None,
            vtime: 0,
            dsq_seq: 0,
            verdict: None,
            vcpu: None,
        };
        new.sync_affinity(task, cpus);
        new
    }

    pub fn ptr(&self) -> *mut TaskStruct {
        self.kern.as_ptr().cast()
    }

    pub fn kern(&self) -> &KernTask {
        // SAFETY: ours until drop, and the scheduler runs only inside calls during which no such reference is kept.
        unsafe { self.kern.as_ref() }
    }

    pub fn kern_mut(&mut self) -> &mut KernTask {
        // SAFETY: as above.
        unsafe { self.kern.as_mut() }
    }

    /// Return true if it is another set of pCPUs than before.
    pub fn sync_affinity(&mut self, task: &Task, cpus: usize) -> bool {
        let disabled = u16::from(task.migration_disabled);
        let mask = match &task.allowed {
            _ if task.narrowed => CpuMask::one(task.cpu),
            Some(set) => CpuMask::of(set),
            None => CpuMask::first(cpus),
        };
        let kern = self.kern_mut();
        kern.kern.nr_cpus_allowed = task.allowed.as_ref().map_or(cpus, CpuSet::len) as i32;
        kern.kern.migration_disabled = disabled;
        let changed = kern.mask.0 != mask.0;
        kern.mask = mask;
        kern.kern.cpus_ptr = &raw const kern.mask;
        changed
    }

    pub fn slice(&self) -> u64 {
        self.kern().kern.scx.slice
    }

    pub fn set_slice(&mut self, slice_ns: u64) {
        self.kern_mut().kern.scx.slice = slice_ns;
    }

    pub fn is_queued(&self) -> bool {
        self.kern().kern.scx.flags & QUEUED != 0
    }

    pub fn set_queued(&mut self, queued: bool) {
        let flags = &mut self.kern_mut().kern.scx.flags;
        *flags = if queued { *flags | QUEUED } else { *flags & !QUEUED };
    }

    pub fn is_exiting(&self) -> bool {
        self.kern().kern.flags & PF_EXITING != 0
    }

    pub fn used(&mut self, ns: u64) {
        self.kern_mut().kern.se.sum_exec_runtime += ns;
        if self.slice() != u64::MAX {
            self.set_slice(self.slice().saturating_sub(ns));
        }
    }
}

impl Drop for ExtTask {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in new(), and the scheduler does not run any more when its tasks are dropped.
        drop(unsafe { Box::from_raw(self.kern.as_ptr()) });
    }
}

/// One of KVM's structs: zeroed memory whose layout only C knows, and that does not move.
pub struct Opaque(*mut [u64]);

impl Opaque {
    pub fn new(bytes: u32) -> Self {
        Self(Box::into_raw(vec![0u64; bytes.div_ceil(8) as usize].into_boxed_slice()))
    }

    pub fn ptr(&self) -> *mut u64 {
        self.0.cast()
    }
}

impl Drop for Opaque {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw() in new(); the scheduler does not run any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// `struct kvm_vcpu` and its APIC.
pub struct Vcpu {
    pub kern: Opaque,
    pub id: u32,
    /// Its address is in `kern`.
    _apic: Opaque,
    link: *mut ListNode,
}

impl Vcpu {
    pub fn new(kvm: &Opaque, id: u32) -> Self {
        // SAFETY: constants of peek.c, and structs of the sizes that they say.
        unsafe {
            let (kern, apic) = (Opaque::new(ffi::native_vcpu_size), Opaque::new(ffi::native_apic_size));
            let link = ffi::poke_vcpu(kern.ptr(), kvm.ptr(), id as i32, apic.ptr());
            Self { kern, id, _apic: apic, link }
        }
    }
}

impl super::Ext {
    /// Bring KVM's structs up to date with `task.kvm`.
    pub(super) fn sync_vcpu(&mut self, core: &Core, id: TaskId) {
        let task = core.task(id);
        let Some(vcpu) = task.vcpu else { return };
        let apicv = core.vms[vcpu.vm.index()].apicv;
        let mine = &mut self.tasks[id.index()];
        let inside = task.kvm.in_kvm;
        let Some(link) = mine.vcpu.as_ref().map(|known| {
            // SAFETY: live structs of the sizes that peek.c says; the scheduler does not run now.
            unsafe {
                ffi::poke_preempted(known.kern.ptr(), task.kvm.preempted, task.kvm.preempted_in_kernel);
                ffi::poke_apic(known.kern.ptr(), task.kvm.irq_pending, apicv);
            }
            known.link
        }) else {
            return;
        };
        mine.kern_mut().kern.preempt_notifiers = if inside { link } else { ptr::null_mut() };
    }

    /// KVM has freed the task's `struct kvm_vcpu`, and another is in its place. The scheduler may still read the old one.
    pub(super) fn renew_vcpu(&mut self, core: &Core, id: TaskId) {
        let Some(vcpu) = core.task(id).vcpu else { return };
        let new = Vcpu::new(&self.vms[vcpu.vm.index()], vcpu.id);
        let old = self.tasks[id.index()].vcpu.replace(new);
        self.freed_vcpus.extend(old);
        self.sync_vcpu(core, id);
    }

    /// The VM's identity, as the scheduler knows it.
    pub fn vm_kvm(&self, vm: VmId) -> u64 {
        self.vms[vm.index()].ptr() as u64
    }
}
