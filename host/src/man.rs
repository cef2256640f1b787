// SPDX-License-Identifier: GPL-2.0-only
//! Manual pages and shell completions, made of what clap knows: `cohort man --dir DIR` writes `cohort.1` and a page for each verb.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::intf;
use crate::say::Failure;
use crate::timing::AT_MOST;
use crate::top::{COLUMNS, COUNTERS, KEYS};

#[derive(Args, Debug)]
pub struct Pages {
    /// The verb whose page to print; without, the page of `cohort` itself
    #[arg(value_name = "VERB", conflicts_with = "dir")]
    verb: Option<String>,

    /// Write all pages into this folder
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Completions {
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn run(args: &Pages) -> Result<(), Failure> {
    let pages = pages().map_err(|e| Failure::failed(format!("cannot make the manual pages: {e}")))?;
    if let Some(dir) = &args.dir {
        for page in &pages {
            let path = dir.join(format!("{}.1", page.name));
            fs::write(&path, &page.text)
                .map_err(|e| Failure::refused(format!("--dir: cannot write {}: {e}", path.display())))?;
        }
        return Ok(());
    }
    let name = args.verb.as_ref().map_or("cohort".to_string(), |verb| format!("cohort-{verb}"));
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        let verbs: Vec<&str> = pages.iter().filter_map(|page| page.name.strip_prefix("cohort-")).collect();
        let verb = args.verb.as_deref().unwrap_or_default();
        return Err(Failure::refused(format!("VERB: {verb:?} is no verb; allowed: {}", verbs.join(", "))));
    };
    io::stdout().write_all(&page.text).or_else(crate::unless_closed)
}

pub fn complete(args: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cohort", &mut text);
    io::stdout().write_all(&text).or_else(crate::unless_closed)
}

struct Page {
    name: String,
    text: Vec<u8>,
}

/// Of `cohort` and each verb that its help shows.
fn pages() -> io::Result<Vec<Page>> {
    let mut cohort = Cli::command().disable_help_subcommand(true);
    cohort.build();
    let verbs = cohort.get_subcommands().filter(|verb| !verb.is_hide_set());
    let of_verb = |verb: &Command| {
        let (name, verb_name) = (format!("cohort-{}", verb.get_name()), verb.get_name().to_string());
        let bin_name = format!("cohort {verb_name}");
        page(verb.clone().name(name.clone()).display_name(name).bin_name(bin_name), |roff| {
            match verb_name.as_str() {
                "run" => run_sections(roff),
                "top" => top_sections(roff),
                "record" => status(roff, &RECORD_STATUS),
                "audit" => status(roff, &AUDIT_STATUS),
                "sets" => status(roff, &SETS_STATUS),
                "tune" => status(roff, &TUNE_STATUS),
                _ => {}
            }
        })
    };
    let of_verbs: io::Result<Vec<Page>> = verbs.map(of_verb).collect();
    let mut pages = vec![page(cohort.clone(), |_| {})?];
    pages.extend(of_verbs?);
    Ok(pages)
}

fn page(command: Command, more: impl FnOnce(&mut Roff)) -> io::Result<Page> {
    let name = command.get_name().to_string();
    let has_verbs = command.has_subcommands();
    let man = Man::new(command);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_verbs {
        man.render_subcommands_section(&mut text)?;
    }
    let mut roff = Roff::new();
    more(&mut roff);
    roff.to_writer(&mut text)?;
    Ok(Page { name, text })
}

/// Of those that have nothing to finish.
const TWICE: (&str, &str) = (
    "130, 143, 129",
    "SIGINT, SIGTERM or SIGHUP came once more, a second after the first or later, and it had not ended yet.",
);

const RUN_STATUS: [(&str, &str); 4] = [
    ("0", "Ended as asked: by SIGINT, SIGTERM or SysRq-S, or, unless systemd had started it, by SIGHUP or because the reader of the statistics went away. Statistics that cannot be written for another reason, as on a full disk, end nothing: a warning says it, and scheduling goes on without. With --monitor also: the scheduler has ended and none came after it, or the reader went away."),
    ("1", "The kernel refused the scheduler, or put it out, or it had to be loaded again more than 10 times in a minute; or, with --monitor, standard output cannot be written, or the statistics cannot be read; the reason is printed."),
    ("2", "A bad flag, or this host cannot run the scheduler, or becomes one that cannot; with --monitor, there is nothing to monitor, or no right to; the remedy is printed."),
    TWICE,
];
const AUDIT_STATUS: [(&str, &str); 3] = [
    ("0", "Nothing of the severity of --fail-on or worse."),
    ("1", "Such findings, on stdout, and their number on stderr; or standard output cannot be written."),
    ("2", "Wrong input."),
];

const RECORD_STATUS: [(&str, &str); 3] = [
    ("0", "The recording is complete, or says how many events it lacks."),
    ("1", "The kernel refused the probe, or the file cannot be written or given its name; the reason is printed, and where a complete recording stays."),
    ("2", "A bad flag or file name, a file that cannot be made, or this host cannot be watched (no root, no KVM, no BTF); the remedy is printed."),
];

const TOP_STATUS: [(&str, &str); 4] = [
    ("0", "Ended as asked, or the reader has closed the pipe."),
    ("1", "The kernel refused the probe, or standard output cannot be written, as on a full disk, or the terminal cannot be used; the reason is printed."),
    ("2", "A bad flag or file, or this host cannot be watched (no root, no KVM, no BTF); the remedy is printed."),
    TWICE,
];

const SETS_STATUS: [(&str, &str); 4] = [
    ("0", "The sets are shown, or the reader has closed the pipe."),
    ("1", "Counts cannot be read, or standard output or the file of --png cannot be written."),
    ("2", "A bad flag or file, no such VM, or nobody counts who communicates with whom."),
    TWICE,
];

const TUNE_STATUS: [(&str, &str); 3] = [
    ("0", "Changed."),
    ("1", "The scheduler that runs cannot be changed."),
    ("2", "A bad flag, or no Cohort runs, or one of another order."),
];

fn top_sections(roff: &mut Roff) {
    let terms = |roff: &mut Roff, terms: &mut dyn Iterator<Item = (&str, &str)>| {
        for (term, meaning) in terms {
            roff.control("TP", []).text([bold(term)]).text([roman(meaning)]);
        }
    };
    roff.control("SH", ["COLUMNS"]);
    terms(roff, &mut COLUMNS.iter().map(|column| (column.head, column.meaning)));
    roff.control("SH", ["KEYS"]);
    terms(roff, &mut KEYS.iter().copied());
    roff.control("SH", ["COUNTERS"]);
    roff.text([roman(
        "In JSON, of each thread that serves a vCPU, as \"gone\" of those that serve it no more, by the vCPU's number, and as \"total\" of each VM, since the probe was loaded; times in ns.",
    )]);
    terms(roff, &mut COUNTERS.iter().map(|counter| (counter.name, counter.meaning)));
    status(roff, &TOP_STATUS);
}

fn run_sections(roff: &mut Roff) {
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
    status(roff, &RUN_STATUS);
    roff.control("SH", ["SERVICE"]);
    roff.text([roman(
        "Started by systemd with Type=notify, it says that it is ready when the scheduler is attached, and that it is alive for WatchdogSec=.",
    )]);
}

fn status(roff: &mut Roff, table: &[(&str, &str)]) {
    roff.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in table {
        roff.control("TP", []).text([bold(*status)]).text([roman(*meaning)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn text(name: &str) -> String {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        let page = pages.iter().find(|page| page.name == name).unwrap_or_else(|| panic!("{names:?}"));
        String::from_utf8(page.text.clone()).unwrap().replace("\\-", "-")
    }

    #[test]
    fn pages_have_what_their_verbs_have() {
        for (name, parts) in [
            ("cohort", vec!["cohort-run", "cohort-audit", "SUBCOMMANDS"]),
            (
                "cohort-run",
                vec!["--policy", "--slice-us", "LIMITS OF TIMING", "boost_granted", "EXIT STATUS"],
            ),
            ("cohort-audit", vec!["--fail-on", "EXIT STATUS", "warning"]),
            ("cohort-record", vec!["--max-size", "--seconds", "EXIT STATUS"]),
            ("cohort-sets", vec!["--png", "EXIT STATUS", "nobody counts"]),
            ("cohort-tune", vec!["--sbco-alpha", "EXIT STATUS", "another order"]),
            ("cohort-top", vec!["--listen", "%CSTP", "PREK/s", "choose columns", "costop_ns", "EXIT STATUS"]),
        ] {
            let page = text(name);
            for part in parts {
                assert!(page.contains(part), "{part} is missing in {page}");
            }
        }
    }

    #[test]
    fn every_verb_of_the_help_has_a_page_and_no_other() {
        let command = Cli::command();
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).count();
        assert_eq!(pages().unwrap().len(), 1 + verbs);
    }

    #[test]
    fn a_verb_that_is_none_is_refused() {
        let failure = run(&Pages { verb: Some("walk".into()), dir: None }).unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(
            failure.line.contains("\"walk\"") && failure.line.contains("run, audit, top, record"),
            "{}",
            failure.line
        );
    }

    #[test]
    fn what_becomes_of_statistics_that_cannot_be_written_is_said() {
        let page = text("cohort-run");
        assert!(page.contains("scheduling goes on without"), "{page}");
        assert!(
            page.contains("with --monitor, standard output cannot be written, or the statistics"),
            "{page}"
        );
        assert!(page.contains("the scheduler has ended and none came after it"), "{page}");
        assert!(page.contains("there is nothing to monitor"), "{page}");
    }

    #[test]
    fn what_ends_run_and_record_is_what_their_guides_say() {
        let guides = (include_str!("../../docs/cohort.md"), include_str!("../../docs/record.md"));
        for (name, guide, of_both) in [
            ("cohort-run", guides.0, "loaded again more than 10 times in a minute"),
            ("cohort-record", guides.1, "a file that cannot be made"),
        ] {
            let page = text(name);
            assert!(page.contains(of_both) && guide.contains(of_both), "{of_both} is missing in {page}");
        }
    }

    #[test]
    fn what_ends_top_is_what_its_guide_says() {
        let (page, guide) = (text("cohort-top"), include_str!("../../docs/top.md"));
        for (of_page, of_guide) in [
            ("the reader has closed the pipe", "the reader has closed the pipe"),
            (
                "standard output cannot be written, as on a full disk",
                "stdout cannot be written, as on a full disk",
            ),
            ("the terminal cannot be used", "the terminal cannot be used"),
        ] {
            assert!(page.contains(of_page) && guide.contains(of_guide), "{of_page} is missing in {page}");
        }
    }

    #[test]
    fn a_folder_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let failure = run(&Pages { verb: None, dir: Some(none.clone()) }).unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(
            failure.line.starts_with("--dir: cannot write ") && failure.line.contains(none.to_str().unwrap()),
            "{}",
            failure.line
        );
        run(&Pages { verb: None, dir: Some(dir.path().into()) }).unwrap();
        assert!(dir.path().join("cohort-run.1").is_file());
    }

    #[test]
    fn each_shell_completes_the_verbs() {
        for shell in Shell::value_variants() {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "cohort", &mut text);
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("audit") && text.contains("fail-on"), "{shell}");
        }
    }
}
