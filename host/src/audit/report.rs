// SPDX-License-Identifier: GPL-2.0-only
//! The findings as text, a paragraph per rule, and as JSON, an object per finding.

use serde::Serialize;

use crate::audit::rules::{self, Hit, Rule, Severity};
use crate::audit::snapshot::Snapshot;

/// So many of a rule's hits are listed in the text; the others are counted.
const LISTED_MAX: usize = 8;
const WIDTH: usize = 100;

pub struct Report {
    release: String,
    pcpus: usize,
    vms: usize,
    vcpus: usize,
    /// Rules with hits, the worst first.
    findings: Vec<(&'static Rule, Vec<Hit>)>,
    unknown: Vec<String>,
}

#[derive(Serialize)]
struct Json<'a> {
    kernel: &'a str,
    pcpus: usize,
    vms: usize,
    vcpus: usize,
    findings: Vec<Finding<'a>>,
    unknown: &'a [String],
}

#[derive(Serialize)]
struct Finding<'a> {
    rule: &'a str,
    severity: Severity,
    vm: Option<Name<'a>>,
    detail: &'a str,
    reason: &'a str,
    remedy: &'a str,
}

#[derive(Serialize)]
struct Name<'a> {
    pid: i32,
    name: &'a str,
}

fn finding<'a>(rule: &'a Rule, hit: &'a Hit) -> Finding<'a> {
    Finding {
        rule: rule.id,
        severity: rule.severity,
        vm: hit.vm.as_ref().map(|(pid, name)| Name { pid: *pid, name }),
        detail: &hit.detail,
        reason: rule.reason,
        remedy: rule.remedy,
    }
}

impl Report {
    pub fn of(snapshot: &Snapshot) -> Self {
        let findings = rules::all().into_iter().map(|rule| (rule, (rule.check)(snapshot)));
        Report {
            release: snapshot.kernel.release.clone(),
            pcpus: snapshot.cpus.online.len(),
            vms: snapshot.vms.len(),
            vcpus: snapshot.vcpus(),
            findings: findings.filter(|(_, hits)| !hits.is_empty()).collect(),
            unknown: snapshot.unknown.clone(),
        }
    }

    /// How many findings are of this severity or worse.
    pub fn at_least(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|(rule, _)| rule.severity >= severity).map(|(_, hits)| hits.len()).sum()
    }

    pub fn json(&self) -> String {
        let findings =
            self.findings.iter().flat_map(|(rule, hits)| hits.iter().map(|hit| finding(rule, hit)));
        let json = Json {
            kernel: &self.release,
            pcpus: self.pcpus,
            vms: self.vms,
            vcpus: self.vcpus,
            findings: findings.collect(),
            unknown: &self.unknown,
        };
        #[expect(clippy::unwrap_used, reason = "numbers, texts and lists: nothing that JSON cannot hold")]
        serde_json::to_string_pretty(&json).unwrap()
    }

    pub fn text(&self) -> String {
        let Report { release, pcpus, vms, vcpus, .. } = self;
        let mut text = format!("Linux {release}, {pcpus} pCPUs, {vms} VMs of {vcpus} vCPUs\n");
        for (rule, hits) in &self.findings {
            text += &format!("\n{:<9} {}\n", rule.severity.name(), rule.id);
            for hit in hits.iter().take(LISTED_MAX) {
                let place = hit.vm.as_ref().map(|(pid, name)| place(*pid, name)).unwrap_or_default();
                text += &format!("  - {place}{}\n", hit.detail);
            }
            if hits.len() > LISTED_MAX {
                text += &format!("  - and {} more\n", hits.len() - LISTED_MAX);
            }
            text += &paragraph("why", rule.reason);
            text += &paragraph("remedy", rule.remedy);
        }
        if self.findings.is_empty() {
            text += "nothing was found\n";
        }
        if !self.unknown.is_empty() {
            text += "\nnot known:\n";
            self.unknown.iter().for_each(|line| text += &format!("  - {line}\n"));
        }
        text
    }
}

/// The VM before what was seen of it. The name of one that was given none ends with its process number.
fn place(pid: i32, name: &str) -> String {
    if name.ends_with(&format!(":{pid}")) {
        return format!("{name}: ");
    }
    format!("{name} ({pid}): ")
}

/// `  why     …`, broken into lines.
fn paragraph(label: &str, sentence: &str) -> String {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > WIDTH - 10 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let label = |n: usize| if n == 0 { label } else { "" };
    lines.iter().enumerate().map(|(n, line)| format!("  {:<7} {line}\n", label(n))).collect()
}
