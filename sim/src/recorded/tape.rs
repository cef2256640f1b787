// SPDX-License-Identifier: GPL-2.0-only
//! A simulated run as `cohort record` would have recorded it on a real host: what an import predicts can be compared with what is simulated anyhow.

use std::io::Cursor;

use cohort_recording::format::SLOT_BYTES;
use cohort_recording::{End, Event, Header, Kind, Pcpu, VcpuAbout, VmAbout, Writer};

use crate::ids::{CpuId, TaskId, VcpuId};
use crate::metrics::Layout;
use crate::observe::{Observer, Stop, What};
use crate::time::{Ns, US};

pub struct Tape {
    layout: Layout,
    /// By vCPU: its thread, and what KVM has polled since it last halted; None: it has not halted since it last ran.
    tasks: Vec<TaskId>,
    bases: Vec<usize>,
    polled_ns: Vec<Option<Ns>>,
    kernel: Vec<bool>,
    preempted_in_kernel: Vec<bool>,
    events: Vec<Event>,
}

impl Tape {
    pub fn new(layout: &Layout) -> Self {
        let (bases, count) = layout.vcpu_bases();
        let mut tasks = vec![TaskId(0); count];
        for (number, task) in layout.tasks.iter().enumerate() {
            if let Some(vcpu) = task.vcpu {
                tasks[bases[vcpu.vm.index()] + vcpu.id as usize] = TaskId::from(number);
            }
        }
        let mut tape = Self {
            layout: layout.clone(),
            tasks,
            bases,
            polled_ns: vec![None; count],
            // So every vCPU begins.
            kernel: vec![true; count],
            preempted_in_kernel: vec![false; count],
            events: Vec::new(),
        };
        for task in &layout.tasks {
            if let (Some(vcpu), Some(cpu)) = (task.vcpu, task.waits_on) {
                tape.put(0, vcpu, Kind::Woken, cpu, 0, 0);
            }
        }
        tape
    }

    fn at(&self, vcpu: VcpuId) -> usize {
        self.bases[vcpu.vm.index()] + vcpu.id as usize
    }

    fn put(&mut self, now_ns: Ns, vcpu: VcpuId, kind: Kind, cpu: CpuId, a: u8, b: u16) {
        let slot = self.at(vcpu) as u16;
        self.events.push(Event { time_ns: now_ns, cpu: cpu.0 as u16, vcpu: slot, kind, a, b });
    }

    fn switch(&mut self, now_ns: Ns, cpu: CpuId, prev: Option<(TaskId, Stop)>, next: Option<TaskId>) {
        if let Some((vcpu, why)) = prev.and_then(|(task, why)| Some((self.layout.vcpu_of(task)?, why))) {
            let at = self.at(vcpu);
            if why == Stop::Preempted {
                self.preempted_in_kernel[at] = self.kernel[at];
                self.put(now_ns, vcpu, Kind::Preempted, cpu, 0, 0);
            } else if let Some(polled_ns) = self.polled_ns[at].take() {
                let us = (polled_ns / US).min(u64::from(u16::MAX)) as u16;
                self.put(now_ns, vcpu, Kind::Halted, cpu, 0, us);
            } else {
                self.put(now_ns, vcpu, Kind::Blocked, cpu, 0, 0);
            }
        }
        if let Some(vcpu) = next.and_then(|task| self.layout.vcpu_of(task)) {
            let at = self.at(vcpu);
            let kernel = std::mem::take(&mut self.preempted_in_kernel[at]);
            self.put(now_ns, vcpu, Kind::Run, cpu, kernel.into(), 0);
        }
    }

    /// The recording's bytes. Nothing is ever lost.
    pub fn finish(&mut self, now_ns: Ns, scheduler: &str) -> Vec<u8> {
        let pcpu = |cpu| Pcpu { cpu, core: cpu, ..Pcpu::default() };
        let header = Header {
            kernel: "simulated".into(),
            scheduler: scheduler.into(),
            pcpus: (0..self.layout.pcpus).map(pcpu).collect(),
            ..Header::default()
        };
        let vms = self.layout.vms.iter().enumerate().map(|(index, vm)| VmAbout {
            name: vm.name.clone(),
            pid: index as u32 + 1,
            weight: vm.weight.into(),
            quota_us: None,
            vcpus: (0..vm.vcpus)
                .map(|vcpu| {
                    let at = self.bases[index] + vcpu as usize;
                    VcpuAbout { slot: at as u16, vcpu, tid: self.tasks[at].0 + 1, ..VcpuAbout::default() }
                })
                .collect(),
        });
        let end = End { clock_ns: now_ns, scheduler: scheduler.into(), vms: vms.collect(), ..End::default() };
        let write = || {
            let mut writer = Writer::new(Cursor::new(Vec::new()), &header, SLOT_BYTES, u64::MAX)?;
            self.events.iter().try_for_each(|event| writer.event(*event))?;
            writer.finish(end)
        };
        // Into memory: that cannot fail.
        write().map(|(to, _)| to.into_inner()).unwrap_or_default()
    }
}

impl Observer for Tape {
    fn record(&mut self, now_ns: Ns, what: &What) {
        match *what {
            What::Switch { cpu, prev, why, next } => {
                self.switch(now_ns, cpu, prev.map(|prev| (prev, why)), next);
            }
            What::Wakeup { task, cpu } => {
                if let Some(vcpu) = self.layout.vcpu_of(task) {
                    self.put(now_ns, vcpu, Kind::Woken, cpu, 0, 0);
                }
            }
            What::Migrate { task, to, .. } => {
                if let Some(vcpu) = self.layout.vcpu_of(task) {
                    self.put(now_ns, vcpu, Kind::Moved, to, 0, 0);
                }
            }
            What::Mode { vcpu, kernel } => {
                let at = self.at(vcpu);
                self.kernel[at] = kernel;
            }
            What::Halt { vcpu, polled_ns } => {
                let at = self.at(vcpu);
                *self.polled_ns[at].get_or_insert(0) += polled_ns;
            }
            What::Ple { vcpu, kernel } => self.put(now_ns, vcpu, Kind::Ple, CpuId(0), kernel.into(), 0),
            What::DirectedYield { from, to, granted } => {
                let to = self.at(to) as u16;
                self.put(now_ns, from, Kind::Yield, CpuId(0), granted.into(), to);
            }
            What::GuestIpiSent { from, to, vector } => {
                let to = self.at(to) as u16;
                self.put(now_ns, from, Kind::Ipi, CpuId(0), vector, to);
            }
            _ => {}
        }
    }
}
