// SPDX-License-Identifier: GPL-2.0-only
//! The manual page: `cohort man > cohort-run.1`.

use std::io;

use clap::CommandFactory;
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::intf;
use crate::timing::AT_MOST;

pub fn write(out: &mut impl io::Write) -> io::Result<()> {
    let mut cohort = Cli::command();
    cohort.build();
    let run = cohort.find_subcommand("run").ok_or_else(|| io::Error::other("no subcommand run"))?.clone();
    let man = Man::new(run.name("cohort-run").display_name("cohort-run").bin_name("cohort run"));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;

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
        super::write(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        for wanted in
            ["cohort-run", "--policy", "--slice-us", "LIMITS OF TIMING", "boost_granted", "EXIT STATUS"]
        {
            assert!(page.contains(wanted), "{wanted} is missing in {page}");
        }
    }
}
