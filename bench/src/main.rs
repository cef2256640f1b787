// SPDX-License-Identifier: GPL-2.0-only
//! How fast the simulator is. One JSON object per figure and line: `name`, `value`, `unit`, and the range of the samples, of which `value` is the median.
//! What is to be compared is measured in turn, so that a machine that others use as well hits all alike. An argument: only figures that begin so.
//!
//! The shape that other simulators are measured with as well: 8 pCPUs, 32 CPU-bound tasks, 4 to a pCPU, first in first out, slices drawn evenly from 1 to
//! 4 ms. A decision is one pick of who runs next, with the switch.

mod figure;
mod floor;
mod guests;
mod memory;
mod shapes;

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use cohort_sim::events::{Event, EventQueue};
use cohort_sim::rng::{Rng, Stream};
use cohort_sim::run::Watch;
use cohort_sim::scenario::Policy;
use cohort_sim::{CpuId, SimError};

use figure::{report, Samples};
use shapes::{Count, Shape};

const RUNS: usize = 5;
const GROWTH_RUNS: usize = 3;
const SIZES: [u32; 5] = [8, 100, 1_000, 10_000, 100_000];
/// 32 pCPUs each: together as many vCPUs as the largest single host has, but for 160.
const FLEET_HOSTS: u64 = 260;
const FLEET_VCPUS: u32 = 384;

/// The queue of events alone: as many timers as pCPUs, each set again when it fires. What no simulation on it can beat.
fn events_of_queue_per_s() -> f64 {
    let mut queue = EventQueue::default();
    let mut rng = Rng::derive(1, Stream::Host, 0);
    for cpu in 0..8 {
        queue.push(rng.between(1_000, 4_000), Event::Tick(CpuId(cpu)));
    }
    let (start, count) = (Instant::now(), 5_000_000u32);
    for _ in 0..count {
        if let Some((at_ns, event)) = queue.pop_until(u64::MAX) {
            queue.push(at_ns + rng.between(1_000, 4_000), event);
        }
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// The shape of the peers: the bare loop, the queue of events, each class.
fn peers(wanted: &dyn Fn(&str) -> bool) -> Result<(), SimError> {
    let shapes = [
        ("round_robin", Shape::peers(shapes::round_robin())),
        ("eevdf", Shape::peers(shapes::eevdf())),
        ("cfs", Shape::peers(shapes::cfs())),
        ("bpf", Shape::peers(shapes::bpf()?)),
    ];
    let shapes: Vec<_> = shapes.into_iter().filter(|(name, _)| wanted(name)).collect();
    let (mut floor, mut queue) = (Samples::default(), Samples::default());
    let mut rates = vec![(Samples::default(), Samples::default()); shapes.len()];
    for _ in 0..RUNS {
        if wanted("floor") {
            floor.add(floor::decisions_per_s(600));
        }
        if wanted("event_queue") {
            queue.add(events_of_queue_per_s());
        }
        for ((_, shape), (decisions, events)) in shapes.iter().zip(&mut rates) {
            let Count { decisions: d, events: e, seconds } = shape.run()?;
            decisions.add(d as f64 / seconds);
            events.add(e as f64 / seconds);
        }
    }
    floor.report("floor_decisions", "decisions/s");
    queue.report("event_queue_8", "events/s");
    for ((name, _), (decisions, events)) in shapes.iter().zip(&rates) {
        decisions.report(&format!("{name}_decisions"), "decisions/s");
        events.report(&format!("{name}_events"), "events/s");
    }
    Ok(())
}

/// Time per event as a host grows, tasks and pCPUs together; four tasks to a pCPU as long as there may be so many.
fn growth(name: &str, policy: fn() -> Policy) -> Result<(), SimError> {
    let mut costs = vec![Samples::default(); SIZES.len()];
    for _ in 0..GROWTH_RUNS {
        for (tasks, costs) in SIZES.into_iter().zip(&mut costs) {
            let count = Shape::growing(policy(), tasks).run()?;
            costs.add(count.seconds * 1e9 / count.events as f64);
        }
    }
    for (tasks, costs) in SIZES.into_iter().zip(&costs) {
        costs.report(&format!("{name}_{tasks}_tasks"), "ns/event");
    }
    Ok(())
}

/// VMs whose vCPUs keep each other busy, under EEVDF and under `bpf/`.
fn guests_busy(name: &str, policy: Policy) -> Result<(), SimError> {
    let scenario = guests::busy(policy)?;
    let (mut events, mut decisions, mut speed, mut allocations) = Default::default();
    let mut samples: [&mut Samples; 4] = [&mut events, &mut decisions, &mut speed, &mut allocations];
    for _ in 0..RUNS {
        let count = guests::measure(&scenario)?;
        let of_event = count.allocations as f64 / count.events as f64;
        let values = [
            count.events as f64 / count.seconds,
            count.decisions as f64 / count.seconds,
            count.simulated_s / count.seconds,
            of_event,
        ];
        for (sample, value) in samples.iter_mut().zip(values) {
            sample.add(value);
        }
    }
    events.report(&format!("{name}_events"), "events/s");
    decisions.report(&format!("{name}_decisions"), "decisions/s");
    speed.report(&format!("{name}_speed"), "simulated s/s");
    allocations.report(&format!("{name}_allocations"), "allocations/event");
    Ok(())
}

/// Time per event, and memory, as a host grows: real vCPUs with their guests' kernels.
fn guests_growth(name: &str, policy: fn() -> Policy) -> Result<(), SimError> {
    let mut samples = vec![(Samples::default(), Samples::default()); SIZES.len()];
    for _ in 0..GROWTH_RUNS {
        for (vcpus, (costs, memory)) in SIZES.into_iter().zip(&mut samples) {
            let count = guests::measure(&guests::growing(policy(), vcpus)?)?;
            costs.add(count.seconds * 1e9 / count.events as f64);
            memory.add(count.bytes_per_vcpu);
        }
    }
    for (vcpus, (costs, memory)) in SIZES.into_iter().zip(&samples) {
        costs.report(&format!("{name}_{vcpus}_vcpus"), "ns/event");
        memory.report(&format!("{name}_memory_{vcpus}_vcpus"), "bytes/vCPU");
    }
    let (first, last) = (samples[0].0.median(), samples[SIZES.len() - 1].0.median());
    report(&format!("{name}_ratio"), last / first, "largest/smallest");
    Ok(())
}

/// What users with so many vCPUs have: many hosts, none of which knows of the others, simulated one after the other.
fn fleet(name: &str, policy: fn() -> Policy) -> Result<(), SimError> {
    let mut costs = Samples::default();
    for _ in 0..GROWTH_RUNS {
        let (mut seconds, mut events) = (0.0, 0);
        for host in 0..FLEET_HOSTS {
            let count = guests::measure(&guests::host_of_fleet(policy(), FLEET_VCPUS, host)?)?;
            seconds += count.seconds;
            events += count.events;
        }
        costs.add(seconds * 1e9 / events as f64);
    }
    costs.report(name, "ns/event");
    Ok(())
}

/// What observing costs: whole runs of the busy guests, by what is recorded.
fn tracing() -> Result<(), SimError> {
    const MAX: usize = usize::MAX;
    let off = Watch::default();
    let watches = [
        ("off", off),
        ("fingerprint", Watch { fingerprint: true, ..off }),
        ("metrics", Watch { metrics: true, ..off }),
        ("timeline", Watch { timeline_rows_max: MAX, ..off }),
        ("perfetto", Watch { perfetto_bytes_max: MAX, ..off }),
        ("ftrace", Watch { ftrace_bytes_max: MAX, ..off }),
    ];
    let mut scenario = guests::busy(shapes::eevdf())?;
    scenario.duration_ns /= 4;
    let mut samples = vec![Samples::default(); watches.len()];
    for _ in 0..RUNS {
        for ((_, watch), seconds) in watches.iter().zip(&mut samples) {
            seconds.add(guests::observed(&scenario, *watch)?);
        }
    }
    let off_s = samples[0].median();
    for ((name, _), seconds) in watches.iter().zip(&samples) {
        seconds.report(&format!("tracing_{name}"), "s");
        report(&format!("tracing_{name}_ratio"), seconds.median() / off_s, "times off");
    }
    Ok(())
}

fn run() -> Result<(), SimError> {
    let only = env::args().nth(1).unwrap_or_default();
    let wanted = |name: &str| name.starts_with(&only) || only.starts_with(name);
    peers(&wanted)?;
    if wanted("growth_round_robin") {
        growth("growth_round_robin", shapes::round_robin)?;
    }
    if wanted("growth_eevdf") {
        growth("growth_eevdf", shapes::eevdf)?;
    }
    if wanted("guests_eevdf") {
        guests_busy("guests_eevdf", shapes::eevdf())?;
    }
    if wanted("guests_bpf") {
        guests_busy("guests_bpf", shapes::bpf()?)?;
    }
    if wanted("guests_growth") {
        guests_growth("guests_growth", shapes::eevdf)?;
    }
    if wanted("fleet_100000_vcpus") {
        fleet("fleet_100000_vcpus", shapes::eevdf)?;
    }
    if wanted("tracing") {
        tracing()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
