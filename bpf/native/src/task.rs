// SPDX-License-Identifier: GPL-2.0-only
//! A task: what the kernel and the scheduler see of it, and what it does with its time.

use std::collections::BTreeSet;
use std::ptr::{self, NonNull};

use crate::ffi::{CpuMask, ScxEntity, TaskStruct};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);

/// A vCPU of a VM: the VM's number in the world, and the vCPU's in the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VcpuId {
    pub vm: usize,
    pub id: usize,
}

/// Which task to make.
#[derive(Clone, Debug)]
pub struct Spec {
    pub weight: u32,
    pub cpus: Option<BTreeSet<usize>>,
    pub cgroup: usize,
    pub tgid: Option<i32>,
    pub kthread: bool,
    pub vcpu: Option<VcpuId>,
    pub run_ns: u64,
    pub sleep_ns: Option<u64>,
}

/// Run time without end.
pub const FOREVER: u64 = u64::MAX;

impl Spec {
    /// Always wants to run.
    pub fn busy() -> Self {
        Self {
            weight: 100,
            cpus: None,
            cgroup: 0,
            tgid: None,
            kthread: false,
            vcpu: None,
            run_ns: FOREVER,
            sleep_ns: None,
        }
    }

    /// Runs for `run_ns`, sleeps for `sleep_ns`, and again.
    pub fn cycle(run_ns: u64, sleep_ns: u64) -> Self {
        Self { run_ns, sleep_ns: Some(sleep_ns), ..Self::busy() }
    }

    /// Runs for `run_ns` whenever somebody wakes it.
    pub fn on_demand(run_ns: u64) -> Self {
        Self { run_ns, ..Self::busy() }
    }

    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    pub fn on(self, cpus: &[usize]) -> Self {
        Self { cpus: Some(cpus.iter().copied().collect()), ..self }
    }

    pub fn cgroup(self, cgroup: usize) -> Self {
        Self { cgroup, ..self }
    }

    pub fn vcpu(self, vm: usize, id: usize) -> Self {
        Self { vcpu: Some(VcpuId { vm, id }), ..self }
    }

    /// A thread of this process (a VMM's other threads).
    pub fn thread_of(self, tgid: i32) -> Self {
        Self { tgid: Some(tgid), ..self }
    }

    pub fn kthread(self) -> Self {
        Self { kthread: true, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Asleep,
    /// Running or waiting for a pCPU.
    Runnable,
    Dead,
}

/// Where a waiting task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Local(usize),
    Global,
    User(u64),
}

pub struct Task {
    kern: NonNull<TaskStruct>,
    mask: NonNull<CpuMask>,
    pub state: State,
    /// The pCPU whose run queue has it (`task_cpu()`).
    pub cpu: usize,
    pub queue: Option<Queue>,
    pub vtime: u64,
    pub dsq_seq: u64,
    /// Where ops.select_cpu() or ops.enqueue() put it, and with which flags, until the kernel does it.
    pub verdict: Option<(u64, u64)>,
    /// Migration really disabled, beside what the BPF prologue does to the current task.
    pub migration_disabled: bool,
    pub cgroup: usize,
    pub vcpu: Option<VcpuId>,
    /// The vCPU thread is inside KVM_RUN.
    pub in_guest: bool,
    /// The guest's code is in kernel mode.
    pub guest_kernel: bool,
    /// Switched out in the middle of a pause-loop exit.
    pub spins: bool,
    run_ns: u64,
    pub sleep_ns: Option<u64>,
    pub burst_left_ns: u64,
    /// Counts its turns on a pCPU, so that an event of an earlier turn is known as such.
    pub turn: u64,
    pub wants_sleep: bool,
    pub wants_exit: bool,
    pub used_ns: u64,
    pub waits_since_ns: u64,
    pub wait_max_ns: u64,
}

pub const PF_EXITING: u32 = 0x4;
pub const PF_KTHREAD: u32 = 0x0020_0000;
pub const QUEUED: u32 = 1;

impl Task {
    pub fn new(spec: &Spec, pid: i32, nr_cpus: usize) -> Self {
        let mask = CpuMask::of(spec.cpus.clone().unwrap_or_else(|| (0..nr_cpus).collect()));
        let cpu = (0..nr_cpus).find(|cpu| mask.has(*cpu)).unwrap_or(0);
        let allowed = mask.count() as i32;
        let mask = NonNull::from(Box::leak(Box::new(mask)));
        let kern = TaskStruct {
            flags: if spec.kthread { PF_KTHREAD } else { 0 },
            pid,
            tgid: spec.tgid.unwrap_or(pid),
            nr_cpus_allowed: allowed,
            cpus_ptr: mask.as_ptr(),
            migration_disabled: 0,
            preempt_notifiers: ptr::null_mut(),
            scx: ScxEntity { flags: 0, weight: spec.weight, slice: 20_000_000 },
        };
        Self {
            kern: NonNull::from(Box::leak(Box::new(kern))),
            mask,
            state: State::Asleep,
            cpu,
            queue: None,
            vtime: 0,
            dsq_seq: 0,
            verdict: None,
            migration_disabled: false,
            cgroup: spec.cgroup,
            vcpu: spec.vcpu,
            in_guest: false,
            guest_kernel: false,
            spins: false,
            run_ns: spec.run_ns,
            sleep_ns: spec.sleep_ns,
            burst_left_ns: spec.run_ns,
            turn: 0,
            wants_sleep: false,
            wants_exit: false,
            used_ns: 0,
            waits_since_ns: 0,
            wait_max_ns: 0,
        }
    }

    pub fn ptr(&self) -> *mut TaskStruct {
        self.kern.as_ptr()
    }

    pub fn kern(&self) -> &TaskStruct {
        // SAFETY: ours until drop, and the scheduler runs only inside calls during which no such reference is kept.
        unsafe { self.kern.as_ref() }
    }

    pub fn kern_mut(&mut self) -> &mut TaskStruct {
        // SAFETY: as above.
        unsafe { self.kern.as_mut() }
    }

    pub fn allowed(&self, cpu: usize) -> bool {
        // SAFETY: as above.
        unsafe { self.mask.as_ref() }.has(cpu)
    }

    pub fn set_mask(&mut self, mask: CpuMask) {
        self.kern_mut().nr_cpus_allowed = mask.count() as i32;
        // SAFETY: as above.
        unsafe { *self.mask.as_mut() = mask };
    }

    pub fn slice(&self) -> u64 {
        self.kern().scx.slice
    }

    pub fn set_slice(&mut self, slice_ns: u64) {
        self.kern_mut().scx.slice = slice_ns;
    }

    pub fn is_queued(&self) -> bool {
        self.kern().scx.flags & QUEUED != 0
    }

    pub fn set_queued(&mut self, queued: bool) {
        let flags = &mut self.kern_mut().scx.flags;
        *flags = if queued { *flags | QUEUED } else { *flags & !QUEUED };
    }

    pub fn is_kthread(&self) -> bool {
        self.kern().flags & PF_KTHREAD != 0
    }

    pub fn is_exiting(&self) -> bool {
        self.kern().flags & PF_EXITING != 0
    }

    /// Account for time on a pCPU.
    pub fn used(&mut self, ns: u64) {
        self.used_ns += ns;
        if self.slice() != u64::MAX {
            self.set_slice(self.slice().saturating_sub(ns));
        }
        if self.burst_left_ns != FOREVER {
            self.burst_left_ns = self.burst_left_ns.saturating_sub(ns);
        }
    }

    pub fn next_burst(&mut self) {
        self.burst_left_ns = self.run_ns;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // SAFETY: both were leaked from boxes in new(), and the world, which the scheduler runs in, ends with its tasks.
        unsafe {
            drop(Box::from_raw(self.kern.as_ptr()));
            drop(Box::from_raw(self.mask.as_ptr()));
        }
    }
}
