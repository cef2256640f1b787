// SPDX-License-Identifier: GPL-2.0-only
//! What tasks do with their time. The host decides when a task has a pCPU; its *body* says what happens then.
//!
//! The host tells the body: you have a pCPU ([`Bodies::start`]), its speed has changed ([`Bodies::speed`]), you have lost it
//! ([`Bodies::stop`]), your timer has fired ([`Bodies::event`]), an interrupt has reached the pCPU on which you run ([`Bodies::interrupt`]).
//! The body tells the host by calls on [`Host`]: block, wake, exit, set a timer, send an interrupt, yield, a pause-loop exit.
//!
//! No call on [`Host`] ever calls a body: the consequences (who runs now) are worked out when the body has returned, at the same instant. So a
//! body needs no defence against being called while it runs.

use crate::ids::{CpuId, TaskId};
use crate::observe::Stop;
use crate::time::{Ns, Speed};
use crate::Host;

/// A turn on a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub cpu: CpuId,
    /// The body's own work begins now or in the future: until then the pCPU switches contexts and refills caches. Preempted before, it has done
    /// nothing. [`crate::time::Progress`] does this arithmetic.
    pub from_ns: Ns,
    pub speed: Speed,
}

/// The bodies of all tasks of one simulation, known by their numbers.
pub trait Bodies {
    /// The task has a pCPU.
    fn start(&mut self, host: &mut Host, task: TaskId, run: Run);

    /// It goes on, at another speed: an SMT sibling has begun or ceased to work or to spin.
    fn speed(&mut self, host: &mut Host, task: TaskId, run: Run);

    /// It has lost its pCPU. After [`Host::block`] and [`Host::exit`] of the running task this comes too.
    fn stop(&mut self, host: &mut Host, task: TaskId, why: Stop);

    /// [`Host::set_timer`]'s time has come, whether anybody runs or not.
    fn event(&mut self, host: &mut Host, id: u32, what: u8, generation: u32);

    /// An interrupt of [`Host::send_interrupt`] has arrived, and the task runs on a pCPU. If it does not run then, nothing happens: what waits
    /// for it is in the bodies' memory, to be looked at in the next `start`.
    fn interrupt(&mut self, host: &mut Host, task: TaskId, what: u32);

    /// [`Bodies::event`] will soon come: [`crate::prefetch`] what it needs. `step` counts to [`crate::prefetch::STEPS`] as the event comes nearer.
    fn prefetch(&self, _host: &Host, _id: u32, _what: u8, _step: usize) {}
}
