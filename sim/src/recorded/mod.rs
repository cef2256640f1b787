// SPDX-License-Identifier: GPL-2.0-only
//! What `cohort record` saw of a real host, in the words of the simulator.
//!
//! | module | what it is |
//! |---|---|
//! | [`who`] | which slot is which vCPU; the host and its VMs as observers know them |
//! | [`stream`] | the recording as the stream of events that observers read: the same figures and traces as of a simulated run |
//! | [`replay`] | what each VM did, without what the host made it wait for, as a program to be simulated; `build` writes it down |
//! | [`tape`] | the other way: a simulated run as it would have been recorded |
//!
//! A recording may lack events. So nothing here takes one for granted: a vCPU that runs twice, or wakes while it runs, is put right.

mod build;
pub mod replay;
pub mod stream;
pub mod tape;
pub mod who;

use std::collections::BTreeSet;

use cohort_recording::tasks::Switch;
use cohort_recording::Recording;

use crate::error::SimError;
use crate::metrics::{Figures, Metrics};
use crate::observe::Observer;
use crate::time::Ns;
use crate::trace::perfetto::Perfetto;
use crate::trace::timeline::Timeline;

pub use self::who::Who;

/// The figures and traces of a recording.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// How long it lasts.
    pub length_ns: Ns,
    pub figures: Option<Figures>,
    pub perfetto: Vec<u8>,
    pub timeline: Option<Timeline>,
    pub truncated: bool,
    /// Events of slots of which nobody knows whose they are.
    pub unknown: u64,
}

/// All of a recording, with a Perfetto trace of at most about so many bytes and a timeline of at most so many rows; 0: none.
pub fn import(
    recording: &Recording,
    perfetto_bytes_max: usize,
    timeline_rows_max: usize,
) -> Result<Imported, SimError> {
    let who = Who::of(recording)?;
    let mut metrics = Metrics::seen_from_outside(who.layout.clone());
    let traced: BTreeSet<_> =
        recording.tasks.switches.iter().filter_map(|to| who.vcpu(to.slot, to.time_ns)).collect();
    let mut perfetto = (perfetto_bytes_max > 0)
        .then(|| Perfetto::new(who.layout.clone(), perfetto_bytes_max).with_costop().with_tasks(traced));
    let mut tasks = recording.tasks.switches.iter().peekable();
    let mut timeline = (timeline_rows_max > 0).then(|| Timeline::new(who.layout.clone(), timeline_rows_max));
    let unknown = stream::play(recording, &who, &mut |now_ns, what| {
        metrics.record(now_ns, what);
        if let Some(perfetto) = &mut perfetto {
            while let Some(to) = tasks.next_if(|to| who.since_start_ns(to.time_ns) <= now_ns) {
                task(perfetto, recording, &who, to);
            }
            perfetto.record(now_ns, what);
        }
        if let Some(timeline) = &mut timeline {
            timeline.record(now_ns, what);
        }
    });
    let mut imported = Imported {
        length_ns: who.length_ns,
        figures: Some(metrics.figures(who.length_ns)),
        unknown,
        ..Imported::default()
    };
    if let Some(mut perfetto) = perfetto {
        tasks.for_each(|to| task(&mut perfetto, recording, &who, to));
        imported.perfetto = perfetto.finish(who.length_ns);
        imported.truncated |= perfetto.is_truncated();
    }
    if let Some(mut timeline) = timeline {
        timeline.finish(who.length_ns);
        imported.truncated |= timeline.truncated;
        imported.timeline = Some(timeline);
    }
    Ok(imported)
}

fn task(perfetto: &mut Perfetto, recording: &Recording, who: &Who, switch: &Switch) {
    let name = |at: u32| recording.tasks.names.get(at as usize).map_or("?", String::as_str);
    if let Some(vcpu) = who.vcpu(switch.slot, switch.time_ns) {
        let to = switch.to.map(|(at, pid)| (name(at), pid));
        perfetto.task(who.since_start_ns(switch.time_ns), vcpu, to);
    }
}

#[cfg(test)]
mod tests;
