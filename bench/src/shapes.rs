// SPDX-License-Identifier: GPL-2.0-only
//! What is simulated.

use std::collections::BTreeMap;
use std::time::Instant;

use cohort_sim::bodies::{Program, Simple};
use cohort_sim::class::ext::ExtConfig;
use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::round_robin::RoundRobinConfig;
use cohort_sim::class::AnyClass;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::{Costs, MachineConfig, CPUS_MAX};
use cohort_sim::policies::{GANGS, GUARDS, ORDERS, PRESETS, SPINS};
use cohort_sim::scenario::Policy;
use cohort_sim::{CpuId, Host, SimError, Simulation};

const MS: u64 = 1_000_000;
/// The kinds of boost, in the order of their bits.
const BOOSTS: [&str; 5] = ["candidate", "any-mode", "unfair", "migrate", "ipi"];

pub fn round_robin() -> Policy {
    Policy::RoundRobin(RoundRobinConfig { slice_min_ns: MS, slice_max_ns: 4 * MS, shared_queue: false })
}

pub fn eevdf() -> Policy {
    Policy::Fair(FairConfig::of(Variant::EevdfForfeit))
}

pub fn cfs() -> Policy {
    Policy::Fair(FairConfig::of(Variant::Cfs))
}

/// The scheduler of `bpf/` as `cohort run` sets it up by default: the first of the presets in its own tables.
pub fn bpf() -> Result<Policy, SimError> {
    let [_, placement, order, gang, spin, boost, guard, _] = PRESETS[0];
    let bits = (0..).zip(BOOSTS).filter(|(_, kind)| boost.split(',').any(|word| word == *kind));
    let knobs = BTreeMap::from([
        ("placement".to_owned(), u64::from(placement == "balance")),
        ("order".to_owned(), place_of(ORDERS, order)?),
        ("gang".to_owned(), place_of(GANGS, gang)?),
        ("spin".to_owned(), place_of(SPINS, spin)?),
        ("boost".to_owned(), bits.map(|(bit, _)| 1u64 << bit).sum::<u64>()),
        ("guard".to_owned(), place_of(GUARDS, guard)?),
    ]);
    Ok(Policy::Ext(ExtConfig { knobs, ..ExtConfig::default() }))
}

/// A name's place in its table is its number.
fn place_of(table: &[[&str; 2]], name: &str) -> Result<u64, SimError> {
    let place = table.iter().position(|row| row[0] == name);
    place.map(|place| place as u64).ok_or_else(|| SimError::Config(format!("policies.h has no {name}")))
}

pub struct Shape {
    policy: Policy,
    machine: MachineConfig,
    tasks: u32,
    program: Program,
    pinned: bool,
    /// Decisions or events worth measuring.
    duration_ns: u64,
}

pub struct Count {
    pub decisions: u64,
    pub events: u64,
    pub seconds: f64,
}

impl Shape {
    /// 8 pCPUs, 32 CPU-bound tasks, 4 to a pCPU.
    pub fn peers(policy: Policy) -> Self {
        Self {
            policy,
            machine: MachineConfig::ideal(8),
            tasks: 32,
            program: Program::Busy,
            pinned: true,
            duration_ns: 600_000 * MS,
        }
    }

    /// So many tasks that run for 1 ms and sleep for 3 ms, four to a pCPU.
    pub fn growing(policy: Policy, tasks: u32) -> Self {
        let cpus = (tasks / 4).clamp(1, CPUS_MAX as u32);
        Self {
            policy,
            machine: MachineConfig {
                cores_per_socket: cpus,
                costs: Costs::free(),
                ..MachineConfig::default()
            },
            tasks,
            program: Program::Cycle { run_ns: MS, sleep_ns: 3 * MS },
            pinned: true,
            // A pCPU has about two events in a ms: some three million.
            duration_ns: 1_500_000 * MS / u64::from(cpus),
        }
    }

    pub fn run(&self) -> Result<Count, SimError> {
        let class = AnyClass::new(&self.policy, &self.machine)?;
        let mut sim = Simulation::new(Host::new(&self.machine, class, 1)?, Simple::default());
        let cpus = sim.host.core.cpus.len() as u32;
        for index in 0..self.tasks {
            let allowed = self.pinned.then(|| [CpuId(index % cpus)].into_iter().collect());
            let task = sim.host.spawn(TaskSpec { allowed, ..TaskSpec::default() });
            sim.bodies.add(task, self.program);
            sim.host.wake(task, None);
        }
        // Memory is touched for the first time, and queues find their sizes, before it counts.
        sim.run_until(self.duration_ns / 5)?;
        let (decisions, events) = (sim.host.core.decisions, sim.events());
        let start = Instant::now();
        sim.run_until(self.duration_ns)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Count { decisions: sim.host.core.decisions - decisions, events: sim.events() - events, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_the_default_preset() {
        let Policy::Ext(ExtConfig { knobs, .. }) = bpf().unwrap() else { panic!("none of bpf/") };
        let [_, placement, order, gang, spin, boost, guard, _] = PRESETS[0];
        let named = |table: &[[&'static str; 2]], knob: &str| table[knobs[knob] as usize][0];
        assert_eq!(
            [named(ORDERS, "order"), named(GANGS, "gang"), named(SPINS, "spin"), named(GUARDS, "guard")],
            [order, gang, spin, guard]
        );
        assert_eq!(knobs["placement"] == 1, placement == "balance");
        let kinds = boost.split(',').filter(|kind| *kind != "off").count();
        assert_eq!(knobs["boost"].count_ones() as usize, kinds);
    }

    #[test]
    fn the_bits_of_boosts_are_those_of_the_scheduler() {
        for (bit, kind) in BOOSTS.into_iter().enumerate() {
            let entry = format!("\tBOOST_{} = {},", kind.to_uppercase().replace('-', "_"), 1 << bit);
            assert!(include_str!("../../bpf/intf.h").contains(&entry), "{entry}");
        }
    }
}
