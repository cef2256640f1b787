// SPDX-License-Identifier: GPL-2.0-only
//! What the guests did and suffered: spinning, pause-loop exits, directed yields, TLB flushes, interrupts, locks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ids::{VcpuId, VmId};
use crate::observe::{Spin, What};
use crate::time::{Ns, MS};

use super::layout::Layout;
use super::loops::Loops;
use super::totals::GuestCounts;
use super::waits::{Summary, Waits};

/// Kinds of spinning, in the order of [`Spin`].
pub const SPINS: [&str; 5] = ["lock", "ipi-answer", "shootdown", "barrier", "user"];

/// Where nobody sees spins, a vCPU that has run for so long without a pause-loop exit no longer spins the same spin: the probe's chain_gap_ns.
const CHAIN_GAP_NS: Ns = MS;

#[derive(Clone, Debug, Default)]
struct Vcpu {
    /// Where nobody sees spins: pause-loop exits of the present chain; CPU time at the last of them.
    chain: u64,
    chain_run_ns: Ns,
    /// Pause-loop exits of turns one after the other that had one each; whether the present turn, or the last one, has.
    streak: u64,
    turn_exits: bool,
    /// CPU time of its thread so far; up to when, if it runs.
    run_ns: Ns,
    runs_since_ns: Option<Ns>,
    /// Interrupts on their way: vector, and when the first of it was sent. One vector pends once, as in an APIC.
    pending: Vec<(u8, Ns)>,
}

/// What is known of a loop that waits.
#[derive(Clone, Debug, Default)]
struct Waiting {
    exits: u64,
    /// CPU time that it has had, and that of the vCPU when it went on.
    spun_ns: Ns,
    from_ns: Option<Ns>,
}

#[derive(Clone, Debug, Default)]
struct Vm {
    counts: Counts,
    spins: [Waits; 5],
    shootdown: Waits,
    ipi: Waits,
    lock_wait: Waits,
    lock_hold: Waits,
    progress: BTreeMap<u16, Waits>,
    /// How many there were of so many exits.
    streaks: BTreeMap<u64, u64>,
}

/// What is only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub guest_switches: u64,
    pub ple: u64,
    pub ple_kernel: u64,
    pub ple_chains: u64,
    pub ple_chain_max: u64,
    /// Chains of 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more exits, as the probe counts them.
    pub ple_chain_lengths: [u64; 8],
    /// Streaks: exits of a vCPU as long as each turn of it has one, over several spins (Yasuno, Ishiguro, Kono, section 6.2).
    pub ple_streaks: u64,
    pub ple_streak_max: u64,
    /// Half of them are as long, or longer.
    pub ple_streak_p50: u64,
    /// Half of the exits are in streaks that are as long, or longer.
    pub ple_streak_exits_p50: u64,
    pub yields_asked: u64,
    pub yields_granted: u64,
    pub halts: u64,
    pub halt_polled_ns: Ns,
    pub shootdown_targets: u64,
    /// TLBs flushed on another vCPU's request.
    pub tlb_flushes: u64,
    /// Halted lock waiters woken by the holder.
    pub kicks: u64,
    pub ipis_sent: u64,
    /// Interrupts taken, by vector.
    pub ipis_taken: BTreeMap<u8, u64>,
    /// Exits by reason, and the time that they took.
    pub exits: BTreeMap<u8, u64>,
    pub exit_ns: Ns,
}

impl Vm {
    fn streak_ends(&mut self, exits: u64) {
        if exits > 0 {
            *self.streaks.entry(exits).or_default() += 1;
        }
    }
}

impl Counts {
    /// Those that are over, by their lengths, and those that go on.
    fn streaks_of(&mut self, over: &BTreeMap<u64, u64>, going_on: impl Iterator<Item = u64>) {
        let mut all = over.clone();
        for exits in going_on.filter(|exits| *exits > 0) {
            *all.entry(exits).or_default() += 1;
        }
        self.ple_streaks = all.values().sum();
        self.ple_streak_max = all.last_key_value().map_or(0, |(exits, _)| *exits);
        let mut longer = 0;
        let half = all.iter().rev().find(|(_, count)| {
            longer += *count;
            2 * longer >= self.ple_streaks
        });
        self.ple_streak_p50 = half.map_or(0, |(exits, _)| *exits);
        let exits_of_all: u64 = all.iter().map(|(exits, count)| exits * count).sum();
        let mut in_longer = 0;
        let half = all.iter().rev().find(|(exits, count)| {
            in_longer += *exits * *count;
            2 * in_longer >= exits_of_all
        });
        self.ple_streak_exits_p50 = half.map_or(0, |(exits, _)| *exits);
    }

    /// A spin is over, which had so many pause-loop exits.
    pub(super) fn chain_ends(&mut self, exits: u64) {
        if exits > 0 {
            self.ple_chains += 1;
            self.ple_chain_max = self.ple_chain_max.max(exits);
            let bucket = exits.next_power_of_two().ilog2() as usize;
            self.ple_chain_lengths[bucket.min(self.ple_chain_lengths.len() - 1)] += 1;
        }
    }
}

/// A VM's figures; docs/metrics.md.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GuestTotals {
    #[serde(flatten)]
    pub counts: Counts,
    /// CPU time burnt by spinning, also in loops that go on.
    pub spin_ns: Ns,
    pub spins: BTreeMap<&'static str, Summary>,
    pub shootdown: Summary,
    pub ipi: Summary,
    pub lock_wait: Summary,
    pub lock_hold: Summary,
    /// Steps of the workload, by kind.
    pub progress: BTreeMap<u16, Summary>,
}

pub struct GuestMetrics {
    /// Whether spins are told of. A recording has none of them.
    spins: bool,
    vms: Vec<Vm>,
    vcpus: Vec<Vcpu>,
    bases: Vec<usize>,
    loops: Loops<Waiting>,
}

impl Vcpu {
    fn run_ns(&self, now_ns: Ns) -> Ns {
        self.run_ns + self.runs_since_ns.map_or(0, |since_ns| now_ns - since_ns)
    }
}

impl GuestMetrics {
    pub fn new(layout: &Layout, spins: bool) -> Self {
        let (bases, count) = layout.vcpu_bases();
        Self {
            spins,
            vms: vec![Vm::default(); layout.vms.len()],
            vcpus: vec![Vcpu::default(); count],
            bases,
            loops: Loops::new(layout),
        }
    }

    /// Of the loops of what the vCPU runs the last one executes, or none does any more.
    fn loops_go_on(&mut self, vcpu: VcpuId, now_ns: Ns, goes_on: bool) {
        let run_ns = self.of(vcpu).1.run_ns(now_ns);
        let Some(last) = self.loops.last_on(vcpu) else { return };
        if let Some(from_ns) = last.from_ns.take() {
            last.spun_ns += run_ns - from_ns;
        }
        last.from_ns = goes_on.then_some(run_ns);
    }

    fn of(&mut self, vcpu: VcpuId) -> (&mut Vm, &mut Vcpu) {
        let at = self.bases[vcpu.vm.index()] + vcpu.id as usize;
        (&mut self.vms[vcpu.vm.index()], &mut self.vcpus[at])
    }

    pub fn record(&mut self, layout: &Layout, now_ns: Ns, what: &What) {
        let spins = self.spins;
        match *what {
            What::Switch { prev, next, .. } => {
                if let Some(vcpu) = prev.and_then(|task| layout.vcpu_of(task)) {
                    let (vm, vcpu) = self.of(vcpu);
                    (vcpu.run_ns, vcpu.runs_since_ns) = (vcpu.run_ns(now_ns), None);
                    if !std::mem::take(&mut vcpu.turn_exits) {
                        vm.streak_ends(std::mem::take(&mut vcpu.streak));
                    }
                }
                if let Some(vcpu) = next.and_then(|task| layout.vcpu_of(task)) {
                    self.of(vcpu).1.runs_since_ns = Some(now_ns);
                }
            }
            What::Ple { vcpu, kernel } => {
                let (vm, known) = self.of(vcpu);
                vm.counts.ple += 1;
                vm.counts.ple_kernel += u64::from(kernel);
                known.turn_exits = true;
                known.streak += 1;
                if spins {
                    if let Some(last) = self.loops.last_on(vcpu) {
                        last.exits += 1;
                    }
                } else {
                    let run_ns = known.run_ns(now_ns);
                    if run_ns.saturating_sub(known.chain_run_ns) > CHAIN_GAP_NS {
                        vm.counts.chain_ends(std::mem::take(&mut known.chain));
                    }
                    known.chain_run_ns = run_ns;
                    known.chain += 1;
                }
            }
            What::DirectedYield { from, granted, .. } => {
                let (vm, _) = self.of(from);
                vm.counts.yields_asked += 1;
                vm.counts.yields_granted += u64::from(granted);
            }
            What::Exit { vcpu, reason, ns } => {
                let (vm, _) = self.of(vcpu);
                *vm.counts.exits.entry(reason).or_default() += 1;
                vm.counts.exit_ns += ns;
            }
            What::Halt { vcpu, polled_ns } => {
                let (vm, vcpu) = self.of(vcpu);
                vm.counts.halts += 1;
                vm.counts.halt_polled_ns += polled_ns;
                if !spins {
                    vm.counts.chain_ends(std::mem::take(&mut vcpu.chain));
                }
            }
            What::GuestIpiSent { from, to, vector } => {
                self.of(from).0.counts.ipis_sent += 1;
                let pending = &mut self.of(to).1.pending;
                if !pending.iter().any(|(other, _)| *other == vector) {
                    pending.push((vector, now_ns));
                }
            }
            What::GuestIpiTaken { vcpu, vector } => {
                let (vm, vcpu) = self.of(vcpu);
                *vm.counts.ipis_taken.entry(vector).or_default() += 1;
                if let Some(at) = vcpu.pending.iter().position(|(other, _)| *other == vector) {
                    vm.ipi.add(now_ns - vcpu.pending.swap_remove(at).1);
                }
            }
            What::GuestSwitch { vcpu, next, .. } => {
                self.loops_go_on(vcpu, now_ns, false);
                self.of(vcpu).0.counts.guest_switches += 1;
                self.loops.switch(vcpu, next);
                self.loops_go_on(vcpu, now_ns, true);
            }
            What::LockTaken { vcpu, waited_ns, .. } if waited_ns > 0 => {
                self.of(vcpu).0.lock_wait.add(waited_ns);
            }
            What::LockReleased { vcpu, held_ns, .. } => self.of(vcpu).0.lock_hold.add(held_ns),
            What::SpinStart { vcpu, why } => {
                self.loops_go_on(vcpu, now_ns, false);
                let from_ns = Some(self.of(vcpu).1.run_ns(now_ns));
                self.loops.begin(vcpu, why, Waiting { from_ns, ..Waiting::default() });
            }
            What::SpinEnd { vcpu, why, .. } => {
                self.loops_go_on(vcpu, now_ns, false);
                if let Some(over) = self.loops.end(vcpu, why) {
                    let (vm, _) = self.of(vcpu);
                    vm.spins[spin_index(why)].add(over.spun_ns);
                    vm.counts.chain_ends(over.exits);
                }
                self.loops_go_on(vcpu, now_ns, true);
            }
            What::ShootdownEnd { vcpu, targets, took_ns } => {
                let (vm, _) = self.of(vcpu);
                vm.shootdown.add(took_ns);
                vm.counts.shootdown_targets += u64::from(targets);
            }
            What::Progress { vcpu, kind, took_ns } => {
                self.of(vcpu).0.progress.entry(kind).or_default().add(took_ns)
            }
            What::TlbFlushed { vcpu } => self.of(vcpu).0.counts.tlb_flushes += 1,
            What::Kick { from, .. } => self.of(from).0.counts.kicks += 1,
            _ => {}
        }
    }

    pub fn ipis_taken(&self, vm: usize) -> BTreeMap<u8, u64> {
        self.vms[vm].counts.ipis_taken.clone()
    }

    /// CPU time that a VM has burnt by spinning so far.
    fn spin_ns(&self, now_ns: Ns, vm: usize) -> Ns {
        let over_ns: Ns = self.vms[vm].spins.iter().map(Waits::sum_ns).sum();
        let before_ns: Ns = self.loops.of_vm(vm).map(|open| open.spun_ns).sum();
        let executed = self.vcpus_of(vm).iter().zip(0..).filter_map(|(vcpu, id)| {
            let (_, last) = self.loops.on(VcpuId { vm: VmId(vm as u32), id }).next_back()?;
            Some(vcpu.run_ns(now_ns) - last.from_ns?)
        });
        over_ns + before_ns + executed.sum::<Ns>()
    }

    fn vcpus_of(&self, vm: usize) -> &[Vcpu] {
        let end = self.bases.get(vm + 1).copied().unwrap_or(self.vcpus.len());
        &self.vcpus[self.bases[vm]..end]
    }

    pub fn counts(&self, now_ns: Ns, vm: usize) -> GuestCounts {
        let counts = &self.vms[vm].counts;
        GuestCounts {
            spin_ns: self.spin_ns(now_ns, vm),
            ple: counts.ple,
            ple_kernel: counts.ple_kernel,
            ple_chains: counts.ple_chains,
            yields_asked: counts.yields_asked,
            yields_granted: counts.yields_granted,
            ipis_sent: counts.ipis_sent,
            halts: counts.halts,
            kicks: counts.kicks,
        }
    }

    pub fn totals(&self, now_ns: Ns, vm: usize) -> GuestTotals {
        let (vcpus, spin_ns) = (self.vcpus_of(vm), self.spin_ns(now_ns, vm));
        let vm = &self.vms[vm];
        let mut counts = vm.counts.clone();
        if !self.spins {
            // Chains that go on, as the probe counts them.
            vcpus.iter().for_each(|vcpu| counts.chain_ends(vcpu.chain));
        }
        counts.streaks_of(&vm.streaks, vcpus.iter().map(|vcpu| vcpu.streak));
        GuestTotals {
            counts,
            spin_ns,
            spins: SPINS
                .into_iter()
                .zip(vm.spins.iter().map(Waits::summary))
                .filter(|(_, s)| s.count > 0)
                .collect(),
            shootdown: vm.shootdown.summary(),
            ipi: vm.ipi.summary(),
            lock_wait: vm.lock_wait.summary(),
            lock_hold: vm.lock_hold.summary(),
            progress: vm.progress.iter().map(|(kind, waits)| (*kind, waits.summary())).collect(),
        }
    }
}

pub fn spin_index(why: Spin) -> usize {
    match why {
        Spin::Lock => 0,
        Spin::IpiAnswer => 1,
        Spin::Shootdown => 2,
        Spin::Barrier => 3,
        Spin::User => 4,
    }
}
