// SPDX-License-Identifier: GPL-2.0-only
//! What is looked for: a table of rules, each of them a function of the snapshot. docs/audit.md lists them; a test holds one against the other.

mod guest;
mod kernel;
mod placement;

use clap::ValueEnum;
use serde::Serialize;

use crate::audit::snapshot::{Snapshot, Vm};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; costs little, or only some guests
    Info,
    /// Costs time whenever the host is busy
    Warning,
    /// Makes a guest useless when the host is busy, or the host unsafe
    Critical,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

pub struct Rule {
    pub id: &'static str,
    pub severity: Severity,
    /// Why it matters: one sentence.
    pub reason: &'static str,
    pub remedy: &'static str,
    pub check: fn(&Snapshot) -> Vec<Hit>,
}

/// Where a rule applies.
#[derive(Debug, PartialEq, Eq)]
pub struct Hit {
    /// Process number and name; None: the host itself.
    pub vm: Option<(i32, String)>,
    /// What was seen there.
    pub detail: String,
}

impl Hit {
    fn host(detail: impl Into<String>) -> Vec<Hit> {
        vec![Hit { vm: None, detail: detail.into() }]
    }

    fn vm(vm: &Vm, detail: impl Into<String>) -> Hit {
        Hit { vm: Some((vm.pid, vm.name.clone())), detail: detail.into() }
    }
}

/// The rule's hits among the VMs.
fn each_vm(snapshot: &Snapshot, detail: impl Fn(&Vm) -> Option<String>) -> Vec<Hit> {
    snapshot.vms.iter().filter_map(|vm| Some(Hit::vm(vm, detail(vm)?))).collect()
}

/// All rules, the worst first.
pub fn all() -> Vec<&'static Rule> {
    let mut rules: Vec<_> = guest::RULES.iter().chain(&placement::RULES).chain(&kernel::RULES).collect();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.severity));
    rules
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::audit::cpuset::CpuSet;
    use crate::audit::snapshot::{Cpus, Thread};

    /// A host of 4 pCPUs on which nothing is wrong, with these VMs.
    pub fn host(vms: Vec<Vm>) -> Snapshot {
        let cpus = Cpus { online: CpuSet::parse("0-3"), ..Cpus::default() };
        Snapshot { cpus, vms, ..Snapshot::default() }
    }

    /// A VM whose vCPUs may run on these pCPUs; one per list.
    pub fn vm(pid: i32, allowed: &[&str]) -> Vm {
        let thread = |(n, list): (usize, &&str)| Thread { tid: pid + n as i32, allowed: CpuSet::parse(list) };
        let threads: Vec<Thread> = allowed.iter().enumerate().map(thread).collect();
        Vm { pid, name: format!("vm{pid}"), vcpus: threads.len(), threads, ..Vm::default() }
    }

    pub fn wide(pid: i32, vcpus: usize) -> Vm {
        vm(pid, &vec!["0-3"; vcpus])
    }

    /// The details of a rule's hits.
    pub fn hits(id: &str, snapshot: &Snapshot) -> Vec<String> {
        let rule = all().into_iter().find(|rule| rule.id == id).unwrap_or_else(|| panic!("no rule {id}"));
        (rule.check)(snapshot).into_iter().map(|hit| hit.detail).collect()
    }

    /// Cases of a rule: a name, a snapshot, and parts of the one detail that is expected; none: no hit.
    pub fn check(id: &str, cases: &[(&str, Snapshot, &[&str])]) {
        for (name, snapshot, parts) in cases {
            let details = hits(id, snapshot);
            if parts.is_empty() {
                assert!(details.is_empty(), "{id}: {name}: {details:?}");
                continue;
            }
            let [detail] = details.as_slice() else { panic!("{id}: {name}: one hit expected: {details:?}") };
            for part in *parts {
                assert!(detail.contains(part), "{id}: {name}: {part:?} is not in {detail:?}");
            }
        }
    }

    #[test]
    fn each_rule_has_its_own_name_and_says_why_and_what_to_do() {
        let rules = all();
        for rule in &rules {
            assert_eq!(rules.iter().filter(|other| other.id == rule.id).count(), 1, "{}", rule.id);
            assert!(rule.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", rule.id);
            for text in [rule.reason, rule.remedy] {
                assert!(
                    !text.is_empty() && !text.contains('\n') && !text.ends_with('.'),
                    "{}: {text}",
                    rule.id
                );
            }
        }
    }

    #[test]
    fn nothing_is_wrong_with_an_empty_host() {
        for snapshot in [Snapshot::default(), host(vec![])] {
            for rule in all() {
                assert_eq!((rule.check)(&snapshot), [], "{}", rule.id);
            }
        }
    }

    #[test]
    fn the_document_lists_every_rule_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/audit.md");
        let document = std::fs::read_to_string(path).unwrap();
        // Markdown would take libvirt's elements for its own.
        let text = |text: &str| text.replace('<', "\\<");
        let row = |rule: &Rule| {
            let (reason, remedy) = (text(rule.reason), text(rule.remedy));
            format!("| `{}` | {} | {reason} | {remedy} |", rule.id, rule.severity.name())
        };
        let wanted: Vec<String> = all().into_iter().map(row).collect();
        let found: Vec<&str> = document
            .lines()
            .skip_while(|line| !line.starts_with("## Rules"))
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(found, wanted, "the table in docs/audit.md should be:\n{}\n", wanted.join("\n"));
    }
}
