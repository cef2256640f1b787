// SPDX-License-Identifier: GPL-2.0-only
//! The command line of `cohort top`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::columns::{Column, COLUMNS};
use crate::cli::parse_secs;
use crate::say::Failure;

#[derive(Args, Debug)]
pub struct Top {
    /// Look every SECS seconds [0.1..3600]
    #[arg(short = 'd', long, value_name = "SECS", value_parser = parse_secs, default_value = "2")]
    pub interval: Duration,

    /// Columns to show, in this order, separated by commas; `all` for all of them
    #[arg(short, long, value_name = "NAMES", value_parser = parse_columns)]
    pub columns: Option<Columns>,

    /// Print to stdout instead of using the terminal
    #[arg(short, long, help_heading = "For scripts")]
    pub batch: bool,

    /// With --batch: end after N intervals
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "For scripts")]
    pub iterations: Option<u64>,

    /// With --batch: one JSON object per interval and line; counters since the probe was loaded, and figures of the interval
    #[arg(long, conflicts_with = "csv", help_heading = "For scripts")]
    pub json: bool,

    /// With --batch: one line per interval and VM, and one per vCPU; figures of the interval
    #[arg(long, help_heading = "For scripts")]
    pub csv: bool,

    /// With --batch --json: print nothing, but answer whoever connects to the Unix socket PATH with a sample taken then
    #[arg(long, value_name = "PATH", conflicts_with_all = ["iterations", "feed", "listen"], help_heading = "For scripts")]
    pub answer: Option<PathBuf>,

    /// Serve the counters to Prometheus (OpenMetrics) at http://ADDRESS/metrics, on a loopback address; without a terminal, nothing else
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_loopback, help_heading = "For scripts")]
    pub listen: Option<SocketAddr>,

    /// Show what `cohort top --batch --json` printed into FILE (- for stdin), on any machine; needs neither root nor KVM
    #[arg(long, value_name = "FILE", help_heading = "For scripts")]
    pub feed: Option<PathBuf>,

    /// Print what libbpf does, and the verifier's log when it refuses
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// One argument for clap.
#[derive(Clone, Debug)]
pub struct Columns(pub Vec<&'static Column>);

impl Top {
    /// What clap cannot express.
    pub fn validate(&self) -> Result<(), Failure> {
        for (given, flag) in
            [(self.json, "--json"), (self.csv, "--csv"), (self.iterations.is_some(), "--iterations")]
        {
            if given && !self.batch {
                return Err(Failure::refused(format!("{flag} needs --batch")));
            }
        }
        if self.answer.is_some() && !self.json {
            return Err(Failure::refused("--answer needs --batch --json"));
        }
        if self.listen.is_some() && self.feed.is_some() {
            return Err(Failure::refused("--listen serves this host's figures: leave out --feed"));
        }
        Ok(())
    }
}

fn parse_columns(text: &str) -> Result<Columns, String> {
    if text == "all" {
        return Ok(Columns(COLUMNS.iter().collect()));
    }
    let find = |name: &str| {
        let name = name.trim();
        let found = COLUMNS.iter().find(|column| column.head.eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            let heads: Vec<&str> = COLUMNS.iter().map(|column| column.head).collect();
            format!("no column {name:?}; allowed: all, or of {}", heads.join(", "))
        })
    };
    let mut columns: Vec<&'static Column> = Vec::new();
    for column in text.split(',').map(find) {
        let column = column?;
        // The screen sorts by a column, and goes on from its place to the next one: of two places it would
        // never leave the first. In CSV they would be two fields of one name.
        if columns.iter().any(|other| other.head == column.head) {
            return Err(format!("column {} is named twice; allowed: each once", column.head));
        }
        columns.push(column);
    }
    Ok(Columns(columns))
}

fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        _ => Err("allowed: a loopback address and a port, such as 127.0.0.1:9479".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Stop};

    #[test]
    fn a_column_that_is_named_twice_is_refused() {
        let heads = |text: &str| {
            let columns = parse_columns(text).unwrap().0;
            columns.iter().map(|column| column.head).collect::<Vec<_>>()
        };
        assert_eq!(heads("kwait, %RDY"), ["KWAIT", "%RDY"]);
        assert_eq!(heads("all").len(), COLUMNS.len());
        for twice in ["%RDY,%RDY", "%RUN,%RDY,KWAIT, %rdy"] {
            let args = ["cohort", "top", "--columns", twice].map(Into::into);
            let Err(Stop::Failure(Failure { status, line })) = cli::parse(args) else {
                panic!("{twice} is not refused");
            };
            assert_eq!(status, 2);
            for part in ["--columns", "column %RDY is named twice", "allowed: each once"] {
                assert!(line.contains(part) && !line.contains('\n'), "{part:?} is not in {line:?}");
            }
        }
    }

    /// What follows that beginning of a line.
    fn setting<'a>(text: &'a str, name: &str) -> &'a str {
        text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"))
    }

    #[test]
    fn the_service_listens_on_a_loopback_address_as_long_as_nobody_says_another() {
        let unit = include_str!("../../systemd/cohort-metrics.service");
        let settings = include_str!("../../systemd/cohort-metrics.default");
        let address = setting(unit, "Environment=COHORT_METRICS_ADDRESS=");
        assert_eq!(setting(settings, "COHORT_METRICS_ADDRESS="), format!("\"{address}\""));
        for (more, interval_s) in [("", 2), ("--interval 10", 10)] {
            let line = setting(unit, "ExecStart=/usr/local/bin/")
                .replace("${COHORT_METRICS_ADDRESS}", address)
                .replace("$COHORT_METRICS_ARGS", more);
            let top = match cli::parse(line.split_whitespace().map(Into::into)).unwrap().command {
                cli::Command::Top(top) => top,
                _ => panic!("{line}"),
            };
            assert_eq!(top.listen, Some("127.0.0.1:9479".parse().unwrap()));
            assert_eq!(top.interval, Duration::from_secs(interval_s));
        }
    }

    #[test]
    fn the_service_is_denied_nothing_that_it_needs() {
        let unit = include_str!("../../systemd/cohort-metrics.service");
        // Without one of the first three the probe is refused; without the last, hidden processes have no name and no weight.
        let capabilities = setting(unit, "CapabilityBoundingSet=");
        assert_eq!(capabilities, "CAP_BPF CAP_PERFMON CAP_SYS_ADMIN CAP_SYS_PTRACE");
        assert!(setting(unit, "SystemCallFilter=").split(' ').any(|word| word == "bpf"));
        // All that parse_loopback() takes.
        assert_eq!(setting(unit, "RestrictAddressFamilies="), "AF_INET AF_INET6");
        for hides in ["PrivateNetwork=", "PrivateUsers=", "PrivatePIDs=", "ProtectProc=", "ProcSubset="] {
            assert!(!unit.lines().any(|line| line.starts_with(hides)), "{hides}");
        }
    }
}
