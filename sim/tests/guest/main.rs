// SPDX-License-Identifier: GPL-2.0-only
//! KVM and guests: schedules computed by hand, exact to the nanosecond; properties; theory.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail as the test does")]

mod balance;
mod cfs;
mod common;
mod eevdf;
mod halt;
mod hint;
mod hold;
mod lazy;
mod locks;
mod models;
mod owner;
mod preemption;
mod properties;
mod scheduler;
mod smt;
mod spin;
mod sync;
mod tlb;
mod vmm;
mod wakelist;
mod wells;
