// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the scheduler of `../bpf` for this machine: the same files that become the kernel's object.

#[path = "build/common.rs"]
mod common;
#[path = "build/enums.rs"]
mod enums;
#[path = "build/policies.rs"]
mod policies;
#[path = "build/sources.rs"]
mod sources;

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Variables that are no part of a simulation's state: constants, among them those that the compiler makes of a switch, and what only user space reads.
const NOT_STATE: [&str; 4] = ["cohort_ops", "_license", "___fmt", "CSWTCH."];

fn main() -> ExitCode {
    common::exit(build())
}

fn build() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    // Another copy of bpf/ can be simulated: one with a mistake in it, to see the tests find it.
    println!("cargo:rerun-if-env-changed=COHORT_BPF_DIR");
    let bpf_dir = env::var_os("COHORT_BPF_DIR").map_or_else(|| manifest_dir.join("../bpf"), PathBuf::from);
    let mut sources = Vec::new();
    for entry in fs::read_dir(&bpf_dir).map_err(|e| format!("{}: {e}", bpf_dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "c" || ext == "h") {
            println!("cargo:rerun-if-changed={}", path.display());
            sources.push(path);
        }
    }
    sources.sort();
    let text = sources.iter().map(fs::read_to_string).collect::<Result<Vec<_>, _>>()?.join("\n");
    let windows = manifest_dir.join("src/class/ext/peek.c");
    println!("cargo:rerun-if-changed={}", windows.display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/enums.rs");
    println!("cargo:rerun-if-changed=build/policies.rs");
    println!("cargo:rerun-if-changed=build/sources.rs");
    fs::write(out_dir.join("variables.h"), list_of_variables(&text)?)?;
    fs::write(out_dir.join("counters.rs"), counters(&bpf_dir)?)?;
    fs::write(out_dir.join("policies.rs"), policies::generate(&bpf_dir, &out_dir)?)?;

    let depfile = out_dir.join("native.d");
    let objects = cc::Build::new()
        .file(windows)
        .include(&bpf_dir)
        .include(&out_dir)
        .define("COHORT_NATIVE", None)
        .warnings(true)
        .extra_warnings(false)
        .warnings_into_errors(true)
        .flags(sources::flags(&depfile))
        // The scheduler's variables are the thread's own: in a library, the module of Python, one call finds all of them.
        .flag_if_supported("-ftls-model=local-dynamic")
        .opt_level(2)
        .try_compile_intermediates()?;
    for object in &objects {
        refuse_shared_variables(object, &text)?;
    }
    fs::write(out_dir.join("sources.rs"), sources::generate(&depfile, &bpf_dir)?)?;
    cc::Build::new().objects(&objects).try_compile("cohort_native")?;
    Ok(())
}

/// Macros that name every variable: what is swapped in and out with a simulation. `MARK TYPE NAME[SIZE] = VALUE;` on one line each.
fn list_of_variables(text: &str) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    for mark in ["KNOB", "VARIABLE"] {
        write!(out, "#define NATIVE_{mark}S(X)")?;
        for line in text.lines() {
            let Some(declaration) = line.strip_prefix(mark).and_then(|rest| rest.strip_prefix(' ')) else {
                continue;
            };
            let end =
                declaration.find(['=', '[', ';']).ok_or_else(|| format!("bpf/: cannot read '{line}'"))?;
            let name = declaration[..end].split_whitespace().last();
            write!(out, " X({})", name.ok_or_else(|| format!("bpf/: cannot read '{line}'"))?)?;
        }
        writeln!(out)?;
    }
    Ok(out)
}

/// The scheduler's counters as a struct of Rust: so that intf.h alone says which there are.
fn counters(bpf_dir: &Path) -> Result<String, Box<dyn Error>> {
    let (mut fields, mut names) = (String::new(), String::new());
    let intf_path = bpf_dir.join("intf.h");
    let stats = enums::enum_entries(&fs::read_to_string(&intf_path)?, "cohort_stat")
        .map_err(|e| format!("{}: {e}", intf_path.display()))?;
    for entry in stats {
        let Some(name) = entry.name.strip_prefix("STAT_").map(str::to_lowercase) else { continue };
        if entry.value.is_some() {
            return Err(format!(
                "{}: {}: must have no value: counters are numbered in their order",
                intf_path.display(),
                entry.name
            )
            .into());
        }
        if !entry.comment.is_empty() {
            writeln!(fields, "    #[doc = {:?}]", entry.comment)?;
        }
        writeln!(fields, "    pub {name}: u64,")?;
        writeln!(names, "            ({name:?}, self.{name}),")?;
    }
    Ok(format!(
        "#[repr(C)]\n#[derive(Clone, Debug, Default)]\npub struct PeekStats {{\n{fields}}}\n\n\
         impl PeekStats {{\n    /// Each with its name in `cohort run --json`.\n    \
         pub fn named(&self) -> Counters {{\n        Counters::from([\n{names}        ])\n    }}\n}}\n"
    ))
}

/// Two simulations in one process share nothing: refuse a variable that is not the thread's own. Maps are only names of memory that each simulation has.
fn refuse_shared_variables(object: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=READELF");
    let readelf = env::var("READELF").unwrap_or_else(|_| "readelf".into());
    let output = Command::new(&readelf)
        .args(["--symbols", "--wide"])
        .arg(object)
        .output()
        .map_err(|e| format!("{readelf}: {e}; install binutils or set READELF"))?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // Number, value, size, type, bind, visibility, section, name.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ["OBJECT", _, _, _, name] = fields[..].get(3..).unwrap_or_default() else { continue };
        let is_map = text.contains(&format!("}} {name} SEC(\".maps\")"));
        if !is_map && !name.starts_with("native_") && !NOT_STATE.iter().any(|known| name.starts_with(known)) {
            return Err(
                format!("bpf/: variable {name} is marked neither KNOB nor VARIABLE (kernel.h)").into()
            );
        }
    }
    Ok(())
}
