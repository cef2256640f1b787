// SPDX-License-Identifier: GPL-2.0-only
//! What the tests share: hosts of each class, and a recorder of who ran when.

use std::cell::RefCell;
use std::rc::Rc;

use cohort_sim::bodies::{Program, Simple};
use cohort_sim::class::ext::{Ext, ExtConfig};
use cohort_sim::class::fair::{Fair, FairConfig};
use cohort_sim::class::round_robin::{RoundRobin, RoundRobinConfig};
use cohort_sim::class::AnyClass;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::{Observer, What};
use cohort_sim::{Host, Ns, Simulation, TaskId};

pub const US: Ns = 1_000;
pub const MS: Ns = 1_000_000;

pub type Sim = Simulation<Simple>;

pub fn sim(machine: &MachineConfig, class: AnyClass, seed: u64) -> Sim {
    Simulation::new(Host::new(machine, class, seed).unwrap(), Simple::default())
}

pub fn fair(config: FairConfig) -> AnyClass {
    AnyClass::Fair(Fair::new(config))
}

pub fn ext(machine: &MachineConfig) -> AnyClass {
    AnyClass::Ext(Ext::new(ExtConfig::default(), machine).unwrap())
}

pub fn round_robin(slice_ns: Ns, shared_queue: bool) -> AnyClass {
    let config = RoundRobinConfig { slice_min_ns: slice_ns, slice_max_ns: slice_ns, shared_queue };
    AnyClass::RoundRobin(RoundRobin::new(config))
}

/// Make a task, and wake it.
pub fn spawn(sim: &mut Sim, spec: TaskSpec, program: Program) -> TaskId {
    let task = sim.host.spawn(spec);
    sim.bodies.add(task, program);
    sim.host.wake(task, None);
    task
}

pub fn busy(sim: &mut Sim) -> TaskId {
    spawn(sim, TaskSpec::default(), Program::Busy)
}

pub fn cycle(sim: &mut Sim, run_ns: Ns, sleep_ns: Ns) -> TaskId {
    spawn(sim, TaskSpec::default(), Program::Cycle { run_ns, sleep_ns })
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

pub fn record(sim: &mut Sim) -> Turns {
    let turns = Turns::default();
    sim.host.core.observers.add(Box::new(Recorder(Rc::clone(&turns))));
    turns
}

/// The turns on one pCPU as (time in us, task).
pub fn turns_us(turns: &Turns, cpu: u32) -> Vec<(Ns, Option<u32>)> {
    turns.borrow().iter().filter(|turn| turn.1 == cpu).map(|turn| (turn.0 / US, turn.2)).collect()
}

struct Hash(Rc<RefCell<u64>>);

impl Observer for Hash {
    fn record(&mut self, now_ns: Ns, what: &What) {
        let mut hash = self.0.borrow_mut();
        // FNV-1a over the words of what happened to tasks and pCPUs.
        let mut add = |word: u64| *hash = (*hash ^ word).wrapping_mul(0x100_0000_01b3);
        let name = |task: &Option<TaskId>| task.map_or(u64::MAX, |task| u64::from(task.0));
        match what {
            What::Switch { cpu, prev, why, next } => {
                for word in [1, now_ns, u64::from(cpu.0), name(prev), *why as u64, name(next)] {
                    add(word);
                }
            }
            What::Wakeup { task, cpu } => {
                for word in [2, now_ns, u64::from(task.0), u64::from(cpu.0)] {
                    add(word);
                }
            }
            What::Migrate { task, from, to } => {
                for word in [3, now_ns, u64::from(task.0), u64::from(from.0), u64::from(to.0)] {
                    add(word);
                }
            }
            _ => {}
        }
    }
}

/// A number that stands for all that happens from now on.
pub fn fingerprint(sim: &mut Sim) -> Rc<RefCell<u64>> {
    let hash = Rc::new(RefCell::new(0xcbf2_9ce4_8422_2325));
    sim.host.core.observers.add(Box::new(Hash(Rc::clone(&hash))));
    hash
}
