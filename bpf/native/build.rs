// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the scheduler for this machine, and puts all its variables, knobs included, into one section that the model can write.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn std::error::Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    // Another copy of bpf/ can be tested: one with a mistake in it, to see the tests find it.
    println!("cargo:rerun-if-env-changed=COHORT_BPF_DIR");
    let bpf_dir = env::var_os("COHORT_BPF_DIR").map_or_else(|| manifest_dir.join(".."), PathBuf::from);
    for entry in std::fs::read_dir(&bpf_dir).map_err(|e| format!("{}: {e}", bpf_dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == "c" || ext == "h") {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    println!("cargo:rerun-if-changed=peek.c");

    let objects = cc::Build::new()
        .file(manifest_dir.join("peek.c"))
        .include(&bpf_dir)
        .define("COHORT_NATIVE", None)
        .warnings(true)
        .extra_warnings(false)
        .warnings_into_errors(true)
        // One section each for constants, variables, and variables that start as zero.
        .flag("-fno-data-sections")
        .opt_level(1)
        .try_compile_intermediates()?;
    for object in &objects {
        join_sections(object)?;
    }
    cc::Build::new().objects(&objects).try_compile("cohort_native")?;
    Ok(())
}

/// Rename the sections of variables to one name, which is a C identifier, so that the linker says where it starts and stops.
fn join_sections(object: &Path) -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=OBJCOPY");
    let objcopy = env::var("OBJCOPY").unwrap_or_else(|_| "objcopy".into());
    let mut command = Command::new(&objcopy);
    for section in [".rodata", ".data", ".bss"] {
        command.arg(format!("--rename-section={section}=cohort_image,alloc,load,data,contents"));
    }
    let status = command
        .arg(object)
        .status()
        .map_err(|e| format!("{objcopy}: {e}; install binutils or set OBJCOPY"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{objcopy} failed: {status}").into())
    }
}
