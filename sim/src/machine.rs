// SPDX-License-Identifier: GPL-2.0-only
//! The host's hardware: sockets, cores, SMT threads, shared caches; and what things cost there.

use serde::{Deserialize, Serialize};

use crate::error::SimError;
use crate::ids::{CpuId, TaskId};
use crate::time::{quotient, Ns, Speed};

/// pCPUs that a host has at most. The scheduler of `bpf/` itself knows fewer (MAX_CPUS in intf.h).
pub const CPUS_MAX: usize = 8192;

/// Shape and costs. pCPUs are numbered socket by socket, core by core, thread by thread: siblings of a core are neighbours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineConfig {
    pub sockets: u32,
    pub cores_per_socket: u32,
    pub threads_per_core: u32,
    /// Cores that share a last-level cache; 0: all of the socket.
    pub cores_per_cache: u32,
    pub costs: Costs,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            sockets: 1,
            cores_per_socket: 2,
            threads_per_core: 1,
            cores_per_cache: 0,
            costs: Costs::default(),
        }
    }
}

impl MachineConfig {
    /// One socket of so many cores without SMT, on which everything is free: for schedules computed by hand.
    pub fn ideal(cpus: u32) -> Self {
        Self { cores_per_socket: cpus, costs: Costs::free(), ..Self::default() }
    }
}

/// What things take, in ns of the pCPU that does them. Each default says where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// A switch from one host task to another, registers and kernel path: `perf bench sched pipe` on current x86 servers is 1-2 us for the
    /// round trip of two switches and two wake-ups.
    pub context_switch_ns: Ns,
    /// ... and under a sched_ext scheduler what all its programs take for each task that is put on a pCPU, beside what the kernel's own scheduler would. 0:
    /// some hundred ns on hardware, not measured there.
    pub bpf_switch_ns: Ns,
    /// Refilling private caches after coming from another core of the same last-level cache.
    pub refill_cache_ns: Ns,
    /// ... from another last-level cache of the same socket.
    pub refill_socket_ns: Ns,
    /// ... from another socket.
    pub refill_remote_ns: Ns,
    /// Refilling the TLB and private caches after another process has had the pCPU, for a task of usual footprint. 0: little is lost where TLBs have
    /// tags; an emulator's loses everything.
    pub refill_after_other_ns: Ns,
    /// Threads of one process, a VM's vCPUs among them, share what is there. Otherwise each has lost as much after a sibling as after others: entries of
    /// a guest's TLB bear the tag of one vCPU.
    pub threads_share: bool,
    /// ... where both the task's last turn and all that others had since took at least so long; otherwise there is less to refill, in proportion.
    pub refill_turn_ns: Ns,
    /// A VM exit with its handling in the kernel up to the decision, without entry (a few thousand cycles with mitigations).
    pub vm_exit_ns: Ns,
    pub vm_entry_ns: Ns,
    /// From sending an inter-processor interrupt until the other pCPU's handler runs.
    pub ipi_ns: Ns,
    /// ... when the other pCPU is on another socket.
    pub ipi_remote_ns: Ns,
    /// Leaving the idle state in which a pCPU waits for work.
    pub idle_exit_ns: Ns,
    /// Time between two ticks: 4 ms is HZ=250.
    pub tick_ns: Ns,
    /// Ticks come late by up to so much, evenly and at random: interrupts that are off, the path of the timer; `cyclictest` sees a few us on a server
    /// at work. Without it pCPUs that do the same stay in step for ever, which no real ones do.
    pub tick_jitter_ns: Ns,
    /// How late HRTICK's timer is, which ends a turn: its interrupt takes a moment. An estimate. It is set for what is left of the slice, rounded down: were it
    /// never late, part of a ns would be left when it comes, and the kernel would let the runner go on until the tick (RUN_TO_PARITY). BPF programs' timers are
    /// on time.
    pub timer_late_ns: Ns,
    /// What it has cost at most to look at one pCPU for a task to take over, when a pCPU goes idle (`max_newidle_lb_cost` of
    /// /sys/kernel/debug/sched/domains, divided by the domain's pCPUs). An estimate.
    pub newidle_pcpu_ns: Ns,
    /// The speed of each of a core's threads while more than one is busy, in thousandths of a thread's that has the core to itself.
    pub smt_speed_per_mille: u32,
    /// ... while those that are busy beside it do nothing but spin, the host's polls for a halted vCPU among them. PAUSE leaves the core's units to the
    /// other thread (Intel's optimization manual, on spin-wait loops), and a loop of a few instructions touches no memory. `None`: as beside work.
    pub smt_speed_beside_spinner_per_mille: Option<u32>,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            context_switch_ns: 500,
            bpf_switch_ns: 0,
            refill_cache_ns: 5_000,
            refill_socket_ns: 15_000,
            refill_remote_ns: 40_000,
            refill_after_other_ns: 0,
            threads_share: true,
            refill_turn_ns: 2_000_000,
            vm_exit_ns: 700,
            vm_entry_ns: 500,
            ipi_ns: 1_000,
            ipi_remote_ns: 2_000,
            idle_exit_ns: 2_000,
            tick_ns: 4_000_000,
            tick_jitter_ns: 3_000,
            timer_late_ns: 2_000,
            newidle_pcpu_ns: 2_000,
            smt_speed_per_mille: 620,
            smt_speed_beside_spinner_per_mille: None,
        }
    }
}

impl Costs {
    /// Everything at once and for nothing; ticks as usual.
    pub fn free() -> Self {
        Self {
            context_switch_ns: 0,
            bpf_switch_ns: 0,
            refill_cache_ns: 0,
            refill_socket_ns: 0,
            refill_remote_ns: 0,
            refill_after_other_ns: 0,
            threads_share: true,
            refill_turn_ns: 2_000_000,
            vm_exit_ns: 0,
            vm_entry_ns: 0,
            ipi_ns: 0,
            ipi_remote_ns: 0,
            idle_exit_ns: 0,
            tick_ns: 4_000_000,
            tick_jitter_ns: 0,
            timer_late_ns: 0,
            newidle_pcpu_ns: 0,
            smt_speed_per_mille: 1000,
            smt_speed_beside_spinner_per_mille: None,
        }
    }
}

/// How near two pCPUs are. In ascending order of distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    Same,
    /// Threads of one core.
    Core,
    /// Cores of one last-level cache.
    Cache,
    Socket,
    Remote,
}

/// What a pCPU that is busy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    Spins,
    Works,
}

/// A machine that exists.
#[derive(Clone, Debug)]
pub struct Machine {
    pub costs: Costs,
    cpus: u32,
    per_core: u32,
    per_cache: u32,
    per_socket: u32,
    /// Of a core's threads, beside one that works, and beside none but spinners.
    smt_speed: Speed,
    speed_beside_spinner: Speed,
}

impl Machine {
    pub fn new(config: &MachineConfig) -> Result<Self, SimError> {
        let at_least_one = |name: &str, value: u32| match value {
            0 => Err(SimError::Config(format!("machine.{name}: is 0; allowed: 1 to {CPUS_MAX}"))),
            _ => Ok(u64::from(value)),
        };
        let sockets = at_least_one("sockets", config.sockets)?;
        let cores = at_least_one("cores_per_socket", config.cores_per_socket)?;
        let threads = at_least_one("threads_per_core", config.threads_per_core)?;
        let cpus = sockets.saturating_mul(cores).saturating_mul(threads);
        if cpus > CPUS_MAX as u64 {
            return Err(SimError::Config(format!("machine: has {cpus} pCPUs; allowed: 1 to {CPUS_MAX}")));
        }
        let per_cache =
            if config.cores_per_cache == 0 { config.cores_per_socket } else { config.cores_per_cache };
        if config.cores_per_socket % per_cache != 0 {
            return Err(SimError::Config(format!(
                "machine.cores_per_cache: is {per_cache}; allowed: 0 or a divisor of cores_per_socket ({cores})"
            )));
        }
        for (field, late_ns) in
            [("tick_jitter_ns", config.costs.tick_jitter_ns), ("timer_late_ns", config.costs.timer_late_ns)]
        {
            if late_ns >= config.costs.tick_ns {
                return Err(SimError::Config(format!("machine.costs.{field}: allowed: less than tick_ns")));
            }
        }
        if config.costs.tick_ns == 0 {
            return Err(SimError::Config("machine.costs.tick_ns: is 0; allowed: 1 or more".into()));
        }
        let per_mille = config.costs.smt_speed_per_mille;
        if !(1..=1000).contains(&per_mille) {
            return Err(SimError::Config("machine.costs.smt_speed_per_mille: allowed: 1 to 1000".into()));
        }
        let beside_spinner = config.costs.smt_speed_beside_spinner_per_mille.unwrap_or(per_mille);
        if !(per_mille..=1000).contains(&beside_spinner) {
            return Err(SimError::Config(format!(
                "machine.costs.smt_speed_beside_spinner_per_mille: is {beside_spinner}; allowed: smt_speed_per_mille ({per_mille}) to 1000"
            )));
        }
        Ok(Self {
            costs: config.costs.clone(),
            cpus: cpus as u32,
            per_core: config.threads_per_core,
            per_cache: per_cache * config.threads_per_core,
            per_socket: config.cores_per_socket * config.threads_per_core,
            smt_speed: Speed::per_mille(per_mille),
            speed_beside_spinner: Speed::per_mille(beside_spinner),
        })
    }

    pub fn cpus(&self) -> usize {
        self.cpus as usize
    }

    pub fn all(&self) -> impl Iterator<Item = CpuId> {
        (0..self.cpus).map(CpuId)
    }

    fn span(cpu: CpuId, size: u32) -> impl Iterator<Item = CpuId> {
        let first = cpu.0 / size * size;
        (first..first + size).map(CpuId)
    }

    /// A thread's speed beside what its core's other busy threads do: spin, each of them, or not.
    pub fn speed_beside(&self, busy: impl Iterator<Item = Pace>) -> Speed {
        match busy.max() {
            None => Speed::FULL,
            Some(Pace::Spins) => self.speed_beside_spinner,
            Some(Pace::Works) => self.smt_speed,
        }
    }

    /// The threads of a core feel whether the others spin or work.
    pub fn feels_spinners(&self) -> bool {
        self.per_core > 1 && self.speed_beside_spinner != self.smt_speed
    }

    /// The threads of this pCPU's core, itself included.
    pub fn core_of(&self, cpu: CpuId) -> impl Iterator<Item = CpuId> {
        Self::span(cpu, self.per_core)
    }

    pub fn threads_per_core(&self) -> u32 {
        self.per_core
    }

    /// pCPUs per last-level cache and per socket.
    pub fn spans(&self) -> (u32, u32) {
        (self.per_cache, self.per_socket)
    }

    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let together = |size: u32| a.0 / size == b.0 / size;
        if a == b {
            Distance::Same
        } else if together(self.per_core) {
            Distance::Core
        } else if together(self.per_cache) {
            Distance::Cache
        } else if together(self.per_socket) {
            Distance::Socket
        } else {
            Distance::Remote
        }
    }

    /// Whose what a pCPU's TLB and private caches hold for a task is, its process's or its own alone.
    pub fn whose(&self, tgid: u32, id: TaskId) -> u32 {
        if self.costs.threads_share {
            tgid
        } else {
            id.0
        }
    }

    /// A task loses something to other processes that had its pCPU.
    pub fn loses_to_others(&self) -> bool {
        self.costs.refill_after_other_ns > 0
    }

    /// What a task of this footprint has to refill where other processes have run for so long since: no more than it can have touched in its last turn, than
    /// they can have pushed out, and than half of its last turn. For who refills works as well: a program whose memory is more than it gets to touch in a turn
    /// becomes slow, and does not stand still.
    pub fn refill_after_other_ns(&self, footprint_per_mille: u32, turn_ns: Ns, others_ns: Ns) -> Ns {
        let whole_ns = self.costs.refill_after_other_ns.saturating_mul(Ns::from(footprint_per_mille)) / 1000;
        let full_turn_ns = self.costs.refill_turn_ns.max(1);
        let product = u128::from(whole_ns) * u128::from(turn_ns.min(others_ns).min(full_turn_ns));
        quotient(product, full_turn_ns).min(u128::from(turn_ns / 2)) as Ns
    }

    /// What a task loses that last ran on `from` and goes on on `to`.
    pub fn refill_ns(&self, from: CpuId, to: CpuId) -> Ns {
        match self.distance(from, to) {
            Distance::Same | Distance::Core => 0,
            Distance::Cache => self.costs.refill_cache_ns,
            Distance::Socket => self.costs.refill_socket_ns,
            Distance::Remote => self.costs.refill_remote_ns,
        }
    }

    pub fn ipi_ns(&self, from: CpuId, to: CpuId) -> Ns {
        match self.distance(from, to) {
            Distance::Remote => self.costs.ipi_remote_ns,
            _ => self.costs.ipi_ns,
        }
    }
}
