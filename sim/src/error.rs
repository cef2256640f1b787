// SPDX-License-Identifier: GPL-2.0-only
//! Why a simulation ended early, in one line.

use std::fmt;

use crate::time::Ns;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SimError {
    /// The description of the run is wrong: which field, what was wrong with it, what is allowed.
    Config(String),
    /// The scheduler of `bpf/` did what the kernel's verifier or runtime refuses; the kernel would have ejected it.
    Refused { at_ns: Ns, op: &'static str, reason: String },
    /// A limit of the model was reached (number of tasks, of events in one instant).
    Limit(String),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(what) => f.write_str(what),
            Self::Refused { at_ns, op, reason } => {
                write!(f, "at {at_ns} ns, in ops.{op}: the kernel ejects the scheduler: {reason}")
            }
            Self::Limit(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for SimError {}
