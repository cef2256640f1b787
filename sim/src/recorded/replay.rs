// SPDX-License-Identifier: GPL-2.0-only
//! What each VM did, without what the host made it wait for, as a program: the same work, woken by the same siblings, whoever schedules.
//!
//! A recording shows a guest from outside. So:
//!
//! - time on a pCPU is work, but for what KVM polled and what was spun;
//! - a halt ends when a sibling's interrupt comes, and then depends on that sibling, or by itself after as long as it took;
//! - an interrupt for a sibling that could run is a call if those that find the sibling without a pCPU are followed by pause-loop exits: its sender
//!   waits for the answer;
//! - other pause-loop exits are a lock or a barrier. How long somebody can go on while a sibling is away, until it spins, says how often they meet;
//!   how often it comes to that says for how much of that time the sibling holds what the other wants.

use std::collections::BTreeMap;

use cohort_recording::{Kind, Recording};
use serde::Serialize;

use crate::ids::VcpuId;
use crate::time::{Ns, MS, US};
use crate::workload::Program;

use super::build;
use super::Who;

/// After so much run time without a pause-loop exit it is another spin; as in the probe.
const CHAIN_GAP_NS: Ns = MS;
/// Interrupts of one vector that come within this time from one vCPU are one call of several siblings.
const BURST_NS: Ns = 100 * US;
/// Before two exits of one spin have been seen: how long it takes until the first.
const WINDOW_NS: Ns = 50 * US;

/// A part of what a vCPU did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Work(Ns),
    Sleep(Ns),
    /// Until that sibling wakes it; by its number.
    Wait(u32),
    Wake(u32),
    /// Its running siblings answer.
    Call,
}

/// What was seen of a VM, for people and for `cohortlab import`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Seen {
    pub run_ns: Ns,
    pub work_ns: Ns,
    pub spun_ns: Ns,
    pub polled_ns: Ns,
    pub sleeps: u64,
    pub wakes_by_siblings: u64,
    pub calls: u64,
    /// Times that a sibling was away while another ran; how often that one then spun in the kernel, in user mode; after how much run time.
    pub absences: u64,
    pub spins_kernel: u64,
    pub spins_user: u64,
    pub until_spin_kernel_ns: Ns,
    pub until_spin_user_ns: Ns,
}

/// A VM's program, once and for ever.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    pub vm: String,
    pub seen: Seen,
    pub program: Program,
    pub load: Program,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Sleeps,
    Waits,
    Runs(Ns),
}

/// A spin that pause-loop exits tell of, in run time.
#[derive(Clone, Copy, Debug)]
struct Chain {
    start_ns: Ns,
    last_ns: Ns,
    gap_ns: Ns,
}

/// A call whose answers are awaited.
#[derive(Clone, Debug)]
struct Call {
    since_ns: Ns,
    ran_ns: Ns,
    vector: u8,
    /// Siblings without a pCPU.
    missing: Vec<u32>,
    spun: bool,
}

#[derive(Clone, Debug, Default)]
struct Vcpu {
    doing: Doing,
    ran_ns: Ns,
    /// Of that, what was no work; and work that is in an item.
    removed_ns: Ns,
    told_ns: Ns,
    asleep_since_ns: Ns,
    halted: bool,
    woken_by: Option<u32>,
    chain: Option<Chain>,
    call: Option<Call>,
    last_call: Option<(u8, Ns)>,
    /// It runs while a sibling is away: since which run time.
    alone_since_ns: Option<Ns>,
    items: Vec<Item>,
}

impl Vcpu {
    fn ran_ns(&self, now_ns: Ns) -> Ns {
        match self.doing {
            Doing::Runs(since_ns) => self.ran_ns + now_ns.saturating_sub(since_ns),
            _ => self.ran_ns,
        }
    }

    /// That much of the run time until now was no work; not more than what no item has told.
    fn remove(&mut self, ns: Ns, now_ns: Ns) -> Ns {
        let most = self.ran_ns(now_ns).saturating_sub(self.removed_ns + self.told_ns);
        let ns = ns.min(most);
        self.removed_ns += ns;
        ns
    }

    fn put(&mut self, now_ns: Ns, item: Item) {
        let work_ns = self.ran_ns(now_ns).saturating_sub(self.removed_ns + self.told_ns);
        if work_ns > 0 {
            self.told_ns += work_ns;
            if let Some(Item::Work(before_ns)) = self.items.last_mut() {
                *before_ns += work_ns;
            } else {
                self.items.push(Item::Work(work_ns));
            }
        }
        if item != Item::Work(0) {
            self.items.push(item);
        }
    }
}

/// How often an interrupt for a sibling that was away made its sender spin: by VM and vector.
type Spinning = BTreeMap<(u32, u8), (u64, u64)>;

struct Walk<'a> {
    who: &'a Who,
    vcpus: Vec<Vcpu>,
    /// By VM: its first vCPU and how many there are.
    ranges: Vec<(usize, usize)>,
    seen: Vec<Seen>,
    spinning: Spinning,
    /// What a walk before this one found.
    known: Option<Spinning>,
}

/// The replay of each VM between two times since the recording's begin.
pub fn replays(recording: &Recording, who: &Who, from_ns: Ns, to_ns: Ns) -> Vec<Replay> {
    let first = walk(recording, who, from_ns, to_ns, None);
    let second = walk(recording, who, from_ns, to_ns, Some(first.spinning));
    let vms = second.ranges.iter().zip(&second.seen).enumerate();
    vms.map(|(vm, ((base, count), seen))| {
        let items: Vec<&[Item]> =
            second.vcpus[*base..base + count].iter().map(|vcpu| vcpu.items.as_slice()).collect();
        let name = &who.layout.vms[vm].name;
        Replay {
            vm: name.clone(),
            seen: seen.clone(),
            program: build::program(name, &items, seen, to_ns - from_ns, false),
            load: build::program(name, &items, seen, to_ns - from_ns, true),
        }
    })
    .collect()
}

fn walk<'a>(
    recording: &Recording,
    who: &'a Who,
    from_ns: Ns,
    to_ns: Ns,
    known: Option<Spinning>,
) -> Walk<'a> {
    let mut ranges = Vec::new();
    let mut base = 0;
    for vm in &who.layout.vms {
        ranges.push((base, vm.vcpus as usize));
        base += vm.vcpus as usize;
    }
    let mut walk = Walk {
        who,
        vcpus: vec![Vcpu::default(); who.vcpus()],
        seen: vec![Seen::default(); ranges.len()],
        ranges,
        spinning: Spinning::new(),
        known,
    };
    let mut begun = false;
    for event in &recording.events {
        let now_ns = who.since_start_ns(event.time_ns);
        if now_ns >= to_ns {
            break;
        }
        if !begun && now_ns >= from_ns {
            begun = true;
            walk.begin(from_ns);
        }
        let Some(vcpu) = who.vcpu(event.vcpu, event.time_ns) else { continue };
        let sibling = || {
            let other = who.vcpu(event.b, event.time_ns)?;
            (other.vm == vcpu.vm && other != vcpu).then_some(other)
        };
        match event.kind {
            Kind::Run => walk.runs(now_ns, vcpu),
            Kind::Preempted => walk.stops(now_ns, vcpu, Doing::Waits),
            Kind::Woken => walk.wakes(now_ns, vcpu),
            Kind::Halted => walk.sleeps(now_ns, vcpu, Some(Ns::from(event.b) * US)),
            Kind::Blocked | Kind::Gone => walk.sleeps(now_ns, vcpu, None),
            Kind::Ple => walk.spins(now_ns, vcpu, event.a != 0),
            Kind::Ipi => {
                if let Some(to) = sibling() {
                    walk.interrupts(now_ns, vcpu, to, event.a);
                }
            }
            _ => {}
        }
    }
    if !begun {
        walk.begin(from_ns);
    }
    walk.finish(to_ns);
    walk
}

impl Walk<'_> {
    fn at(&self, vcpu: VcpuId) -> usize {
        self.who.task(vcpu).index()
    }

    /// What was before is only of interest for where everybody is.
    fn begin(&mut self, now_ns: Ns) {
        for vcpu in &mut self.vcpus {
            let doing = if let Doing::Runs(_) = vcpu.doing { Doing::Runs(now_ns) } else { vcpu.doing };
            let (halted, asleep_since_ns) = (vcpu.halted, now_ns);
            *vcpu = Vcpu { doing, halted, asleep_since_ns, ..Vcpu::default() };
        }
        self.seen = vec![Seen::default(); self.seen.len()];
        self.spinning.clear();
    }

    fn finish(&mut self, now_ns: Ns) {
        for at in 0..self.vcpus.len() {
            self.end_chain(now_ns, at);
            if let Doing::Runs(since_ns) = self.vcpus[at].doing {
                self.vcpus[at].ran_ns += now_ns.saturating_sub(since_ns);
                self.vcpus[at].doing = Doing::Waits;
            }
            self.vcpus[at].put(now_ns, Item::Work(0));
        }
        for (vm, (base, count)) in self.ranges.iter().enumerate() {
            for vcpu in &self.vcpus[*base..base + count] {
                self.seen[vm].run_ns += vcpu.ran_ns;
                self.seen[vm].work_ns += vcpu.told_ns;
            }
        }
    }

    fn vm_of(&self, at: usize) -> usize {
        self.ranges.partition_point(|(base, count)| base + count <= at)
    }

    /// A spin is over, for what can be seen of it.
    fn end_chain(&mut self, now_ns: Ns, at: usize) {
        let vm = self.vm_of(at);
        let vcpu = &mut self.vcpus[at];
        let Some(chain) = vcpu.chain.take() else { return };
        // It ended somewhere between the last exit and the one that did not come.
        let end_ns = (chain.last_ns + chain.gap_ns / 2).min(vcpu.ran_ns(now_ns));
        self.seen[vm].spun_ns += vcpu.remove(end_ns.saturating_sub(chain.start_ns), now_ns);
    }

    fn runs(&mut self, now_ns: Ns, id: VcpuId) {
        let (at, vm) = (self.at(id), id.vm.index());
        if self.vcpus[at].doing == Doing::Sleeps {
            self.wakes(now_ns, id);
        }
        if !matches!(self.vcpus[at].doing, Doing::Runs(_)) {
            self.vcpus[at].doing = Doing::Runs(now_ns);
        }
        let (base, count) = self.ranges[vm];
        let away = (base..base + count).filter(|other| self.vcpus[*other].doing == Doing::Waits).count();
        for other in base..base + count {
            if other == at {
                let ran_ns = self.vcpus[at].ran_ns(now_ns);
                self.vcpus[at].alone_since_ns = (away > 0).then_some(ran_ns);
                self.seen[vm].absences += u64::from(away > 0);
                continue;
            }
            if away == 0 {
                self.vcpus[other].alone_since_ns = None;
            }
            self.answers(now_ns, other, id.id);
        }
    }

    /// A sibling whose answer a vCPU may wait for has a pCPU.
    fn answers(&mut self, now_ns: Ns, at: usize, sibling: u32) {
        let vm = self.vm_of(at);
        let vcpu = &mut self.vcpus[at];
        let Some(call) = &mut vcpu.call else { return };
        call.missing.retain(|missing| *missing != sibling);
        if !call.missing.is_empty() {
            return;
        }
        let (spun, since_ns, vector) = (call.spun, call.ran_ns, call.vector);
        vcpu.call = None;
        let entry = self.spinning.entry((vm as u32, vector)).or_default();
        entry.0 += 1;
        entry.1 += u64::from(spun);
        if spun {
            vcpu.chain = None;
            let waited_ns = vcpu.ran_ns(now_ns).saturating_sub(since_ns);
            self.seen[vm].spun_ns += vcpu.remove(waited_ns, now_ns);
        }
    }

    /// It leaves its pCPU, or is on none.
    fn stops(&mut self, now_ns: Ns, id: VcpuId, doing: Doing) {
        let (at, vm) = (self.at(id), id.vm.index());
        let vcpu = &mut self.vcpus[at];
        vcpu.ran_ns = vcpu.ran_ns(now_ns);
        let ran = matches!(vcpu.doing, Doing::Runs(_));
        vcpu.doing = doing;
        if !ran || doing != Doing::Waits {
            return;
        }
        // Those that run go on without it.
        let (base, count) = self.ranges[vm];
        for other in base..base + count {
            let ran_ns = self.vcpus[other].ran_ns(now_ns);
            let vcpu = &mut self.vcpus[other];
            let spins = vcpu.chain.is_some_and(|chain| ran_ns.saturating_sub(chain.last_ns) <= CHAIN_GAP_NS);
            if other != at && matches!(vcpu.doing, Doing::Runs(_)) && !spins {
                self.seen[vm].absences += 1;
                vcpu.alone_since_ns = Some(ran_ns);
            }
        }
    }

    fn sleeps(&mut self, now_ns: Ns, id: VcpuId, polled_ns: Option<Ns>) {
        let (at, vm) = (self.at(id), id.vm.index());
        if self.vcpus[at].doing == Doing::Sleeps {
            return;
        }
        self.end_chain(now_ns, at);
        let vcpu = &mut self.vcpus[at];
        if let Some(polled_ns) = polled_ns {
            self.seen[vm].polled_ns += vcpu.remove(polled_ns, now_ns);
        }
        vcpu.put(now_ns, Item::Work(0));
        vcpu.call = None;
        (vcpu.halted, vcpu.asleep_since_ns, vcpu.woken_by) = (polled_ns.is_some(), now_ns, None);
        self.stops(now_ns, id, Doing::Sleeps);
    }

    fn wakes(&mut self, now_ns: Ns, id: VcpuId) {
        let (at, vm) = (self.at(id), id.vm.index());
        if self.vcpus[at].doing != Doing::Sleeps {
            return;
        }
        self.vcpus[at].doing = Doing::Waits;
        match self.vcpus[at].woken_by.take().filter(|_| self.vcpus[at].halted) {
            Some(sibling) => {
                self.seen[vm].wakes_by_siblings += 1;
                let waker = self.ranges[vm].0 + sibling as usize;
                self.vcpus[waker].put(now_ns, Item::Wake(id.id));
                self.vcpus[at].put(now_ns, Item::Wait(sibling));
            }
            None => {
                let slept_ns = now_ns.saturating_sub(self.vcpus[at].asleep_since_ns);
                // What it did before it was first seen is not known.
                if slept_ns > 0 {
                    self.seen[vm].sleeps += 1;
                    self.vcpus[at].put(now_ns, Item::Sleep(slept_ns));
                }
            }
        }
    }

    fn spins(&mut self, now_ns: Ns, id: VcpuId, kernel: bool) {
        let (at, vm) = (self.at(id), id.vm.index());
        let ran_ns = self.vcpus[at].ran_ns(now_ns);
        if let Some(call) = &mut self.vcpus[at].call {
            call.spun = true;
            return;
        }
        if let Some(chain) = &mut self.vcpus[at].chain {
            let gap_ns = ran_ns.saturating_sub(chain.last_ns);
            if gap_ns <= CHAIN_GAP_NS {
                (chain.last_ns, chain.gap_ns) = (ran_ns, gap_ns);
                return;
            }
        }
        self.end_chain(now_ns, at);
        let vcpu = &mut self.vcpus[at];
        let start_ns = ran_ns.saturating_sub(WINDOW_NS);
        vcpu.chain = Some(Chain { start_ns, last_ns: ran_ns, gap_ns: 0 });
        if let Some(since_ns) = vcpu.alone_since_ns.take() {
            let until_ns = start_ns.saturating_sub(since_ns);
            let seen = &mut self.seen[vm];
            if kernel {
                seen.spins_kernel += 1;
                seen.until_spin_kernel_ns += until_ns;
            } else {
                seen.spins_user += 1;
                seen.until_spin_user_ns += until_ns;
            }
        }
    }

    fn interrupts(&mut self, now_ns: Ns, from: VcpuId, to: VcpuId, vector: u8) {
        let (at, target, vm) = (self.at(from), self.at(to), from.vm.index());
        if self.vcpus[target].doing == Doing::Sleeps {
            self.vcpus[target].woken_by.get_or_insert(from.id);
            return;
        }
        let away = self.vcpus[target].doing == Doing::Waits;
        let same =
            |(before, since_ns): (u8, Ns)| before == vector && now_ns.saturating_sub(since_ns) < BURST_NS;
        let again = self.vcpus[at].last_call.is_some_and(same);
        self.vcpus[at].last_call = Some((vector, now_ns));
        if !again {
            self.end_chain(now_ns, at);
            if self.is_call(vm, vector) {
                self.seen[vm].calls += 1;
                self.vcpus[at].put(now_ns, Item::Call);
            }
            self.vcpus[at].call = None;
        }
        if !away {
            return;
        }
        let ran_ns = self.vcpus[at].ran_ns(now_ns);
        let fresh = Call { since_ns: now_ns, ran_ns, vector, missing: Vec::new(), spun: false };
        let call = self.vcpus[at].call.get_or_insert(fresh);
        if now_ns.saturating_sub(call.since_ns) < BURST_NS && !call.missing.contains(&to.id) {
            call.missing.push(to.id);
        }
    }

    /// Do interrupts of this vector make their senders wait? Nothing is known in the first walk, which finds out.
    fn is_call(&self, vm: usize, vector: u8) -> bool {
        let Some(known) = &self.known else { return false };
        known.get(&(vm as u32, vector)).is_some_and(|(away, spun)| 2 * spun > *away)
    }
}
