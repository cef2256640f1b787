// SPDX-License-Identifier: GPL-2.0-only
//! Closed forms of queueing theory (Kleinrock, Queueing Systems, volume 1): each within the confidence interval of the simulated mean.

use cohort_sim::bodies::Simple;
use cohort_sim::class::AnyClass;
use cohort_sim::events::Timer;
use cohort_sim::host::TaskSpec;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::Stop;
use cohort_sim::rng::{Rng, Stream};
use cohort_sim::{Bodies, Host, Ns, Progress, Run, Simulation, TaskId};

use crate::common::*;

const ARRIVAL: u8 = 0;
const END: u8 = 1;

struct Customer {
    work: Progress,
    end: Timer,
    arrived_ns: Ns,
    service_ns: Ns,
}

/// Customers arrive as a Poisson process, with exponential service; each is a task, used again after it has left.
struct Queue {
    customers: Vec<Customer>,
    free: Vec<TaskId>,
    arrivals: Rng,
    services: Rng,
    interarrival_ns: Ns,
    service_ns: Ns,
    /// Nine of ten services are short, the tenth is long.
    mixed: bool,
    /// Response times minus service times; and response times.
    waits: Vec<f64>,
    responses: Vec<f64>,
}

impl Queue {
    fn arrive(&mut self, host: &mut Host) {
        let task = self.free.pop().unwrap_or_else(|| host.spawn(TaskSpec::default()));
        let mean_ns = match self.mixed {
            true if self.services.chance(0.9) => self.service_ns * 2 / 7,
            true => self.service_ns * 52 / 7,
            false => self.service_ns,
        };
        let service_ns = self.services.exponential(mean_ns).max(1);
        let new = Customer {
            work: Progress::new(service_ns),
            end: Timer::default(),
            arrived_ns: host.now_ns(),
            service_ns,
        };
        match self.customers.get_mut(task.index()) {
            Some(known) => *known = Customer { end: known.end, ..new },
            None => self.customers.push(new),
        }
        host.wake(task, None);
        let next_ns = host.now_ns() + self.arrivals.exponential(self.interarrival_ns);
        host.set_timer(next_ns, 0, ARRIVAL, 0);
    }
}

impl Bodies for Queue {
    fn start(&mut self, host: &mut Host, task: TaskId, run: Run) {
        let customer = &mut self.customers[task.index()];
        let end_ns = customer.work.start(run.from_ns, run.speed);
        host.set_timer(end_ns, task.0, END, customer.end.arm());
    }

    fn speed(&mut self, _host: &mut Host, _task: TaskId, _run: Run) {}

    fn stop(&mut self, host: &mut Host, task: TaskId, why: Stop) {
        let customer = &mut self.customers[task.index()];
        customer.work.stop(host.now_ns());
        customer.end.cancel();
        if why == Stop::Blocked {
            let response_ns = host.now_ns() - customer.arrived_ns;
            self.waits.push((response_ns - customer.service_ns) as f64);
            self.responses.push(response_ns as f64);
            self.free.push(task);
        }
    }

    fn event(&mut self, host: &mut Host, id: u32, what: u8, generation: u32) {
        if what == ARRIVAL {
            self.arrive(host);
        } else if self.customers[id as usize].end.fires(generation) {
            host.block(TaskId(id));
        }
    }

    fn interrupt(&mut self, _host: &mut Host, _task: TaskId, _what: u32) {}
}

fn run(
    servers: u32,
    class: AnyClass,
    interarrival_ns: Ns,
    service_ns: Ns,
    customers: u64,
    mixed: bool,
) -> Queue {
    let machine = MachineConfig::ideal(servers);
    let queue = Queue {
        customers: Vec::new(),
        free: Vec::new(),
        arrivals: Rng::derive(7, Stream::Workload, 0),
        services: Rng::derive(7, Stream::Workload, 1),
        interarrival_ns,
        service_ns,
        mixed,
        waits: Vec::new(),
        responses: Vec::new(),
    };
    let mut sim = Simulation::new(Host::new(&machine, class, 7).unwrap(), queue);
    sim.host.set_timer(0, 0, ARRIVAL, 0);
    sim.run_until(customers * interarrival_ns).unwrap();
    sim.bodies
}

/// Mean and half the width of its 99 % interval, by the means of 30 batches, which hardly depend on each other; the first tenth warms up.
fn interval(samples: &[f64]) -> (f64, f64) {
    let samples = &samples[samples.len() / 10..];
    let means: Vec<f64> = samples
        .chunks_exact(samples.len() / 30)
        .map(|batch| batch.iter().sum::<f64>() / batch.len() as f64)
        .collect();
    let count = means.len() as f64;
    let mean = means.iter().sum::<f64>() / count;
    let variance = means.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    // Student's t, 29 degrees of freedom.
    (mean, 2.756 * (variance / count).sqrt())
}

#[track_caller]
fn assert_within(samples: &[f64], expected: f64) {
    let (mean, half) = interval(samples);
    assert!((mean - expected).abs() <= half, "mean {mean:.1}, expected {expected:.1} +- {half:.1}");
    assert!(half < 0.1 * expected, "the interval of {half:.1} around {mean:.1} says nothing");
}

/// Probability that an arrival waits: Erlang's C formula.
fn erlang_c(servers: u32, load: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..servers {
        term *= load / f64::from(k);
        sum += term;
    }
    let last = term * load / f64::from(servers) / (1.0 - load / f64::from(servers));
    last / (sum + last)
}

#[test]
fn mm1_waiting_time() {
    let queue = run(1, round_robin(u64::MAX, true), 10 * US, 7 * US, 200_000, false);
    // rho / (1 - rho) * service.
    assert_within(&queue.waits, 0.7 / 0.3 * 7_000.0);
}

#[test]
fn mmc_waiting_time() {
    for servers in [2, 4] {
        let queue =
            run(servers, round_robin(u64::MAX, true), 10 * US, u64::from(servers) * 8 * US, 200_000, false);
        let (load, service) = (0.8 * f64::from(servers), f64::from(servers) * 8_000.0);
        assert_within(&queue.waits, erlang_c(servers, load) * service / (f64::from(servers) - load));
    }
}

#[test]
fn processor_sharing() {
    // Round robin with slices much shorter than services is processor sharing: the mean response time is service / (1 - rho), whatever the
    // distribution of services. First in, first out would have more than three times that here (Pollaczek and Khinchine).
    let queue = run(1, round_robin(5 * US, false), 100 * US, 70 * US, 300_000, true);
    assert_within(&queue.responses, 70_000.0 / 0.3);
}

#[test]
fn eevdf_shares_the_processor_too() {
    use cohort_sim::class::fair::{FairConfig, Variant};
    let config = FairConfig { slice_ns: 100 * US, ..FairConfig::of(Variant::EevdfForfeit) };
    let machine = MachineConfig::ideal(1);
    let mut sim = sim(&machine, fair(config), 3);
    let tasks: Vec<TaskId> = (0..7).map(|_| busy(&mut sim)).collect();
    sim.run_until(7_000 * MS).unwrap();
    let _: &Simple = &sim.bodies;
    for task in tasks {
        let used_ns = sim.host.run_ns(task);
        assert!(used_ns.abs_diff(1_000 * MS) <= 8 * MS, "{used_ns}");
    }
}
