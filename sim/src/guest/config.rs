// SPDX-License-Identifier: GPL-2.0-only
//! What kernel a guest has, and what its work takes.

use serde::{Deserialize, Serialize};

use crate::class::fair::Newidle;
use crate::error::SimError;
use crate::time::Ns;

/// 1000 s: beyond that no figure makes sense.
const LONGEST_NS: Ns = 1_000_000_000_000;

/// A guest's kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestConfig {
    /// All its spin locks, those of the run queues included.
    pub lock: LockKind,
    pub tlb: TlbMode,
    pub lazy_tlb: LazyTlb,
    pub send_ipi: SendIpi,
    pub wakelist: Wakelist,
    /// Whether a vCPU that goes idle looks for a task, as a host's pCPU ([`crate::class::fair::FairConfig`]).
    pub newidle: Newidle,
    /// Who has run more recently than that is not moved (`sysctl_sched_migration_cost`).
    pub migration_cost_ns: Ns,
    /// The timer tick of a busy vCPU; 4 ms is HZ=250. 0: none.
    pub tick_ns: Ns,
    /// A vCPU that goes idle keeps its tick until that has woken it (idle_call_stop_or_retain_tick(), f4c31b07b136, 7.0, where there is no cpuidle driver).
    pub retains_tick: bool,
    /// The tick is a periodic timer of the APIC, which costs no exit to set, and goes on while a vCPU idles (no CONFIG_NO_HZ; on x86-64 before 2.6.24).
    pub periodic_tick: bool,
    /// How long a task runs while others wait: to the first tick after that. Under CFS at least (`sched_min_granularity`).
    pub slice_ns: Ns,
    /// ... or no longer (HRTICK, since 7.3).
    pub hrtick: bool,
    /// EEVDF: as a host's ([`crate::class::fair::FairConfig`]): lag is limited to a slice and a tick (7.0); a sleeper that has paid leaves at a wake-up (7.1).
    pub lag_by_tick: bool,
    pub paid_leave: bool,
    /// EEVDF: whoever yields gives up the rest of its slice (since 6.19).
    pub yield_forfeits: bool,
    /// What the kernel makes of it that a vCPU is preempted, as KVM says (vcpu_is_preempted()).
    pub heeds_preempted: Heeds,
    /// Who waits in a `pv-queued` lock's queue halts sooner also behind one whose vCPU is preempted, as KVM says (75437bb304b2, 4.11, until 89340d0935c9, 5.4).
    pub halts_behind_preempted: bool,
    /// CFS: time in which each of the tasks has a turn, if they are not too many (`sched_latency`); who has slept is half of it before the others at best.
    pub latency_ns: Ns,
    /// Who of the tasks that wait for a vCPU runs next.
    pub scheduler: Scheduler,
    /// PREEMPT_LAZY, since 7.0: who preempts a task elsewhere sends no interrupt; the task goes on to user mode, or, also in the kernel, to the next tick.
    pub lazy_preemption: bool,
    /// CFS: a task preempts the running one when it wakes and is behind by this.
    pub wakeup_gran_ns: Ns,
    /// CONFIG_PARAVIRT_TIME_ACCOUNTING: the scheduler's clock stands still while the vCPU is preempted, if KVM tells the guest its steal time
    /// (`kvm.steal_time`). "If in doubt, say N", says the kernel, and Debian does; before Linux 3.1 there was nothing to say.
    pub paravirt_time_accounting: bool,
    /// Tasks can be preempted in kernel mode (PREEMPT), or only on the way to user mode.
    pub preemptible_kernel: bool,
    /// How long a vCPU spins for a `pv-ticket` or `pv-queued` lock before it halts: SPIN_THRESHOLD, 2^15 rounds of PAUSE.
    pub spin_threshold_ns: Ns,
    /// `preemptable-ticket`: time for each one ahead, after which a waiter may go out of turn (VEE'13, section 4.2, gives no value in time).
    pub ticket_timeout_ns: Ns,
    /// What the kernel announces to the host as the time for which it will hold a spin lock that it has just taken (Uhlig et al., VM'04, the intrusive
    /// technique); the host puts off preemptions until then, up to `kvm.lock_hint_max_ns`. 0: it announces nothing.
    pub lock_hint_ns: Ns,
    /// The kernel's own work on each vCPU (timers, RCU, kworkers): it comes at random, so often on average, and takes so long on average. What an
    /// idle guest uses of a pCPU, measured, is one over the other. 0: none.
    pub housekeeping_period_ns: Ns,
    pub housekeeping_work_ns: Ns,
    pub costs: GuestCosts,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            lock: LockKind::Tas,
            tlb: TlbMode::Ipi,
            lazy_tlb: LazyTlb::Spared,
            send_ipi: SendIpi::Shorthand,
            wakelist: Wakelist::None,
            newidle: Newidle::Cost,
            migration_cost_ns: 500_000,
            tick_ns: 4_000_000,
            retains_tick: false,
            periodic_tick: false,
            slice_ns: 3_000_000,
            hrtick: false,
            lag_by_tick: false,
            paid_leave: false,
            yield_forfeits: false,
            heeds_preempted: Heeds::All,
            halts_behind_preempted: false,
            latency_ns: 6_000_000,
            scheduler: Scheduler::Cfs,
            lazy_preemption: false,
            wakeup_gran_ns: 1_000_000,
            paravirt_time_accounting: false,
            preemptible_kernel: false,
            spin_threshold_ns: 300_000,
            ticket_timeout_ns: 2_000,
            lock_hint_ns: 0,
            housekeeping_period_ns: 0,
            housekeeping_work_ns: 0,
            costs: GuestCosts::default(),
        }
    }
}

/// See [`GuestConfig::heeds_preempted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heeds {
    Nothing,
    /// Nobody spins for a lock's owner that is on such a vCPU (since 4.10).
    Owners,
    /// Nor is a task woken there as if it idled (available_idle_cpu(), since 4.18).
    All,
}

/// How the tasks of a vCPU compete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The least virtual run time (2.6.23 to 6.5).
    Cfs,
    /// The earliest virtual deadline of those that are not ahead (since 6.6).
    Eevdf,
    /// ... where who sleeps and is ahead stays queued until it has paid (DELAY_DEQUEUE, since 6.12).
    EevdfDelay,
}

/// The algorithm of spin locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// Test and set: whoever comes first when it is free. What Linux uses in a guest without PV locks (virt_spin_lock()).
    Tas,
    /// First come, first served, by number (Linux 2.6.25 to 4.1).
    Ticket,
    /// First come, first served, in a queue (MCS; qspinlock).
    Queued,
    /// Ticket; who has spun for long halts, and is kicked when it is its turn.
    PvTicket,
    /// Queued; likewise, and while the next one does not spin others may take the lock (qspinlock_paravirt.h, since 4.15).
    PvQueued,
    /// Ticket; who has waited for long enough for its place in the queue may go out of turn (Ouyang and Lange, VEE'13).
    PreemptableTicket,
}

/// How a vCPU gets its siblings to flush their TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlbMode {
    /// It interrupts them and spins until all have answered.
    Ipi,
    /// Preempted ones are flagged and flush when they run again, the others are interrupted (kvm_flush_tlb_multi()).
    KvmPv,
    /// KVM does it (Shoot4U; the Hyper-V enlightenment).
    Hypercall,
}

/// Which vCPUs are asked to flush, beside those that run in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LazyTlb {
    /// One that idles, and has it loaded still: once (before 4.14; to 4.19 without PCID).
    Asked,
    /// None: who idles leaves it at once (4.14 to 4.19 with PCID, tlb_defer_switch_to_init_mm()).
    Left,
    /// One that idles, once, if page tables are freed (since 145f573b89a6, 4.20).
    Spared,
    /// ... and then also one that has loaded another in its place, if it was not asked since (209954cbc7d0, 6.14).
    Late,
}

/// Which wake-ups are left to the vCPU where the task will run, if that is not the waker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wakelist {
    /// None (before 3.0).
    None,
    /// All (TTWU_QUEUE, 317f394160e9, 3.0 to 3.2; later between vCPUs that share no cache, 518cd6234178).
    Others,
    /// Those for a vCPU that idles (f3dd3f674555, since 6.0), where all share a cache.
    Idle,
}

/// Whom one write to the interrupt command register reaches, or one hypercall that takes its place: an exit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendIpi {
    /// One vCPU: the x2APIC's physical mode. A guest of KVM without interrupt remapping is always in it (try_to_enable_x2apic(); before 3.19
    /// x2apic_force_phys()).
    Each,
    /// The same, but all others at once if they are meant (apic_use_ipi_shorthand, since 5.4).
    Shorthand,
    /// Those of a cluster of 16: the x2APIC's cluster mode, with interrupt remapping.
    Cluster,
    /// Within 128 numbers, by KVM_HC_SEND_IPI (KVM_FEATURE_PV_SEND_IPI, since 4.19; off in QEMU's named CPU models); one, and all others, as `shorthand`.
    KvmPv,
    /// All, always by hypercall (HVCALL_SEND_IPI: QEMU's hv-ipi).
    Hypercall,
}

/// What the guest's kernel does with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestCosts {
    /// Into the kernel and back: each way, half of a null system call with mitigations.
    pub syscall_ns: Ns,
    /// Taking an interrupt, before its handler and after it together.
    pub irq_ns: Ns,
    /// The tick's handler.
    pub tick_work_ns: Ns,
    /// Switching between two tasks, under the run queue's lock.
    pub switch_ns: Ns,
    /// Waking a task, under the lock of the run queue where it is put. Half of it is done by each of the two if it is left to another vCPU.
    pub wake_ns: Ns,
    /// Waiting in the kernel for a lock that comes from another vCPU: a cache line's way.
    pub handover_ns: Ns,
    /// Under the lock that protects a wait queue.
    pub futex_ns: Ns,
    /// Copying a message, under the lock of its pipe.
    pub copy_ns: Ns,
    /// Flushing the own TLB, and filling it again.
    pub flush_ns: Ns,
    /// Changing one page's entry in the page table.
    pub page_ns: Ns,
    /// Entering idle, up to HLT.
    pub idle_ns: Ns,
    /// What it has cost at most to look at one vCPU for a task to take over, when another goes idle (`max_newidle_lb_cost`, divided by the vCPUs). An estimate.
    pub newidle_vcpu_ns: Ns,
}

impl Default for GuestCosts {
    // Orders of magnitude: lmbench's null call and context switch, `perf bench sched pipe`, on current x86 servers.
    fn default() -> Self {
        Self {
            syscall_ns: 100,
            irq_ns: 500,
            tick_work_ns: 1_500,
            switch_ns: 600,
            wake_ns: 300,
            handover_ns: 60,
            futex_ns: 200,
            copy_ns: 400,
            flush_ns: 500,
            page_ns: 100,
            idle_ns: 300,
            newidle_vcpu_ns: 2_000,
        }
    }
}

impl GuestCosts {
    pub fn free() -> Self {
        Self {
            syscall_ns: 0,
            irq_ns: 0,
            tick_work_ns: 0,
            switch_ns: 0,
            wake_ns: 0,
            handover_ns: 0,
            futex_ns: 0,
            copy_ns: 0,
            flush_ns: 0,
            page_ns: 0,
            idle_ns: 0,
            newidle_vcpu_ns: 0,
        }
    }
}

impl GuestConfig {
    /// Everything free, no tick: for schedules computed by hand.
    pub fn ideal() -> Self {
        Self { tick_ns: 0, migration_cost_ns: 0, costs: GuestCosts::free(), ..Self::default() }
    }

    /// `field` is the path of this configuration, for messages.
    pub fn check(&self, field: &str) -> Result<(), SimError> {
        let within = |name: &str, value: Ns, low: Ns, high: Ns| match (low..=high).contains(&value) {
            true => Ok(()),
            false => Err(SimError::Config(format!("{field}.{name}: is {value}; allowed: {low} to {high}"))),
        };
        if self.tick_ns != 0 {
            within("tick_ns", self.tick_ns, 10_000, 1_000_000_000)?;
        }
        if self.housekeeping_period_ns != 0 {
            within("housekeeping_period_ns", self.housekeeping_period_ns, 1_000, LONGEST_NS)?;
        }
        within("housekeeping_work_ns", self.housekeeping_work_ns, 0, LONGEST_NS)?;
        within("slice_ns", self.slice_ns, 1_000, LONGEST_NS)?;
        within("latency_ns", self.latency_ns, 1_000, LONGEST_NS)?;
        within("migration_cost_ns", self.migration_cost_ns, 0, LONGEST_NS)?;
        within("wakeup_gran_ns", self.wakeup_gran_ns, 0, LONGEST_NS)?;
        within("lock_hint_ns", self.lock_hint_ns, 0, LONGEST_NS)?;
        within("spin_threshold_ns", self.spin_threshold_ns, 1, LONGEST_NS)?;
        within("ticket_timeout_ns", self.ticket_timeout_ns, 1, LONGEST_NS)?;
        let costs = &self.costs;
        for (name, value) in [
            ("costs.syscall_ns", costs.syscall_ns),
            ("costs.irq_ns", costs.irq_ns),
            ("costs.tick_work_ns", costs.tick_work_ns),
            ("costs.switch_ns", costs.switch_ns),
            ("costs.wake_ns", costs.wake_ns),
            ("costs.handover_ns", costs.handover_ns),
            ("costs.futex_ns", costs.futex_ns),
            ("costs.copy_ns", costs.copy_ns),
            ("costs.flush_ns", costs.flush_ns),
            ("costs.page_ns", costs.page_ns),
            ("costs.idle_ns", costs.idle_ns),
            ("costs.newidle_vcpu_ns", costs.newidle_vcpu_ns),
        ] {
            within(name, value, 0, 1_000_000_000)?;
        }
        Ok(())
    }
}
