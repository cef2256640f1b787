// SPDX-License-Identifier: GPL-2.0-only
//! A thread of the host.

use crate::cpuset::CpuSet;
use crate::ids::{CpuId, GroupId, VcpuId};
use crate::time::Ns;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Asleep,
    /// Waits for a pCPU.
    Waiting,
    Running,
    Dead,
}

/// Which task to make.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    /// Of nice 0: 1024, as in the kernel's table (sched_prio_to_weight). See [`nice_to_weight`].
    pub weight: u32,
    /// pCPUs that it may use; `None`: all.
    pub allowed: Option<CpuSet>,
    pub group: GroupId,
    /// The process; `None`: one of its own.
    pub tgid: Option<u32>,
    /// A kernel thread.
    pub kthread: bool,
    pub vcpu: Option<VcpuId>,
    /// It has run before, and slept since: where. `None`: it is new.
    pub was_on: Option<CpuId>,
    /// How much of the TLB and private caches it uses; 1000 is usual. See [`crate::machine::Costs::refill_after_other_ns`].
    pub footprint_per_mille: u32,
}

impl Default for TaskSpec {
    fn default() -> Self {
        Self {
            weight: 1024,
            allowed: None,
            group: GroupId(0),
            tgid: None,
            kthread: false,
            vcpu: None,
            was_on: None,
            footprint_per_mille: 1000,
        }
    }
}

/// The kernel's sched_prio_to_weight[] (kernel/sched/core.c): each step of nice is worth 25 %.
pub fn nice_to_weight(nice: i32) -> u32 {
    const WEIGHTS: [u32; 40] = [
        88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906,
        3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45,
        36, 29, 23, 18, 15,
    ];
    WEIGHTS[(nice.clamp(-20, 19) + 20) as usize]
}

#[derive(Clone, Debug)]
pub struct Task {
    pub state: State,
    /// Where it runs or waits, or was last (`task_cpu()`).
    pub cpu: CpuId,
    pub group: GroupId,
    pub weight: u32,
    pub tgid: u32,
    pub allowed: Option<CpuSet>,
    pub kthread: bool,
    pub migration_disabled: bool,
    /// ... and its affinity is that of its pCPU until then: it had to make room meanwhile.
    pub narrowed: bool,
    /// It runs and has called `block()` or `exit()`: leaves at the next schedule().
    pub leaving: bool,
    pub exiting: bool,
    /// It may not run now, see [`Host::hold`]; and whether it would.
    ///
    /// [`Host::hold`]: super::Host::hold
    pub held: bool,
    pub woken: bool,

    pub vcpu: Option<VcpuId>,
    /// See [`super::vcpu`].
    pub kvm: super::vcpu::VcpuState,

    /// Where its data are cached, and how much of refilling them is still to be done.
    pub footprint_per_mille: u32,
    pub warm_on: Option<CpuId>,
    pub refill_left_ns: Ns,
    /// How long its last turn was; kept where it loses something to others ([`crate::machine::Machine::loses_to_others`]).
    pub turn_ns: Ns,

    pub run_ns: Ns,
    /// Time runnable without a pCPU (`sched_info.run_delay`): what a guest sees as steal time.
    pub wait_ns: Ns,
    pub wait_max_ns: Ns,
    pub waits_since_ns: Ns,
    pub switches: u64,
    pub migrations: u64,
}

impl Task {
    pub(crate) fn new(spec: TaskSpec, tgid: u32, cpu: CpuId) -> Self {
        Self {
            state: State::Asleep,
            cpu,
            group: spec.group,
            weight: spec.weight,
            tgid,
            allowed: spec.allowed,
            kthread: spec.kthread,
            migration_disabled: false,
            narrowed: false,
            leaving: false,
            exiting: false,
            held: false,
            woken: false,
            vcpu: spec.vcpu,
            kvm: super::vcpu::VcpuState::default(),
            footprint_per_mille: spec.footprint_per_mille,
            warm_on: spec.was_on,
            refill_left_ns: 0,
            turn_ns: 0,
            run_ns: 0,
            wait_ns: 0,
            wait_max_ns: 0,
            waits_since_ns: 0,
            switches: 0,
            migrations: 0,
        }
    }

    /// By affinity alone.
    pub fn may_use(&self, cpu: CpuId) -> bool {
        self.allowed.as_ref().is_none_or(|set| set.has(cpu))
    }

    /// May not be moved now.
    pub fn is_pinned(&self) -> bool {
        self.migration_disabled || self.allowed.as_ref().is_some_and(|set| set.len() == 1)
    }

    /// Running or waiting for a pCPU (`on_rq`).
    pub fn is_queued(&self) -> bool {
        matches!(self.state, State::Waiting | State::Running)
    }
}
