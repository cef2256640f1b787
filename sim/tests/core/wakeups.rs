// SPDX-License-Identifier: GPL-2.0-only
//! No wake-up is lost: what is handed to a task is done, whenever it comes, also at the very instant at which the task goes to sleep.

use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, RngSeed};

use cohort_sim::class::fair::{FairConfig, Variant};
use cohort_sim::class::AnyClass;
use cohort_sim::events::Timer;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::{Costs, MachineConfig};
use cohort_sim::observe::Stop;
use cohort_sim::{Bodies, CpuId, Host, Ns, Progress, Run, Simulation, Speed, TaskId};

use crate::common::*;

/// All times are multiples of this, so that much happens at the same instant.
const GRID_NS: Ns = 50 * US;

const DELIVERY: u8 = 0;
const END: u8 = 1;

struct Worker {
    unit_ns: Ns,
    /// Every so often it finds one unit more just when it has decided to sleep.
    surprise_every: u64,
    pending: u64,
    given: u64,
    done: u64,
    work: Progress,
    end: Timer,
    speed: Speed,
}

struct Shop {
    workers: Vec<Worker>,
    /// Who gets a unit, and from which pCPU it is woken; by number.
    deliveries: Vec<(usize, Option<u32>)>,
}

impl Shop {
    fn begin(&mut self, host: &mut Host, task: TaskId, from_ns: Ns) {
        let worker = &mut self.workers[task.index()];
        let end_ns = worker.work.start(from_ns, worker.speed);
        host.set_timer(end_ns, task.0, END, worker.end.arm());
    }
}

impl Bodies for Shop {
    fn start(&mut self, host: &mut Host, task: TaskId, run: Run) {
        assert!(self.workers[task.index()].pending > 0, "woken for nothing");
        self.workers[task.index()].speed = run.speed;
        self.begin(host, task, run.from_ns);
    }

    fn speed(&mut self, host: &mut Host, task: TaskId, run: Run) {
        let worker = &mut self.workers[task.index()];
        worker.work.stop(host.now_ns());
        worker.speed = run.speed;
        self.begin(host, task, run.from_ns);
    }

    fn stop(&mut self, host: &mut Host, task: TaskId, why: Stop) {
        let worker = &mut self.workers[task.index()];
        worker.work.stop(host.now_ns());
        worker.end.cancel();
        assert!(why != Stop::Blocked || worker.pending == 0, "sleeps with work to do");
    }

    fn event(&mut self, host: &mut Host, id: u32, what: u8, generation: u32) {
        let now_ns = host.now_ns();
        if what == DELIVERY {
            let (who, by) = self.deliveries[id as usize];
            self.workers[who].pending += 1;
            self.workers[who].given += 1;
            let cpus = host.core.cpus.len() as u32;
            host.wake(TaskId::from(who), by.map(|cpu| CpuId(cpu % cpus)));
            return;
        }
        let task = TaskId(id);
        let worker = &mut self.workers[task.index()];
        if !worker.end.fires(generation) {
            return;
        }
        worker.done += 1;
        worker.pending -= 1;
        worker.work = Progress::new(worker.unit_ns);
        if worker.pending == 0 {
            host.block(task);
            let worker = &mut self.workers[task.index()];
            if worker.done % worker.surprise_every != 0 {
                return;
            }
            // It is still on its way to sleep: the wake-up takes that back, and it goes on.
            worker.pending += 1;
            worker.given += 1;
            host.wake(task, None);
        }
        self.begin(host, task, now_ns);
    }

    fn interrupt(&mut self, _host: &mut Host, _task: TaskId, _what: u32) {}
}

fn class(which: u8, machine: &MachineConfig) -> AnyClass {
    match which {
        0 => fair(FairConfig::of(Variant::Cfs)),
        1 => fair(FairConfig::of(Variant::Eevdf)),
        2 => fair(FairConfig::of(Variant::EevdfForfeit)),
        3 => round_robin(3 * MS, false),
        4 => round_robin(3 * MS, true),
        _ => ext(machine),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(20_262),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_is_handed_over_is_done(
        which in 0..6u8,
        cores in 1..4u32,
        threads in 1..3u32,
        free: bool,
        workers in prop::collection::vec((1..8u64, 2..6u64), 1..7),
        deliveries in prop::collection::vec((0..600u64, any::<prop::sample::Index>(), prop::option::of(0..8u32)), 1..150),
    ) {
        let costs = if free { Costs::free() } else { Costs::default() };
        let machine = MachineConfig { cores_per_socket: cores, threads_per_core: threads, costs, ..MachineConfig::default() };
        let count = workers.len();
        let shop = Shop {
            workers: workers
                .iter()
                .map(|(units, surprise_every)| Worker {
                    unit_ns: units * GRID_NS,
                    surprise_every: *surprise_every,
                    pending: 0,
                    given: 0,
                    done: 0,
                    work: Progress::new(units * GRID_NS),
                    end: Timer::default(),
                    speed: Speed::FULL,
                })
                .collect(),
            deliveries: deliveries.iter().map(|(_, who, by)| (who.index(count), *by)).collect(),
        };
        let mut s = Simulation::new(Host::new(&machine, class(which, &machine), 1).unwrap(), shop);
        for _ in 0..count {
            s.host.spawn(TaskSpec::default());
        }
        for (id, (at, ..)) in deliveries.iter().enumerate() {
            s.host.set_timer(at * GRID_NS, id as u32, DELIVERY, 0);
        }
        // At most 300 units of 0.4 ms each, at a little over half speed; then everybody sleeps.
        s.run_until(400 * MS).unwrap();
        for (who, worker) in s.bodies.workers.iter().enumerate() {
            prop_assert_eq!((worker.done, worker.pending), (worker.given, 0), "worker {}", who);
            prop_assert!(!s.host.is_running(TaskId::from(who)));
        }
    }
}
