// SPDX-License-Identifier: GPL-2.0-only
//! The wish that another task runs: who has it, when it is heard, and which vCPU has to be interrupted for it.

use super::ops::Op;
use super::task::State;
use super::vm::Vm;

impl Vm {
    /// __resched_curr(): another task is to run here. PREEMPT_LAZY lets a task that runs go on to user mode, or to the next tick.
    pub(super) fn wants(&mut self, v: usize) {
        let urgent = !self.guest.lazy_preemption || self.is_idle_task(self.cpus[v].current);
        let cpu = &mut self.cpus[v];
        cpu.need_resched = true;
        cpu.urgent |= urgent;
    }

    /// Does another task go first, before the present one goes on in this mode?
    pub(super) fn goes_first(&self, v: usize, kernel: bool) -> bool {
        let cpu = &self.cpus[v];
        // A kernel with PREEMPT_LAZY can be preempted, if it is urgent.
        let preemptible = self.guest.preemptible_kernel || self.guest.lazy_preemption;
        if kernel {
            cpu.urgent && preemptible
        } else {
            cpu.need_resched
        }
    }

    /// [`Op::Preempt`]
    pub(super) fn may_be_preempted(&mut self, v: usize) {
        let cpu = &self.cpus[v];
        let task = &self.tasks[cpu.current as usize];
        let may = !cpu.in_irq && cpu.no_preempt == 0 && cpu.irq_off == 0 && !self.is_idle_task(cpu.current);
        if may && task.kernel && task.state == State::Runnable && self.goes_first(v, true) {
            self.frame(v).first(&[Op::Schedule]);
        }
    }

    /// Another vCPU's queue has been changed from here: it hears of it if it is to switch now, and did not know that.
    pub(super) fn tell_if_urgent(&mut self, v: usize, other: usize, was_urgent: bool) {
        if other != v && self.cpus[other].urgent && !was_urgent {
            self.frame(v).first(&[Op::Resched(other as u32)]);
        }
    }
}
