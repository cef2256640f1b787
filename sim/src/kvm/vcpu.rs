// SPDX-License-Identifier: GPL-2.0-only
//! What KVM keeps of a vCPU (`struct kvm_vcpu`), and where its thread is.

use crate::body::Run;
use crate::events::Timer;
use crate::ids::{TaskId, VcpuId};
use crate::time::{Ns, Progress};

use super::halt::Polling;

/// Where the vCPU's thread is in KVM's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Executes the guest's code, or did so when it lost its pCPU.
    Guest,
    /// On the way from an exit to the next entry.
    Exit,
    /// Halted, and polls.
    Poll,
    /// Halted, and sleeps.
    Blocked,
}

/// What is to be done when the present part of an exit's work has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The entry's work is done: the guest goes on.
    Enter,
    /// Nothing special: enter.
    Done,
    /// Deliver this vector to the vCPUs of `ipi_to`.
    Ipi(u8),
    /// KVM_HC_KICK_CPU
    Kick(u32),
    /// KVM_HC_SCHED_YIELD
    Yield(u32),
    /// The flush hypercall: for the vCPUs of `flush_to`.
    Flush,
    Halt,
    /// kvm_vcpu_on_spin(), in four parts: those between which the thread may lose its pCPU.
    SpinHook,
    SpinLeaves,
    SpinLoop,
    SpinEnd,
    /// This page of the guest's is mapped.
    Fault(u64),
    /// The request of this guest task goes to the device.
    Io(u32),
}

#[derive(Clone, Copy, Debug)]
pub struct Exit {
    pub reason: u8,
    pub since_ns: Ns,
    pub work: Progress,
    pub then: Then,
}

#[derive(Debug)]
pub struct Vcpu {
    pub task: TaskId,
    pub id: VcpuId,
    /// The thread's present turn on a pCPU.
    pub run: Option<Run>,
    /// ... and its own work has begun in it: switch and refill are over.
    pub settled: bool,
    /// It has run before.
    pub begun: bool,
    /// The end of the present stretch of work.
    pub timer: Timer,
    pub place: Place,
    pub exit: Exit,

    /// Interrupts that wait in the APIC: a bit for each vector.
    pub pending: u8,
    /// Those of them of which the processor knows: as of the last entry or notification. What has been sent since is on its way.
    pub visible: u8,
    /// `arch.pv.pv_unhalted`: a sibling's kick.
    pub kicked: bool,
    pub polling: Polling,
    pub halted_ns: Ns,
    pub poll_until_ns: Ns,

    /// The present window, in cycles or PAUSEs, and what is left of it for the loop that the guest is in. Any exit begins it anew.
    pub window_size: u32,
    pub window: Option<Progress>,
    /// What is left of the instructions after which [`super::Wells`] finds the loop.
    pub stalls: Option<Progress>,
    /// It has yielded: nothing more happens before the scheduler has decided.
    pub comes_back: bool,
    /// `arch.at_instruction_boundary`: an interrupt of the host has ended the guest's turn, and vcpu_run() has not gone round since.
    pub at_boundary: bool,
    pub in_spin_loop: bool,
    pub dy_eligible: bool,

    /// `struct kvm_steal_time`.preempted: KVM_VCPU_PREEMPTED and KVM_VCPU_FLUSH_TLB.
    pub seen_preempted: bool,
    pub flush_flag: bool,
    /// KVM_REQ_TLB_FLUSH_GUEST
    pub flush_request: bool,

    pub ipi_to: Vec<u32>,
    pub flush_to: Vec<u32>,
}

impl Vcpu {
    pub fn new(task: TaskId, id: VcpuId, window_size: u32) -> Self {
        Self {
            task,
            id,
            run: None,
            settled: false,
            begun: false,
            timer: Timer::default(),
            // Until it has something to do it is as good as halted.
            place: Place::Blocked,
            exit: Exit { reason: 0, since_ns: 0, work: Progress::new(0), then: Then::Enter },
            pending: 0,
            visible: 0,
            kicked: false,
            polling: Polling::default(),
            halted_ns: 0,
            poll_until_ns: 0,
            window_size,
            window: None,
            stalls: None,
            comes_back: false,
            at_boundary: false,
            in_spin_loop: false,
            dy_eligible: false,
            seen_preempted: false,
            flush_flag: false,
            flush_request: false,
            ipi_to: Vec::new(),
            flush_to: Vec::new(),
        }
    }

    /// The processor has seen something else than a loop.
    pub fn loop_ends(&mut self) {
        self.window = None;
        self.stalls = None;
    }

    /// Whoever had the pCPU meanwhile, schedule() has returned, if the thread had called it; then vcpu_run() goes round.
    pub fn goes_on(&mut self) {
        self.at_boundary &= !self.comes_back;
        self.comes_back = false;
    }

    /// Executes the guest's code at this instant (IN_GUEST_MODE).
    pub fn in_guest(&self) -> bool {
        self.place == Place::Guest && self.settled
    }

    /// kvm_vcpu_eligible_for_directed_yield(): one that is itself in a pause-loop exit is eligible every other time.
    pub fn eligible_for_directed_yield(&mut self) -> bool {
        let eligible = !self.in_spin_loop || self.dy_eligible;
        if self.in_spin_loop {
            self.dy_eligible = !self.dy_eligible;
        }
        eligible
    }
}
