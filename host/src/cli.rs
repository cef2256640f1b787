// SPDX-License-Identifier: GPL-2.0-only
//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand};

use crate::audit::Audit;
use crate::man;
use crate::policy::{parse_split, PolicyArgs};
use crate::record::Record;
use crate::say::Failure;
use crate::sbco::Alpha;
use crate::timing::Timing;
use crate::top::args::Top;

/// Keeps the vCPUs of an SMP virtual machine moving together on an overcommitted KVM host
#[derive(Parser, Debug)]
#[command(
    name = "cohort",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Schedule this host's CPUs until interrupted; then the kernel's own scheduler takes over again
    ///
    /// Needs root and a kernel with sched_ext. Finds the virtual machines by itself, whatever runs them, and follows as they come and go.
    /// Whatever happens to this process, guests keep running: when it ends or fails, all tasks fall back to the kernel's own scheduler.
    Run(Box<Run>),
    /// Say what is configured badly on this host: guests, placement, KVM, kernel
    ///
    /// Reads /proc, /sys, the VMMs' command lines and libvirt's files, and changes nothing. Sees most as root.
    Audit(Audit),
    /// Show which virtual machines lose time on this host, and to what, under any scheduler
    ///
    /// Reads like esxtop and htop: VMs sorted by the time they lost, each to be opened into its vCPUs. Press h for the keys. Needs root, KVM and a
    /// kernel with BTF; it watches the kernel and changes nothing.
    Top(Top),
    /// Write what happens to this host's virtual machines into a file, for `cohortlab import`
    ///
    /// Each turn, wait, halt, pause-loop exit, directed yield and interrupt between siblings, under any scheduler. The file never grows beyond
    /// --max-size: then the newest events take the place of the oldest. Ends at SIGINT, SIGTERM or after --seconds. Needs what `cohort top` needs.
    Record(Record),
    /// Change a scheduler that another `cohort run` has loaded, while it runs
    Tune(Tune),
    /// Show who of a virtual machine's vCPUs communicates with whom, and which of them should run together
    ///
    /// Prints, for each virtual machine, how often each two of its vCPUs sent each other interrupts, the tree of who depends on whom, and the sets in that
    /// tree. Needs a `cohort run --gang partial-auto` that counts; or --matrix.
    Sets(Sets),
    /// Print the manual page of a verb, or write all of them
    #[command(hide = true)]
    Man(man::Pages),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions(man::Completions),
    /// Print the files that this program's scheduler was compiled from, with their SHA-256, as sha256sum does
    #[command(hide = true)]
    Sources,
}

#[derive(Args, Debug)]
pub struct Tune {
    /// See `cohort run --help`; it lasts until the scheduler is loaded again
    #[arg(long, value_name = "PART", required = true)]
    pub sbco_alpha: Alpha,
}

#[derive(Args, Debug)]
pub struct Sets {
    /// Use the matrix in FILE instead: a line per vCPU with its counts, as this prints it; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secs", "vm"])]
    pub matrix: Option<PathBuf>,

    /// Count for so many seconds [0.1..3600]
    #[arg(long, value_name = "SECS", value_parser = parse_secs, default_value = "5")]
    pub secs: Duration,

    /// Only the VM of this name
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,

    /// A set is split where a part depends so many times more on itself than the whole does [1..100]
    #[arg(long, value_name = "T", value_parser = parse_split, default_value_t = cohort_sets::SPLIT_DEFAULT)]
    pub split: f64,
}

#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    pub policy: PolicyArgs,

    /// Print statistics every SECS seconds [0.1..3600]
    #[arg(long, value_name = "SECS", value_parser = parse_secs, help_heading = "Statistics")]
    pub stats: Option<Duration>,

    /// Do not schedule: print statistics, every SECS seconds, of the scheduler that another `cohort run` has loaded [0.1..3600]
    #[arg(
        long,
        value_name = "SECS",
        value_parser = parse_secs,
        conflicts_with_all = ["stats", "check", "PolicyArgs", "Timing"],
        help_heading = "Statistics"
    )]
    pub monitor: Option<Duration>,

    /// With --stats or --monitor: one JSON object per interval and line on stdout, counters cumulative
    #[arg(long, help_heading = "Statistics")]
    pub json: bool,

    /// Only check whether this host can run the scheduler; print what stands in the way, all of it
    #[arg(long, conflicts_with_all = ["stats", "json"])]
    pub check: bool,

    /// Print what libbpf does, and the verifier's log when it refuses; twice: the verifier's log in any case
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    #[command(flatten, next_help_heading = "Timing")]
    pub timing: Timing,
}

impl Run {
    /// What clap cannot express.
    pub fn validate(&self) -> Result<(), Failure> {
        if self.json && self.stats.is_none() && self.monitor.is_none() {
            return Err(Failure::refused("--json needs --stats SECS or --monitor SECS"));
        }
        self.policy.axes()?;
        self.timing.validate()
    }
}

const SECS_MIN: f64 = 0.1;
const SECS_MAX: f64 = 3600.0;

pub fn parse_secs(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(secs) if (SECS_MIN..=SECS_MAX).contains(&secs) => Ok(Duration::from_secs_f64(secs)),
        _ => Err(format!("allowed: seconds from {SECS_MIN} to {SECS_MAX}")),
    }
}

/// How the command line ended the program before it started.
#[derive(Debug)]
pub enum Stop {
    /// Asked for help or version: text for stdout.
    Text(String),
    Failure(Failure),
}

pub fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, Stop> {
    let cli = Cli::try_parse_from(args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Text(error.render().to_string()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Stop::Failure(Failure::refused("say what to do: `cohort run`, `cohort top`, or `cohort --help`"))
        }
        _ => Stop::Failure(Failure::refused(one_line(&error.render().to_string()))),
    })?;
    match &cli.command {
        Command::Run(run) => run.validate().map_err(Stop::Failure)?,
        Command::Top(top) => top.validate().map_err(Stop::Failure)?,
        _ => {}
    }
    Ok(cli)
}

/// clap's explanation, several lines of it, as one.
fn one_line(rendered: &str) -> String {
    let lines = rendered.lines().map(str::trim);
    let told =
        lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let told: Vec<_> = told.filter(|line| !line.is_empty()).collect();
    let mut line = String::new();
    for part in told {
        if !line.is_empty() {
            line.push_str(if line.ends_with(':') { " " } else { "; " });
        }
        line.push_str(part);
    }
    line.strip_prefix("error: ").unwrap_or(&line).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::no_knobs;
    use crate::policy::{Axes, Boost, Placement};
    use clap::CommandFactory;

    fn run(args: &str) -> Result<Run, Stop> {
        let args = ["cohort", "run"].into_iter().chain(args.split_whitespace()).map(Into::into);
        parse(args).map(|cli| match cli.command {
            Command::Run(run) => *run,
            _ => unreachable!(),
        })
    }

    fn refusal(args: &str) -> String {
        match run(args) {
            Err(Stop::Failure(failure)) => {
                assert_eq!(failure.status, 2);
                assert!(!failure.line.contains('\n'), "one line: {}", failure.line);
                failure.line
            }
            other => panic!("{args}: not refused: {other:?}"),
        }
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_cohort_policy_and_the_schedulers_knobs() {
        let run = run("").unwrap();
        assert_eq!(run.policy.axes().ok(), Axes::of_preset("cohort"));
        let mut knobs = no_knobs();
        run.timing.apply(&mut knobs);
        assert_eq!(knobs.slice_ns, crate::intf::default::SLICE_NS);
        assert_eq!(knobs.starve_ns, crate::intf::default::STARVE_NS);
    }

    #[test]
    fn an_axis_overrides_the_preset() {
        let axes =
            run("--policy vtime --placement balance --boost candidate").unwrap().policy.axes().unwrap();
        assert_eq!(axes.placement, Placement::Balance);
        assert_eq!(axes.order, Axes::of_preset("vtime").unwrap().order);
        assert_eq!(axes.boost.to_string(), "candidate");
        assert_eq!(run("--boost off").unwrap().policy.axes().unwrap().boost, Boost::OFF);
        assert_eq!(run("--spin off").unwrap().policy.axes().unwrap().boost, Boost::OFF);
        let text = |args: &str| run(args).unwrap().policy.axes().unwrap().to_string();
        assert_eq!(
            text("--gang aligned --boost off"),
            "placement balance, order vm, gang aligned, spin off, guard off"
        );
        assert_eq!(
            text("--policy vtime --boost any-mode"),
            "placement any, order task, gang off, spin boost (any-mode), guard off"
        );
    }

    #[test]
    fn knobs_are_given_in_microseconds() {
        let mut knobs = no_knobs();
        run("--slice-us 2500 --lag-us 1000").unwrap().timing.apply(&mut knobs);
        assert_eq!((knobs.slice_ns, knobs.lag_ns), (2_500_000, 1_000_000));
    }

    #[test]
    fn a_refusal_names_flag_value_and_what_is_allowed() {
        for (args, wanted) in [
            ("--policy eevdf", ["--policy", "eevdf", "cohort, balance, vtime"]),
            ("--placement here", ["--placement", "here", "any, balance"]),
            ("--gang on", ["--gang", "on", "off, aligned"]),
            ("--order all", ["--order", "all", "vm, task"]),
            ("--boost on", ["--boost", "on", "candidate, any-mode, unfair, migrate"]),
            ("--boost unfair", ["--boost", "unfair", "add candidate"]),
            ("--gang aligned --order task", ["--gang aligned", "--order vm", ""]),
            ("--policy vtime --gang aligned", ["--gang aligned", "--order vm", ""]),
            ("--spin boost --boost off", ["--spin boost", "--boost off", "do not go together"]),
            ("--spin off --boost candidate", ["--spin off", "--boost candidate", "do not go together"]),
            ("--policy vtime --spin boost", ["--spin boost", "--boost off", "do not go together"]),
            ("--slice-us 99", ["--slice-us", "99", "from 100 to 100000"]),
            ("--slice-us=-5", ["--slice-us", "-5", "from 100 to 100000"]),
            ("--starve-us 1000001", ["--starve-us", "1000001", "from 1000 to 1000000"]),
            (
                "--slice-us 500",
                ["--slice-us 500", "--wakeup-gran-us 1000 (the default)", "at most --slice-us"],
            ),
            (
                "--starve-us 5000",
                ["--starve-us 5000", "--slice-us 16000 (the default)", "at most --starve-us"],
            ),
            ("--lag-us 0", ["--lag-us", "0", "from 1000 to 1000000"]),
            ("--lag-us x", ["--lag-us", "x", "from 1000 to 1000000"]),
            ("--stats 0", ["--stats", "0", "from 0.1 to 3600"]),
            ("--stats nan", ["--stats", "nan", "from 0.1 to 3600"]),
            ("--monitor 1e9", ["--monitor", "1e9", "from 0.1 to 3600"]),
            ("--json", ["--json", "--stats", "--monitor"]),
            ("--monitor 1 --stats 1", ["--monitor", "--stats", "cannot be used"]),
            ("--monitor 1 --policy vtime", ["--monitor", "--policy", "cannot be used"]),
            ("--monitor 1 --slice-us 1000", ["--monitor", "--slice-us", "cannot be used"]),
            ("--order sbco --sbco-alpha 1.5", ["--sbco-alpha", "1.5", "from 0.01 to 1"]),
            ("--sbco-alpha 0.5", ["--sbco-alpha", "--order sbco", "vm"]),
            ("--wibble", ["--wibble", "unexpected", ""]),
        ] {
            let line = refusal(args);
            for part in wanted {
                assert!(line.contains(part), "{args}: {part:?} is not in {line:?}");
            }
        }
    }

    #[test]
    fn monitor_alone_is_fine() {
        assert_eq!(run("--monitor 2 --json").unwrap().monitor, Some(Duration::from_secs(2)));
    }

    #[test]
    fn stated_ranges_are_the_real_ones() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for arg in run.get_arguments().filter(|arg| arg.get_id().as_str().ends_with("_us")) {
            let flag = format!("--{}", arg.get_long().unwrap());
            let help = arg.get_help().unwrap().to_string();
            let (low, high) = help.split_once('[').unwrap().1.trim_end_matches(']').split_once("..").unwrap();
            let (low, high): (u64, u64) = (low.parse().unwrap(), high.parse().unwrap());
            // A value at the end of its range may contradict the default of another knob, but it is of the range.
            let in_range = |us: u64| match super::tests::run(&format!("{flag} {us}")) {
                Ok(_) => true,
                Err(Stop::Failure(failure)) => !failure.line.contains("allowed: "),
                Err(Stop::Text(text)) => panic!("{text}"),
            };
            assert!(in_range(low), "{flag} {low}");
            assert!(in_range(high), "{flag} {high}");
            assert!(!in_range(high + 1), "{flag} {}", high + 1);
            assert!(low == 0 || !in_range(low - 1), "{flag} {}", low - 1);
        }
    }
}
