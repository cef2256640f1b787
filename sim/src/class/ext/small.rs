// SPDX-License-Identifier: GPL-2.0-only
//! For tests: schedulers of a few lines in the place of `bpf/`, and a host on which they run. Ticks every millisecond, so that slices of 3 ms end with one.

#![allow(clippy::unwrap_used, reason = "tests, and what they share")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::bodies::{Program, Simple};
use crate::class::AnyClass;
use crate::host::TaskSpec;
use crate::ids::TaskId;
use crate::machine::{Costs, MachineConfig};
use crate::observe::{Observer, What};
use crate::sim::Simulation;
use crate::time::Ns;
use crate::Host;

use super::dsq::{DSQ_GLOBAL, DSQ_LOCAL};
use super::ffi::{Ops, TaskStruct};
use super::kfuncs::*;
use super::{Ext, ExtConfig};

pub const US: Ns = 1_000;
pub const MS: Ns = 1_000_000;
pub const SLICE_NS: u64 = 3 * MS;
/// The schedulers' own queue.
pub const SHARED: u64 = 7;

pub type Task = *mut TaskStruct;

pub const NONE: Ops = Ops {
    select_cpu: Some(where_it_was),
    enqueue: None,
    dispatch: Some(from_shared),
    tick: None,
    running: None,
    stopping: None,
    quiescent: None,
    disable: None,
    set_cpumask: None,
    cpu_acquire: None,
    cpu_release: None,
    r#yield: None,
    init_task: None,
    exit_task: None,
    cgroup_init: None,
    cgroup_exit: None,
    cgroup_move: None,
    cgroup_set_weight: None,
    cgroup_set_bandwidth: None,
    cgroup_set_idle: None,
    cpu_online: None,
    cpu_offline: None,
    init: Some(create_shared),
    exit: None,
    flags: 0,
    timeout_ms: 10_000,
};

pub extern "C" fn create_shared() -> i32 {
    scx_bpf_create_dsq(SHARED, -1)
}

pub extern "C" fn where_it_was(_p: Task, prev_cpu: i32, _flags: u64) -> i32 {
    prev_cpu
}

/// As scx_simple does: to an idle pCPU at once.
pub extern "C" fn idle_first(p: Task, prev_cpu: i32, flags: u64) -> i32 {
    let mut idle = false;
    // SAFETY: writable.
    let cpu = unsafe { scx_bpf_select_cpu_dfl(p, prev_cpu, flags, &raw mut idle) };
    if idle {
        scx_bpf_dsq_insert(p, DSQ_LOCAL, SLICE_NS, 0);
    }
    cpu
}

pub extern "C" fn from_shared(_cpu: i32, _prev: Task) {
    scx_bpf_dsq_move_to_local(SHARED);
}

pub extern "C" fn to_shared(p: Task, flags: u64) {
    scx_bpf_dsq_insert(p, SHARED, SLICE_NS, flags);
}

/// First in, first out, one queue for all.
pub static FIFO: Ops = Ops { select_cpu: Some(idle_first), enqueue: Some(to_shared), ..NONE };

pub extern "C" fn to_global(p: Task, flags: u64) {
    scx_bpf_dsq_insert(p, DSQ_GLOBAL, SLICE_NS, flags);
}

pub static GLOBAL: Ops =
    Ops { select_cpu: Some(idle_first), enqueue: Some(to_global), dispatch: None, ..NONE };

thread_local! {
    /// Virtual time by process number.
    pub static VTIMES: RefCell<BTreeMap<i32, u64>> = const { RefCell::new(BTreeMap::new()) };
}

pub extern "C" fn to_shared_by_vtime(p: Task, flags: u64) {
    // SAFETY: a task of the model's.
    let pid = unsafe { (*p).pid };
    let vtime = VTIMES.with_borrow(|vtimes| vtimes.get(&pid).copied().unwrap_or(0));
    scx_bpf_dsq_insert_vtime(p, SHARED, SLICE_NS, vtime, flags);
}

pub extern "C" fn charge_vtime(p: Task, _runnable: bool) {
    // SAFETY: a task of the model's.
    let (pid, weight, slice) = unsafe { ((*p).pid, (*p).scx.weight, (*p).scx.slice) };
    VTIMES.with_borrow_mut(|vtimes| {
        *vtimes.entry(pid).or_default() += (SLICE_NS - slice) * 100 / u64::from(weight);
    });
}

/// By virtual time, as scx_simple without `-f`.
pub static BY_VTIME: Ops = Ops {
    select_cpu: Some(idle_first),
    enqueue: Some(to_shared_by_vtime),
    stopping: Some(charge_vtime),
    ..NONE
};

/// A pCPU's interrupt takes 2 us, its way out of idle 0.7 us.
pub fn slow() -> Costs {
    Costs { ipi_ns: 2_000, idle_exit_ns: 700, ..Costs::free() }
}

/// Who got a pCPU when: (time, pCPU, task; `None`: idle).
pub type Turns = Rc<RefCell<Vec<(Ns, u32, Option<u32>)>>>;

struct Recorder(Turns);

impl Observer for Recorder {
    fn record(&mut self, now_ns: Ns, what: &What) {
        if let What::Switch { cpu, next, .. } = what {
            self.0.borrow_mut().push((now_ns, cpu.0, next.map(|task| task.0)));
        }
    }
}

pub struct World {
    pub sim: Simulation<Simple>,
    pub turns: Turns,
}

impl World {
    pub fn new(ops: &'static Ops, cpus: u32, costs: Costs) -> Self {
        Self::with(ops, cpus, costs, ExtConfig::default())
    }

    pub fn with(ops: &'static Ops, cpus: u32, costs: Costs, config: ExtConfig) -> Self {
        Self::on(ops, MachineConfig::ideal(cpus), costs, config)
    }

    pub fn on(ops: &'static Ops, machine: MachineConfig, costs: Costs, config: ExtConfig) -> Self {
        let machine = MachineConfig { costs: Costs { tick_ns: MS, ..costs }, ..machine };
        let mut ext = Ext::new(config, &machine).unwrap();
        ext.ops = ops;
        ext.on_switch = None;
        let mut host = Host::new(&machine, AnyClass::Ext(ext), 1).unwrap();
        let turns = Turns::default();
        host.core.observers.add(Box::new(Recorder(Rc::clone(&turns))));
        Self { sim: Simulation::new(host, Simple::default()), turns }
    }

    pub fn spawn(&mut self, spec: TaskSpec, program: Program) -> TaskId {
        let task = self.sim.host.spawn(spec);
        self.sim.bodies.add(task, program);
        task
    }

    pub fn busy(&mut self) -> TaskId {
        let task = self.spawn(TaskSpec::default(), Program::Busy);
        self.sim.host.wake(task, None);
        // What follows at this instant.
        let now_ns = self.sim.host.now_ns();
        self.until(now_ns);
        task
    }

    pub fn busy_all(&mut self, count: u32) {
        for _ in 0..count {
            self.busy();
        }
    }

    pub fn until(&mut self, ns: Ns) {
        self.sim.run_until(ns).unwrap();
    }

    /// Who got this pCPU when, in us.
    pub fn turns_us(&self, cpu: u32) -> Vec<(Ns, Option<u32>)> {
        let turns = self.turns.borrow();
        assert!(turns.iter().all(|turn| turn.0 % 100 == 0), "times are lost: {turns:?}");
        turns.iter().filter(|turn| turn.1 == cpu).map(|turn| (turn.0 / US, turn.2)).collect()
    }

    /// The same in ms, of who only; on whole milliseconds.
    pub fn turns_ms(&self, cpu: u32) -> Vec<(Ns, u32)> {
        let turns = self.turns_us(cpu);
        assert!(turns.iter().all(|turn| turn.0 % 1_000 == 0), "{turns:?}");
        turns.iter().map(|turn| (turn.0 / 1_000, turn.1.unwrap())).collect()
    }
}
