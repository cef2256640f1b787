// SPDX-License-Identifier: GPL-2.0-only
//! The agent inside both levels of the lab, the host under test and each of its guests; or on a host, beside the guests that are measured there.
//!
//! It starts as PID 1, makes the usual mounts and becomes the reaper; a child of it answers requests, one JSON
//! object per line, that arrive over a virtio-serial port. The host's agent also passes requests on to its
//! guests. It knows nothing of schedulers or workloads: it runs commands, reads files and says when.

mod exec;
mod init;
mod jobs;
mod pause;
mod protocol;
mod relay;
mod server;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.first().map(String::as_str) {
        None if std::process::id() == 1 => init::run(),
        Some("serve") if args.len() == 1 => server::run(),
        Some("host") if args.len() == 2 => server::here(args[1].as_ref()),
        // For the host's init, before the agent proper; later with how many PAUSEs the filter lets pass.
        Some("ps-per-pause") if args.len() == 1 => pause::ps_per_pause(u16::MAX).map(|ps| println!("{ps}")),
        Some("ps-per-pause") if args.len() == 2 => args[1]
            .parse()
            .map_err(anyhow::Error::from)
            .and_then(pause::ps_per_pause)
            .map(|ps| println!("{ps}")),
        _ => {
            eprintln!("cohort-lab-agent: runs as PID 1 of a lab machine (or `serve` under it), or for `cohortlab compare --on host`, not by hand");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cohort-lab-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
