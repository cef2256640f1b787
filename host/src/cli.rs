// SPDX-License-Identifier: GPL-2.0-only
//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

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
    /// Each turn, wait, halt, pause-loop exit, directed yield and interrupt between siblings, under any scheduler. From about
    /// --max-size on the newest events take the place of the oldest. Ends at SIGINT, SIGTERM or after --seconds. Needs what `cohort top` needs.
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
    /// Of a scheduler with --order sbco: see `cohort run --help`; it lasts until the scheduler is loaded again
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

    /// Draw matrix and tree into FILE as well: shades, rows in the tree's order, a frame around each set
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,

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

    /// Only check whether this host can run the scheduler, and read the file of --sets; print what stands in the way, all of it
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
        let axes = self.policy.axes()?;
        self.timing.validate(|flag| axes.is_idle(flag))
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

fn matched(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, clap::Error> {
    // `--slice-us -3` is a wrong value, not an unknown flag: so the flag's own range is named.
    let valued = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    let command = Cli::command().mut_subcommands(|verb| verb.mut_args(valued));
    let matches = command.try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Run(run), Some((_, of_run))) = (&mut cli.command, matches.subcommand()) {
        run.policy.given = given(of_run);
    }
    Ok(cli)
}

/// The flags that the command line has, without their dashes.
fn given(matches: &ArgMatches) -> Vec<String> {
    let ids = matches.ids().map(clap::Id::as_str);
    let given = ids.filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine));
    given.map(|id| id.replace('_', "-")).collect()
}

pub fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, Stop> {
    let cli = matched(args).map_err(|error| match error.kind() {
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
            ("--boost on", ["--boost", "on", "candidate, any-mode, unfair, migrate, ipi"]),
            ("--boost unfair", ["--boost", "unfair", "add candidate"]),
            ("--gang aligned --order task", ["--gang aligned", "--order vm", ""]),
            ("--policy vtime --gang aligned", ["--gang aligned", "--order vm", ""]),
            (
                "--spin boost --boost off",
                ["--spin boost needs --boost other than off", "(it is off)", "kinds"],
            ),
            ("--spin off --boost candidate", ["--boost candidate needs --spin boost", "(it is off)", ""]),
            ("--policy vtime --spin boost", ["--spin boost needs --boost other than off", "(it is off)", ""]),
            (
                "--spin prefer --order credit --gang off",
                ["--spin prefer", "--order other than credit or sedf", ""],
            ),
            ("--policy vtime --order sbco", ["--order sbco", "--placement balance", "(it is any)"]),
            ("--gang partial", ["--gang partial needs --sets", "nobody is in a set", ""]),
            (
                "--policy strict --sets x",
                ["--sets needs --gang partial or partial-held", "(it is strict)", ""],
            ),
            ("--policy partial --split 2", ["--split needs --gang partial-auto", "(it is partial)", ""]),
            (
                "--policy partial --traffic faults",
                ["--traffic needs --gang partial-auto", "(it is partial)", ""],
            ),
            ("--policy partial-auto --traffic words", ["--traffic", "words", "interrupts, faults, both"]),
            (
                "--policy partial-auto --faults-per-s 500",
                ["--faults-per-s needs --traffic faults or both", "(it is interrupts)", ""],
            ),
            (
                "--policy partial-auto --traffic interrupts --faults-per-s 500",
                ["--faults-per-s needs --traffic faults or both", "(it is interrupts)", ""],
            ),
            (
                "--policy partial-auto --traffic both --faults-per-s 99",
                ["--faults-per-s", "99", "100..=1000000"],
            ),
            ("--skew-us 3000", ["--skew-us needs --gang relaxed", "(it is aligned)", ""]),
            ("--guard-keep-us 200", ["--guard-keep-us needs --guard halted", "(it is off)", ""]),
            ("--policy sbco --guard halted", ["--guard halted needs --order vm or task", "(it is sbco)", ""]),
            ("--guard-grace-us 1000", ["--guard-grace-us needs --guard kernel-mode", "(it is off)", ""]),
            (
                "--policy strict --boost-slice-us 400",
                [
                    "--boost-slice-us needs --spin boost or prefer (it is off)",
                    "or --gang aligned (it is strict)",
                    "",
                ],
            ),
            (
                "--policy credit --slice-us 9000",
                ["--slice-us needs --order other than credit", "(it is credit)", ""],
            ),
            (
                "--policy credit --wakeup-gran-us 9",
                ["--wakeup-gran-us needs --order other than credit", "", ""],
            ),
            ("--policy sedf --lag-us 9000", ["--lag-us needs --order other than credit or sedf", "", ""]),
            ("--slice-us 99", ["--slice-us", "99", "from 100 to 100000"]),
            ("--slice-us=-5", ["--slice-us", "-5", "from 100 to 100000"]),
            ("--slice-us -5", ["--slice-us", "-5", "from 100 to 100000"]),
            ("--stats -1", ["--stats", "-1", "from 0.1 to 3600"]),
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
    fn what_is_of_use_is_accepted() {
        for args in [
            "--policy partial",
            "--policy partial --sets x",
            "--gang partial --sets x",
            "--policy partial-auto --split 2",
            "--policy partial-auto --traffic both --faults-per-s 500",
            "--policy partial-auto --traffic faults --faults-per-s 500",
            "--policy relaxed --skew-us 1000",
            "--guard kernel-mode --guard-grace-us 500",
            "--guard halted --guard-keep-us 50",
            "--policy vtime --guard halted",
            "--boost off --boost-slice-us 300",
            "--policy ple-prefer --boost-slice-us 300",
            "--policy credit --gang strict --slice-us 9000",
            "--policy sedf --boost candidate,unfair --lag-us 9000",
            // What nobody asks for contradicts nothing: no boost, no turn of ours.
            "--policy strict --slice-us 300 --wakeup-gran-us 100",
            "--policy credit --starve-us 1000",
        ] {
            assert!(run(args).is_ok(), "{args}: {:?}", run(args));
        }
    }

    /// The list is the scheduler's; what it names are this program's flags.
    #[test]
    fn whatever_needs_something_is_a_flag() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for [what, needs, _] in crate::policies::NEEDS {
            for flag in what.split(' ').chain(needs.split(' ')).filter_map(|word| word.strip_prefix("--")) {
                assert!(run.get_arguments().any(|arg| arg.get_long() == Some(flag)), "--{flag}");
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
