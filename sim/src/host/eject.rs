// SPDX-License-Identifier: GPL-2.0-only
//! A sched_ext scheduler that did what the kernel refuses: another class goes on, and every task is queued there.

use crate::error::SimError;
use crate::ids::{CpuId, TaskId};

use super::class::{Class, Enqueue};
use super::task::State;
use super::Host;

impl<C: Class> Host<C> {
    /// Return true if the simulation goes on after what has just gone wrong.
    pub(crate) fn fall_back(&mut self) -> bool {
        if !self.class.falls_back() || !matches!(self.core.error, Some(SimError::Refused { .. })) {
            return false;
        }
        self.core.ejected = self.core.error.take();
        self.class.fall_back(&mut self.core);
        for task in (0..self.core.tasks.len()).map(TaskId::from) {
            match self.core.task(task).state {
                State::Running => self.class.enqueue(&mut self.core, task, Enqueue::RestoreRunning),
                State::Waiting => self.class.enqueue(&mut self.core, task, Enqueue::Restore),
                State::Asleep | State::Dead => {}
            }
        }
        for cpu in (0..self.core.cpus.len()).map(CpuId::from) {
            if self.class.queue_len(cpu) > 0 {
                self.core.resched(cpu);
            }
        }
        true
    }
}
