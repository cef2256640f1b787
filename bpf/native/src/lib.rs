// SPDX-License-Identifier: GPL-2.0-only
//! The scheduler of `bpf/` compiled for an ordinary process, and a model of the kernel around it: enough of sched_ext, of the scheduling
//! core and of KVM that the scheduler is called as on a host, and refused what a host would refuse. What the model leaves out, a host may do
//! (caches, SMT, NUMA, other scheduling classes); what it does, a host could do.
//!
//! ```
//! use cohort_bpf_native::{Config, Spec, World};
//!
//! let mut world = World::new(Config::cpus(1));
//! let task = world.spawn(Spec::busy());
//! world.run(1_000_000);
//! assert!(world.is_running(task));
//! ```

mod dsq;
mod ffi;
mod image;
mod kfuncs;
mod kvm;
mod lifecycle;
mod map_calls;
mod maps;
mod ops;
mod peek;
#[cfg(test)]
mod refusals;
mod sched;
mod task;
mod verdicts;
mod world;

pub use image::Knobs;
pub use peek::{PeekStats, PeekTask, PeekVm};
pub use task::{Queue, Spec, State, Task, TaskId, VcpuId};
pub use world::{Config, Cpu, World};

/// Values of the scheduler's knobs, as in intf.h.
pub mod knob {
    pub const PLACEMENT_ANY: u32 = 0;
    pub const PLACEMENT_BALANCE: u32 = 1;
    pub const FAIR_TASK: u32 = 0;
    pub const FAIR_VM: u32 = 1;
    pub const GANG_OFF: u32 = 0;
    pub const GANG_ALIGNED: u32 = 1;
    pub const BOOST_CANDIDATE: u32 = 1;
    pub const BOOST_ANY_MODE: u32 = 2;
    pub const BOOST_UNFAIR: u32 = 4;
    pub const BOOST_MIGRATE: u32 = 8;
}
