// SPDX-License-Identifier: GPL-2.0-only
//! A program's window: what it did, and what was counted, from its start to its end. All of that is kept here: a guest says when its program starts, does a unit of
//! its work, ends. With nobody listening to events there are times, units and the scheduler's counters.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::ids::VmId;
use crate::time::Ns;

use super::totals::VmCounts;

/// Starts and ends of programs that are remembered with everybody's CPU time.
const MARKS_MAX: usize = 256;

/// Counters of the host's scheduler, by name; none where it counts nothing.
pub type Counters = BTreeMap<&'static str, u64>;

/// What there is to know of a VM's program before it runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgramSpec {
    pub name: String,
    /// The kind of its steps that are units of its figure, and what each counts for there.
    pub unit_kind: u16,
    pub unit_value: f64,
    /// It begins with the run.
    pub at_once: bool,
    /// The run waits for its first end.
    pub is_awaited: bool,
}

/// A program, of which the first time counts that it runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    pub spec: ProgramSpec,
    pub start_ns: Option<Ns>,
    pub end_ns: Option<Ns>,
    pub units: u64,
    /// What the scheduler had counted then; of a program that begins with the run nothing.
    start_stats: Counters,
    end_stats: Option<Counters>,
}

/// The programs of a run, at most one of each VM.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    of: Vec<Option<Program>>,
}

impl Programs {
    pub fn add(&mut self, vm: VmId, spec: ProgramSpec) {
        if self.of.len() <= vm.index() {
            self.of.resize(vm.index() + 1, None);
        }
        let start_ns = spec.at_once.then_some(0);
        self.of[vm.index()] = Some(Program { spec, start_ns, ..Program::default() });
    }

    pub fn get(&self, vm: VmId) -> Option<&Program> {
        self.of.get(vm.index()).and_then(Option::as_ref)
    }

    fn get_mut(&mut self, vm: VmId) -> Option<&mut Program> {
        self.of.get_mut(vm.index()).and_then(Option::as_mut)
    }

    /// By their VMs.
    pub fn all(&self) -> impl Iterator<Item = (VmId, &Program)> {
        let each = self.of.iter().enumerate();
        each.filter_map(|(vm, program)| program.as_ref().map(|program| (VmId::from(vm), program)))
    }

    /// All programs that are awaited have ended, and there is one.
    pub fn is_done(&self) -> bool {
        let mut awaited = self.all().filter(|(_, program)| program.spec.is_awaited).peekable();
        awaited.peek().is_some() && awaited.all(|(_, program)| program.end_ns.is_some())
    }

    pub fn starts(&mut self, vm: VmId, now_ns: Ns, stats: Counters) {
        if let Some(program) = self.get_mut(vm) {
            (program.start_ns, program.start_stats) = (Some(now_ns), stats);
        }
    }

    pub fn ends(&mut self, vm: VmId, now_ns: Ns, stats: Counters) {
        if let Some(program) = self.get_mut(vm) {
            (program.end_ns, program.end_stats) = (Some(now_ns), Some(stats));
        }
    }

    /// A step of that kind is done. A program that runs again has its figure already.
    #[inline]
    pub fn step(&mut self, vm: VmId, kind: u16) {
        if let Some(program) = self.get_mut(vm).filter(|program| program.end_ns.is_none()) {
            program.units += u64::from(kind == program.spec.unit_kind);
        }
    }

    /// What came of each. `stats`: the scheduler's counters now; `window` of a VM's, if somebody counted.
    pub fn reports(
        &self,
        stats: &Counters,
        mut window: impl FnMut(VmId) -> Option<Window>,
    ) -> Vec<ProgramReport> {
        let report = |(vm, program): (VmId, &Program)| {
            let end = program.end_stats.as_ref().unwrap_or(stats);
            let before = |name| program.start_stats.get(name).copied().unwrap_or(0);
            ProgramReport {
                vm: vm.0,
                name: program.spec.name.clone(),
                start_ns: program.start_ns.unwrap_or(0),
                end_ns: program.end_ns,
                units: program.units,
                unit_value: program.spec.unit_value,
                stats: end.iter().map(|(name, count)| (*name, count.saturating_sub(before(name)))).collect(),
                window: window(vm),
            }
        };
        self.all().map(report).collect()
    }
}

/// A VM's workload and what came of it; a rate is units times their value over the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProgramReport {
    pub vm: u32,
    pub name: String,
    pub start_ns: Ns,
    /// `None`: it has not ended.
    pub end_ns: Option<Ns>,
    pub units: u64,
    pub unit_value: f64,
    /// The scheduler's counters, as [`crate::run::Report::stats`], from its start to its end.
    pub stats: Counters,
    /// `None`: nobody counted, or the run had very many programs before it.
    pub window: Option<Window>,
}

/// What host and VMs had counted at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub at_ns: Ns,
    /// Of each VM; empty at the run's begin.
    pub cpu_ns: Vec<Ns>,
    pub busy_ns: Ns,
    /// Of the host's threads, as its figures have them.
    pub migrations: u64,
    pub migrations_llc: u64,
    pub migrations_node: u64,
    /// Of the program's VM, as its figures have them.
    pub ready_ns: Ns,
    pub ipis_taken: BTreeMap<u8, u64>,
    /// What vCPUs' time went to, by VM; of the program's alone where there are many.
    pub vms: BTreeMap<u32, VmCounts>,
}

/// What was counted from a program's start to its end, or till now. Only the first of very many programs have one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    pub length_ns: Ns,
    /// Of each VM.
    pub cpu_ns: Vec<Ns>,
    /// Of all pCPUs.
    pub idle_ns: Ns,
    pub migrations: u64,
    pub migrations_llc: u64,
    pub migrations_node: u64,
    /// Of the program's VM.
    pub ready_ns: Ns,
    pub ipis_taken: BTreeMap<u8, u64>,
    /// By VM. None of a program that begins with the run: guests that start are no guests at work.
    pub vms: BTreeMap<u32, VmCounts>,
}

/// Marks at programs' starts and ends, by VM.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    starts: BTreeMap<VmId, Mark>,
    ends: BTreeMap<VmId, Mark>,
    /// Whose start found no room: an end alone is that of a program that begins with the run.
    unknown: BTreeSet<VmId>,
}

/// A mark is made only where there is room for it: it looks at all VMs.
fn keep(marks: &mut BTreeMap<VmId, Mark>, vm: VmId, mark: impl FnOnce() -> Mark) {
    if marks.len() < MARKS_MAX {
        marks.insert(vm, mark());
    }
}

impl Marks {
    pub fn starts(&mut self, vm: VmId, mark: impl FnOnce() -> Mark) {
        keep(&mut self.starts, vm, mark);
        if !self.starts.contains_key(&vm) {
            self.unknown.insert(vm);
        }
    }

    pub fn ends(&mut self, vm: VmId, mark: impl FnOnce() -> Mark) {
        if !self.unknown.contains(&vm) {
            keep(&mut self.ends, vm, mark);
        }
    }

    /// The window of a VM's program; None: it has no mark. `now`: where it has not ended yet.
    pub fn window(&self, vm: VmId, pcpus: u32, now: impl FnOnce() -> Mark) -> Option<Window> {
        let (start, end) = (self.starts.get(&vm), self.ends.get(&vm));
        if start.is_none() && end.is_none() {
            return None;
        }
        let begin = Mark::default();
        let end = end.cloned().unwrap_or_else(|| Mark { vms: BTreeMap::new(), ..now() });
        Some(end.since(start.unwrap_or(&begin), pcpus))
    }
}

impl Mark {
    fn since(&self, start: &Self, pcpus: u32) -> Window {
        let length_ns = self.at_ns - start.at_ns;
        let before = |vm: usize| start.cpu_ns.get(vm).copied().unwrap_or(0);
        let taken = |vector: &u8| start.ipis_taken.get(vector).copied().unwrap_or(0);
        let both = self.vms.iter().filter_map(|(vm, counts)| Some((*vm, counts.since(start.vms.get(vm)?))));
        Window {
            length_ns,
            cpu_ns: self.cpu_ns.iter().enumerate().map(|(vm, ns)| ns - before(vm)).collect(),
            idle_ns: (u64::from(pcpus) * length_ns).saturating_sub(self.busy_ns - start.busy_ns),
            migrations: self.migrations - start.migrations,
            migrations_llc: self.migrations_llc - start.migrations_llc,
            migrations_node: self.migrations_node - start.migrations_node,
            ready_ns: self.ready_ns - start.ready_ns,
            ipis_taken: self.ipis_taken.iter().map(|(vector, n)| (*vector, n - taken(vector))).collect(),
            vms: both.collect(),
        }
    }
}
