// SPDX-License-Identifier: GPL-2.0-only
//! `cohort top`: which VMs lose time, and to what.

mod answer;
mod app;
pub mod args;
mod batch;
pub mod cgroup;
mod columns;
pub mod counters;
mod draw;
mod http;
pub mod lag;
mod openmetrics;
mod rates;
pub mod reach;
pub mod sample;
mod screen;
mod source;
mod words;

use args::Top;
pub use columns::COLUMNS;
use columns::{by_head, Column, USUAL};
pub use counters::COUNTERS;
pub use draw::{fit, KEYS};
use openmetrics::Exporter;
use rates::between;
use sample::Sample;
use source::Source;

use std::collections::HashSet;

use tracing::{info, warn};

use crate::checks::Host;
use crate::output::Output;
use crate::probe;
use crate::run::Stops;
use crate::say::{self, Failure};

/// Columns of the batch table, which has a terminal's usual width.
const TABLE_COLUMNS: usize = 8;

pub fn run(args: &Top, host: &Host) -> Result<(), Failure> {
    say::start_log(args.verbose);
    let serves_only = args.listen.is_some() && !args.batch && screen::check().is_err();
    if !args.batch && !serves_only {
        screen::check()?;
    }
    let exporter = args.listen.map(Exporter::listen).transpose()?;
    let mut storage = probe::Storage::default();
    let stops = stops(args)?;
    let mut source = Source::open(args, &mut storage, host)?;
    if let Some(path) = &args.answer {
        let all = || COLUMNS.iter().collect();
        let columns: Vec<&Column> = args.columns.as_ref().map_or_else(all, |columns| columns.0.clone());
        return answer::serve(path, &columns, &mut source, &stops);
    }
    let mut show = |sample: &Sample| {
        if let Some(exporter) = &exporter {
            exporter.show(sample);
        }
    };
    if args.batch {
        batch(args, &mut source, &stops, &mut show)
    } else if let Some(exporter) = exporter.as_ref().filter(|_| serves_only) {
        serve(args, exporter, &mut source, &stops)
    } else {
        screen::run(args, &mut source, &stops, &mut show)
    }
}

/// Who serves may be the service, which is not to end for a SIGHUP.
pub fn stops(args: &Top) -> Result<Stops, Failure> {
    if args.listen.is_some() {
        Stops::of_a_server("cohort-metrics")
    } else {
        Stops::listen_twice()
    }
}

/// Nothing but the exporter.
fn serve(args: &Top, exporter: &Exporter, source: &mut Source<'_>, stops: &Stops) -> Result<(), Failure> {
    let mut reasons = Reasons::default();
    let first = source.first(stops)?;
    exporter.show(&first);
    reasons.tell(&first.notes);
    info!("serving http://{}/metrics", exporter.address());
    while let Some(sample) = source.next(args.interval, stops)? {
        exporter.show(&sample);
        reasons.tell(&sample.notes);
    }
    Ok(())
}

/// Why figures are missing: each reason is told once, when it first holds.
#[derive(Default)]
struct Reasons(HashSet<String>);

impl Reasons {
    fn tell(&mut self, notes: &[String]) {
        for note in notes {
            if self.is_new(note) {
                warn!("{note}");
            }
        }
    }

    /// One that differs in a number only is the same.
    fn is_new(&mut self, note: &str) -> bool {
        self.0.insert(note.replace(|c: char| c.is_ascii_digit(), ""))
    }
}

fn batch(
    args: &Top,
    source: &mut Source<'_>,
    stops: &Stops,
    show: &mut dyn FnMut(&Sample),
) -> Result<(), Failure> {
    let all: Vec<&Column> = COLUMNS.iter().collect();
    let chosen = args.columns.as_ref().map(|columns| columns.0.clone());
    let usual = || USUAL.iter().filter_map(|head| by_head(head)).take(TABLE_COLUMNS).collect();
    let output = Output::stdout();
    if args.csv {
        output.send(batch::csv_head(chosen.as_ref().unwrap_or(&all)));
    }
    let mut before = source.first(stops)?;
    show(&before);
    // In JSON they are with the figures.
    let mut reasons = (!args.json).then(Reasons::default);
    if let Some(reasons) = &mut reasons {
        reasons.tell(&before.notes);
    }
    let mut left = args.iterations;
    while left != Some(0) && !output.is_closed() {
        let Some(sample) = source.next(args.interval, stops)? else { break };
        show(&sample);
        if let Some(reasons) = &mut reasons {
            reasons.tell(&sample.notes);
        }
        let interval = between(&before, &sample);
        let text = match (args.json, args.csv) {
            (true, _) => batch::json(&sample, &interval, chosen.as_ref().unwrap_or(&all)),
            (_, true) => batch::csv(&sample, &interval, chosen.as_ref().unwrap_or(&all)),
            _ => batch::table(&sample, &interval, &chosen.clone().unwrap_or_else(usual)),
        };
        // A file can wait. Otherwise what a slow reader does not take in time becomes part of a longer interval.
        let sent =
            if args.feed.is_some() { output.send_all(text, || stops.asked()) } else { output.send(text) };
        if sent {
            before = sample;
            left = left.map(|left| left - 1);
        }
    }
    output.finish(|| stops.asked())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_when_it_first_holds_and_not_again() {
        let mut reasons = Reasons::default();
        assert!(reasons.is_new("2 VMs are pinned: no LAG"));
        assert!(!reasons.is_new("31 VMs are pinned: no LAG"));
        assert!(reasons.is_new("3 VMs have a quota: no %MLMTD"));
    }
}
