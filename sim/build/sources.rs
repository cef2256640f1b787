// SPDX-License-Identifier: GPL-2.0-only
//! Which files a compilation of the scheduler read, with their contents' SHA-256. Both builds use this, the kernel object's and the simulator's, so that
//! a test can compare what they were made of. The compiler itself says what it read (`-MMD`, system headers aside): a folder's list would say what it could have read.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The flags that make the compiler write its list of files.
pub fn flags(depfile: &Path) -> [OsString; 3] {
    ["-MMD".into(), "-MF".into(), depfile.into()]
}

/// The Rust source of `SOURCES`, the files of `bpf_dir` with their digests, and of `SURROUNDINGS`, the names of the others that were read.
pub fn generate(depfile: &Path, bpf_dir: &Path) -> Result<String, Box<dyn Error>> {
    let text = fs::read_to_string(depfile).map_err(|e| format!("{}: {e}", depfile.display()))?;
    let bpf_dir = bpf_dir.canonicalize()?;
    let (mut ours, mut others) = (BTreeMap::new(), BTreeSet::new());
    for file in prerequisites(&text) {
        // libbpf's headers are gone by now: they were unpacked for the compilation.
        let path = file.canonicalize().unwrap_or(file);
        if let Ok(name) = path.strip_prefix(&bpf_dir) {
            let digest = Sha256::digest(fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?);
            let hex = digest.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
            ours.insert(name.display().to_string(), hex);
        } else {
            others.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    if ours.is_empty() {
        return Err(format!("{}: names no file of {}", depfile.display(), bpf_dir.display()).into());
    }
    let mut out = String::from("/// The scheduler's files that were compiled, each with its SHA-256.\n");
    writeln!(out, "pub const SOURCES: &[(&str, &str)] = &{:?};", ours.iter().collect::<Vec<_>>())?;
    writeln!(out, "/// The other files that the compiler read, system headers aside.")?;
    writeln!(out, "pub const SURROUNDINGS: &[&str] = &{:?};", others.iter().collect::<Vec<_>>())?;
    Ok(out)
}

/// The right side of a make rule: separated by blanks, of which those in names have a backslash; lines go on after one.
fn prerequisites(rule: &str) -> Vec<PathBuf> {
    let rule = rule.replace("\\\n", " ");
    let files = rule.split_once(": ").map_or("", |(_, files)| files);
    let marked = files.replace("\\ ", "\0");
    let mut found: Vec<PathBuf> =
        marked.split_whitespace().map(|file| PathBuf::from(file.replace('\0', " "))).collect();
    found.sort();
    found.dedup();
    found
}
