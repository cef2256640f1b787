// SPDX-License-Identifier: GPL-2.0-only
//! A trace for ui.perfetto.dev and trace_processor: TrackEvent protobuf. (Chrome's JSON would sort events of one instant wrongly, lose slices
//! without length, and be ten times as large.)
//!
//! Each pCPU has a track: who runs. Each vCPU has two: what the host does with it (running, waiting), and what happens in the guest (spins, TLB
//! shootdowns, pause-loop exits), because a spin goes on across preemptions and slices of one track must nest. A spin goes with the guest's task that
//! executes it, so on each vCPU that runs that one it is a slice. Flows lead from a pause-loop exit
//! by way of its directed yield to the turn that this got its target, and from an interrupt's sending to its taking.

use crate::ids::{TaskId, VcpuId};
use crate::metrics::guest::{spin_index, SPINS};
use crate::metrics::loops::Loops;
use crate::metrics::Layout;
use crate::observe::{Observer, Stop, What};
use crate::time::Ns;

mod costop;
mod fields;
mod tasks;
mod writer;

use self::costop::{CoStop, Does};
use self::fields::event;
use self::writer::{About, Writer};

const HOST: u64 = 1;
const PCPU: u64 = 1 << 32;
const VM: u64 = 2 << 32;
const VCPU: u64 = 3 << 32;
const GUEST: u64 = 4 << 32;
const COSTOP: u64 = 5 << 32;
const TASKS: u64 = 6 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    Spin(usize),
    Shootdown,
}

#[derive(Clone, Debug, Default)]
struct Vcpu {
    /// The slice "running" or "waiting" is open.
    scheduled: bool,
    guest: Vec<Slice>,
    /// A slice of a guest's task is open.
    task: bool,
    /// The flow of its last pause-loop exit, as long as it has neither yielded, nor left its pCPU, nor gone on in its guest.
    ple: Option<u64>,
    /// Flows of directed yields to it, until it runs; of interrupts to it by vector, until they are taken.
    yields: Vec<u64>,
    interrupts: Vec<(u8, u64)>,
}

pub struct Perfetto {
    layout: Layout,
    bases: Vec<usize>,
    writer: Writer,
    bytes_max: usize,
    truncated: bool,
    /// When the last event was that is in the trace.
    last_ns: Ns,
    pcpus: Vec<bool>,
    vcpus: Vec<Vcpu>,
    loops: Loops<()>,
    flows: u64,
    costop: Option<CoStop>,
}

impl Perfetto {
    /// Nothing is added any more when the trace is as long as this.
    pub fn new(layout: Layout, bytes_max: usize) -> Self {
        let (bases, vcpus) = layout.vcpu_bases();
        let mut trace = Self {
            bases,
            writer: Writer::new(),
            bytes_max,
            truncated: false,
            last_ns: 0,
            pcpus: vec![false; layout.pcpus as usize],
            vcpus: vec![Vcpu::default(); vcpus],
            loops: Loops::new(&layout),
            flows: 0,
            costop: None,
            layout,
        };
        trace.describe();
        let waiting: Vec<VcpuId> = trace
            .layout
            .tasks
            .iter()
            .filter(|task| task.waits_on.is_some())
            .filter_map(|task| task.vcpu)
            .collect();
        for vcpu in waiting {
            trace.schedule(0, vcpu, Some("waiting"), None);
        }
        trace
    }

    /// With a third track for each vCPU: when it waits while a sibling runs.
    pub fn with_costop(mut self) -> Self {
        for vm in 0..self.layout.vms.len() {
            for id in 0..u64::from(self.layout.vms[vm].vcpus) {
                let at = self.bases[vm] as u64 + id;
                // Ranks of the other two are even and odd numbers of that size: behind them all.
                let rank = (1 << 20) + id;
                self.writer.track(COSTOP + at, VM + vm as u64, &format!("vCPU {id}, co-stop"), rank);
            }
        }
        self.costop = Some(CoStop::new(self.layout.vms.len(), self.vcpus.len()));
        self
    }

    /// What the vCPU does from now on decides who of its VM is in co-stop.
    fn changed(&mut self, now_ns: Ns, vcpu: VcpuId, does: Does) {
        let (vm, at) = (vcpu.vm.index(), self.at(vcpu));
        let Some(costop) = &mut self.costop else { return };
        costop.change(vm, at, does);
        let base = self.bases[vm];
        for at in base..base + self.layout.vms[vm].vcpus as usize {
            let Some(begins) = costop.look(vm, at) else { continue };
            let about =
                About { category: "sched", name: if begins { "co-stop" } else { "" }, ..About::default() };
            self.writer.put(
                now_ns,
                if begins { event::BEGIN } else { event::END },
                COSTOP + at as u64,
                about,
            );
        }
    }

    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Nothing more may be added.
    fn is_full(&mut self) -> bool {
        self.truncated |= self.writer.len() >= self.bytes_max;
        self.truncated
    }

    /// The run is over: close what is open, and hand out the trace. One that is cut off ends with what it has.
    pub fn finish(&mut self, end_ns: Ns) -> Vec<u8> {
        let now_ns = if self.truncated { self.last_ns } else { end_ns };
        for cpu in 0..self.pcpus.len() {
            self.end_run(now_ns, cpu);
        }
        for at in 0..self.vcpus.len() {
            if std::mem::take(&mut self.vcpus[at].scheduled) {
                self.writer.put(now_ns, event::END, VCPU + at as u64, About::default());
            }
            while self.vcpus[at].guest.pop().is_some() {
                self.writer.put(now_ns, event::END, GUEST + at as u64, About::default());
            }
            self.end_task(now_ns, at);
            if self.costop.as_mut().is_some_and(|costop| costop.close(at)) {
                self.writer.put(now_ns, event::END, COSTOP + at as u64, About::default());
            }
        }
        self.writer.take()
    }

    fn at(&self, vcpu: VcpuId) -> usize {
        self.bases[vcpu.vm.index()] + vcpu.id as usize
    }

    /// The tracks: the host with its pCPUs, each VM with its vCPUs.
    fn describe(&mut self) {
        self.writer.process(HOST, 1, "host");
        for cpu in 0..u64::from(self.layout.pcpus) {
            self.writer.track(PCPU + cpu, HOST, &format!("pCPU {cpu}"), cpu);
        }
        for vm in 0..self.layout.vms.len() {
            let (name, count) = (self.layout.vms[vm].name.clone(), u64::from(self.layout.vms[vm].vcpus));
            let uuid = VM + vm as u64;
            self.writer.process(uuid, 1_000_000 + vm as u64, &name);
            for id in 0..count {
                let at = self.bases[vm] as u64 + id;
                self.writer.track(VCPU + at, uuid, &format!("vCPU {id}"), 2 * id);
                self.writer.track(GUEST + at, uuid, &format!("vCPU {id}, guest"), 2 * id + 1);
            }
        }
    }

    fn new_flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    fn end_run(&mut self, now_ns: Ns, cpu: usize) {
        if std::mem::take(&mut self.pcpus[cpu]) {
            self.writer.put(now_ns, event::END, PCPU + cpu as u64, About::default());
        }
    }

    /// The vCPU's thread begins to run, to wait or, with `None`, to sleep.
    fn schedule(&mut self, now_ns: Ns, vcpu: VcpuId, name: Option<&str>, cpu: Option<u32>) {
        let at = self.at(vcpu);
        let track = VCPU + at as u64;
        self.vcpus[at].ple = None;
        if std::mem::replace(&mut self.vcpus[at].scheduled, name.is_some()) {
            self.writer.put(now_ns, event::END, track, About::default());
        }
        if let Some(name) = name {
            let flows_end =
                if cpu.is_some() { std::mem::take(&mut self.vcpus[at].yields) } else { Vec::new() };
            let value = cpu.map(|cpu| ("pCPU", u64::from(cpu)));
            self.writer.put(
                now_ns,
                event::BEGIN,
                track,
                About { category: "sched", name, value, flow: None, flows_end: &flows_end },
            );
        }
        let does = match (name, cpu) {
            (None, _) => Does::Sleep,
            (Some(_), None) => Does::Wait,
            (Some(_), Some(_)) => Does::Run,
        };
        self.changed(now_ns, vcpu, does);
    }

    fn begin(&mut self, now_ns: Ns, vcpu: VcpuId, slice: Slice, value: Option<(&str, u64)>) {
        let at = self.at(vcpu);
        self.vcpus[at].guest.push(slice);
        let spin;
        let name = match slice {
            Slice::Spin(why) => {
                spin = format!("spin: {}", SPINS[why]);
                spin.as_str()
            }
            Slice::Shootdown => "TLB shootdown",
        };
        let about = About { category: "guest", name, value, ..About::default() };
        self.writer.put(now_ns, event::BEGIN, GUEST + at as u64, about);
    }

    /// End a slice, and those within it that nobody has ended: slices nest.
    fn end(&mut self, now_ns: Ns, vcpu: VcpuId, slice: Slice) {
        let at = self.at(vcpu);
        let Some(depth) = self.vcpus[at].guest.iter().rposition(|open| *open == slice) else { return };
        for _ in self.vcpus[at].guest.drain(depth..).collect::<Vec<_>>() {
            self.writer.put(now_ns, event::END, GUEST + at as u64, About::default());
        }
    }

    fn instant(&mut self, now_ns: Ns, vcpu: VcpuId, about: About<'_>) {
        let track = GUEST + self.at(vcpu) as u64;
        self.writer.put(now_ns, event::INSTANT, track, about);
    }

    fn switch(&mut self, now_ns: Ns, cpu: u32, prev: Option<(TaskId, Stop)>, next: Option<TaskId>) {
        self.end_run(now_ns, cpu as usize);
        if let Some((task, why)) = prev {
            if let Some(vcpu) = self.layout.vcpu_of(task) {
                let name = (why == Stop::Preempted).then_some("waiting");
                self.schedule(now_ns, vcpu, name, None);
            }
        }
        if let Some(task) = next {
            let name = self.layout.name_of(task).to_string();
            self.pcpus[cpu as usize] = true;
            let about = About { category: "sched", name: &name, ..About::default() };
            self.writer.put(now_ns, event::BEGIN, PCPU + u64::from(cpu), about);
            if let Some(vcpu) = self.layout.vcpu_of(task) {
                self.schedule(now_ns, vcpu, Some("running"), Some(cpu));
            }
        }
    }
}

impl Observer for Perfetto {
    fn record(&mut self, now_ns: Ns, what: &What) {
        if self.is_full() {
            return;
        }
        self.last_ns = now_ns;
        match *what {
            What::Switch { cpu, prev, why, next } => {
                self.switch(now_ns, cpu.0, prev.map(|prev| (prev, why)), next)
            }
            What::Wakeup { task, .. } => {
                if let Some(vcpu) =
                    self.layout.vcpu_of(task).filter(|vcpu| !self.vcpus[self.at(*vcpu)].scheduled)
                {
                    self.schedule(now_ns, vcpu, Some("waiting"), None);
                }
            }
            What::Ple { vcpu, kernel } => {
                let (flow, at) = (self.new_flow(), self.at(vcpu));
                let value = Some(("kernel", kernel.into()));
                let about =
                    About { category: "kvm", name: "PAUSE exit", value, flow: Some(flow), flows_end: &[] };
                self.instant(now_ns, vcpu, about);
                self.vcpus[at].ple = Some(flow);
            }
            What::DirectedYield { from, to, granted } => {
                // KVM looks for somebody else if this one cannot be had. A guest may ask for a yield by a hypercall, too.
                let of = self.at(from);
                let flow = granted.then(|| self.vcpus[of].ple.take().unwrap_or_else(|| self.new_flow()));
                let (name, at) = (if granted { "yield" } else { "yield refused" }, self.at(to));
                let value = Some(("to", to.id.into()));
                self.instant(now_ns, from, About { category: "kvm", name, value, flow, flows_end: &[] });
                self.vcpus[at].yields.extend(flow);
            }
            What::GuestIpiSent { from, to, vector } => {
                let (flow, at) = (self.new_flow(), self.at(to));
                let value = Some(("vector", vector.into()));
                let about =
                    About { category: "guest", name: "IPI sent", value, flow: Some(flow), flows_end: &[] };
                self.instant(now_ns, from, about);
                let of = self.at(from);
                self.vcpus[of].ple = None;
                self.vcpus[at].interrupts.push((vector, flow));
            }
            What::GuestIpiTaken { vcpu, vector } => {
                let at = self.at(vcpu);
                // One taken interrupt answers all that were sent meanwhile: they are one bit in the APIC.
                let mut ended = Vec::new();
                self.vcpus[at].interrupts.retain(|(other, flow)| {
                    if *other == vector {
                        ended.push(*flow);
                    }
                    *other != vector
                });
                let value = Some(("vector", vector.into()));
                let about =
                    About { category: "guest", name: "IPI taken", value, flow: None, flows_end: &ended };
                self.instant(now_ns, vcpu, about);
            }
            What::SpinStart { vcpu, why } => {
                self.loops.begin(vcpu, why, ());
                self.begin(now_ns, vcpu, Slice::Spin(spin_index(why)), None);
            }
            What::SpinEnd { vcpu, why, .. } => {
                self.loops.end(vcpu, why);
                self.end(now_ns, vcpu, Slice::Spin(spin_index(why)));
            }
            What::GuestSwitch { vcpu, next, .. } => {
                let at = self.at(vcpu);
                while self.vcpus[at].guest.pop().is_some() {
                    self.writer.put(now_ns, event::END, GUEST + at as u64, About::default());
                }
                self.loops.switch(vcpu, next);
                let spins: Vec<_> = self.loops.on(vcpu).map(|(why, ())| spin_index(why)).collect();
                for spin in spins {
                    self.begin(now_ns, vcpu, Slice::Spin(spin), None);
                }
            }
            What::ShootdownStart { vcpu, targets } => {
                self.begin(now_ns, vcpu, Slice::Shootdown, Some(("targets", targets.into())));
            }
            What::ShootdownEnd { vcpu, .. } => self.end(now_ns, vcpu, Slice::Shootdown),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
