// SPDX-License-Identifier: GPL-2.0-only
//! Threads of VMMs that run once, when something is asked of a VM.

use cohort_sim::class::fair::{Fair, FairConfig, GroupWeight, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::machine::MachineConfig;
use cohort_sim::scenario::{TaskConfig, VmConfig};
use cohort_sim::{CpuId, TaskId};

use crate::common::*;

#[test]
fn a_vmms_thread_that_runs_once_weighs_as_one_that_is_old() {
    let busy = "[[thread]]\nname = 't'\nsteps = [{ compute = '10s' }]";
    let named = |name: &str| VmConfig { name: name.into(), ..vm(1, busy) };
    let asked = TaskConfig {
        run_ns: MS,
        name: "a/asked".into(),
        vm: Some("a".into()),
        start_ns: 500 * MS,
        once: true,
        ..hog(1)
    };
    let config = FairConfig { group_weight: GroupWeight::Smp, ..FairConfig::of(Variant::EevdfFlat) };
    let class = AnyClass::Fair(Fair::new(config));
    let mut s = build(&MachineConfig::ideal(2), class, &[named("a"), named("b")], &[asked], 1);
    let thread = TaskId::from(s.sim.host.core.tasks.len() - 1);
    for (task, cpu) in [(TaskId(0), 0), (TaskId(1), 0), (thread, 1)] {
        s.sim.host.set_affinity(task, Some([CpuId(cpu)].into_iter().collect()));
    }
    let run_ns = |s: &Sim| [0, 1, thread.index()].map(|task| s.sim.host.run_ns(TaskId::from(task)));
    s = s.until(500 * MS);
    let before = run_ns(&s);
    s = s.until(540 * MS);
    let after = run_ns(&s);
    assert_eq!([before[2], after[2]], [US, US + MS], "a moment at first");
    // As a new one it would have halved what `a` weighs on pCPU 0, by a load on pCPU 1 as if it had always been there.
    let [a, b] = [0, 1].map(|at| after[at] - before[at]);
    assert!(a as f64 / (a + b) as f64 > 0.45, "{a} of {}", a + b);
}

#[test]
fn it_runs_when_it_is_asked_although_it_lost_its_pcpu_in_its_first_moment() {
    let asked = |start_ns| TaskConfig {
        name: "vm/asked".into(),
        run_ns: MS,
        vm: Some("vm".into()),
        start_ns,
        once: true,
        ..hog(1)
    };
    let busy = "[[thread]]\nname = 't'\nsteps = [{ compute = '10s' }]";
    let thread = |start_ns, until_ns, stops_ns: u64| {
        let mut machine = MachineConfig::ideal(1);
        machine.costs.context_switch_ns = 3 * US;
        let mut s = build(&machine, turns_of_a_ms(), &[vm(1, busy)], &[asked(start_ns)], 1);
        let last = TaskId::from(s.sim.host.core.tasks.len() - 1);
        s = s.until(stops_ns);
        // Whose turn it is: the vCPU's first ms, then the thread's moment, in which it has to go.
        s.sim.host.core.resched(CpuId(0));
        s = s.until(until_ns);
        s.sim.host.run_ns(last)
    };
    let at_ns = 10 * MS;
    assert!(thread(at_ns, 40 * MS, MS + 3_500) > MS, "preempted in its moment");
    // Its moment is over after it should have begun: it begins then.
    assert!(thread(2 * US, 40 * MS, 500 * US) > MS, "late");
}
