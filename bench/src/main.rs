// SPDX-License-Identifier: GPL-2.0-only
//! How fast the simulator is. One JSON object per figure and line: `name`, `value`, `unit`. Each is the median of five runs.
//!
//! The shape that other simulators are measured with as well: 8 pCPUs, 32 CPU-bound tasks, 4 to a pCPU, first in first out, slices drawn evenly from 1 to
//! 4 ms. A decision is one pick of who runs next, with the switch.

mod floor;
mod shapes;

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use cohort_sim::events::{Event, EventQueue};
use cohort_sim::rng::{Rng, Stream};
use cohort_sim::{CpuId, SimError};

use shapes::{Count, Shape};

const RUNS: usize = 5;

fn report(name: &str, value: f64, unit: &str) {
    println!("{{\"name\": \"{name}\", \"value\": {value:.1}, \"unit\": \"{unit}\"}}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The queue of events alone: as many timers as pCPUs, each set again when it fires. What no simulation on it can beat.
fn event_queue() -> Result<(), SimError> {
    let run = || {
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
    };
    report("event_queue_8", median((0..RUNS).map(|_| run()).collect()), "events/s");
    Ok(())
}

fn rates(name: &str, shape: &Shape) -> Result<(), SimError> {
    let mut decisions = Vec::new();
    let mut events = Vec::new();
    for _ in 0..RUNS {
        let Count { decisions: d, events: e, seconds } = shape.run()?;
        decisions.push(d as f64 / seconds);
        events.push(e as f64 / seconds);
    }
    report(&format!("{name}_decisions"), median(decisions), "decisions/s");
    report(&format!("{name}_events"), median(events), "events/s");
    Ok(())
}

/// Time per event as a host grows, tasks and pCPUs together; four tasks to a pCPU as long as there may be so many.
fn growth(name: &str, make: fn(u32) -> Shape) -> Result<(), SimError> {
    for tasks in [8, 100, 1_000, 10_000, 100_000] {
        let shape = make(tasks);
        let mut costs = Vec::new();
        for _ in 0..3 {
            let count = shape.run()?;
            costs.push(count.seconds * 1e9 / count.events as f64);
        }
        report(&format!("{name}_{tasks}_tasks"), median(costs), "ns/event");
    }
    Ok(())
}

fn run() -> Result<(), SimError> {
    let only = env::args().nth(1).unwrap_or_default();
    let wanted = |name: &str| name.starts_with(&only);
    if wanted("floor") {
        report(
            "floor_decisions",
            median((0..RUNS).map(|_| floor::decisions_per_s(600)).collect()),
            "decisions/s",
        );
    }
    if wanted("event_queue") {
        event_queue()?;
    }
    for (name, shape) in [
        ("round_robin", Shape::peers(shapes::round_robin())),
        ("eevdf", Shape::peers(shapes::eevdf())),
        ("cfs", Shape::peers(shapes::cfs())),
        ("ext", Shape::peers(shapes::ext())),
    ] {
        if wanted(name) {
            rates(name, &shape)?;
        }
    }
    if wanted("growth_round_robin") {
        growth("growth_round_robin", |tasks| Shape::growing(shapes::round_robin(), tasks))?;
    }
    if wanted("growth_eevdf") {
        growth("growth_eevdf", |tasks| Shape::growing(shapes::eevdf(), tasks))?;
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
