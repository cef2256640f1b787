// SPDX-License-Identifier: GPL-2.0-only
//! Pause-loop exits and directed yield: handle_pause() of VMX, pause_interception() of SVM, kvm_vcpu_on_spin() of virt/kvm/kvm_main.c.

use crate::class::Class as _;
use crate::guest::vm::Vm;
use crate::host::YieldTo;
use crate::observe::What;
use crate::time::Progress;
use crate::Host;

use super::config::{Ipi, Ple, PleMode};
use super::exit;
use super::vcpu::{Place, Then};

/// "Negative answers" of the scheduler after which kvm_vcpu_on_spin() gives up.
const TRIES: u32 = 3;

impl Ple {
    /// __grow_ple_window()
    pub fn grown(&self, window: u32) -> u32 {
        let base = self.window();
        if self.grow < 1 {
            return base;
        }
        let grown = if self.grow < base {
            window.saturating_mul(self.grow)
        } else {
            window.saturating_add(self.grow)
        };
        grown.min(self.window_max())
    }

    /// __shrink_ple_window()
    pub fn shrunk(&self, window: u32) -> u32 {
        let base = self.window();
        if self.shrink < 1 {
            return base;
        }
        let shrunk =
            if self.shrink < base { window / self.shrink } else { window.saturating_sub(self.shrink) };
        shrunk.max(base)
    }
}

impl Vm {
    /// Does the processor watch a loop of PAUSE in this mode?
    pub(crate) fn watches_pause(&self, kernel: bool) -> bool {
        match self.kvm.ple.mode {
            PleMode::Off => false,
            PleMode::Kernel => kernel,
            PleMode::Any => true,
        }
    }

    /// The window's end: the exit.
    pub(crate) fn pause_loop_exit(&mut self, host: &mut Host, v: usize) {
        let kernel = self.is_kernel(v);
        let vcpu = &mut self.vcpus[v];
        let id = vcpu.id;
        vcpu.window_size = self.kvm.ple.grown(vcpu.window_size);
        host.tell(|| What::Ple { vcpu: id, kernel });
        // Whatever it holds: it waits, and may be preempted.
        host.lock_released(self.vcpus[v].task);
        self.begin_exit(host, v, exit::PAUSE, self.kvm.costs.on_spin_ns, Then::SpinHook);
    }

    /// kvm_vcpu_on_spin() is called: whoever has attached a program there comes first, and may have the pCPU schedule at once.
    pub(crate) fn spin_hook(&mut self, host: &mut Host, v: usize) {
        let kernel = self.is_kernel(v);
        let task = self.vcpus[v].task;
        let in_program = host.on_spin(task, kernel);
        self.vcpus[v].exit.then = if in_program { Then::SpinLeaves } else { Then::SpinLoop };
        if host.needs_resched(task) {
            self.come_back(host, v);
        }
    }

    /// The program on it has ended.
    pub(crate) fn spin_leaves(&mut self, host: &mut Host, v: usize) {
        let task = self.vcpus[v].task;
        host.set_migration_disabled(task, false);
        self.vcpus[v].exit.then = Then::SpinLoop;
        if host.needs_resched(task) {
            self.come_back(host, v);
        }
    }

    /// The loop over the siblings.
    pub(crate) fn spin_loop(&mut self, host: &mut Host, v: usize) {
        self.vcpus[v].exit.then = Then::SpinEnd;
        let vcpus = self.vcpus.len();
        if vcpus < 2 {
            return;
        }
        self.vcpus[v].in_spin_loop = true;
        let kernel_only = self.is_kernel(v) && self.kvm.asks_kernel_only;
        let start = self.boost_from;
        let mut tries = TRIES;
        for step in 0..vcpus {
            let other = (start + step) % vcpus;
            if other == v || !self.is_candidate(host, other, kernel_only) {
                continue;
            }
            match self.yield_to(host, v, other) {
                YieldTo::Granted => {
                    self.boost_from = if self.kvm.on_spin_bug { step } else { other } + 1;
                    self.come_back(host, v);
                    return;
                }
                YieldTo::NoPoint => {
                    tries -= 1;
                    if tries == 0 {
                        return;
                    }
                }
                YieldTo::Refused => {}
            }
        }
    }

    /// The conditions of the loop, in its order.
    fn is_candidate(&mut self, host: &Host, other: usize, kernel_only: bool) -> bool {
        let state = host.core.task(self.vcpus[other].task).kvm;
        let vcpu = &mut self.vcpus[other];
        let waits = if self.kvm.yields_to_woken { state.ready } else { state.preempted };
        if !waits {
            return false;
        }
        let runnable = vcpu.kicked || vcpu.pending != 0;
        if vcpu.place == Place::Blocked && !runnable {
            return false;
        }
        // kvm_arch_dy_has_pending_interrupt() sees interrupts only where the APIC is virtualized; kvm_vcpu_on_spin() asks it since 5.13.
        let interrupt = self.kvm.asks_interrupted && vcpu.pending != 0 && self.kvm.ipi != Ipi::Trapped;
        if state.preempted && kernel_only && !interrupt && !state.preempted_in_kernel {
            return false;
        }
        vcpu.eligible_for_directed_yield()
    }

    fn yield_to(&mut self, host: &mut Host, v: usize, other: usize) -> YieldTo {
        let (from, to) = (self.vcpus[v].id, self.vcpus[other].id);
        let answer = host.yield_to(self.vcpus[v].task, self.vcpus[other].task);
        host.tell(|| What::DirectedYield { from, to, granted: answer == YieldTo::Granted });
        answer
    }

    /// kvm_sched_yield()
    pub(crate) fn hypercall_yield(&mut self, host: &mut Host, v: usize, to: usize) {
        self.vcpus[v].exit.then = Then::Done;
        self.vcpus[v].exit.work = Progress::new(0);
        if self.kvm.lone_yields_not && host.class.queue_len(host.cpu_of(self.vcpus[v].task)) == 1 {
            return;
        }
        if to == v || !host.core.task(self.vcpus[to].task).kvm.ready {
            return;
        }
        if self.yield_to(host, v, to) == YieldTo::Granted {
            self.come_back(host, v);
        }
    }

    /// The thread is about to lose its pCPU in the middle of an exit. If it does, it goes on when it has one again; if the scheduler lets it go
    /// on, at this same instant.
    fn come_back(&mut self, host: &mut Host, v: usize) {
        self.vcpus[v].exit.work = Progress::new(0);
        self.comes_back(host, v);
    }

    pub(super) fn comes_back(&mut self, host: &mut Host, v: usize) {
        self.vcpus[v].comes_back = true;
        self.arm(host, v, host.now_ns());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_and_shrink_as_in_the_kernel() {
        let vmx = Ple::default();
        assert_eq!(vmx.grown(4_096), 8_192);
        assert_eq!(vmx.grown(u32::MAX), u32::MAX);
        assert_eq!(vmx.shrunk(65_536), 4_096, "0: back to the start");
        let additive = Ple { grow: 5_000, shrink: 2, ..Ple::default() };
        assert_eq!(additive.grown(4_096), 9_096);
        assert_eq!(additive.shrunk(65_536), 32_768);
        assert_eq!(additive.shrunk(5_000), 4_096, "never below the start");
        let fixed = Ple { grow: 1, ..Ple::default() };
        assert_eq!(fixed.grown(4_096), 4_096);
        let off = Ple { grow: 0, ..Ple::default() };
        assert_eq!(off.grown(9_000), 4_096);
        let svm = Ple { window_pauses: 3_000, ..Ple::default() };
        assert_eq!(svm.grown(3_000), 6_000);
        assert_eq!(svm.grown(48_000), 65_535, "the field has 16 bits");
        assert_eq!(svm.shrunk(48_000), 3_000);
    }
}
