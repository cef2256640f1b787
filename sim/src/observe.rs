// SPDX-License-Identifier: GPL-2.0-only
//! One stream of what happened, in order. Metrics, traces and fingerprints read it; with nobody listening, an event costs one branch.

use crate::ids::{CpuId, TaskId, VcpuId};
use crate::time::Ns;

/// Why a task left its pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stop {
    /// It could go on; somebody else runs, or the pCPU idles.
    Preempted,
    /// It waits for something.
    Blocked,
    Exited,
}

/// What happened. Host first, then KVM, then guests. Small and `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A pCPU goes from one task to another; `None`: idle.
    Switch {
        cpu: CpuId,
        prev: Option<TaskId>,
        why: Stop,
        next: Option<TaskId>,
    },
    /// A task became runnable and is queued for a pCPU.
    Wakeup {
        task: TaskId,
        cpu: CpuId,
    },
    /// A waiting task was moved between pCPUs.
    Migrate {
        task: TaskId,
        from: CpuId,
        to: CpuId,
    },
    /// The body does useful or useless work at another speed from now on (SMT).
    Speed {
        cpu: CpuId,
        full: bool,
    },

    /// KVM: a pause-loop exit.
    Ple {
        vcpu: VcpuId,
        kernel: bool,
    },
    /// KVM asked the host to run `to` instead of `from`; did it?
    DirectedYield {
        from: VcpuId,
        to: VcpuId,
        granted: bool,
    },
    /// Any exit; `reason` as in [`crate::kvm`].
    Exit {
        vcpu: VcpuId,
        reason: u8,
        ns: Ns,
    },
    Halt {
        vcpu: VcpuId,
        polled_ns: Ns,
    },
    Unhalt {
        vcpu: VcpuId,
    },
    /// An interrupt was sent to a vCPU, and when it was taken.
    GuestIpiSent {
        from: VcpuId,
        to: VcpuId,
        vector: u8,
    },
    GuestIpiTaken {
        vcpu: VcpuId,
        vector: u8,
    },
    /// The vCPU's mode changed.
    Mode {
        vcpu: VcpuId,
        kernel: bool,
    },

    /// The guest's scheduler switched; tasks by the guest's own numbers, `u32::MAX`: idle.
    GuestSwitch {
        vcpu: VcpuId,
        prev: u32,
        next: u32,
    },
    /// `lock`: the guest's number of it.
    LockWait {
        vcpu: VcpuId,
        lock: u32,
    },
    /// `sleeps`: it is a mutex, which does not keep its holder from sleeping or from being moved to another vCPU.
    LockTaken {
        vcpu: VcpuId,
        lock: u32,
        sleeps: bool,
        waited_ns: Ns,
    },
    LockReleased {
        vcpu: VcpuId,
        lock: u32,
        sleeps: bool,
        held_ns: Ns,
    },
    SpinStart {
        vcpu: VcpuId,
        why: Spin,
    },
    SpinEnd {
        vcpu: VcpuId,
        why: Spin,
        spun_ns: Ns,
    },
    ShootdownStart {
        vcpu: VcpuId,
        targets: u32,
    },
    ShootdownEnd {
        vcpu: VcpuId,
        targets: u32,
        took_ns: Ns,
    },
    /// One step of a workload is complete (a message, a request, a unit of work); `kind` is the workload's.
    Progress {
        vcpu: VcpuId,
        kind: u16,
        took_ns: Ns,
    },
    /// A program of a guest begins, if not with the run.
    ProgramStart {
        vcpu: VcpuId,
        program: u32,
    },
    /// A program of a guest has ended.
    ProgramEnd {
        vcpu: VcpuId,
        program: u32,
    },
    /// A vCPU's TLB was flushed on another's request, in whatever way.
    TlbFlushed {
        vcpu: VcpuId,
    },
    /// The guest's KVM_HC_KICK_CPU: a lock's new holder is woken.
    Kick {
        from: VcpuId,
        to: VcpuId,
    },
}

/// What a vCPU spins for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Spin {
    Lock,
    IpiAnswer,
    Shootdown,
    Barrier,
    User,
}

/// Who listens.
pub trait Observer {
    fn record(&mut self, now_ns: Ns, what: &What);
}

/// Zero, one or more listeners.
#[derive(Default)]
pub struct Observers {
    list: Vec<Box<dyn Observer>>,
}

impl Observers {
    pub fn add(&mut self, observer: Box<dyn Observer>) {
        self.list.push(observer);
    }

    /// Cheap when nobody listens; what has to be computed for the record is computed inside the closure.
    #[inline]
    pub fn tell(&mut self, now_ns: Ns, what: impl FnOnce() -> What) {
        if !self.list.is_empty() {
            self.tell_all(now_ns, what());
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_all(&mut self, now_ns: Ns, what: What) {
        for observer in &mut self.list {
            observer.record(now_ns, &what);
        }
    }
}
