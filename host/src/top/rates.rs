// SPDX-License-Identifier: GPL-2.0-only
//! What happened between two samples, of VMs and of their vCPUs.

use std::collections::HashMap;

use super::counters::Counters;
use super::sample::{by_vcpu, skew_ns, Sample, State, Vcpu, Vm};

/// A VM's interval, or a vCPU's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    pub name: String,
    /// Tells it from all others, and is the same in the next interval.
    pub id: u64,
    /// The VM's, also of a vCPU.
    pub pid: i32,
    /// Of a vCPU: its thread.
    pub tid: Option<u32>,
    /// Of a vCPU: its number, where it is and how.
    pub vcpu: Option<(u32, u32, State)>,
    pub vcpus: u32,
    pub secs: f64,
    pub counters: Counters,
    /// Of VMs.
    pub stacked_ns: u64,
    pub throttled_ns: u64,
    pub skew_ns: u64,
    pub lag_ns: i64,
    /// What is not known of it.
    pub missing: Vec<String>,
    pub children: Vec<Row>,
}

/// The whole host's interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    pub secs: f64,
    pub pcpus: u32,
    pub vcpus: u32,
    pub idle_ns: u64,
    pub switches: u64,
    pub vms: Vec<Row>,
}

impl Row {
    /// Nanoseconds as a part of the interval, of each vCPU on average, in percent.
    pub fn per_vcpu_percent(&self, ns: u64) -> f64 {
        self.percent(ns) / f64::from(self.vcpus.max(1))
    }

    /// Nanoseconds as a part of the interval in percent: 200 for two pCPUs.
    pub fn percent(&self, ns: u64) -> f64 {
        ns as f64 / 1e7 / self.secs
    }

    pub fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.secs
    }

    /// Time in which it wanted a pCPU.
    pub fn active_ns(&self) -> u64 {
        // Of a file they may be anything.
        self.counters.run_ns.saturating_add(self.counters.ready_ns)
    }

    /// Time in which it wanted a pCPU and had none.
    pub fn lost_ns(&self) -> u64 {
        self.counters.ready_ns
    }
}

/// The difference of two samples. A VM that was not there before counts from 0.
pub fn between(before: &Sample, now: &Sample) -> Interval {
    // Of a file, from before this host was booted: nothing of it is a base.
    let before = if now.clock_ns < before.clock_ns { now } else { before };
    let secs = (now.clock_ns.saturating_sub(before.clock_ns) as f64 / 1e9).max(1e-3);
    let known: HashMap<(u64, i32), &Vm> = before.vms.iter().map(|vm| ((vm.id, vm.pid), vm)).collect();
    let none = Vm::default();
    let vms: Vec<Row> = now
        .vms
        .iter()
        .map(|vm| vm_row(known.get(&(vm.id, vm.pid)).copied().unwrap_or(&none), vm, secs))
        .collect();
    Interval {
        secs,
        pcpus: now.pcpus,
        vcpus: vms.iter().map(|vm| vm.vcpus).sum(),
        idle_ns: now.idle_ns.saturating_sub(before.idle_ns),
        switches: now.switches.saturating_sub(before.switches),
        vms,
    }
}

fn vm_row(before: &Vm, now: &Vm, secs: f64) -> Row {
    // A thread that serves another vCPU by now has counters that began anew; so has one that did meanwhile and came back.
    let key = |vcpu: &Vcpu| (vcpu.tid, vcpu.vcpu);
    let known: HashMap<(u32, u32), &Vcpu> = before.vcpus.iter().map(|vcpu| (key(vcpu), vcpu)).collect();
    let children: Vec<Row> = now
        .vcpus
        .iter()
        .map(|vcpu| {
            let then = known.get(&key(vcpu)).map(|vcpu| vcpu.counters);
            let then = then.filter(|then| then.switches <= vcpu.counters.switches).unwrap_or_default();
            Row {
                name: format!("vCPU {}", vcpu.vcpu),
                // Its thread's, since several may serve one vCPU in turn. VMs differ in other bits as well: their ids are hashes.
                id: now.id ^ (u64::from(vcpu.tid) + 1) << 16,
                pid: now.pid,
                tid: Some(vcpu.tid),
                vcpu: Some((vcpu.vcpu, vcpu.pcpu, vcpu.state)),
                vcpus: 1,
                secs,
                counters: vcpu.counters.since(&then),
                ..Row::default()
            }
        })
        .collect();
    let mut counters = Counters::default();
    children.iter().for_each(|vcpu| counters.add(&vcpu.counters));
    let siblings = by_vcpu(children.iter().zip(&now.vcpus).map(|(row, vcpu)| (vcpu.vcpu, &row.counters)));
    Row {
        name: now.name.clone(),
        id: now.id,
        pid: now.pid,
        tid: None,
        vcpu: None,
        vcpus: siblings.len() as u32,
        secs,
        counters,
        stacked_ns: now.stacked_ns.saturating_sub(before.stacked_ns),
        throttled_ns: if before.vcpus.is_empty() {
            0
        } else {
            now.throttled_ns.saturating_sub(before.throttled_ns)
        },
        skew_ns: skew_ns(&siblings),
        lag_ns: now.lag_ns,
        missing: now.missing.clone(),
        children,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A VM of two vCPUs that ran and waited so long.
    pub fn vm(name: &str, id: u64, times: [(u64, u64); 2]) -> Vm {
        let vcpus = times.iter().enumerate().map(|(i, (run_ns, ready_ns))| Vcpu {
            vcpu: i as u32,
            tid: 100 * id as u32 + i as u32,
            state: State::Running,
            counters: Counters { run_ns: *run_ns, ready_ns: *ready_ns, ..Counters::default() },
            ..Vcpu::default()
        });
        let vcpus: Vec<Vcpu> = vcpus.collect();
        let mut total = Counters::default();
        vcpus.iter().for_each(|vcpu| total.add(&vcpu.counters));
        Vm { name: name.into(), pid: id as i32, id, weight: 100.0, total, vcpus, ..Vm::default() }
    }

    #[test]
    fn what_was_before_a_boot_is_no_base() {
        let before = Sample { clock_ns: 100_000_000_000, ..Sample::default() };
        let now = Sample {
            clock_ns: 10_000_000_000,
            idle_ns: 7,
            vms: vec![vm("a", 1, [(5_000_000_000, 0), (0, 0)])],
            ..Sample::default()
        };
        let interval = between(&before, &now);
        assert_eq!((interval.idle_ns, interval.vms[0].counters.run_ns), (0, 0));
    }

    #[test]
    fn an_interval_is_the_difference() {
        let before = Sample {
            clock_ns: 1_000_000_000,
            vms: vec![vm("a", 1, [(100, 0), (0, 0)])],
            ..Sample::default()
        };
        let now = Sample {
            clock_ns: 3_000_000_000,
            vms: vec![vm("a", 1, [(2_000_000_100, 0), (0, 1_000_000_000)]), vm("b", 2, [(5, 0), (0, 0)])],
            ..Sample::default()
        };
        let interval = between(&before, &now);
        let a = &interval.vms[0];
        assert_eq!((interval.secs, a.percent(a.counters.run_ns)), (2.0, 100.0));
        assert_eq!(a.per_vcpu_percent(a.counters.ready_ns), 25.0);
        assert_eq!((a.skew_ns, a.children.len()), (1_000_000_000, 2));
        assert_eq!(interval.vms[1].counters.run_ns, 5, "a new VM");
        assert_eq!(interval.vcpus, 4);
    }

    #[test]
    fn threads_that_serve_a_vcpu_in_turn_are_one_vcpu() {
        let mut turns = vm("a", 1, [(0, 300_000_000), (0, 500_000_000)]);
        turns.vcpus[1].vcpu = 0;
        let now = Sample { clock_ns: 1_000_000_000, vms: vec![turns], ..Sample::default() };
        let interval = between(&Sample::default(), &now);
        let a = &interval.vms[0];
        assert_eq!((interval.vcpus, a.vcpus, a.skew_ns), (1, 1, 0));
        assert_eq!(a.per_vcpu_percent(a.counters.ready_ns), 80.0);
        assert_ne!(a.children[0].id, a.children[1].id, "each is a row");
    }

    #[test]
    fn a_thread_that_serves_another_vcpu_now_counts_from_nothing() {
        let sample = |clock_ns, vcpu, run_ns| {
            let mut a = vm("a", 1, [(run_ns, 0), (0, 0)]);
            a.vcpus[0].vcpu = vcpu;
            Sample { clock_ns, vms: vec![a], ..Sample::default() }
        };
        let (before, now) = (sample(1_000_000_000, 0, 900_000_000), sample(2_000_000_000, 2, 400_000_000));
        let interval = between(&before, &now);
        assert_eq!(interval.vms[0].counters.run_ns, 400_000_000);
        // It has served the other one meanwhile, and come back.
        let mut before = sample(1_000_000_000, 0, 900_000_000);
        let now = sample(2_000_000_000, 0, 400_000_000);
        before.vms[0].vcpus[0].counters.switches = 7;
        assert_eq!(between(&before, &now).vms[0].counters.run_ns, 400_000_000);
    }
}
