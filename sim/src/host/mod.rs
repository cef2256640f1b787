// SPDX-License-Identifier: GPL-2.0-only
//! The host: pCPUs, tasks, cgroups, and the steps of the kernel's scheduling core. Who runs next is the [`Class`]'s decision, what a
//! task does the [`crate::body::Bodies`]'.

pub mod api;
pub mod class;
pub mod core;
mod eject;
mod lifecycle;
mod recent;
mod schedule;
pub mod task;
pub mod vcpu;

pub use self::class::Class;
pub use self::core::{Bandwidth, Core, Cpu, Group, NO_QUOTA};
pub use self::schedule::Switch;
pub use self::task::{State, Task, TaskSpec};

use crate::error::SimError;
use crate::machine::MachineConfig;

/// The host with its scheduling class. Bodies get it with every call.
pub struct Host<C> {
    pub core: Core,
    pub class: C,
}

/// What came of [`Host::yield_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldTo {
    /// The target will run instead. The caller's pCPU reschedules when the body has returned.
    Granted,
    /// No: the target does not wait, or the scheduler refuses (the kernel returns 0).
    Refused,
    /// There is no point in it: both run queues hold one task (-ESRCH).
    NoPoint,
}

impl<C: Class> Host<C> {
    pub fn new(machine: &MachineConfig, class: C, seed: u64) -> Result<Self, SimError> {
        let mut host = Self { core: Core::new(machine, seed)?, class };
        host.class.init(&mut host.core);
        host.check()?;
        Ok(host)
    }

    /// What went wrong since the last time.
    pub fn check(&mut self) -> Result<(), SimError> {
        self.core.error.take().map_or(Ok(()), Err)
    }
}
