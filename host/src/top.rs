// SPDX-License-Identifier: GPL-2.0-only
//! `cohort top`: which VMs lose time, and to what.

pub mod args;
mod batch;
pub mod cgroup;
mod columns;
pub mod counters;
pub mod lag;
mod rates;
pub mod sample;
mod source;
mod words;

use args::Top;
use columns::{by_head, Column, COLUMNS, USUAL};
use rates::between;
use source::Source;

use crate::checks::Host;
use crate::output::Output;
use crate::probe;
use crate::run::Stops;
use crate::say::{self, Failure};

/// Columns of the batch table, which has a terminal's usual width.
const TABLE_COLUMNS: usize = 8;

pub fn run(args: &Top, host: &Host) -> Result<(), Failure> {
    say::start_log(args.verbose);
    let mut storage = probe::Storage::default();
    let stops = Stops::listen()?;
    let mut source = Source::open(args, &mut storage, host)?;
    batch(args, &mut source, &stops)
}

fn batch(args: &Top, source: &mut Source<'_>, stops: &Stops) -> Result<(), Failure> {
    let all: Vec<&Column> = COLUMNS.iter().collect();
    let chosen = args.columns.as_ref().map(|columns| columns.0.clone());
    let usual = || USUAL.iter().filter_map(|head| by_head(head)).take(TABLE_COLUMNS).collect();
    let output = Output::stdout();
    if args.csv {
        output.send(batch::csv_head(chosen.as_ref().unwrap_or(&all)));
    }
    let mut before = source.first()?;
    let mut left = args.iterations;
    while left != Some(0) && !output.is_closed() {
        let Some(sample) = source.next(args.interval, stops)? else { break };
        let interval = between(&before, &sample);
        let text = match (args.json, args.csv) {
            (true, _) => batch::json(&sample, &interval, chosen.as_ref().unwrap_or(&all)),
            (_, true) => batch::csv(&sample, &interval, chosen.as_ref().unwrap_or(&all)),
            _ => batch::table(&sample, &interval, &chosen.clone().unwrap_or_else(usual)),
        };
        output.send(text);
        before = sample;
        left = left.map(|left| left - 1);
    }
    output.finish();
    Ok(())
}
