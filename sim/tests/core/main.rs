// SPDX-License-Identifier: GPL-2.0-only
//! The simulator's core: schedules computed by hand, laws that hold for every schedule, closed forms of queueing theory, and that a run gives the
//! same bytes wherever it runs.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

mod balance;
mod cfs;
mod common;
mod eevdf;
mod golden;
mod groups;
mod laws;
mod lazy;
mod machine;
mod theory;
mod wakeups;
mod yields;
