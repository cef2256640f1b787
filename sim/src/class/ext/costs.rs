// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler's operations cost, in counts that do not depend on the machine: look-ups, atomic operations, calls of the kernel's functions.

use super::ops::{OpKind, KINDS};

macro_rules! costs {
    ($($(#[$doc:meta])* $cost:ident = $name:literal,)+) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Cost {
            $($(#[$doc])* $cost,)+
        }

        impl Cost {
            pub const ALL: &[Cost] = &[$(Cost::$cost,)+];

            pub fn name(self) -> &'static str {
                match self {
                    $(Cost::$cost => $name,)+
                }
            }
        }
    };
}

costs! {
    /// Of the operation itself.
    Calls = "calls",
    /// Look-ups in array maps, per-pCPU ones included.
    Array = "array look-ups",
    /// Look-ups in and changes of hash maps.
    Hash = "hash operations",
    /// Task and cgroup storage.
    Storage = "storage look-ups",
    Atomic = "atomic operations",
    TimerStart = "bpf_timer_start",
    TimerCancel = "bpf_timer_cancel",
    DsqInsert = "scx_bpf_dsq_insert",
    DsqInsertVtime = "scx_bpf_dsq_insert_vtime",
    DsqMoveToLocal = "scx_bpf_dsq_move_to_local",
    DsqMove = "scx_bpf_dsq_move",
    DsqMoveVtime = "scx_bpf_dsq_move_vtime",
    DsqNrQueued = "scx_bpf_dsq_nr_queued",
    DsqPeek = "scx_bpf_dsq_peek",
    IterNew = "bpf_iter_scx_dsq_new",
    /// Waiters visited, and one for each end of a queue. In the kernel each locks the queue.
    IterNext = "bpf_iter_scx_dsq_next",
    SelectCpuDfl = "scx_bpf_select_cpu_dfl",
    PickIdleCpu = "scx_bpf_pick_idle_cpu",
    TestAndClearIdle = "scx_bpf_test_and_clear_cpu_idle",
    GetMask = "scx_bpf_get_idle_cpumask, scx_bpf_get_online_cpumask",
    KickCpu = "scx_bpf_kick_cpu",
    TaskCpu = "scx_bpf_task_cpu",
    TaskCgroup = "scx_bpf_task_cgroup",
    SetSlice = "scx_bpf_task_set_slice",
    Reenqueue = "scx_bpf_reenqueue_local",
    Now = "scx_bpf_now",
    Ktime = "bpf_ktime_get_ns",
    Random = "bpf_get_prandom_u32",
    TaskFromPid = "bpf_task_from_pid",
    CgroupAncestor = "bpf_cgroup_ancestor",
}

type Counts = [u64; Cost::ALL.len()];

/// Counts by operation, since the scheduler started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs(Box<[Counts; KINDS]>);

impl Default for Costs {
    fn default() -> Self {
        Self(Box::new([[0; Cost::ALL.len()]; KINDS]))
    }
}

impl Costs {
    #[inline]
    pub(super) fn add(&mut self, kind: OpKind, cost: Cost, n: u64) {
        self.0[kind as usize][cost as usize] += n;
    }

    pub fn of(&self, kind: OpKind, cost: Cost) -> u64 {
        self.0[kind as usize][cost as usize]
    }

    pub fn calls(&self, kind: OpKind) -> u64 {
        self.of(kind, Cost::Calls)
    }

    /// Of all operations; not what user space looked up.
    pub fn total(&self, cost: Cost) -> u64 {
        let all: u64 = self.0.iter().map(|counts| counts[cost as usize]).sum();
        all - self.of(OpKind::UserSpace, cost)
    }

    /// Per call of this operation.
    pub fn mean(&self, kind: OpKind, cost: Cost) -> f64 {
        self.of(kind, cost) as f64 / self.calls(kind).max(1) as f64
    }

    /// What has come since those earlier ones.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut diff = self.clone();
        for (to, from) in diff.0.iter_mut().flatten().zip(earlier.0.iter().flatten()) {
            *to -= from;
        }
        diff
    }
}
