// SPDX-License-Identifier: GPL-2.0-only
//! A small host with guests, and everything that happens on it.

use std::cell::RefCell;
use std::rc::Rc;

use cohort_sim::class::round_robin::{RoundRobin, RoundRobinConfig};
use cohort_sim::class::AnyClass;
use cohort_sim::guest::{GuestConfig, Guests};
use cohort_sim::kvm::KvmConfig;
use cohort_sim::machine::MachineConfig;
use cohort_sim::metrics::window::Program;
use cohort_sim::observe::{Observer, What};
use cohort_sim::scenario::{TaskConfig, VmConfig};
use cohort_sim::workload::{parse, Workload};
use cohort_sim::{CpuId, Host, Simulation, TaskId};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

pub type Events = Rc<RefCell<Vec<(u64, What)>>>;

struct Recorder(Events);

impl Observer for Recorder {
    fn record(&mut self, now_ns: u64, what: &What) {
        self.0.borrow_mut().push((now_ns, *what));
    }
}

pub struct Sim {
    pub sim: Simulation<Guests>,
    pub events: Events,
}

/// One pCPU after another, a millisecond each, exactly; tasks stay where they are put.
pub fn turns_of_a_ms() -> AnyClass {
    let config = RoundRobinConfig { slice_min_ns: MS, slice_max_ns: MS, shared_queue: false };
    AnyClass::RoundRobin(RoundRobin::new(config))
}

/// A VM on which all is free and nothing interrupts, with this program.
pub fn vm(vcpus: u32, program: &str) -> VmConfig {
    let text = format!("name = 'test'\n{program}");
    VmConfig {
        name: "vm".into(),
        vcpus,
        kvm: KvmConfig::ideal(),
        guest: GuestConfig::ideal(),
        workload: Some(Workload::Program(parse("test", &text).unwrap())),
        ..VmConfig::default()
    }
}

/// A process that always computes, on this pCPU ([`Sim::pin`]).
pub fn hog(cpu: u32) -> TaskConfig {
    TaskConfig {
        name: format!("hog{cpu}"),
        nice: 0,
        cpus: vec![],
        run_ns: 0,
        sleep_ns: 0,
        random: false,
        vm: None,
        start_ns: 0,
        once: false,
    }
}

pub fn build(
    machine: &MachineConfig,
    class: AnyClass,
    vms: &[VmConfig],
    tasks: &[TaskConfig],
    seed: u64,
) -> Sim {
    let mut host = Host::new(machine, class, seed).unwrap();
    let events = Events::default();
    host.core.observers.add(Box::new(Recorder(Rc::clone(&events))));
    let mut guests = Guests::build(&mut host, vms, tasks, seed).unwrap();
    // The first VM's ticks come at whole milliseconds, to be computed by hand.
    guests.vms[0].tick_phase_ns = 0;
    Sim { sim: Simulation::new(host, guests), events }
}

impl Sim {
    /// Each vCPU of the first VM on the pCPU said; then the hogs on theirs, behind the vCPU that is there.
    pub fn pin(mut self, cpus: &[u32]) -> Self {
        let only = |cpu: u32| Some([CpuId(cpu)].into_iter().collect());
        for (v, cpu) in cpus.iter().enumerate() {
            let task = self.sim.bodies.vms[0].vcpus[v].task;
            self.sim.host.set_affinity(task, only(*cpu));
        }
        for task in (0..self.sim.host.core.tasks.len()).map(TaskId::from) {
            let name = self.sim.bodies.task_name(task);
            if let Some(cpu) = name.strip_prefix("hog").and_then(|cpu| cpu.parse().ok()) {
                self.sim.host.set_affinity(task, only(cpu));
            }
        }
        self
    }

    pub fn until(mut self, ns: u64) -> Self {
        self.sim.run_until(ns).unwrap();
        self
    }

    /// What `f` makes of each event, with its time.
    pub fn list<T>(&self, f: impl Fn(&What) -> Option<T>) -> Vec<(u64, T)> {
        self.events.borrow().iter().filter_map(|(at, what)| f(what).map(|found| (*at, found))).collect()
    }

    /// Who took this lock when, after how long.
    pub fn taken(&self, wanted: u32) -> Vec<(u64, (u32, u64))> {
        self.list(|what| match what {
            What::LockTaken { vcpu, lock, waited_ns, .. } if *lock == wanted => Some((vcpu.id, *waited_ns)),
            _ => None,
        })
    }

    pub fn flushes(&self) -> Vec<(u64, u64)> {
        self.list(|what| match what {
            What::ShootdownEnd { took_ns, .. } => Some(*took_ns),
            _ => None,
        })
    }

    pub fn flushed(&self) -> Vec<(u64, u32)> {
        self.list(|what| match what {
            What::TlbFlushed { vcpu } => Some(vcpu.id),
            _ => None,
        })
    }

    /// What came of the first VM's program.
    pub fn program(&self) -> &Program {
        self.sim.host.core.programs.all().next().expect("a program").1
    }

    pub fn end_ns(&self) -> Option<u64> {
        self.sim.host.core.programs.all().next().and_then(|(_, program)| program.end_ns)
    }
}

/// When the `done` steps of all programs were, and on which vCPU each.
pub fn done_on(s: &Sim) -> Vec<(u64, u32)> {
    s.list(|what| match what {
        What::Progress { vcpu, .. } => Some(vcpu.id),
        _ => None,
    })
}

/// When the `done` steps of all programs were.
pub fn done(s: &Sim) -> Vec<u64> {
    done_on(s).iter().map(|(at, _)| *at).collect()
}
