// SPDX-License-Identifier: GPL-2.0-only
//! Reads the few things that user space must know from the scheduler's C sources: the enums of intf.h, and the knobs.
//!
//! This is no C parser. It reads the plain style of those files, and fails the build on anything else.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::constants;
use crate::enums::enum_entries;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The Rust source of module `intf`.
pub fn generate(bpf_dir: &Path) -> Result<String> {
    let intf_path = bpf_dir.join("intf.h");
    let intf = fs::read_to_string(&intf_path).map_err(|e| format!("{}: {e}", intf_path.display()))?;
    let mut out = String::new();

    let enums = ["cohort_limits", "cohort_placement", "cohort_boost"];
    out += &constants::of(&intf_path, &enums)?;
    writeln!(out, "/// What the scheduler says that it was compiled with, see intf.h.")?;
    writeln!(out, "pub const LAYOUT_NUMBER: u32 = {};", layout(bpf_dir)?)?;

    writeln!(out, "/// Counters, in the order of the map `stats`: name, meaning.")?;
    writeln!(out, "pub const STATS: &[(&str, &str)] = &[")?;
    let stats = enum_entries(&intf, "cohort_stat").map_err(|e| format!("{}: {e}", intf_path.display()))?;
    for entry in stats {
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

/// A number of the text of intf.h, which lays out what user space reads; never 0.
pub fn layout(bpf_dir: &Path) -> Result<u32> {
    let digest = Sha256::digest(fs::read(bpf_dir.join("intf.h"))?);
    Ok(digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte)) | 1)
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
