// SPDX-License-Identifier: GPL-2.0-only
//! A sched_ext scheduler that did what the kernel refuses: `scx_disable_workfn()` puts every task into the fair class.

use crate::class::fair::{Fair, FairConfig};
use crate::class::{AnyClass, Class as _, Enqueue};
use crate::error::SimError;
use crate::ids::{CpuId, GroupId, TaskId};

use super::task::State;
use super::Host;

impl Host {
    /// Return true if the simulation goes on after what has just gone wrong.
    pub(crate) fn fall_back(&mut self) -> bool {
        let falls_back = matches!(&self.class, AnyClass::Ext(ext) if ext.falls_back());
        if !falls_back || !matches!(self.core.error, Some(SimError::Refused { .. })) {
            return false;
        }
        self.core.ejected = self.core.error.take();
        let core = &mut self.core;
        let mut fair = Fair::new(FairConfig::default());
        fair.init(core);
        for group in 1..core.groups.len() {
            fair.group_new(core, GroupId::from(group));
        }
        for task in 0..core.tasks.len() {
            fair.task_new(core, TaskId::from(task));
        }
        self.class = AnyClass::Fair(fair);
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
