// SPDX-License-Identifier: GPL-2.0-only
//! A simulation: the host, the bodies of its tasks, and the loop over the events.

use crate::body::Bodies;
use crate::error::SimError;
use crate::events::Event;
use crate::host::{State, Switch};
use crate::ids::CpuId;
use crate::prefetch;
use crate::time::Ns;
use crate::Host;

/// Schedules in one instant before it is called a hang: bodies that yield to each other for ever, in no time.
const INSTANT_MAX: u64 = 1_000_000;

/// Events between two times that the caller is asked whether the run is to end: a small part of a second.
const ASK_EVENTS: u32 = 1 << 17;

pub struct Simulation<B: Bodies> {
    pub host: Host,
    pub bodies: B,
    /// Of the queue of events, as of the last look ahead.
    day: u64,
}

impl<B: Bodies> Simulation<B> {
    pub fn new(host: Host, bodies: B) -> Self {
        Self { host, bodies, day: 0 }
    }

    /// Let time pass until then, that instant included, or until all programs have ended, if the run ends with them.
    pub fn run_until(&mut self, until_ns: Ns) -> Result<(), SimError> {
        self.run_until_or(until_ns, &mut || false)
    }

    /// The same, but end with an error soon after `is_interrupted` says so. It is asked first, and then now and then; it cannot change what happens.
    pub fn run_until_or(
        &mut self,
        until_ns: Ns,
        is_interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<(), SimError> {
        let _image = self.host.class.enter();
        self.settle()?;
        let mut unasked = ASK_EVENTS;
        while let Some((at_ns, event)) = self.host.core.events.pop_until(until_ns.min(self.host.core.stop_ns))
        {
            unasked += 1;
            if unasked > ASK_EVENTS {
                unasked = 0;
                if is_interrupted() {
                    return Err(SimError::Interrupted(format!("at {at_ns} ns: interrupted")));
                }
            }
            self.host.core.reaches(at_ns);
            if self.host.core.events.day() != self.day {
                self.look_ahead();
            }
            if self.host.core.handled > self.host.core.events_max {
                let max = self.host.core.events_max;
                return Err(SimError::Limit(format!(
                    "at {at_ns} ns: more than {max} events; allow more or simulate less"
                )));
            }
            self.host.core.alone_until_ns = until_ns;
            self.handle(event);
            self.host.core.alone_until_ns = 0;
            self.settle()?;
        }
        self.host.core.now_ns = self.host.core.now_ns.max(until_ns.min(self.host.core.stop_ns));
        self.host.check()
    }

    /// The run has ended with its programs.
    pub fn has_stopped(&self) -> bool {
        self.host.core.now_ns >= self.host.core.stop_ns
    }

    /// How many events have been handled.
    pub fn events(&self) -> u64 {
        self.host.core.handled
    }

    /// A day of the calendar has begun: have fetched from memory what the next ones need.
    fn look_ahead(&mut self) {
        self.day = self.host.core.events.day();
        for step in 0..prefetch::STEPS {
            for event in self.host.core.events.ahead(prefetch::STEPS - 1 - step) {
                match event {
                    Event::Body { id, what, .. } => self.bodies.prefetch(&self.host, id, what, step),
                    Event::Tick(cpu) | Event::Resched(cpu) if step == 0 => {
                        prefetch::fetch(&self.host.core.cpus[cpu.index()]);
                    }
                    _ => {}
                }
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Body { id, what, generation } => self.bodies.event(&mut self.host, id, what, generation),
            Event::Interrupt { task, what } => {
                if self.host.core.task(task).state == State::Running {
                    self.bodies.interrupt(&mut self.host, task, what);
                }
            }
            event => self.host.handle(event),
        }
    }

    /// Everything that follows from what has happened, at the same instant.
    fn settle(&mut self) -> Result<(), SimError> {
        loop {
            if self.host.core.error.is_some() && !self.host.fall_back() {
                return self.host.check();
            }
            if let Some(switch) = self.host.core.notices.pop_front() {
                self.notify(switch);
            } else if let Some(cpu) = self.host.next_pending() {
                self.host.core.in_instant += 1;
                if self.host.core.in_instant > INSTANT_MAX {
                    return Err(SimError::Hang(format!(
                        "at {} ns: {INSTANT_MAX} schedules without time passing; something yields for ever",
                        self.host.core.now_ns
                    )));
                }
                if let Some(switch) = self.host.schedule(cpu) {
                    self.notify(switch);
                }
            } else if let Some(cpu) = self.host.core.paces.pop_front() {
                self.tell_siblings(cpu);
            } else {
                return Ok(());
            }
        }
    }

    fn notify(&mut self, switch: Switch) {
        if let Some((task, why)) = switch.prev {
            self.bodies.stop(&mut self.host, task, why);
        }
        if let Some((task, run)) = switch.next {
            self.bodies.start(&mut self.host, task, run);
        }
        // Only the change between busy and idle is felt by the core's other threads.
        if switch.prev.is_some() != switch.next.is_some() && self.host.core.machine.threads_per_core() > 1 {
            self.tell_siblings(switch.cpu);
        }
    }

    fn tell_siblings(&mut self, cpu: CpuId) {
        let per_core = self.host.core.machine.threads_per_core();
        let first = cpu.0 / per_core * per_core;
        for other in (first..first + per_core).map(CpuId) {
            if let Some((task, run)) = self.host.changed_speed(cpu, other) {
                self.bodies.speed(&mut self.host, task, run);
            }
        }
    }
}
