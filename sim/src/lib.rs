// SPDX-License-Identifier: GPL-2.0-only
//! A deterministic discrete-event model of a KVM host: pCPUs, the kernel's scheduling classes, KVM and SMP guests. It runs the scheduler of
//! `bpf/` itself, compiled natively.
//!
//! How the parts meet:
//!
//! | module | what it is | what it knows |
//! |---|---|---|
//! | [`time`], [`rng`], [`events`], [`ids`] | integer nanoseconds, seeded randomness per entity, the totally ordered queue of events, names of things | nothing |
//! | [`machine`] | sockets, cores, SMT threads, caches, and what things cost | time |
//! | [`prefetch`] | hints to the processor | nothing |
//! | [`host`] | pCPUs and tasks, and the steps of the kernel's `schedule()` | what it asks of a class ([`host::Class`]) |
//! | [`class`] | who runs next: fair (CFS, EEVDF), ext (sched_ext with `bpf/`), round robin | `host::Core` |
//! | [`body`] | what a task does with its time | [`host::Host`]'s calls |
//! | [`kvm`], [`guest`], [`workload`] | vCPUs' bodies | [`host::Host`]'s calls |
//! | [`observe`] | one stream of what happened | names of things |
//! | [`metrics`], [`trace`] | figures and pictures from that stream | [`observe`] |
//! | [`scenario`] | all that describes a run, and what comes of it | configurations of all of the above |
//! | [`mod@run`] | carries a scenario out | all of the above |

pub mod bodies;
pub mod body;
mod calendar;
pub mod class;
pub mod cpuset;
pub mod error;
pub mod events;
pub mod guest;
pub mod host;
pub mod ids;
pub mod kvm;
pub mod machine;
pub mod metrics;
pub mod observe;
pub mod prefetch;
pub mod recorded;
pub mod rng;
pub mod run;
pub mod scenario;
pub mod sim;
pub mod time;
pub mod together;
pub mod trace;
pub mod tree;
pub mod workload;

mod sources {
    include!(concat!(env!("OUT_DIR"), "/sources.rs"));
}

/// The policies that the scheduler has, from the tables of bpf/policies.h.
pub mod policies {
    include!(concat!(env!("OUT_DIR"), "/policies.rs"));
}

pub use body::{Bodies, Run};
pub use class::Host;
pub use error::SimError;

pub use ids::{CpuId, GroupId, TaskId, VcpuId, VmId};
pub use sim::Simulation;
pub use sources::{SOURCES, SURROUNDINGS};
pub use time::{Ns, Progress, Speed};
