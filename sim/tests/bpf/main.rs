// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler of `bpf/` in the simulator's sched_ext: what it must do, with VMs and tasks moved by hand.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

mod boost;
mod common;
mod credit;
mod entitlement;
mod example;
mod fairness;
mod faults;
mod gang;
mod histories;
mod kernel;
mod lending;
mod lifecycle;
mod maxmin;
mod model;
mod oracle;
mod partition;
mod placement;
mod preempted;
mod puppets;
mod quotas;
mod rules;
mod schedule;
mod sedf;
mod spec;
mod survey;
mod view;
mod world;
