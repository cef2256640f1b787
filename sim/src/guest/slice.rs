// SPDX-License-Identifier: GPL-2.0-only
//! Slices of the guest's tasks that end on time and not with a tick (HRTICK): a timer for each, of which the guest's kernel tells the APIC by an exit.
//!
//! Left out: the interrupt by which who wakes a task on another vCPU has the timer set there. It is set at once, and the exit is that vCPU's next time out of
//! its scheduler.

use crate::kvm::vcpu::Then;
use crate::kvm::{exit, vector};
use crate::time::Ns;
use crate::Host;

use super::vm::Vm;
use super::SLICE;

/// hrtick_start(): no timer is shorter.
const HRTICK_MIN_NS: Ns = 10_000;

impl Vm {
    /// Where somebody waits the running task's slice has an end: `hrtick_update()`. Its time so far has been charged.
    pub(super) fn arm_slice(&mut self, host: &mut Host, v: usize) {
        let cpu = &self.cpus[v];
        let task = &self.tasks[cpu.current as usize];
        let waits = !cpu.queue.is_empty() && !self.is_idle_task(cpu.current);
        if !self.guest.hrtick || !waits || cpu.slice.is_armed() {
            return;
        }
        let left_ns = match self.is_eevdf() {
            true => task.deadline_ns.saturating_sub(task.vruntime_ns),
            false => self.cfs_slice_ns(v).saturating_sub(cpu.ran_ns),
        };
        let left_ns = left_ns.max(HRTICK_MIN_NS);
        let generation = self.cpus[v].slice.arm();
        host.set_timer(host.now_ns() + left_ns, self.thread(v).0, SLICE, generation);
        self.cpus[v].slice_untold = true;
    }

    /// Has the running task, charged up to now, used up its slice while others wait?
    pub(super) fn is_slice_over(&self, v: usize) -> bool {
        let cpu = &self.cpus[v];
        let is_over = match self.is_eevdf() {
            true => self.tasks[cpu.current as usize].vruntime_ns >= cpu.protected_until_ns,
            false => cpu.ran_ns >= self.cfs_slice_ns(v),
        };
        is_over && !cpu.queue.is_empty()
    }

    /// On the way out of the scheduler the APIC's timer is set (hrtimer_rearm_deferred()).
    pub(super) fn tell_slice(&mut self, host: &mut Host, v: usize) {
        if std::mem::take(&mut self.cpus[v].slice_untold) {
            self.begin_exit(host, v, exit::TIMER, self.kvm.costs.timer_ns, Then::Done);
        }
    }

    pub(crate) fn slice_fired(&mut self, host: &mut Host, v: usize, generation: u32) {
        if self.cpus[v].slice.fires(generation) {
            self.cpus[v].slice_due = true;
            self.deliver(host, v, vector::TIMER, None);
        }
    }

    /// hrtick(), under the run queue's lock. The task may have been without its vCPU meanwhile.
    pub(super) fn slice_ends(&mut self, host: &mut Host, v: usize) {
        self.charge(host, v);
        if self.is_slice_over(v) {
            self.wants(v);
        } else {
            self.arm_slice(host, v);
        }
    }
}
