// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler of `bpf/` in the simulator's sched_ext: what it must do, with VMs and tasks moved by hand.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

mod affinity;
mod aside;
mod boost;
mod calls;
mod common;
mod costs;
mod credit;
mod entitlement;
mod example;
mod fairness;
mod faults;
mod forced;
mod gang;
mod guard;
mod halted;
mod held;
mod histories;
mod hostile;
mod kernel;
mod late;
mod lending;
mod lifecycle;
mod light;
mod maxmin;
mod model;
mod moved;
mod oracle;
mod partial;
mod partition;
mod placement;
mod ple;
mod preempted;
mod prefer;
mod presets;
mod puppets;
mod quotas;
mod real_time;
mod registry;
mod relaxed;
mod rules;
mod sbco;
mod schedule;
mod sedf;
mod sleepers;
mod spec;
mod strict;
mod survey;
mod talk;
mod tally;
mod together;
mod topology;
mod view;
mod world;
