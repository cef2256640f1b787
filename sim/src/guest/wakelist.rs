// SPDX-License-Identifier: GPL-2.0-only
//! A wake-up that is left to the vCPU where the task will run: who wakes puts the task on that vCPU's list and interrupts it, and takes no lock of its run queue
//! (ttwu_queue_wakelist(), sched_ttwu_pending() of kernel/sched/core.c). Without, who has just woken somebody holds that lock when the interrupt goes out: on a
//! host that gives the woken vCPU the waker's pCPU at once, it spins there for what the waker holds.
//!
//! Left out: that who wakes somebody while the list waits for the lock sends another interrupt.

use crate::kvm::vector;
use crate::time::Ns;
use crate::Host;

use super::config::Wakelist;
use super::ops::Op;
use super::task::State;
use super::vm::Vm;

impl Vm {
    /// ttwu_queue_cond(), as if all vCPUs shared a cache. Who has not left its queue yet is woken there (ttwu_runnable()).
    pub(super) fn is_left_to(&self, cpu: usize, waker: usize, task: u32) -> bool {
        let wanted = match self.guest.wakelist {
            Wakelist::None => false,
            Wakelist::Others => true,
            Wakelist::Idle => self.load(cpu) == 0,
        };
        wanted && cpu != waker && !self.tasks[task as usize].on_rq
    }

    /// What each of the two does of a wake-up: half, assumed.
    pub(super) fn half_wake_ns(&self) -> Ns {
        self.guest.costs.wake_ns / 2
    }

    pub(super) fn wakelist_op(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            Op::LeaveWake { task, cpu } if self.tasks[task as usize].state == State::Sleeping => {
                self.tasks[task as usize].state = State::Waking;
                let list = &mut self.cpus[cpu as usize].wakelist;
                list.push_back(task);
                if list.len() == 1 {
                    let level = usize::from(self.cpus[v].in_irq);
                    self.cpus[v].receivers[level].push_back(cpu);
                    self.frame(v).first(&[Op::SendIpis(vector::WAKE)]);
                }
            }
            Op::TakeWakes if !self.cpus[v].wakelist.is_empty() => {
                let work = Op::Work(self.half_wake_ns() * self.cpus[v].wakelist.len() as Ns);
                self.frame(v).first(&[Op::LockRq, work, Op::WakeAll, Op::UnlockRq, Op::TellSlice]);
            }
            Op::WakeAll => {
                while let Some(task) = self.cpus[v].wakelist.pop_front() {
                    self.tasks[task as usize].state = State::Sleeping;
                    self.enqueue(host, v, task, v as u32);
                }
            }
            _ => {}
        }
    }
}
