// SPDX-License-Identifier: GPL-2.0-only
//! The manual pages: `cohort man > cohort-run.1`, `cohort man top > cohort-top.1`.

use std::io;

use clap::{CommandFactory, ValueEnum};
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::intf;
use crate::timing::AT_MOST;
use crate::top::{COLUMNS, COUNTERS, KEYS};

/// The verbs that have a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verb {
    Run,
    Top,
}

pub fn write(verb: Verb, out: &mut impl io::Write) -> io::Result<()> {
    let mut cohort = Cli::command();
    cohort.build();
    let (verb_name, name) = match verb {
        Verb::Run => ("run", "cohort-run"),
        Verb::Top => ("top", "cohort-top"),
    };
    let command = cohort.find_subcommand(verb_name).ok_or_else(|| io::Error::other("no such verb"))?.clone();
    let man = Man::new(command.name(name).display_name(name).bin_name(format!("cohort {verb_name}")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    match verb {
        Verb::Run => run_sections(out),
        Verb::Top => top_sections(out),
    }
}

fn top_sections(out: &mut impl io::Write) -> io::Result<()> {
    let mut roff = Roff::new();
    let terms = |roff: &mut Roff, terms: &mut dyn Iterator<Item = (&str, &str)>| {
        for (term, meaning) in terms {
            roff.control("TP", []).text([bold(term)]).text([roman(meaning)]);
        }
    };
    roff.control("SH", ["COLUMNS"]);
    terms(&mut roff, &mut COLUMNS.iter().map(|column| (column.head, column.meaning)));
    roff.control("SH", ["KEYS"]);
    terms(&mut roff, &mut KEYS.iter().copied());
    roff.control("SH", ["COUNTERS"]);
    roff.text([roman(
        "In JSON, of each vCPU, and as \"total\" of each VM, since the probe was loaded; times in ns.",
    )]);
    terms(&mut roff, &mut COUNTERS.iter().map(|counter| (counter.name, counter.meaning)));
    roff.control("SH", ["EXIT STATUS"]);
    let statuses = [
        ("0", "Ended as asked."),
        ("1", "The kernel refused the probe; the reason is printed."),
        ("2", "A bad flag or file, or this host cannot be watched (no root, no KVM, no BTF); the remedy is printed."),
    ];
    terms(&mut roff, &mut statuses.into_iter());
    roff.to_writer(out)
}

fn run_sections(out: &mut impl io::Write) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["LIMITS OF TIMING"]);
    roff.text([roman("Knobs that contradict each other are refused:")]);
    for (less, more) in &AT_MOST {
        let (less, more) = (less.to_string(), more.to_string());
        roff.control("TP", []).text([bold(less)]).text([roman("at most "), bold(more)]);
    }
    roff.control("SH", ["STATISTICS"]);
    roff.text([roman(
        "Counters of the totals, in the table as rates, in JSON since the scheduler was loaded.",
    )]);
    for (name, meaning) in intf::STATS {
        roff.control("TP", []).text([bold(*name)]).text([roman(*meaning)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in [
        ("0", "Ended as asked: by SIGINT, SIGTERM or SIGHUP, or because the reader of the statistics went away."),
        ("1", "The kernel refused the scheduler, or put it out; the reason is printed."),
        ("2", "A bad flag, or this host cannot run the scheduler; the remedy is printed."),
    ] {
        roff.control("TP", []).text([bold(status)]).text([roman(meaning)]);
    }
    roff.to_writer(out)
}

#[cfg(test)]
mod tests {
    #[test]
    fn page_has_flags_and_counters() {
        let mut page = Vec::new();
        super::write(super::Verb::Run, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        for wanted in
            ["cohort-run", "--policy", "--slice-us", "LIMITS OF TIMING", "boost_granted", "EXIT STATUS"]
        {
            assert!(page.contains(wanted), "{wanted} is missing in {page}");
        }
    }

    #[test]
    fn the_page_of_top_has_columns_keys_and_counters() {
        let mut page = Vec::new();
        super::write(super::Verb::Top, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        for wanted in
            ["cohort-top", "--listen", "%CSTP", "PREK/s", "choose columns", "costop_ns", "EXIT STATUS"]
        {
            assert!(page.contains(wanted), "{wanted} is missing in {page}");
        }
    }
}
