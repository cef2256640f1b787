// SPDX-License-Identifier: GPL-2.0-only
//! `cohort`: schedules the CPUs of a KVM host so that the vCPUs of a virtual machine keep moving together, and shows what they wait for.

mod alone;
mod ask;
mod audit;
mod bpf;
mod checks;
mod cli;
mod groups;
mod kernel_ops;
#[cfg(libelf_lacks_search_tree)]
mod libelf;
mod load;
mod man;
mod maps;
mod monitor;
mod output;
mod policy;
mod probe;
mod record;
mod run;
mod say;
mod sbco;
mod service;
mod sets;
mod stats;
mod timing;
mod top;
mod topology;
mod vmname;

/// Parts of the build script, which has no tests of its own: those beside them are run with this program's.
#[cfg(test)]
#[path = "../build/chains.rs"]
mod chains;
#[cfg(test)]
#[path = "../build/code.rs"]
mod code;
#[cfg(test)]
#[path = "../build/constants.rs"]
mod constants;
#[cfg(test)]
#[allow(dead_code)]
#[path = "../../sim/build/enums.rs"]
mod enums;

/// What the scheduler's headers define; see build/headers.rs.
#[allow(dead_code)]
mod intf {
    include!(concat!(env!("OUT_DIR"), "/intf.rs"));
}

/// The policies that there are: the tables of bpf/policies.h.
#[allow(dead_code)]
mod policies {
    include!(concat!(env!("OUT_DIR"), "/policies.rs"));
}

/// Which of them go together: the simulator's file, so that both refuse the same.
#[path = "../../sim/src/together.rs"]
mod together;

/// What the scheduler was compiled from.
mod sources {
    include!(concat!(env!("OUT_DIR"), "/sources.rs"));
}

use std::io::{self, Write};
use std::process::ExitCode;

use checks::Host;
use cli::{Command, Stop};
use say::Failure;

fn main() -> ExitCode {
    run::hold_hangup();
    let result = match cli::parse(std::env::args_os()) {
        Ok(cli) => match cli.command {
            Command::Run(args) => run::run(&args, &Host::this_machine()),
            Command::Top(args) => top::run(&args, &Host::this_machine()),
            Command::Record(args) => record::run(&args, &Host::this_machine()),
            Command::Audit(args) => audit::run(&args),
            Command::Man(args) => man::run(&args),
            Command::Completions(args) => man::complete(&args),
            Command::Tune(args) => sbco::tune(args.sbco_alpha, &Host::this_machine()),
            Command::Sets(args) => sets::show::run(&args, &Host::this_machine(), &mut io::stdout().lock()),
            Command::Sources => write_sources(&mut io::stdout().lock()).or_else(unless_closed),
        },
        Err(Stop::Text(text)) => io::stdout().write_all(text.as_bytes()).or_else(unless_closed),
        Err(Stop::Failure(failure)) => Err(failure),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { status, line }) => {
            // When stderr is closed nobody wants to know.
            let _ = writeln!(io::stderr(), "cohort: {line}");
            ExitCode::from(status)
        }
    }
}

/// As `sha256sum` writes it and reads it; what is around the scheduler, as remarks.
fn write_sources(out: &mut impl Write) -> io::Result<()> {
    sources::SOURCES.iter().try_for_each(|(name, digest)| writeln!(out, "{digest}  {name}"))?;
    sources::SURROUNDINGS.iter().try_for_each(|name| writeln!(out, "# with {name}"))
}

/// A reader who has seen enough is no failure.
pub fn unless_closed(error: io::Error) -> Result<(), Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(Failure::failed(format!("cannot write to stdout: {error}"))),
    }
}
