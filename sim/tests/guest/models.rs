// SPDX-License-Identifier: GPL-2.0-only
//! The models that come with the project: they end, whatever the number of vCPUs; loads do not.

use cohort_sim::class::fair::{Fair, FairConfig};
use cohort_sim::class::AnyClass;
use cohort_sim::guest::GuestConfig;
use cohort_sim::kvm::KvmConfig;
use cohort_sim::machine::MachineConfig;
use cohort_sim::scenario::VmConfig;
use cohort_sim::workload::{model, model_names};

use crate::common::*;

fn alone(name: &str, vcpus: u32) -> Sim {
    let config = VmConfig {
        name: "vm".into(),
        vcpus,
        weight: 100,
        cpus: vec![],
        kvm: KvmConfig::default(),
        guest: GuestConfig::default(),
        workload: model(name),
    };
    let machine = MachineConfig { cores_per_socket: 2, ..MachineConfig::default() };
    let class = AnyClass::Fair(Fair::new(FairConfig::default()));
    let mut s = build(&machine, class, &[config], &[], 1);
    // Without the recorder, which would keep millions of events.
    s.sim.host.core.observers = Default::default();
    s
}

#[test]
fn programs_end() {
    for name in model_names().iter().filter(|name| **name != "cpu-hog") {
        let mut s = alone(name, 3);
        for second in 1..=400 {
            s.sim.run_until(second * 1_000 * MS).unwrap();
            if s.sim.bodies.is_done() {
                break;
            }
        }
        assert!(s.end_ns().is_some(), "{name} does not end: {:?}", s.sim.bodies.figures());
    }
}

#[test]
fn a_load_does_not() {
    let mut s = alone("cpu-hog", 2);
    s.sim.run_until(1_000 * MS).unwrap();
    assert!(!s.sim.bodies.is_done() && s.end_ns().is_none());
}
