// SPDX-License-Identifier: GPL-2.0-only
//! sched_yield() and directed yields on one pCPU on which everything is free, computed by hand; v: virtual run time, d: deadline, in ms.

use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::{AnyClass, Class as _};
use cohort_sim::host::YieldTo;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::Stop;
use cohort_sim::{Bodies, CpuId, Host, Ns, Run, SimError, Simulation, TaskId};

use crate::common::*;

/// Three busy tasks; at this time something yields; then on to the end.
fn three(config: FairConfig, at_ns: Ns, yields: impl Fn(&mut Sim), end_ns: Ns) -> Vec<(Ns, Option<u32>)> {
    let mut s = sim(&MachineConfig::ideal(1), fair(config), 1);
    let turns = record(&mut s);
    for _ in 0..3 {
        busy(&mut s);
    }
    s.run_until(at_ns).unwrap();
    yields(&mut s);
    s.run_until(end_ns).unwrap();
    turns_us(&turns, 0)
}

fn cfs(wakeup_granularity_ns: Ns) -> FairConfig {
    FairConfig { wakeup_granularity_ns, ..FairConfig::of(Variant::Cfs) }
}

#[test]
fn cfs_passes_over_who_yields_unless_that_is_too_unfair() {
    // START_DEBIT: v 6, 3 and 2; the third runs, and yields at 0.5 ms with v 2.5. The second is 0.5 ahead of it.
    let yields =
        |granularity_ns| three(cfs(granularity_ns), 500 * US, |s| s.host.yield_now(TaskId(2)), 5 * MS);
    // At the tick at 4 the second has v 6.5, the third 2.5.
    assert_eq!(yields(MS), [(0, Some(2)), (500, Some(1)), (4_000, Some(2))]);
    // Further than a granularity of 0.4: the third goes on, to the tick, v 6.
    assert_eq!(yields(400 * US), [(0, Some(2)), (4_000, Some(1))]);
}

fn eevdf(pick_buddy: bool) -> FairConfig {
    FairConfig { slice_ns: 3 * MS, pick_buddy, ..FairConfig::of(Variant::Eevdf) }
}

fn yield_to(from: u32, to: u32) -> impl Fn(&mut Sim) {
    move |s| {
        assert!(s.host.is_running(TaskId(from)));
        assert_eq!(s.host.yield_to(TaskId(from), TaskId(to)), YieldTo::Granted);
    }
}

#[test]
fn eevdf_honours_a_directed_yield_to_who_is_eligible() {
    // At 1 ms the first has v 1, the others 0 and d 1.5 both; the second came before the third.
    assert_eq!(three(eevdf(true), MS, yield_to(0, 2), 3 * MS), [(0, Some(0)), (1_000, Some(2))]);
    // Kernels without PICK_BUDDY take no wishes: a directed yield is a yield.
    assert_eq!(three(eevdf(false), MS, yield_to(0, 2), 3 * MS), [(0, Some(0)), (1_000, Some(1))]);
}

#[test]
fn eevdf_does_not_yield_to_who_is_ahead() {
    // At 5 ms: v 4, 1 and 0, the average is 5/3. The first is ahead of it; the third, d 1.5, is before the second, d 4.5 after its yield.
    assert_eq!(
        three(eevdf(true), 5 * MS, yield_to(1, 0), 7 * MS),
        [(0, Some(0)), (4_000, Some(1)), (5_000, Some(2))]
    );
}

#[test]
fn there_is_no_point_in_yielding_to_who_sleeps_or_is_alone() {
    let mut s = sim(&MachineConfig::ideal(1), fair(eevdf(true)), 1);
    let runs = busy(&mut s);
    let sleeps = s.host.spawn(Default::default());
    s.run_until(MS).unwrap();
    assert_eq!(s.host.yield_to(runs, sleeps), YieldTo::NoPoint);
    busy(&mut s);
    s.run_until(2 * MS).unwrap();
    let running = if s.host.is_running(runs) { runs } else { TaskId(2) };
    assert_eq!(s.host.yield_to(running, sleeps), YieldTo::Refused);
}

#[test]
fn a_sleeper_that_stays_to_pay_counts_as_running() {
    for variant in [Variant::EevdfForfeit, Variant::EevdfFlat] {
        let mut s = sim(
            &MachineConfig::ideal(1),
            fair(FairConfig { slice_ns: 3 * MS, ..FairConfig::of(variant) }),
            1,
        );
        let sleeps = cycle(&mut s, 1_200 * US, 100 * MS);
        let runs = busy(&mut s);
        let queue_len = |s: &Sim| s.host.class.queue_len(CpuId(0));
        s.run_until(2 * MS).unwrap();
        // At 1.2 ms the first went to sleep with v 1.2, the average being 0.6: it stays. (rq->nr_running == 2)
        assert_eq!(queue_len(&s), 2, "{variant:?}");
        assert_eq!(s.host.yield_to(runs, sleeps), YieldTo::Refused);
        // The second, v 0.8 and d 1.5, is not ahead of the average of 1: it forfeits its time up to its deadline. The sleeper has paid then, and is gone.
        s.host.yield_now(runs);
        s.run_until(2 * MS + 1).unwrap();
        let AnyClass::Fair(class) = &s.host.class else { panic!("a fair class") };
        assert_eq!(class.vruntime(runs), 1_500_000, "{variant:?}");
        assert_eq!(queue_len(&s), 1);
        assert_eq!(s.host.yield_to(runs, sleeps), YieldTo::NoPoint);
        s.host.yield_now(runs);
        let AnyClass::Fair(class) = &s.host.class else { panic!("a fair class") };
        assert_eq!(class.vruntime(runs), 1_500_001, "alone it forfeits nothing");
    }
}

/// Tasks that do nothing but yield.
struct Yielding;

impl Bodies for Yielding {
    fn start(&mut self, host: &mut Host, task: TaskId, _run: Run) {
        host.yield_now(task);
    }
    fn speed(&mut self, _host: &mut Host, _task: TaskId, _run: Run) {}
    fn stop(&mut self, _host: &mut Host, _task: TaskId, _why: Stop) {}
    fn event(&mut self, _host: &mut Host, _id: u32, _what: u8, _generation: u32) {}
    fn interrupt(&mut self, _host: &mut Host, _task: TaskId, _what: u32) {}
}

#[test]
fn tasks_that_yield_to_each_other_for_ever_are_no_workload_without_end() {
    let host = Host::new(&MachineConfig::ideal(1), round_robin(MS, false), 1).unwrap();
    let mut s = Simulation::new(host, Yielding);
    for _ in 0..2 {
        let task = s.host.spawn(Default::default());
        s.host.wake(task, None);
    }
    let Err(SimError::Hang(what)) = s.run_until(MS) else { panic!("no time passes") };
    assert_eq!(what, "at 0 ns: 1000000 schedules without time passing; something yields for ever");
}
