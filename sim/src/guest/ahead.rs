// SPDX-License-Identifier: GPL-2.0-only
//! What the events to come will need of a guest's memory ([`crate::prefetch`]): the VM; its vCPU; the task there; what that is about to do, and with which
//! lock.

use crate::prefetch::fetch;
use crate::Host;

use super::ops::Op;
use super::task::Task;
use super::vm::Vm;

impl Vm {
    /// For an event of a vCPU.
    pub(super) fn prefetch_vcpu(&self, host: &Host, v: usize, step: usize) {
        match step {
            0 => self.prefetch_self(),
            1 => self.prefetch_cpu(v),
            2 => {
                fetch(&host.core.tasks[self.vcpus[v].task.index()]);
                fetch(&self.tasks[self.cpus[v].current as usize]);
            }
            3 => {
                self.tasks[self.cpus[v].current as usize].prefetch();
                self.cpus[v].irq.prefetch();
            }
            _ => self.prefetch_lock(v),
        }
    }

    /// For a timer of one of the guest's tasks.
    pub(super) fn prefetch_task(&self, host: &Host, task: u32, step: usize) {
        match step {
            0 => self.prefetch_self(),
            1 => fetch(&self.tasks[task as usize]),
            2 => {
                let task = &self.tasks[task as usize];
                task.prefetch();
                self.prefetch_cpu(task.timer_cpu as usize);
            }
            3 => {
                let v = self.tasks[task as usize].timer_cpu as usize;
                self.prefetch_vcpu(host, v, 2);
            }
            _ => {
                let v = self.tasks[task as usize].timer_cpu as usize;
                self.prefetch_vcpu(host, v, 3);
                fetch(&self.locks[self.cpus[v].rq_lock as usize]);
            }
        }
    }

    fn prefetch_self(&self) {
        fetch(&self.vcpus);
        fetch(&self.tasks);
        fetch(&self.locks);
        fetch(&self.counters.exits);
        fetch(&self.in_instant);
    }

    fn prefetch_cpu(&self, v: usize) {
        fetch(&self.vcpus[v]);
        fetch(&self.cpus[v]);
    }

    /// The lock that is taken or released next.
    fn prefetch_lock(&self, v: usize) {
        let cpu = &self.cpus[v];
        let frame = if cpu.in_irq { &cpu.irq } else { &self.tasks[cpu.current as usize].frame };
        match frame.top() {
            Some(Op::Lock(lock) | Op::Unlock(lock)) => fetch(&self.locks[*lock as usize]),
            Some(Op::LockRq | Op::UnlockRq | Op::Schedule | Op::Switch) => {
                fetch(&self.locks[cpu.rq_lock as usize]);
            }
            _ => {}
        }
    }
}

impl Task {
    fn prefetch(&self) {
        self.frame.prefetch();
        if let Some(left) = self.loops.last() {
            fetch(left);
        }
    }
}
