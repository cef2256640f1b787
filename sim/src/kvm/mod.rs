// SPDX-License-Identifier: GPL-2.0-only
//! KVM as far as a guest's time depends on it: exits, pause-loop exits and directed yield, halting and polling, interrupts into guests,
//! what it tells the guest about preempted vCPUs, and TLB flushes on the guest's behalf.
//!
//! A vCPU is a thread of the host that is either in the guest or in KVM because of an exit. [`vcpu::Vcpu`] keeps which; what the guest's code
//! does is [`crate::guest`]'s business. The order of things is that of virt/kvm/kvm_main.c, arch/x86/kvm/{x86,lapic,vmx/vmx,svm/svm}.c of Linux 6.12.

pub mod config;
pub mod exits;
pub mod halt;
pub mod spin;
pub mod vcpu;

pub use config::{HaltPoll, Ipi, KvmConfig, KvmCosts, Ple, PleMode, Wells};

/// Reasons of [`crate::observe::What::Exit`].
pub mod exit {
    /// A pause-loop exit.
    pub const PAUSE: u8 = 0;
    pub const HLT: u8 = 1;
    /// The guest wrote the interrupt command register: it sends an IPI.
    pub const ICR: u8 = 2;
    pub const HYPERCALL: u8 = 3;
    /// An interrupt of the host, which may carry one for the guest.
    pub const INTERRUPT: u8 = 4;
    /// The guest set its timer (the TSC deadline).
    pub const TIMER: u8 = 5;
    /// A device of the VMM.
    pub const IO: u8 = 6;
    /// The thread lost its pCPU in the guest, and enters it again.
    pub const PREEMPTED: u8 = 7;
    /// A page that KVM has to map.
    pub const FAULT: u8 = 8;

    pub const COUNT: usize = 9;
}

/// Interrupts of the guest, as in [`crate::observe::What::GuestIpiSent`].
pub mod vector {
    /// A call of a function on another CPU for which the caller waits.
    pub const CALL: u8 = 0;
    /// ... the function being a flush of the TLB.
    pub const TLB: u8 = 1;
    pub const RESCHED: u8 = 2;
    pub const TIMER: u8 = 3;
    /// A device has done what it was asked for.
    pub const IO: u8 = 4;
    /// A wake-up is left to the receiver (call_function_single_interrupt).
    pub const WAKE: u8 = 5;

    pub const COUNT: usize = 6;

    /// Which of these, a bit each, is taken first: that of the least number, but a wake-up before timers and devices.
    pub fn first(of: u8) -> u8 {
        match of.trailing_zeros() as u8 {
            TIMER.. if of >> WAKE & 1 == 1 => WAKE,
            least => least,
        }
    }
}
