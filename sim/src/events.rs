// SPDX-License-Identifier: GPL-2.0-only
//! The events to come, in a total order ([`EventQueue`]): by time, then by the order in which they were made. Nothing is ever taken out of the middle: who made
//! an event void (a timer set again, a turn that ended early) counts a generation up, and the event finds out when its time has come.

use crate::ids::{CpuId, TaskId};

/// What is to happen. Small and `Copy`: no allocation for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The scheduler's tick of a pCPU.
    Tick(CpuId),
    /// A reschedule request has got to a pCPU.
    Resched(CpuId),
    /// A slice that is exact to the ns has ended (hrtick); void if the pCPU's turn is another one.
    SliceEnd { cpu: CpuId, turn: u32 },
    /// The stopper thread moves a running task off a pCPU that it may no longer use.
    Migrate(TaskId),
    /// A pCPU that is going offline hands on what it was given.
    Push(CpuId),
    /// The ext class looks for tasks that have waited for too long.
    Watchdog,
    /// A timer of the class's own; void if it was set anew since.
    ClassTimer { id: u32, generation: u32 },
    /// An interrupt arrives at the pCPU where this task runs; `what` is the bodies' business. See [`crate::body::Bodies::interrupt`].
    Interrupt { task: TaskId, what: u32 },
    /// A timer of the bodies; see [`crate::body::Bodies::event`]. `id` is a task, a vCPU, a device: the bodies' business.
    Body { id: u32, what: u8, generation: u32 },
}

/// One timer of one entity: armed again or cancelled, what it was armed for before is void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timer {
    generation: u32,
    armed: bool,
}

impl Timer {
    /// Returns the generation to put into the event.
    pub fn arm(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.armed = true;
        self.generation
    }

    pub fn cancel(&mut self) {
        self.armed = false;
    }

    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Return true if the event with this generation is the one armed last; it then is no longer armed.
    pub fn fires(&mut self, generation: u32) -> bool {
        let fires = self.armed && self.generation == generation;
        if fires {
            self.armed = false;
        }
        fires
    }
}

pub use crate::calendar::EventQueue;
