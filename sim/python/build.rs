// SPDX-License-Identifier: GPL-2.0-only
//! Names what decides what is simulated, the scheduler's own files aside: whoever keeps results can tell those of another simulator.

#[path = "../build/common.rs"]
mod common;

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sha2::{Digest, Sha256};

/// Folders and files of the workspace. The lock file is there for arithmetic and histograms of other people's.
const DECIDE: [&str; 9] = [
    "Cargo.lock",
    "recording/src",
    "sets/src",
    "sim/build",
    "sim/build.rs",
    "sim/python/src",
    "sim/src",
    "topology/src",
    "workloads/models",
];
/// Hexadecimal digits.
const DIGITS: usize = 16;

fn main() -> ExitCode {
    common::exit(build())
}

fn build() -> Result<(), Box<dyn Error>> {
    let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let mut all = Sha256::new();
    for name in DECIDE {
        println!("cargo:rerun-if-changed={}", workspace.join(name).display());
        add(&workspace, Path::new(name), &mut all)?;
    }
    let hex = all.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=COHORT_SIM_DECIDES={}", &hex[..DIGITS]);
    Ok(())
}

/// A file's name and content, or all that a folder has, in the order of names.
fn add(workspace: &Path, name: &Path, to: &mut Sha256) -> Result<(), Box<dyn Error>> {
    let path = workspace.join(name);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if path.is_dir() {
        let entries: Result<Vec<_>, _> = fs::read_dir(&path).map_err(failed)?.collect();
        let mut names: Vec<_> = entries.map_err(failed)?.iter().map(|entry| entry.file_name()).collect();
        names.sort();
        return names.iter().try_for_each(|file| add(workspace, &name.join(file), to));
    }
    to.update(name.as_os_str().as_encoded_bytes());
    to.update(Sha256::digest(fs::read(&path).map_err(failed)?));
    Ok(())
}
