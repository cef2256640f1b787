// SPDX-License-Identifier: GPL-2.0-only
//! Shapes with guests: VMs of four vCPUs with a kernel, run queues, locks, interrupts between vCPUs and TLB flushes, on default hardware.

use std::time::Instant;

use cohort_sim::class::AnyClass;
use cohort_sim::guest::{GuestConfig, Guests};
use cohort_sim::kvm::KvmConfig;
use cohort_sim::machine::{MachineConfig, CPUS_MAX};
use cohort_sim::run::{self, Watch};
use cohort_sim::scenario::{Policy, Scenario, VmConfig};
use cohort_sim::workload::{self, Workload};
use cohort_sim::{Host, SimError, Simulation};

use crate::memory;

const MS: u64 = 1_000_000;
const VCPUS: u32 = 4;

const BUSY: &str = include_str!("programs/busy.toml");
const SERVER: &str = include_str!("programs/server.toml");

/// What a run of a shape took.
pub struct Count {
    pub decisions: u64,
    pub events: u64,
    pub seconds: f64,
    pub simulated_s: f64,
    pub allocations: u64,
    /// Of memory that the simulation has, for each vCPU.
    pub bytes_per_vcpu: f64,
}

/// Eight pCPUs and twice as many vCPUs that all have much to do with each other.
pub fn busy(policy: Policy) -> Result<Scenario, SimError> {
    let machine = MachineConfig { cores_per_socket: 8, ..MachineConfig::default() };
    scenario("busy", policy, machine, 4, BUSY, 2_000 * MS)
}

/// So many vCPUs that sleep most of the time; a pCPU for every twelve of them, in caches of eight and sockets of 64.
pub fn growing(policy: Policy, vcpus: u32) -> Result<Scenario, SimError> {
    let cpus = (vcpus / 12).clamp(1, CPUS_MAX as u32);
    let (sockets, cores) = if cpus > 64 { (cpus.div_ceil(64), 64) } else { (1, cpus) };
    let machine = MachineConfig {
        sockets,
        cores_per_socket: cores,
        cores_per_cache: if cores % 8 == 0 { 8 } else { 0 },
        ..MachineConfig::default()
    };
    // A vCPU has some four thousand events in a second: six million in all, but at least a hundred of each.
    scenario(
        "server",
        policy,
        machine,
        vcpus / VCPUS,
        SERVER,
        (1_500_000 * MS / u64::from(vcpus)).max(30 * MS),
    )
}

/// One host of many, each with its own course of things, for as long as the largest single one is simulated.
pub fn host_of_fleet(policy: Policy, vcpus: u32, host: u64) -> Result<Scenario, SimError> {
    Ok(Scenario { seed: 1 + host, duration_ns: 30 * MS, ..growing(policy, vcpus)? })
}

fn scenario(
    name: &str,
    policy: Policy,
    machine: MachineConfig,
    vms: u32,
    program: &str,
    duration_ns: u64,
) -> Result<Scenario, SimError> {
    let program = workload::parse(name, program)?;
    let vm = |number: u32| VmConfig {
        name: format!("vm{number}"),
        vcpus: VCPUS,
        kvm: KvmConfig::default(),
        guest: GuestConfig::default(),
        workload: Some(Workload::Program(program.clone())),
        ..VmConfig::default()
    };
    Ok(Scenario {
        name: name.into(),
        seed: 1,
        duration_ns,
        events_max: u64::MAX,
        machine,
        policy,
        vms: (0..vms).map(vm).collect(),
        tasks: Vec::new(),
    })
}

/// Simulate. What is made before, and the first fifth of the time, while queues find their sizes, does not count.
pub fn measure(scenario: &Scenario) -> Result<Count, SimError> {
    let before_bytes = memory::in_use_bytes();
    let class = AnyClass::new(&scenario.policy, &scenario.machine)?;
    let mut host = Host::new(&scenario.machine, class, scenario.seed)?;
    let guests = Guests::build(&mut host, &scenario.vms, &scenario.tasks, scenario.seed)?;
    let mut sim = Simulation::new(host, guests);
    let warm_ns = scenario.duration_ns / 5;
    sim.run_until(warm_ns)?;
    let (decisions, events) = (sim.host.core.decisions, sim.events());
    let allocations = memory::allocations();
    let start = Instant::now();
    sim.run_until(scenario.duration_ns)?;
    let seconds = start.elapsed().as_secs_f64();
    let vcpus: u32 = scenario.vms.iter().map(|vm| vm.vcpus).sum();
    Ok(Count {
        decisions: sim.host.core.decisions - decisions,
        events: sim.events() - events,
        seconds,
        simulated_s: (scenario.duration_ns - warm_ns) as f64 / 1e9,
        allocations: memory::allocations() - allocations,
        bytes_per_vcpu: (memory::in_use_bytes() - before_bytes) as f64 / f64::from(vcpus),
    })
}

/// Seconds that a whole run takes, from the scenario to the report.
pub fn observed(scenario: &Scenario, watch: Watch) -> Result<f64, SimError> {
    let start = Instant::now();
    let report = run::run(scenario, watch)?;
    let seconds = start.elapsed().as_secs_f64();
    assert!(!report.truncated, "the traces have room for the whole run");
    Ok(seconds)
}
