// SPDX-License-Identifier: GPL-2.0-only
//! What a test asks for: a host with these knobs, tasks that do this.

use std::collections::{BTreeMap, BTreeSet};

use crate::puppets::FOREVER;

/// Values of the scheduler's knobs, as in intf.h.
pub mod knob {
    pub const PLACEMENT_ANY: u32 = 0;
    pub const ORDER_VM: u32 = 0;
    pub const ORDER_TASK: u32 = 1;
    pub const ORDER_SBCO: u32 = 2;
    pub const ORDER_CREDIT: u32 = 3;
    pub const ORDER_SEDF: u32 = 4;
    pub const SPIN_BOOST: u32 = 1;
    pub const SPIN_YIELD: u32 = 3;
    pub const GANG_OFF: u32 = 0;
    pub const GANG_ALIGNED: u32 = 1;
    pub const SPIN_PREFER: u32 = 2;
    pub const GUARD_KERNEL_MODE: u32 = 1;
    pub const GUARD_HALTED: u32 = 2;
    pub const GANG_PARTIAL: u32 = 2;
    pub const GANG_PARTIAL_AUTO: u32 = 3;
    pub const GANG_PARTIAL_HELD: u32 = 4;
    pub const GANG_STRICT: u32 = 5;
    pub const GANG_RELAXED: u32 = 6;
    pub const GANG_PROCCO: u32 = 7;
    pub const GANG_CPUCO: u32 = 8;
    pub const BOOST_CANDIDATE: u32 = 1;
    pub const BOOST_ANY_MODE: u32 = 2;
    pub const BOOST_UNFAIR: u32 = 4;
    pub const BOOST_MIGRATE: u32 = 8;
    pub const BOOST_IPI: u32 = 16;
}

/// Limits of intf.h; VM 0 is nobody's.
pub mod limit {
    pub const VMS: usize = 4096 - 1;
    pub const VCPUS: usize = 256;
    pub const CGROUPS: usize = 65_536;
    pub const DEPTH: usize = 8;
}

macro_rules! knobs {
    ($($name:ident: $type:ty),+ $(,)?) => {
        /// The scheduler's knobs, as user space would set them before loading it.
        #[derive(Clone, Debug, Default)]
        pub struct Knobs {
            $(pub $name: Option<$type>,)+
        }

        impl Knobs {
            pub fn by_name(&self) -> BTreeMap<String, u64> {
                let all = [$((stringify!($name), self.$name.map(u64::from)),)+];
                all.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
            }
        }
    };
}

knobs! {
    slice_ns: u64,
    boost_slice_ns: u64,
    starve_ns: u64,
    wakeup_gran_ns: u64,
    skew_limit_ns: u64,
    placement: u32,
    order: u32,
    gang: u32,
    spin: u32,
    boost: u32,
    guard: u32,
    guard_grace_ns: u64,
    guard_keep_ns: u64,
    sbco_alpha: u32,
}

/// How a world differs from the usual one.
#[derive(Clone, Debug)]
pub struct Config {
    pub cpus: usize,
    /// SMT: pCPUs of one core are next to each other.
    pub threads_per_core: usize,
    /// Cores that share a last-level cache; 0: all of a socket.
    pub cores_per_cache: usize,
    /// Each a node.
    pub sockets: usize,
    pub knobs: Knobs,
    pub tick_ns: u64,
    /// From a reschedule request until the other pCPU acts on it.
    pub ipi_ns: u64,
    pub ktime_ahead_ns: i64,
    /// By how much each pCPU's clock is ahead; empty: all agree.
    pub skew_ns: Vec<i64>,
    /// Higher classes are seen on sched_switch, as on 6.19 and later; otherwise by ops.cpu_release().
    pub sched_switch: bool,
    pub preempt_rcu: bool,
    pub wakes_sync: bool,
    /// No timer can be started before.
    pub no_timers_until_ns: u64,
}

impl Config {
    pub fn cpus(cpus: usize) -> Self {
        Self {
            cpus,
            threads_per_core: 1,
            cores_per_cache: 0,
            sockets: 1,
            knobs: Knobs::default(),
            tick_ns: 4_000_000,
            ipi_ns: 2_000,
            ktime_ahead_ns: -50_000_000,
            skew_ns: Vec::new(),
            sched_switch: true,
            preempt_rcu: true,
            wakes_sync: false,
            no_timers_until_ns: 0,
        }
    }
}

/// Which task to make.
#[derive(Clone, Debug)]
pub struct Spec {
    pub weight: u32,
    pub cpus: Option<BTreeSet<usize>>,
    pub cgroup: usize,
    pub tgid: Option<i32>,
    pub kthread: bool,
    pub vcpu: Option<(usize, usize)>,
    pub run_ns: u64,
    pub sleep_ns: Option<u64>,
}

impl Spec {
    /// Always wants to run.
    pub fn busy() -> Self {
        Self {
            weight: 100,
            cpus: None,
            cgroup: 0,
            tgid: None,
            kthread: false,
            vcpu: None,
            run_ns: FOREVER,
            sleep_ns: None,
        }
    }

    /// Runs for `run_ns`, sleeps for `sleep_ns`, and again.
    pub fn cycle(run_ns: u64, sleep_ns: u64) -> Self {
        Self { run_ns, sleep_ns: Some(sleep_ns), ..Self::busy() }
    }

    /// Runs for `run_ns` whenever somebody wakes it.
    pub fn on_demand(run_ns: u64) -> Self {
        Self { run_ns, ..Self::busy() }
    }

    /// As cpu.weight: 100 is nice 0.
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    pub fn on(self, cpus: &[usize]) -> Self {
        Self { cpus: Some(cpus.iter().copied().collect()), ..self }
    }

    pub fn cgroup(self, cgroup: usize) -> Self {
        Self { cgroup, ..self }
    }

    pub fn vcpu(self, vm: usize, id: usize) -> Self {
        Self { vcpu: Some((vm, id)), ..self }
    }

    /// A thread of this process (a VMM's other threads).
    pub fn thread_of(self, tgid: i32) -> Self {
        Self { tgid: Some(tgid), ..self }
    }

    pub fn kthread(self) -> Self {
        Self { kthread: true, ..self }
    }
}
