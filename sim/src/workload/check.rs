// SPDX-License-Identifier: GPL-2.0-only
//! What a program's types do not say: the rules that it must keep, each with the sentence for who breaks it.

use super::dist::Span;
use super::program::{Metric, Program, Spin, Step, Times};

/// How deep lists of steps may be nested.
const DEPTH_MAX: u32 = 8;
const NAME_MAX: usize = 64;
const THREADS_MAX: usize = 1024;
/// 256 MiB: what a guest shares with itself in one step.
const PAGES_MAX: u32 = 65_536;

impl Program {
    /// What the types do not say. The message begins with the field.
    pub fn check(&self) -> Result<(), String> {
        check_name(&self.name, "name")?;
        if !(1..=10_000).contains(&self.copies) {
            return Err(format!("copies: is {}; allowed: 1 to 10000", self.copies));
        }
        if let Metric::Rate { value, .. } = self.metric {
            if !(value.is_finite() && value > 0.0) {
                return Err(format!("metric.rate.value: is {value}; allowed: above 0"));
            }
        }
        if self.threads.is_empty() {
            return Err("thread: is empty; allowed: 1 or more".into());
        }
        if self.threads.len() > THREADS_MAX {
            return Err(format!("thread: has {}; allowed: 1 to {THREADS_MAX}", self.threads.len()));
        }
        for (name, pipe) in &self.pipes {
            if pipe.capacity == 0 || pipe.low_water.is_some_and(|low| low >= pipe.capacity) {
                return Err(format!(
                    "pipes.{name}: capacity {}, low_water {:?}; allowed: 1 or more, and below it",
                    pipe.capacity, pipe.low_water
                ));
            }
        }
        for (name, barrier) in &self.barriers {
            if barrier.parties == Some(0) {
                return Err(format!("barriers.{name}.parties: is 0; allowed: 1 or more"));
            }
            if barrier.pause_every.is_some_and(|every| every.0 == 0 || !barrier.pause) {
                return Err(format!("barriers.{name}.pause_every: allowed: 1ns or more, with pause = true"));
            }
            if barrier.gives_up
                && !self
                    .threads
                    .iter()
                    .any(|thread| spin_at(&thread.first, name) || spin_at(&thread.steps, name))
            {
                return Err(format!("barriers.{name}.gives_up: allowed: with a step that spins for a time there, as spin = \"8us\""));
            }
        }
        for (index, thread) in self.threads.iter().enumerate() {
            check_name(&thread.name, &format!("thread[{index}].name"))?;
            for (field, is_true) in [("share", thread.share), ("divide", thread.divide)] {
                if is_true && thread.times == Times::Forever {
                    return Err(format!("thread[{index}].{field}: is true; allowed: with a number of times"));
                }
            }
            if thread.share && thread.divide {
                return Err(format!(
                    "thread[{index}].divide: is true, and so is share; allowed: one of both"
                ));
            }
            check_steps(&thread.first, &format!("thread[{index}].first"), 1)?;
            check_steps(&thread.steps, &format!("thread[{index}].steps"), 1)?;
        }
        Ok(())
    }
}

/// Whether a step of these spins for a time at the barrier.
fn spin_at(steps: &[Step], barrier: &str) -> bool {
    steps.iter().any(|step| match step {
        Step::Barrier { name, spin: Spin::For(span) } => name == barrier && span.0 > 0,
        Step::Repeat { steps, .. } | Step::Mutex { steps, .. } => spin_at(steps, barrier),
        _ => false,
    })
}

fn check_name(name: &str, field: &str) -> Result<(), String> {
    match name.len() {
        1..=NAME_MAX => Ok(()),
        length => Err(format!("{field}: has {length} characters; allowed: 1 to {NAME_MAX}")),
    }
}

impl Step {
    /// The object that it names.
    fn object(&self) -> Option<&str> {
        match self {
            Self::Lock { name, .. } | Self::Mutex { name, .. } | Self::Barrier { name, .. } => Some(name),
            Self::Touch { name, .. } => Some(name),
            Self::Acquire(name) | Self::Release(name) | Self::Send(name) | Self::Recv(name) => Some(name),
            Self::Wait(name) | Self::WaitOther(name) | Self::Signal(name) => Some(name),
            Self::Broadcast(name) | Self::Done(name) => Some(name),
            _ => None,
        }
    }
}

fn check_steps(steps: &[Step], field: &str, depth: u32) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("{field}: is nested too deeply; allowed: {DEPTH_MAX} levels"));
    }
    let mut held: Vec<&str> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let field = format!("{field}[{index}]");
        if let Some(name) = step.object() {
            check_name(name, &field)?;
        }
        match step {
            Step::Touch { pages, .. } if !(1..=PAGES_MAX).contains(pages) => {
                return Err(format!("{field}.touch.pages: is {pages}; allowed: 1 to {PAGES_MAX}"));
            }
            Step::Acquire(name) if held.contains(&name.as_str()) => {
                return Err(format!("{field}.acquire: {name:?} is held already; allowed: another mutex"));
            }
            Step::Acquire(name) => held.push(name),
            Step::Release(name) => {
                let Some(at) = held.iter().position(|other| other == name) else {
                    return Err(format!(
                        "{field}.release: {name:?} is not held here; allowed: a mutex acquired before in the same list of steps"
                    ));
                };
                held.remove(at);
            }
            Step::Mutex { name, steps } => {
                if held.contains(&name.as_str()) {
                    return Err(format!(
                        "{field}.mutex.name: {name:?} is held already; allowed: another mutex"
                    ));
                }
                check_steps(steps, &format!("{field}.mutex.steps"), depth + 1)?;
            }
            Step::Repeat { steps, .. } => check_steps(steps, &format!("{field}.repeat.steps"), depth + 1)?,
            Step::Period(Span(0)) => return Err(format!("{field}.period: is 0; allowed: 1ns or more")),
            _ => {}
        }
    }
    match held.first() {
        Some(name) => {
            Err(format!("{field}: {name:?} is still held at the end; allowed: a release of each mutex"))
        }
        None => Ok(()),
    }
}
