// SPDX-License-Identifier: GPL-2.0-only
//! `cohort audit`: what is configured badly on this host. It reads /proc, /sys and libvirt's files, and changes nothing.

mod cpuset;
pub mod guest_cpu;
mod libvirt;
mod report;
mod rules;
mod snapshot;
#[cfg(test)]
mod tests;
mod vms;

pub use snapshot::{delivers_ipis, spins, Spins};

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::checks::Host;
use crate::probe::{told, Told};
use crate::say::Failure;
use report::Report;
use rules::Severity;
use snapshot::Snapshot;

#[derive(Args, Debug)]
pub struct Audit {
    /// One JSON object on stdout: all findings, each VM's, and what could not be known
    #[arg(long)]
    json: bool,

    /// The exit status is 1 if there are findings of this severity or worse
    #[arg(long, value_name = "SEVERITY", value_enum, default_value_t = Severity::Warning, hide_possible_values = true,
          long_help = "The exit status is 1 if there are findings of this severity or worse: info, warning or critical")]
    fail_on: Severity,

    /// Read DIR/proc, DIR/sys and DIR/run instead: a host's as a container sees it, or a copy
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

fn not_this_machine(_: &Host) -> Result<Vec<Told>, String> {
    Err("--root may be another machine's".into())
}

pub fn run(args: &Audit) -> Result<(), Failure> {
    let host = match &args.root {
        Some(root) => Host::below(root.clone()),
        None => Host::this_machine(),
    };
    if !host.exists("/proc/sys/kernel/osrelease") {
        let root = args.root.clone().unwrap_or_else(|| PathBuf::from("/"));
        return Err(Failure::refused(format!(
            "--root {}: proc/sys/kernel/osrelease is not there: name a folder that has a host's proc and sys",
            root.display()
        )));
    }
    // The kernel knows this machine's guests, whatever /proc is looked at.
    let ask = if args.root.is_none() { told } else { not_this_machine };
    let report = Report::of(&Snapshot::read(&host, ask));
    let text = if args.json { report.json() + "\n" } else { report.text() };
    io::stdout().write_all(text.as_bytes()).or_else(crate::unless_closed)?;
    match report.at_least(args.fail_on) {
        0 => Ok(()),
        1 => Err(Failure::failed(format!("1 finding of severity {} or worse", args.fail_on.name()))),
        count => {
            Err(Failure::failed(format!("{count} findings of severity {} or worse", args.fail_on.name())))
        }
    }
}
