// SPDX-License-Identifier: GPL-2.0-only
//! What the host did with the VMs: waiting, co-stop, skew, stacking, preemption at bad moments.

use std::collections::BTreeMap;

use crate::ids::{CpuId, TaskId, VcpuId};
use crate::observe::{Stop, What};
use crate::time::Ns;

use super::distance::Distances;
use super::lag::Lags;
use super::layout::Layout;
use super::stacking::Stacking;
use super::totals::{HostTotals, VcpuTotals, VmCounts, VmTotals};
use super::waits::Waits;
use super::window::Mark;

/// Of more VMs than these, only the program's own is remembered with all that is counted of it.
const COUNTED_VMS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Sleeps,
    Waits,
    Runs,
}

#[derive(Clone, Debug, Default)]
struct Task {
    doing: Doing,
    cpu: CpuId,
    since_ns: Ns,
    /// It waits because somebody took its pCPU, and what it was doing then.
    preempted: bool,
    preempted_in_kernel: bool,
    preempted_as_holder: bool,
    /// Interrupts from siblings that came meanwhile, and when they did since the wait began: the sum.
    ipis: u64,
    ipis_sent_ns: Ns,
}

#[derive(Clone, Debug, Default)]
struct Vcpu {
    task: Option<TaskId>,
    totals: VcpuTotals,
    kernel: bool,
    locks_held: u32,
}

#[derive(Clone, Debug, Default)]
struct Vm {
    vcpus: u32,
    /// The counts below hold since then.
    since_ns: Ns,
    running: u32,
    waiting: u32,
    /// vCPUs on a pCPU where a sibling is, beyond the first there.
    stacked: u32,
    /// Running threads, the VMM's others included.
    threads: u32,
    totals: VmTotals,
    waits: VmWaits,
    skew: Waits,
}

/// Its vCPUs' waits that are over.
#[derive(Clone, Debug, Default)]
struct VmWaits {
    after_wakeup: Waits,
    after_preemption: Waits,
    in_kernel: Waits,
    as_holder: Waits,
}

impl VmWaits {
    /// `task` is what it was while it waited.
    fn add(&mut self, task: &Task, waited_ns: Ns) {
        if task.preempted {
            self.after_preemption.add(waited_ns);
        } else {
            self.after_wakeup.add(waited_ns);
        }
        if task.preempted_in_kernel {
            self.in_kernel.add(waited_ns);
        }
        if task.preempted_as_holder {
            self.as_holder.add(waited_ns);
        }
    }
}

pub struct HostMetrics {
    tasks: Vec<Task>,
    vcpus: Vec<Vcpu>,
    bases: Vec<usize>,
    vms: Vec<Vm>,
    stacking: Stacking,
    distances: Distances,
    running: u32,
    running_since_ns: Ns,
    lags: Option<Lags>,
    totals: HostTotals,
}

impl HostMetrics {
    /// `inside`: each change of a guest's mode is told, and every vCPU begins in its kernel.
    pub fn new(layout: &Layout, inside: bool) -> Self {
        let (bases, count) = layout.vcpu_bases();
        let mut vcpus = vec![Vcpu { kernel: inside, ..Vcpu::default() }; count];
        for (number, task) in layout.tasks.iter().enumerate() {
            if let Some(vcpu) = task.vcpu {
                vcpus[bases[vcpu.vm.index()] + vcpu.id as usize].task = Some(TaskId::from(number));
            }
        }
        let mut metrics = Self {
            tasks: vec![Task::default(); layout.tasks.len()],
            vcpus,
            bases,
            vms: layout.vms.iter().map(|vm| Vm { vcpus: vm.vcpus, ..Vm::default() }).collect(),
            stacking: Stacking::new(layout.pcpus as usize),
            distances: Distances::new(layout.pcpus as usize, layout.vms.len()),
            running: 0,
            running_since_ns: 0,
            lags: Lags::new(layout),
            totals: HostTotals { pcpus: layout.pcpus, ..HostTotals::default() },
        };
        for (number, task) in layout.tasks.iter().enumerate() {
            if let Some(cpu) = task.waits_on {
                metrics.wakes(layout, 0, TaskId::from(number), cpu);
            }
        }
        metrics
    }

    pub fn record(&mut self, layout: &Layout, now_ns: Ns, what: &What) {
        let looks = self.distances.due(now_ns);
        if looks > 0 {
            self.look_at_distances(looks);
        }
        match *what {
            What::Switch { cpu, prev, why, next } => {
                if let Some(task) = prev {
                    self.leaves(layout, now_ns, task, why);
                }
                if let Some(task) = next {
                    self.totals.switches += 1;
                    self.runs(layout, now_ns, task, cpu);
                }
            }
            What::Wakeup { task, cpu } => {
                self.totals.wakeups += 1;
                self.wakes(layout, now_ns, task, cpu);
            }
            What::Migrate { task, from, to } => {
                self.totals.migrations += 1;
                self.totals.migrations_llc += u64::from(layout.is_other_llc(from, to));
                self.totals.migrations_node += u64::from(layout.is_other_node(from, to));
                self.moves(layout, now_ns, task, to);
            }
            What::GuestIpiSent { from, to, .. } if from != to => self.interrupts(now_ns, to),
            What::Mode { vcpu, kernel } => self.vcpu(vcpu).kernel = kernel,
            What::LockTaken { vcpu, sleeps: false, .. } => self.vcpu(vcpu).locks_held += 1,
            What::LockReleased { vcpu, sleeps: false, .. } => {
                let vcpu = self.vcpu(vcpu);
                vcpu.locks_held = vcpu.locks_held.saturating_sub(1);
            }
            _ => {}
        }
    }

    fn vcpu(&mut self, vcpu: VcpuId) -> &mut Vcpu {
        &mut self.vcpus[self.bases[vcpu.vm.index()] + vcpu.id as usize]
    }

    /// Tasks may be made during the run.
    fn task(&mut self, task: TaskId) -> &mut Task {
        if self.tasks.len() <= task.index() {
            self.tasks.resize(task.index() + 1, Task::default());
        }
        &mut self.tasks[task.index()]
    }

    /// Bring a VM's integrals up to date, before one of its counts changes.
    fn touch(&mut self, vm: usize, now_ns: Ns) {
        let vm = &mut self.vms[vm];
        let elapsed_ns = now_ns - vm.since_ns;
        vm.since_ns = now_ns;
        vm.totals.cpu_ns += u64::from(vm.threads) * elapsed_ns;
        vm.totals.stacked_ns += u64::from(vm.stacked) * elapsed_ns;
        vm.totals.halted_ns += u64::from(vm.vcpus.saturating_sub(vm.running + vm.waiting)) * elapsed_ns;
        if vm.running > 0 {
            vm.totals.costop_ns += u64::from(vm.waiting) * elapsed_ns;
        }
    }

    /// Its counts have changed.
    fn changed(&mut self, vm: usize, now_ns: Ns) {
        let (running, waiting) = (self.vms[vm].running, self.vms[vm].waiting);
        if let Some(lags) = &mut self.lags {
            lags.wants(vm, now_ns, running + waiting);
            lags.runs(vm, now_ns, running);
        }
    }

    fn count_running(&mut self, now_ns: Ns, more: bool) {
        self.totals.busy_ns += u64::from(self.running) * (now_ns - self.running_since_ns);
        self.running_since_ns = now_ns;
        self.running = if more { self.running + 1 } else { self.running.saturating_sub(1) };
    }

    fn wakes(&mut self, layout: &Layout, now_ns: Ns, id: TaskId, cpu: CpuId) {
        let task = self.task(id);
        if task.doing != Doing::Sleeps {
            return;
        }
        *task = Task { doing: Doing::Waits, cpu, since_ns: now_ns, ..Task::default() };
        if let Some(vcpu) = layout.vcpu_of(id) {
            let vm = vcpu.vm.index();
            self.touch(vm, now_ns);
            self.vms[vm].waiting += 1;
            self.comes_to(vm, cpu);
            self.changed(vm, now_ns);
        }
    }

    /// An interrupt reaches a vCPU: if that is preempted, it waits for it.
    fn interrupts(&mut self, now_ns: Ns, to: VcpuId) {
        let Some(task) = self.vcpu(to).task else { return };
        let task = self.task(task);
        if task.doing == Doing::Waits && task.preempted {
            task.ipis += 1;
            task.ipis_sent_ns += now_ns - task.since_ns;
        }
    }

    fn runs(&mut self, layout: &Layout, now_ns: Ns, id: TaskId, cpu: CpuId) {
        self.count_running(now_ns, true);
        self.distances.begins(id, cpu);
        let before = std::mem::replace(
            self.task(id),
            Task { doing: Doing::Runs, cpu, since_ns: now_ns, ..Task::default() },
        );
        let Some(vm) = layout.vm_of(id) else { return };
        self.touch(vm, now_ns);
        self.vms[vm].threads += 1;
        let Some(vcpu) = layout.vcpu_of(id) else { return };
        let waited_ns = now_ns - before.since_ns;
        let totals = &mut self.vcpu(vcpu).totals;
        totals.switches += 1;
        if before.doing == Doing::Waits {
            totals.ready_ns += waited_ns;
            let state = &mut self.vms[vm];
            state.waiting -= 1;
            state.waits.add(&before, waited_ns);
            state.totals.ipis_preempted += before.ipis;
            state.totals.ipi_wait_ns += before.ipis * waited_ns - before.ipis_sent_ns;
            if before.cpu != cpu {
                self.goes_from(vm, before.cpu);
                self.comes_to(vm, cpu);
            }
        } else {
            self.comes_to(vm, cpu);
        }
        self.vms[vm].running += 1;
        self.vms[vm].totals.switches += 1;
        self.look_at_skew(layout, vm, now_ns);
        self.changed(vm, now_ns);
    }

    fn leaves(&mut self, layout: &Layout, now_ns: Ns, id: TaskId, why: Stop) {
        self.count_running(now_ns, false);
        let task = self.task(id);
        let (ran_ns, cpu) = (now_ns - task.since_ns, task.cpu);
        let doing = if why == Stop::Preempted { Doing::Waits } else { Doing::Sleeps };
        *task = Task { doing, cpu, since_ns: now_ns, preempted: true, ..Task::default() };
        let Some(vm) = layout.vm_of(id) else { return };
        self.touch(vm, now_ns);
        self.vms[vm].threads = self.vms[vm].threads.saturating_sub(1);
        let Some(vcpu) = layout.vcpu_of(id) else { return };
        let state = self.vcpu(vcpu);
        let (kernel, holder) = (state.kernel, state.locks_held > 0);
        state.totals.run_ns += ran_ns;
        state.totals.preemptions += u64::from(why == Stop::Preempted);
        let state = &mut self.vms[vm];
        state.running = state.running.saturating_sub(1);
        if why == Stop::Preempted {
            state.waiting += 1;
            state.totals.preemptions += 1;
            state.totals.preemptions_kernel += u64::from(kernel);
            state.totals.preemptions_holder += u64::from(holder);
            let task = self.task(id);
            (task.preempted_in_kernel, task.preempted_as_holder) = (kernel, holder);
        } else {
            self.goes_from(vm, cpu);
        }
        self.changed(vm, now_ns);
    }

    fn moves(&mut self, layout: &Layout, now_ns: Ns, id: TaskId, to: CpuId) {
        let task = self.task(id);
        let (from, doing) = (std::mem::replace(&mut task.cpu, to), task.doing);
        let Some(vcpu) = layout.vcpu_of(id) else { return };
        let vm = vcpu.vm.index();
        self.vcpu(vcpu).totals.migrations += 1;
        self.vms[vm].totals.migrations += 1;
        if doing != Doing::Sleeps {
            self.touch(vm, now_ns);
            self.goes_from(vm, from);
            self.comes_to(vm, to);
        }
    }

    fn comes_to(&mut self, vm: usize, cpu: CpuId) {
        self.vms[vm].stacked += u32::from(self.stacking.comes_to(vm, cpu));
    }

    fn goes_from(&mut self, vm: usize, cpu: CpuId) {
        self.vms[vm].stacked -= u32::from(self.stacking.goes_from(vm, cpu));
    }

    /// The greatest difference between two siblings' ready times so far: who waits falls behind, who sleeps does not.
    fn look_at_skew(&mut self, layout: &Layout, vm: usize, now_ns: Ns) {
        let count = layout.vms[vm].vcpus as usize;
        if count < 2 {
            return;
        }
        let (mut least, mut most) = (Ns::MAX, 0);
        for vcpu in &self.vcpus[self.bases[vm]..self.bases[vm] + count] {
            let waiting =
                vcpu.task.map(|task| &self.tasks[task.index()]).filter(|task| task.doing == Doing::Waits);
            let ready_ns = vcpu.totals.ready_ns + waiting.map_or(0, |task| now_ns - task.since_ns);
            (least, most) = (least.min(ready_ns), most.max(ready_ns));
        }
        let state = &mut self.vms[vm];
        state.totals.skew_max_ns = state.totals.skew_max_ns.max(most - least);
        state.skew.add(most - least);
    }

    fn look_at_distances(&mut self, looks: u64) {
        let Self { tasks, vcpus, bases, vms, distances, .. } = self;
        let queued = tasks.iter().filter(|task| task.doing != Doing::Sleeps).map(|task| task.cpu);
        let each = vms.iter().zip(bases.iter()).enumerate().map(|(number, (vm, base))| {
            let of_vm = vcpus[*base..*base + vm.vcpus as usize].iter().filter_map(|vcpu| vcpu.task);
            let all = of_vm.map(|task| (task, &tasks[task.index()]));
            let waiting = all.filter(|(_, task)| task.doing == Doing::Waits).map(|(id, task)| (id, task.cpu));
            (number, vm.running, if vm.waiting > 0 { waiting.collect() } else { Vec::new() })
        });
        distances.look(looks, queued, each);
    }

    /// What is counted till now, for a program of that VM; of the VM's own counts those of the host.
    pub fn mark(&mut self, layout: &Layout, now_ns: Ns, own: usize) -> Mark {
        for vm in 0..self.vms.len() {
            self.touch(vm, now_ns);
        }
        let ready_ns = self.vcpus_of(layout, own).iter().map(|vcpu| self.vcpu_totals(vcpu, now_ns).ready_ns);
        let of_all = self.vms.len() <= COUNTED_VMS_MAX;
        let counted = (0..self.vms.len()).filter(|vm| of_all || *vm == own);
        let HostTotals { migrations, migrations_llc, migrations_node, .. } = self.totals;
        Mark {
            at_ns: now_ns,
            cpu_ns: self.vms.iter().map(|vm| vm.totals.cpu_ns).collect(),
            busy_ns: self.busy_ns(now_ns),
            migrations,
            migrations_llc,
            migrations_node,
            ready_ns: ready_ns.sum(),
            ipis_taken: BTreeMap::new(),
            vms: counted.map(|vm| (vm as u32, self.counts(layout, vm, now_ns))).collect(),
        }
    }

    /// What has grown of a VM, which is up to date; without what its guest did.
    fn counts(&self, layout: &Layout, vm: usize, now_ns: Ns) -> VmCounts {
        let vcpus: Vec<_> =
            self.vcpus_of(layout, vm).iter().map(|vcpu| self.vcpu_totals(vcpu, now_ns)).collect();
        let Vm { totals, waits: VmWaits { after_wakeup, in_kernel, .. }, .. } = &self.vms[vm];
        VmCounts {
            vcpus: layout.vms[vm].vcpus,
            run_ns: vcpus.iter().map(|vcpu| vcpu.run_ns).sum(),
            ready_ns: vcpus.iter().map(|vcpu| vcpu.ready_ns).sum(),
            costop_ns: totals.costop_ns,
            halted_ns: totals.halted_ns,
            stacked_ns: totals.stacked_ns,
            switches: totals.switches,
            migrations: totals.migrations,
            preemptions: totals.preemptions,
            wakeups: after_wakeup.count(),
            wait_wakeup_ns: after_wakeup.sum_ns(),
            preemptions_kernel: in_kernel.count(),
            wait_kernel_ns: in_kernel.sum_ns(),
            ipis_preempted: totals.ipis_preempted,
            ipi_wait_ns: totals.ipi_wait_ns,
            ..VmCounts::default()
        }
    }

    fn vcpus_of(&self, layout: &Layout, vm: usize) -> &[Vcpu] {
        &self.vcpus[self.bases[vm]..self.bases[vm] + layout.vms[vm].vcpus as usize]
    }

    fn busy_ns(&self, now_ns: Ns) -> Ns {
        self.totals.busy_ns + u64::from(self.running) * (now_ns - self.running_since_ns)
    }

    /// The figures as of now: the host's, each VM's, each VM's vCPUs'.
    pub fn totals(
        &mut self,
        layout: &Layout,
        now_ns: Ns,
    ) -> (HostTotals, Vec<VmTotals>, Vec<Vec<VcpuTotals>>) {
        let busy_ns = self.busy_ns(now_ns);
        let capacity_ns = now_ns.saturating_mul(u64::from(layout.pcpus));
        let idle_ns = capacity_ns.saturating_sub(busy_ns);
        let lag_spread_ns = self.lags.as_mut().and_then(|lags| lags.spread_ns(now_ns));
        let host = HostTotals { end_ns: now_ns, busy_ns, idle_ns, lag_spread_ns, ..self.totals.clone() };
        let (mut vms, mut vcpus) = (Vec::new(), Vec::new());
        for (vm, distance) in self.distances.found().into_iter().enumerate() {
            self.touch(vm, now_ns);
            self.look_at_skew(layout, vm, now_ns);
            let of_vm: Vec<_> =
                self.vcpus_of(layout, vm).iter().map(|vcpu| self.vcpu_totals(vcpu, now_ns)).collect();
            let lag = self.lags.as_mut().map(|lags| lags.extremes(vm, now_ns));
            let waits = self.waits_till_now(layout, vm, now_ns);
            let state = &self.vms[vm];
            vms.push(VmTotals {
                run_ns: of_vm.iter().map(|vcpu| vcpu.run_ns).sum(),
                ready_ns: of_vm.iter().map(|vcpu| vcpu.ready_ns).sum(),
                lag_behind_ns: lag.map(|(behind_ns, _)| behind_ns),
                lag_ahead_ns: lag.map(|(_, ahead_ns)| ahead_ns),
                wait_after_wakeup: waits.after_wakeup.summary(),
                wait_after_preemption: waits.after_preemption.summary(),
                wait_in_kernel: waits.in_kernel.summary(),
                wait_as_holder: waits.as_holder.summary(),
                skew: state.skew.summary(),
                distances: distance.cases,
                distances_far: distance.far,
                ..state.totals.clone()
            });
            vcpus.push(of_vm);
        }
        (host, vms, vcpus)
    }

    /// A VM's waits, with those that go on: the longest of all may be one of these.
    fn waits_till_now(&self, layout: &Layout, vm: usize, now_ns: Ns) -> VmWaits {
        let mut waits = self.vms[vm].waits.clone();
        let tasks = self.vcpus_of(layout, vm).iter().filter_map(|vcpu| self.tasks.get(vcpu.task?.index()));
        for task in tasks.filter(|task| task.doing == Doing::Waits) {
            waits.add(task, now_ns - task.since_ns);
        }
        waits
    }

    /// With the present turn or wait.
    fn vcpu_totals(&self, vcpu: &Vcpu, now_ns: Ns) -> VcpuTotals {
        let mut totals = vcpu.totals.clone();
        if let Some(task) = vcpu.task.and_then(|task| self.tasks.get(task.index())) {
            match task.doing {
                Doing::Runs => totals.run_ns += now_ns - task.since_ns,
                Doing::Waits => totals.ready_ns += now_ns - task.since_ns,
                Doing::Sleeps => {}
            }
        }
        totals
    }
}
