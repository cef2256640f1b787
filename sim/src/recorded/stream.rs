// SPDX-License-Identifier: GPL-2.0-only
//! A recording as the stream of events that observers read.

use std::collections::{BTreeMap, BTreeSet};

use cohort_recording::{Kind, Recording};

use crate::ids::{CpuId, TaskId, VcpuId};
use crate::observe::{Stop, What};
use crate::time::{Ns, US};

use super::who::pcpu_of;
use super::Who;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Sleeps,
    Waits(u32),
    Runs(u32),
}

struct Player<'a> {
    who: &'a Who,
    tell: &'a mut dyn FnMut(Ns, &What),
    doing: Vec<Doing>,
    /// Where a vCPU ran or waited last.
    last: Vec<Option<u32>>,
    running: Vec<Option<VcpuId>>,
    /// Interrupts on their way to a vCPU without a pCPU, by vector.
    pending: Vec<Vec<u8>>,
}

/// Tell all that is in the recording, in order. Return how many events were nobody's.
pub fn play(recording: &Recording, who: &Who, tell: &mut dyn FnMut(Ns, &What)) -> u64 {
    let (kernel, yields) = (preempted_in_kernel(recording), yields_by_leaving(recording));
    // Their own place says when the kernel has returned from them.
    let moved: BTreeSet<usize> = yields.values().copied().collect();
    let mut player = Player {
        who,
        tell,
        doing: vec![Doing::Sleeps; who.vcpus()],
        last: vec![None; who.vcpus()],
        running: vec![None; who.layout.pcpus as usize],
        pending: vec![Vec::new(); who.vcpus()],
    };
    let mut unknown = 0;
    for (at, event) in recording.events.iter().enumerate() {
        let now_ns = who.since_start_ns(event.time_ns);
        let Some(vcpu) = who.vcpu(event.vcpu, event.time_ns) else {
            unknown += 1;
            continue;
        };
        let cpu = u32::from(event.cpu);
        if pcpu_of(event).is_some_and(|cpu| cpu >= who.layout.pcpus) {
            unknown += 1;
            continue;
        }
        let sibling = || who.vcpu(event.b, event.time_ns).filter(|other| other.vm == vcpu.vm);
        match event.kind {
            Kind::Run => player.runs(now_ns, vcpu, cpu),
            Kind::Preempted => {
                if let Some(given) = yields.get(&at).map(|given| recording.events[*given]) {
                    let to = who.vcpu(given.b, given.time_ns).filter(|other| other.vm == vcpu.vm);
                    player.yields(now_ns, vcpu, to, true);
                }
                let kernel = kernel[at];
                (player.tell)(now_ns, &What::Mode { vcpu, kernel });
                player.stops(now_ns, vcpu, Stop::Preempted);
            }
            Kind::Woken | Kind::Moved => player.waits(now_ns, vcpu, cpu),
            Kind::Halted => {
                player.stops(now_ns, vcpu, Stop::Blocked);
                let polled_ns = Ns::from(event.b) * US;
                (player.tell)(now_ns, &What::Halt { vcpu, polled_ns });
            }
            Kind::Blocked => player.stops(now_ns, vcpu, Stop::Blocked),
            Kind::Gone => player.stops(now_ns, vcpu, Stop::Exited),
            Kind::Ple => (player.tell)(now_ns, &What::Ple { vcpu, kernel: event.a != 0 }),
            Kind::Yield if moved.contains(&at) => {}
            Kind::Yield => player.yields(now_ns, vcpu, sibling(), event.a != 0),
            Kind::Ipi => {
                if let Some(to) = sibling() {
                    player.interrupts(now_ns, vcpu, to, event.a);
                }
            }
            Kind::TlbDeferred | Kind::TlbHypercall | Kind::Hypercall | Kind::Joined => {}
        }
    }
    unknown
}

/// For each event that is a preemption: was it in the guest's kernel? KVM says it when the vCPU runs again.
fn preempted_in_kernel(recording: &Recording) -> Vec<bool> {
    let mut next = vec![false; 1 + usize::from(u16::MAX)];
    let mut kernel = vec![false; recording.events.len()];
    for (at, event) in recording.events.iter().enumerate().rev() {
        let slot = usize::from(event.vcpu);
        match event.kind {
            Kind::Run => next[slot] = event.a != 0,
            Kind::Preempted => kernel[at] = std::mem::take(&mut next[slot]),
            _ => {}
        }
    }
    kernel
}

/// By the event with which a vCPU leaves its pCPU: the directed yield for which it does.
///
/// The kernel's yield_to() leaves the pCPU itself and returns when it has one again; only then does the probe know that it was granted, and tells it.
/// The simulator tells it before.
fn yields_by_leaving(recording: &Recording) -> BTreeMap<usize, usize> {
    #[derive(Clone, Copy, Default)]
    struct Exit {
        /// It is where it may come to a yield, and has left its pCPU since.
        asks: bool,
        left: Option<usize>,
    }
    let mut exits: BTreeMap<u16, Exit> = BTreeMap::new();
    let mut yields = BTreeMap::new();
    for (at, event) in recording.events.iter().enumerate() {
        let exit = exits.entry(event.vcpu).or_default();
        match event.kind {
            Kind::Ple | Kind::Hypercall => *exit = Exit { asks: true, left: None },
            Kind::Preempted if exit.asks => exit.left = Some(at),
            Kind::Yield if event.a == 0 => exit.left = None,
            Kind::Yield => {
                yields.extend(exit.left.map(|left| (left, at)));
                *exit = Exit::default();
            }
            Kind::Run | Kind::Moved | Kind::Woken | Kind::Preempted => {}
            _ => *exit = Exit::default(),
        }
    }
    yields
}

impl Player<'_> {
    fn at(&self, vcpu: VcpuId) -> usize {
        self.who.task(vcpu).index()
    }

    fn task(&self, vcpu: VcpuId) -> TaskId {
        self.who.task(vcpu)
    }

    fn leave(&mut self, now_ns: Ns, vcpu: VcpuId, cpu: u32, why: Stop) {
        let prev = Some(self.task(vcpu));
        self.running[cpu as usize] = None;
        let at = self.at(vcpu);
        self.doing[at] = if why == Stop::Preempted { Doing::Waits(cpu) } else { Doing::Sleeps };
        (self.tell)(now_ns, &What::Switch { cpu: CpuId(cpu), prev, why, next: None });
    }

    fn runs(&mut self, now_ns: Ns, vcpu: VcpuId, cpu: u32) {
        // Whoever it is that was not seen to leave this pCPU, or another one.
        if let Some(other) = self.running[cpu as usize] {
            if other == vcpu {
                return;
            }
            self.leave(now_ns, other, cpu, Stop::Preempted);
        }
        if let Doing::Runs(before) = self.doing[self.at(vcpu)] {
            self.leave(now_ns, vcpu, before, Stop::Preempted);
        }
        let (at, next) = (self.at(vcpu), Some(self.task(vcpu)));
        self.comes_to(now_ns, vcpu, cpu);
        self.doing[at] = Doing::Runs(cpu);
        self.running[cpu as usize] = Some(vcpu);
        let switch = What::Switch { cpu: CpuId(cpu), prev: None, why: Stop::Preempted, next };
        (self.tell)(now_ns, &switch);
        for vector in std::mem::take(&mut self.pending[at]) {
            (self.tell)(now_ns, &What::GuestIpiTaken { vcpu, vector });
        }
    }

    fn stops(&mut self, now_ns: Ns, vcpu: VcpuId, why: Stop) {
        match self.doing[self.at(vcpu)] {
            Doing::Runs(cpu) => self.leave(now_ns, vcpu, cpu, why),
            Doing::Waits(_) if why == Stop::Preempted => {}
            Doing::Waits(cpu) => {
                // It was not seen to run, since events are lost. It waits no longer, whoever is on that pCPU, and that one goes on.
                let other = self.running[cpu as usize];
                self.runs(now_ns, vcpu, cpu);
                self.leave(now_ns, vcpu, cpu, why);
                if let Some(other) = other {
                    self.runs(now_ns, other, cpu);
                }
            }
            Doing::Sleeps => {}
        }
    }

    /// Tell that it was moved, if it was, also in its sleep: the kernel does that when it wakes a thread up.
    fn comes_to(&mut self, now_ns: Ns, vcpu: VcpuId, cpu: u32) {
        let (at, task) = (self.at(vcpu), self.task(vcpu));
        if let Some(from) = self.last[at].replace(cpu).filter(|from| *from != cpu) {
            (self.tell)(now_ns, &What::Migrate { task, from: CpuId(from), to: CpuId(cpu) });
        }
    }

    fn waits(&mut self, now_ns: Ns, vcpu: VcpuId, cpu: u32) {
        let (at, task) = (self.at(vcpu), self.task(vcpu));
        match self.doing[at] {
            Doing::Sleeps => {
                self.comes_to(now_ns, vcpu, cpu);
                self.doing[at] = Doing::Waits(cpu);
                (self.tell)(now_ns, &What::Wakeup { task, cpu: CpuId(cpu) });
            }
            Doing::Waits(_) => {
                self.comes_to(now_ns, vcpu, cpu);
                self.doing[at] = Doing::Waits(cpu);
            }
            Doing::Runs(before) => {
                self.leave(now_ns, vcpu, before, Stop::Preempted);
                self.waits(now_ns, vcpu, cpu);
            }
        }
    }

    fn yields(&mut self, now_ns: Ns, from: VcpuId, to: Option<VcpuId>, granted: bool) {
        if let Some(to) = to {
            (self.tell)(now_ns, &What::DirectedYield { from, to, granted });
        }
    }

    fn interrupts(&mut self, now_ns: Ns, from: VcpuId, to: VcpuId, vector: u8) {
        (self.tell)(now_ns, &What::GuestIpiSent { from, to, vector });
        let at = self.at(to);
        if matches!(self.doing[at], Doing::Runs(_)) {
            (self.tell)(now_ns, &What::GuestIpiTaken { vcpu: to, vector });
        } else if !self.pending[at].contains(&vector) {
            self.pending[at].push(vector);
        }
    }
}
