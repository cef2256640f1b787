// SPDX-License-Identifier: GPL-2.0-only
//! Reads the few things that user space must know from the scheduler's C sources: the enums of intf.h, and the knobs.
//!
//! This is no C parser. It reads the plain style of those files, and fails the build on anything else.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One entry of an enum: its name, the comment after it, and its value when written.
struct Entry {
    name: String,
    comment: String,
    value: Option<u64>,
}

/// The Rust source of module `intf`.
pub fn generate(bpf_dir: &Path) -> Result<String> {
    let intf_path = bpf_dir.join("intf.h");
    let intf = fs::read_to_string(&intf_path).map_err(|e| format!("{}: {e}", intf_path.display()))?;
    let mut out = String::new();

    let enums = ["cohort_limits", "cohort_placement", "cohort_boost"];
    out += &constants(&intf_path, &enums)?;

    writeln!(out, "/// Counters, in the order of the map `stats`: name, meaning.")?;
    writeln!(out, "pub const STATS: &[(&str, &str)] = &[")?;
    for entry in enum_entries(&intf, "cohort_stat")? {
        let Some(name) = entry.name.strip_prefix("STAT_") else { continue };
        writeln!(out, "    ({:?}, {:?}),", name.to_lowercase(), entry.comment)?;
    }
    writeln!(out, "];")?;

    writeln!(out, "/// What the scheduler's knobs are when nobody sets them.")?;
    writeln!(out, "pub mod default {{")?;
    for (name, value) in knobs(bpf_dir)? {
        writeln!(out, "    pub const {}: u64 = {value};", name.to_uppercase())?;
    }
    writeln!(out, "}}")?;
    Ok(out)
}

/// The entries of these enums of a header as Rust constants.
pub fn constants(header: &Path, tags: &[&str]) -> Result<String> {
    let text = fs::read_to_string(header).map_err(|e| format!("{}: {e}", header.display()))?;
    let mut out = String::new();
    for tag in tags {
        for entry in enum_entries(&text, tag)? {
            let value = entry.value.ok_or_else(|| format!("intf.h: {} has no value", entry.name))?;
            writeln!(out, "pub const {}: u32 = {value};", entry.name)?;
        }
    }
    Ok(out)
}

/// The entries of `enum TAG { ... }`.
fn enum_entries(source: &str, tag: &str) -> Result<Vec<Entry>> {
    let missing = || format!("intf.h: enum {tag} not found");
    let start = source.find(&format!("enum {tag} {{")).ok_or_else(missing)?;
    let body = &source[start..];
    let body = &body[body.find('{').ok_or_else(missing)? + 1..body.find("};").ok_or_else(missing)?];

    let mut entries: Vec<Entry> = Vec::new();
    let mut rest = body.trim_start();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("/*") {
            let end = after.find("*/").ok_or("intf.h: comment without end")?;
            // Only a comment on the same line as an entry describes that entry.
            if let Some(last) = entries.last_mut() {
                let before = &body[..body.len() - rest.len()];
                let same_line = !before[before.rfind(',').unwrap_or(0)..].contains('\n');
                if same_line {
                    last.comment = squeeze(&after[..end]);
                }
            }
            rest = after[end + 2..].trim_start();
            continue;
        }
        let end = rest.find(',').unwrap_or(rest.len());
        let mut parts = rest[..end].splitn(2, '=').map(str::trim);
        let name = parts.next().unwrap_or_default().to_string();
        let value = parts.next().map(str::parse).transpose().map_err(|e| format!("intf.h: {name}: {e}"))?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!("intf.h: enum {tag}: cannot read {name:?}").into());
        }
        entries.push(Entry { name, comment: String::new(), value });
        rest = rest.get(end + 1..).unwrap_or_default().trim_start();
    }
    Ok(entries)
}

fn squeeze(comment: &str) -> String {
    comment.split_whitespace().filter(|word| *word != "*").collect::<Vec<_>>().join(" ")
}

/// `KNOB TYPE NAME = NUMBER;` in any of the scheduler's files, those with a number.
fn knobs(bpf_dir: &Path) -> Result<BTreeMap<String, u64>> {
    let declaration = |line: &str| {
        let (left, right) = line.strip_prefix("KNOB ")?.split_once('=')?;
        let name = left.split_whitespace().nth(1)?;
        let number = right.split(';').next()?.trim().trim_end_matches(['U', 'L']);
        Some((name.to_string(), number.parse().ok()?))
    };
    let mut found = BTreeMap::new();
    for file in fs::read_dir(bpf_dir)? {
        let path = file?.path();
        if path.extension().is_some_and(|ext| ext == "h" || ext == "c") {
            found.extend(fs::read_to_string(&path)?.lines().filter_map(declaration));
        }
    }
    Ok(found)
}
