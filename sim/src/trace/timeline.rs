// SPDX-License-Identifier: GPL-2.0-only
//! Intervals and instants in columns: who ran where, who waited, who spun, who flushed. What `cohortlab explain` draws.

use crate::ids::VcpuId;
use crate::metrics::guest::spin_index;
use crate::metrics::loops::Loops;
use crate::metrics::Layout;
use crate::observe::{Observer, Stop, What};
use crate::time::Ns;

/// What an interval or an instant is; the numbers are the binding's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A task had a pCPU: `lane` is the pCPU, `who` the task.
    Run = 0,
    /// A task waited for a pCPU: `lane` is the pCPU, `who` the task.
    Wait = 1,
    /// A vCPU executed a loop that waits: `lane` is what for, `who` the vCPU's task.
    Spin = 2,
    /// A vCPU flushed others' TLBs: `lane` is how many, `who` the vCPU's task.
    Shootdown = 3,
    /// An instant: a pause-loop exit; `lane` is 1 in kernel mode.
    Ple = 4,
    /// An instant: a directed yield; `lane` is the target's task, with the highest bit set if it was granted.
    Yield = 5,
}

#[derive(Clone, Copy, Debug, Default)]
struct Open {
    run: Option<(u32, Ns)>,
    wait: Option<(u32, Ns)>,
    spin: Option<(u32, Ns)>,
    shootdown: Option<(u32, Ns)>,
}

/// The columns; all have the same length. In the order of the ends.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    pub kind: Vec<u8>,
    pub lane: Vec<u32>,
    pub who: Vec<u32>,
    pub start_ns: Vec<Ns>,
    pub end_ns: Vec<Ns>,
    pub truncated: bool,
    layout: Layout,
    open: Vec<Open>,
    task_of: Vec<Vec<u32>>,
    loops: Loops<()>,
    rows_max: usize,
}

/// Set in a directed yield's `lane` if it was granted.
pub const GRANTED: u32 = 1 << 31;

impl Timeline {
    pub fn new(layout: Layout, rows_max: usize) -> Self {
        let mut task_of: Vec<Vec<u32>> = layout.vms.iter().map(|vm| vec![0; vm.vcpus as usize]).collect();
        for (number, task) in layout.tasks.iter().enumerate() {
            if let Some(vcpu) = task.vcpu {
                task_of[vcpu.vm.index()][vcpu.id as usize] = number as u32;
            }
        }
        let wait = |task: &crate::metrics::layout::TaskLayout| task.waits_on.map(|cpu| (cpu.0, 0));
        let open = layout.tasks.iter().map(|task| Open { wait: wait(task), ..Open::default() }).collect();
        Self { loops: Loops::new(&layout), layout, open, task_of, rows_max, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.kind.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    fn add(&mut self, kind: Kind, lane: u32, who: u32, start_ns: Ns, end_ns: Ns) {
        if self.kind.len() >= self.rows_max {
            self.truncated = true;
            return;
        }
        self.kind.push(kind as u8);
        self.lane.push(lane);
        self.who.push(who);
        self.start_ns.push(start_ns);
        self.end_ns.push(end_ns);
    }

    fn open(&mut self, task: u32) -> &mut Open {
        if self.open.len() <= task as usize {
            self.open.resize(task as usize + 1, Open::default());
        }
        &mut self.open[task as usize]
    }

    fn close(&mut self, kind: Kind, task: u32, now_ns: Ns) {
        let open = self.open(task);
        let slot = match kind {
            Kind::Run => &mut open.run,
            Kind::Wait => &mut open.wait,
            Kind::Spin => &mut open.spin,
            _ => &mut open.shootdown,
        };
        if let Some((lane, since_ns)) = slot.take() {
            self.add(kind, lane, task, since_ns, now_ns);
        }
    }

    fn task(&self, vcpu: VcpuId) -> u32 {
        self.task_of[vcpu.vm.index()][vcpu.id as usize]
    }

    /// The vCPU executes another loop now, or none.
    fn spins(&mut self, vcpu: VcpuId, now_ns: Ns) {
        let task = self.task(vcpu);
        self.close(Kind::Spin, task, now_ns);
        let last = self.loops.on(vcpu).next_back();
        self.open(task).spin = last.map(|(why, ())| (spin_index(why) as u32, now_ns));
    }

    /// The run is over: what is open ends.
    pub fn finish(&mut self, now_ns: Ns) {
        for task in 0..self.open.len() as u32 {
            for kind in [Kind::Run, Kind::Wait, Kind::Spin, Kind::Shootdown] {
                self.close(kind, task, now_ns);
            }
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layout.tasks.iter().map(|task| task.name.as_str())
    }
}

impl Observer for Timeline {
    fn record(&mut self, now_ns: Ns, what: &What) {
        match *what {
            What::Switch { cpu, prev, why, next } => {
                if let Some(task) = prev {
                    self.close(Kind::Run, task.0, now_ns);
                    if why == Stop::Preempted {
                        self.open(task.0).wait = Some((cpu.0, now_ns));
                    }
                }
                if let Some(task) = next {
                    self.close(Kind::Wait, task.0, now_ns);
                    self.open(task.0).run = Some((cpu.0, now_ns));
                }
            }
            What::Wakeup { task, cpu } => {
                let open = self.open(task.0);
                if open.run.is_none() && open.wait.is_none() {
                    open.wait = Some((cpu.0, now_ns));
                }
            }
            What::Migrate { task, to, .. } if self.open(task.0).wait.is_some() => {
                self.close(Kind::Wait, task.0, now_ns);
                self.open(task.0).wait = Some((to.0, now_ns));
            }
            What::SpinStart { vcpu, why } => {
                self.loops.begin(vcpu, why, ());
                self.spins(vcpu, now_ns);
            }
            What::SpinEnd { vcpu, why, .. } => {
                self.loops.end(vcpu, why);
                self.spins(vcpu, now_ns);
            }
            What::GuestSwitch { vcpu, next, .. } => {
                self.loops.switch(vcpu, next);
                self.spins(vcpu, now_ns);
            }
            What::ShootdownStart { vcpu, targets } => {
                let task = self.task(vcpu);
                self.close(Kind::Shootdown, task, now_ns);
                self.open(task).shootdown = Some((targets, now_ns));
            }
            What::ShootdownEnd { vcpu, .. } => {
                let task = self.task(vcpu);
                self.close(Kind::Shootdown, task, now_ns);
            }
            What::Ple { vcpu, kernel } => {
                let task = self.task(vcpu);
                self.add(Kind::Ple, kernel.into(), task, now_ns, now_ns);
            }
            What::DirectedYield { from, to, granted } => {
                let (task, target) = (self.task(from), self.task(to));
                let lane = if granted { target | GRANTED } else { target };
                self.add(Kind::Yield, lane, task, now_ns, now_ns);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VmId;
    use crate::metrics::layout::{TaskLayout, VmLayout};
    use crate::observe::Spin;

    #[test]
    fn a_spin_is_of_the_vcpu_that_executes_it() {
        let vcpu = |id| VcpuId { vm: VmId(0), id };
        let task = |id| TaskLayout { vm: Some(0), vcpu: Some(vcpu(id)), ..TaskLayout::default() };
        let vm = VmLayout { vcpus: 2, ..VmLayout::default() };
        let layout = Layout { pcpus: 1, vms: vec![vm], tasks: vec![task(0), task(1)], ..Layout::default() };
        let spin = |id, why| What::SpinStart { vcpu: vcpu(id), why };
        let end = |id, why| What::SpinEnd { vcpu: vcpu(id), why, spun_ns: 0 };
        let guest_switch = |id, prev, next| What::GuestSwitch { vcpu: vcpu(id), prev, next };
        let mut timeline = Timeline::new(layout, usize::MAX);
        for (now_ns, what) in [
            (0, guest_switch(0, u32::MAX, 5)),
            (0, guest_switch(1, u32::MAX, 6)),
            (10, spin(0, Spin::Barrier)),
            (20, guest_switch(0, 5, 7)),
            (30, guest_switch(1, 6, 5)),
            (32, spin(1, Spin::Lock)),
            (35, end(1, Spin::Lock)),
            (37, end(1, Spin::Barrier)),
        ] {
            timeline.record(now_ns, &what);
        }
        timeline.finish(50);
        let rows: Vec<_> = (0..timeline.len())
            .map(|row| (timeline.who[row], timeline.lane[row], timeline.start_ns[row], timeline.end_ns[row]))
            .collect();
        let (lock, barrier) = (spin_index(Spin::Lock) as u32, spin_index(Spin::Barrier) as u32);
        assert_eq!(
            rows,
            [(0, barrier, 10, 20), (1, barrier, 30, 32), (1, lock, 32, 35), (1, barrier, 35, 37)]
        );
    }
}
