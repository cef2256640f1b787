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
    let mut metrics = Metrics::new(who.layout.clone());
    let mut perfetto =
        (perfetto_bytes_max > 0).then(|| Perfetto::new(who.layout.clone(), perfetto_bytes_max).with_costop());
    let mut timeline = (timeline_rows_max > 0).then(|| Timeline::new(who.layout.clone(), timeline_rows_max));
    let unknown = stream::play(recording, &who, &mut |now_ns, what| {
        metrics.record(now_ns, what);
        if let Some(perfetto) = &mut perfetto {
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

#[cfg(test)]
mod tests;
