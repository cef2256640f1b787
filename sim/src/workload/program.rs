// SPDX-License-Identifier: GPL-2.0-only
//! A program as its file says it. [`super::code`] makes of it what a VM executes.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::dist::{Dist, Span};

/// How deep lists of steps may be nested, and how many tasks a program may have.
const DEPTH_MAX: u32 = 8;
pub const TASKS_MAX: u64 = 1 << 16;
const NAME_MAX: usize = 64;
const THREADS_MAX: usize = 1024;
const TIMES_MAX: u64 = 1 << 40;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub name: String,
    #[serde(default)]
    pub title: String,
    /// The whole program so many times over, each with objects of its own.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub copies: u32,
    /// How much of the TLB and private caches it uses, in thousandths of what is usual: what its vCPUs lose when others have had their pCPUs.
    #[serde(default = "usual", skip_serializing_if = "is_usual")]
    pub footprint_per_mille: u32,
    #[serde(default)]
    pub metric: Metric,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pipes: BTreeMap<String, PipeSpec>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub barriers: BTreeMap<String, BarrierSpec>,
    #[serde(rename = "thread")]
    pub threads: Vec<Thread>,
}

/// Which figure the program gives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Metric {
    /// How long it took.
    #[default]
    Elapsed,
    /// Units of work per second.
    Rate {
        /// The name of the `done` steps that count.
        done: String,
        /// What one counts for in the figure.
        #[serde(default = "one_f64")]
        value: f64,
        #[serde(default)]
        unit: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipeSpec {
    /// Messages that fit.
    pub capacity: u32,
    /// Blocked senders are woken when so few are left; a pipe: capacity - 1, a socket: a quarter.
    #[serde(default)]
    pub low_water: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BarrierSpec {
    /// Tasks that meet there; by default, all that have a step with it.
    #[serde(default)]
    pub parties: Option<u32>,
    /// Who spins there executes PAUSE.
    #[serde(default)]
    pub pause: bool,
}

/// Tasks that do the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    pub name: String,
    #[serde(default)]
    pub count: Count,
    /// Each has an address space of its own.
    #[serde(default, skip_serializing_if = "is_false")]
    pub process: bool,
    /// Nobody waits for it to end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub background: bool,
    /// Task i stays on vCPU i.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pin: bool,
    #[serde(default)]
    pub times: Times,
    /// `times` is of all its tasks together, which share them evenly.
    #[serde(default, skip_serializing_if = "is_false")]
    pub share: bool,
    /// What each does once, before its rounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<Step>,
    pub steps: Vec<Step>,
}

/// How many tasks: a number, or as many as there are vCPUs, and more or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Fixed(u32),
    /// Per vCPU, plus.
    PerVcpu(i32),
}

/// How many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Fixed(u64),
    Forever,
}

/// One step. In names of objects, `{i}` is the task's number among those of its thread, and `{i+1}` the next one's; after the last comes 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Step {
    /// In user mode.
    Compute(Dist),
    /// In kernel mode.
    Kernel(Dist),
    /// A spin lock of the kernel.
    Lock {
        name: String,
        hold: Dist,
    },
    Acquire(String),
    Release(String),
    /// Acquire a mutex, do these, release it.
    Mutex {
        name: String,
        steps: Vec<Step>,
    },
    /// Change page tables and flush; `freed`: page tables too are freed.
    Shootdown {
        #[serde(default = "one")]
        pages: u32,
        #[serde(default)]
        freed: bool,
    },
    /// Wait for the others, spinning for so long first.
    Barrier {
        name: String,
        #[serde(default)]
        spin: Spin,
    },
    Send(String),
    Recv(String),
    Wait(String),
    Signal(String),
    Broadcast(String),
    /// A request to a device, which takes this after the VMM's thread has worked on it.
    Io {
        device: Dist,
        #[serde(default)]
        host: Dist,
    },
    Sleep(Dist),
    /// Sleep until so long after the last time.
    Period(Span),
    Yield {},
    /// Call a function on all other vCPUs, or those that run this program, and wait for their answers.
    Call {
        #[serde(default)]
        same_space: bool,
    },
    /// A unit of work is complete.
    Done(String),
    Repeat {
        times: Times,
        steps: Vec<Step>,
    },
}

/// How long to spin before sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    #[default]
    Not,
    For(Span),
    Forever,
}

impl Default for Count {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

fn one() -> u32 {
    1
}

fn usual() -> u32 {
    1000
}

fn is_usual(n: &u32) -> bool {
    *n == 1000
}

fn one_f64() -> f64 {
    1.0
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

fn is_false(b: &bool) -> bool {
    !b
}

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
        }
        for (index, thread) in self.threads.iter().enumerate() {
            check_name(&thread.name, &format!("thread[{index}].name"))?;
            check_steps(&thread.first, &format!("thread[{index}].first"), 1)?;
            check_steps(&thread.steps, &format!("thread[{index}].steps"), 1)?;
        }
        Ok(())
    }
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
            Self::Acquire(name) | Self::Release(name) | Self::Send(name) | Self::Recv(name) => Some(name),
            Self::Wait(name) | Self::Signal(name) | Self::Broadcast(name) | Self::Done(name) => Some(name),
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

macro_rules! number_or_word {
    ($type:ident, $expected:literal, $number:expr, $word:expr, $write:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct V;
                impl Visitor<'_> for V {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }
                    fn visit_u64<E: de::Error>(self, n: u64) -> Result<$type, E> {
                        let read: fn(u64) -> Option<$type> = $number;
                        read(n).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(n), &self))
                    }
                    fn visit_i64<E: de::Error>(self, n: i64) -> Result<$type, E> {
                        match u64::try_from(n) {
                            Ok(n) => self.visit_u64(n),
                            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
                        }
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        let read: fn(&str) -> Option<$type> = $word;
                        read(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
                    }
                }
                deserializer.deserialize_any(V)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$type) -> Result<u64, String> = $write;
                match write(self) {
                    Ok(number) => serializer.serialize_u64(number),
                    Err(word) => serializer.serialize_str(&word),
                }
            }
        }
    };
}

number_or_word!(
    Count,
    "1 to 65536, or \"vcpus\", \"vcpus-1\", \"vcpus+2\"",
    |n| u32::try_from(n).ok().filter(|n| (1..=TASKS_MAX).contains(&u64::from(*n))).map(Count::Fixed),
    |text| {
        let rest = text.strip_prefix("vcpus")?;
        if rest.is_empty() {
            return Some(Count::PerVcpu(0));
        }
        let more = rest.starts_with(['+', '-']).then(|| rest.parse::<i32>().ok()).flatten()?;
        (-65_536..=65_536).contains(&more).then_some(Count::PerVcpu(more))
    },
    |count| match count {
        Count::Fixed(n) => Ok(u64::from(*n)),
        Count::PerVcpu(0) => Err("vcpus".into()),
        Count::PerVcpu(more) => Err(format!("vcpus{more:+}")),
    }
);

number_or_word!(
    Times,
    "a number from 0 to 2^40, or \"forever\"",
    |n| (n <= TIMES_MAX).then_some(Times::Fixed(n)),
    |text| (text == "forever").then_some(Times::Forever),
    |times| match times {
        Times::Fixed(n) => Ok(*n),
        Times::Forever => Err("forever".into()),
    }
);

number_or_word!(
    Spin,
    "a time such as \"50us\", or \"forever\"",
    |n| (n == 0).then_some(Spin::Not),
    |text| {
        if text == "forever" {
            return Some(Spin::Forever);
        }
        super::dist::parse(text).map(|ns| Spin::For(Span(ns)))
    },
    |spin| match spin {
        Spin::Not => Ok(0),
        Spin::For(span) => Err(span.to_string()),
        Spin::Forever => Err("forever".into()),
    }
);

impl Count {
    pub fn of(self, vcpus: u32) -> u32 {
        match self {
            Self::Fixed(n) => n,
            Self::PerVcpu(more) => vcpus.saturating_add_signed(more),
        }
    }
}
