// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's fair class (kernel/sched/fair.c) in both forms: CFS (2.6.34 to 6.5, in detail that of 6.1) and EEVDF (6.6 and later), with cgroups.
//!
//! Functions bear the kernel's names, so that they can be read side by side. Left out: averages of utilization, bandwidth limits, NUMA balancing, core
//! scheduling, energy awareness.

mod balance;
mod cfs;
mod class;
mod eevdf;
mod flat;
mod group;
mod idle;
mod loads;
mod membership;
mod newidle;
mod pelt;
mod placement;
mod queue;

use serde::{Deserialize, Serialize};

use crate::cpuset::CpuSet;
use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::time::Ns;
use crate::tree::Forest;

use self::balance::Balance;
pub(crate) use self::balance::{busy_interval_ticks, IMBALANCE_PERCENT};
use self::group::TaskGroup;
pub use self::newidle::{Idling, Newidle};
use self::queue::{Entity, Rq};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// 2.6.34 to 6.5.
    Cfs,
    /// 6.6 to 6.18: a task that yields gets a later deadline ([`FairConfig::yield_forfeits`]).
    Eevdf,
    /// From 6.19: ... and forfeits its virtual time up to its deadline.
    EevdfForfeit,
    /// 7.3: ... and all cgroups' tasks compete in one queue, with slices that end on time (HRTICK).
    EevdfFlat,
}

/// What part of its shares a cgroup has on a pCPU (`calc_group_shares()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupWeight {
    /// What the kernel of this variant does.
    Auto,
    /// By the present load on each pCPU: the ideal that the kernel approximates.
    Present,
    /// By averages of load.
    Smp,
    /// By averages of load, and the shares count as often as tasks of the group were runnable on average, rounded down, at least once and at most once per
    /// pCPU of the group's cpuset (7.3's default; /sys/kernel/debug/sched/cgroup_mode). Here every group has the root's cpuset, all pCPUs that are online:
    /// its tasks' affinities do not matter.
    Concur,
}

/// Where a task that wakes looks for an idle pCPU when neither its own nor its waker's is (`select_idle_sibling()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleSearch {
    /// Up to 5.12: from its target on. (From 4.16 to 5.14 first on the one where it was itself when it last woke somebody, which is left out.)
    Target,
    /// From 5.13: unless there is a whole core, first on its last core (`select_idle_smt()`).
    Core,
    /// From 5.15: ... and before all that where it was before the last (`recent_used_cpu`).
    Recent,
}

/// How often a busy pCPU evens out a domain of so many pCPUs (get_sd_balance_interval()): after so long, and after longer as long as all is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusyBalance {
    /// Up to 3.15: 64 ms and 256, whatever their number (SD_CPU_INIT and the like: from 1 to 4 ms, times a busy_factor of 64).
    Fixed,
    /// From 3.16: 32 ms for each of them, and twice that (143e1e28cb40: sd_init(), a busy_factor of 32).
    Seldom,
    /// From 5.10: 16 ms for each of them, less a tick, and twice that (6e7499135db7).
    Often,
}

/// What sysctls and the kernel's version decide. A 0: the kernel's own value, which grows with the number of pCPUs (`get_update_sysctl_factor()`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FairConfig {
    pub variant: Variant,
    /// EEVDF's base slice, CFS' minimum granularity: that of one pCPU times 1 + log2 of the pCPUs, at most 8 of which count.
    pub slice_ns: Ns,
    /// That of one pCPU (`normalized_sysctl_sched_base_slice`): 0.75 ms up to 6.14 (and in CFS), 0.70 ms from 6.15 on.
    pub normalized_slice_ns: Ns,
    /// CFS: the period in which everybody should run; 6 ms times that factor.
    pub latency_ns: Ns,
    /// CFS: no turn is longer than that (79ba1e607d68, 6.3 and later).
    pub limits_turns: bool,
    /// CFS: how far a woken task must be behind to preempt; 1 ms times that factor.
    pub wakeup_granularity_ns: Ns,
    /// EEVDF: whoever was picked runs to the end of its slice, unless it is no longer eligible (RUN_TO_PARITY).
    pub run_to_parity: bool,
    /// When a task goes to sleep and others of its group wait there, its group is to be picked next; in CFS whoever preempts is, too (2f36825b176f, 3.0 and
    /// later). Not in [`Variant::EevdfFlat`].
    pub buddy_hints: bool,
    /// EEVDF: who is to be picked next, by such a hint or a yield_to(), is picked if it is eligible (PICK_BUDDY, 6.14 and later).
    pub pick_buddy: bool,
    /// EEVDF: who yields forfeits its virtual time up to its deadline (79104becf42b, 6.19 and stable kernels before it). Always so of
    /// [`Variant::EevdfForfeit`] and later.
    pub yield_forfeits: bool,
    /// EEVDF: who goes to sleep ahead of the average stays queued until it no longer is (DELAY_DEQUEUE, 6.12 and later).
    pub delay_dequeue: bool,
    /// EEVDF: a new task's first slice is half as long (PLACE_DEADLINE_INITIAL; before 6.12 it was placed a second time, with a whole one).
    pub place_deadline_initial: bool,
    /// The average of virtual run times has weights in full (`avg_vruntime_weight()`, 7.1 and later), not in 1024ths. Always so of
    /// [`Variant::EevdfFlat`], and never of [`Variant::Eevdf`].
    pub full_weights: bool,
    /// EEVDF: lag is limited to a slice and a tick (6e3c0a4e1ad1, 7.0 and later), not to two slices or a tick. Of variants as `full_weights` is.
    pub lag_by_tick: bool,
    /// EEVDF: a sleeper that has paid, and would be picked before the woken one, leaves at a wake-up (ac8e69e69363, 7.1 and later). Of variants as `full_weights` is.
    pub paid_leave: bool,
    /// EEVDF: whoever wakes, or has had its slice, makes another pCPU schedule only when that leaves the kernel by itself, or at its tick (PREEMPT_LAZY, 6.13
    /// and later; from 7.0 on x86 has no other model than that and full preemption, and that is the default).
    pub lazy_preemption: bool,
    pub idle_search: IdleSearch,
    /// cgroups compete, and their tasks within them. If not, as on hosts that made no cgroup for a VM (or had no CONFIG_FAIR_GROUP_SCHED), all tasks compete
    /// with one another, wherever they are said to be.
    pub groups: bool,
    /// Who is boosted at a pause-loop exit (yield_to()) runs next, whatever that does to fairness (Yasuno, Ishiguro, Kono, section 5: a cure that no kernel has).
    pub unfair_boost: bool,
    pub group_weight: GroupWeight,
    /// Move tasks between pCPUs: on going idle.
    pub balance: bool,
    /// When that is tried.
    pub newidle: Newidle,
    /// Who sleeps counts in a pCPU's load until it is forgotten (cpu_load() since b0fb1eb4f04a, 5.5, and 11f10e5420f6, 5.7), and not only who is runnable:
    /// before, that was an average too (runnable_load_avg, 3.8 and later), which is left out.
    pub sleepers_weigh: bool,
    /// ... and periodically, between busy ones; how often, and from how many per cent more load elsewhere on (`imbalance_pct`: 125 up to 3.15).
    pub periodic_balance: bool,
    pub busy_balance: BusyBalance,
    pub imbalance_percent: u64,
}

impl Default for FairConfig {
    fn default() -> Self {
        Self {
            variant: Variant::EevdfForfeit,
            slice_ns: 0,
            normalized_slice_ns: 0,
            latency_ns: 0,
            limits_turns: true,
            wakeup_granularity_ns: 0,
            run_to_parity: true,
            buddy_hints: true,
            pick_buddy: true,
            yield_forfeits: false,
            delay_dequeue: true,
            place_deadline_initial: true,
            full_weights: true,
            lag_by_tick: true,
            paid_leave: true,
            lazy_preemption: false,
            idle_search: IdleSearch::Recent,
            groups: true,
            unfair_boost: false,
            group_weight: GroupWeight::Auto,
            balance: true,
            newidle: Newidle::Random,
            sleepers_weigh: true,
            periodic_balance: true,
            busy_balance: BusyBalance::Often,
            imbalance_percent: IMBALANCE_PERCENT,
        }
    }
}

impl FairConfig {
    pub fn of(variant: Variant) -> Self {
        let newidle = match variant {
            Variant::Cfs => Newidle::Cost,
            Variant::Eevdf | Variant::EevdfForfeit => Newidle::Random,
            Variant::EevdfFlat => Newidle::Rate,
        };
        Self { variant, newidle, ..Self::default() }
    }
}

/// The weight of nice 0 (`scale_load(1024)`).
pub(crate) const NICE_0: u64 = 1 << 20;
const SCALE: u32 = 10;

pub struct Fair {
    config: FairConfig,
    eevdf: bool,
    flat: bool,
    /// See [`FairConfig`].
    full_weights: bool,
    lag_by_tick: bool,
    paid_leave: bool,
    now_ns: Ns,
    entities: Vec<Entity>,
    /// By task: its entity.
    of_task: Vec<u32>,
    queues: Vec<Rq>,
    forest: Forest,
    groups: Vec<TaskGroup>,
    /// By pCPU: the queues of groups there in which somebody is, or whose averages are not forgotten yet (`leaf_cfs_rq_list`). In the order in which they were
    /// made: parents before their children.
    group_queues: Vec<Vec<u32>>,
    balance: Balance,
    /// By pCPU: who was picked and does not run yet.
    picked: Vec<Option<TaskId>>,
    online: CpuSet,
    /// By pCPU: the entity of the task that got it last.
    running: Vec<Option<u32>>,
    /// By pCPU: the turn whose end a timer has been set for.
    hrtick: Vec<Option<u32>>,
    /// By pCPU: tasks that sleep, and stay queued to pay.
    sleepers: Vec<u32>,
    tick_ns: Ns,
}

impl Fair {
    pub fn new(config: FairConfig) -> Self {
        let eevdf = config.variant != Variant::Cfs;
        let flat = config.variant == Variant::EevdfFlat;
        let since = |wanted| flat || config.variant == Variant::EevdfForfeit && wanted;
        let full_weights = since(config.full_weights);
        let (lag_by_tick, paid_leave) = (since(config.lag_by_tick), since(config.paid_leave));
        Self {
            config,
            eevdf,
            flat,
            full_weights,
            lag_by_tick,
            paid_leave,
            now_ns: 0,
            entities: Vec::new(),
            of_task: Vec::new(),
            queues: Vec::new(),
            forest: Forest::default(),
            groups: Vec::new(),
            group_queues: Vec::new(),
            balance: Balance::default(),
            picked: Vec::new(),
            online: CpuSet::new(),
            running: Vec::new(),
            hrtick: Vec::new(),
            sleepers: Vec::new(),
            tick_ns: 0,
        }
    }

    /// get_update_sysctl_factor() with logarithmic scaling, and the values it scales.
    fn set_defaults(&mut self, cpus: usize) {
        let factor = 1 + Ns::from((cpus.clamp(1, 8) as u32).ilog2());
        let or = |value: Ns, default_ns: Ns| if value == 0 { default_ns * factor } else { value };
        let config = &mut self.config;
        if config.group_weight == GroupWeight::Auto {
            config.group_weight = if self.flat { GroupWeight::Concur } else { GroupWeight::Smp };
        }
        let normal_ns = match config.normalized_slice_ns {
            0 if self.eevdf => 700_000,
            0 => 750_000,
            given_ns => given_ns,
        };
        config.slice_ns = or(config.slice_ns, normal_ns);
        config.latency_ns = or(config.latency_ns, 6_000_000);
        config.wakeup_granularity_ns = or(config.wakeup_granularity_ns, 1_000_000);
    }

    /// The virtual run time of a queued task's entity, in its own queue's scale; for tests.
    pub fn vruntime(&self, task: TaskId) -> i64 {
        self.entities[self.of_task[task.index()] as usize].vruntime
    }

    /// Tasks that run or wait on a pCPU (`h_nr_runnable`).
    fn tasks_on(&self, cpu: CpuId) -> u32 {
        self.queues[cpu.index()].tasks
    }

    /// `rq->nr_running`: those, and the sleepers that are still queued (`h_nr_queued`).
    fn nr_running(&self, cpu: CpuId) -> u32 {
        self.tasks_on(cpu) + self.sleepers[cpu.index()]
    }

    fn resched_curr_lazy(&self, core: &mut Core, cpu: CpuId) {
        if self.eevdf && self.config.lazy_preemption {
            core.resched_lazy(cpu);
        } else {
            core.resched(cpu);
        }
    }

    /// update_curr() of every level: the running task's entity and its groups'.
    fn charge(&mut self, core: &mut Core, cpu: CpuId) {
        self.now_ns = core.now_ns;
        let delta_ns = core.charge(cpu);
        let Some(curr) = core.cpu(cpu).curr else { return };
        if delta_ns == 0 {
            return;
        }
        let mut at = Some(self.of_task[curr.index()]);
        while let Some(id) = at {
            let entity = &mut self.entities[id as usize];
            entity.exec_ns += delta_ns;
            entity.exec_start_ns = core.now_ns;
            entity.vruntime += calc_delta_fair(delta_ns, entity.weight);
            let rq = entity.rq;
            let ended = self.eevdf && self.update_deadline(id);
            self.update_min_vruntime(rq);
            // In the kernel since 6.17 already. A turn that nobody waited for has outlived its protection when somebody comes, and its slice may just have
            // begun anew.
            let ended =
                ended || self.config.variant >= Variant::EevdfForfeit && !self.entity(id).is_protected();
            if ended && self.queues[rq as usize].nr > 1 {
                self.resched_curr_lazy(core, cpu);
                self.clear_buddies(id);
            }
            at = self.queues[rq as usize].owner;
        }
    }
}

/// Time in virtual time of an entity of this weight: `calc_delta_fair()`. The kernel multiplies by a rounded inverse; this divides.
pub(crate) fn calc_delta_fair(delta_ns: Ns, weight: u64) -> i64 {
    if weight == NICE_0 {
        return delta_ns as i64;
    }
    if delta_ns < 1 << 43 {
        return ((delta_ns << 20) / weight.max(1)) as i64;
    }
    ((u128::from(delta_ns) << 20) / u128::from(weight.max(1))) as i64
}
