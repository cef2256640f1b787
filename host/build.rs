// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `../bpf`, scheduler and probe, into skeletons, and turns what its headers say (counters, limits, knobs' defaults) into Rust, so that each is
//! written down once.

#[path = "build/headers.rs"]
mod headers;
#[path = "../sim/build/sources.rs"]
mod sources;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use libbpf_cargo::SkeletonBuilder;

/// Newest first. The scheduler needs clang 16 at least.
const CLANGS: [&str; 5] = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not returned from main, which would print clang's message with its line breaks quoted.
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let bpf_dir = manifest_dir.join("../bpf").canonicalize()?;
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);

    // Its files, not the folder: what is below it is not compiled here. A new file is included by one that changes.
    for file in fs::read_dir(&bpf_dir)? {
        let path = file?.path();
        if path.is_file() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let probe_dir = bpf_dir.join("probe");
    println!("cargo:rerun-if-changed={}", probe_dir.display());
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/headers.rs");
    println!("cargo:rerun-if-changed=../sim/build/sources.rs");
    println!("cargo:rerun-if-env-changed=CLANG");

    fs::write(out_dir.join("intf.rs"), headers::generate(&bpf_dir)?)?;
    let probe_enums = ["probe_limits", "probe_state"];
    fs::write(out_dir.join("probe_intf.rs"), headers::constants(&probe_dir.join("intf.h"), &probe_enums)?)?;

    let depfile = out_dir.join("kernel.d");
    let mut clang_args: Vec<OsString> =
        // v3: atomic operations that return the old value, which every kernel with sched_ext has.
        vec!["-I".into(), bpf_dir.clone().into(), "-mcpu=v3".into(), "-Wall".into(), "-Werror".into()];
    clang_args.extend(sources::flags(&depfile));
    // The <bpf/...> headers are libbpf-sys' own, those of the libbpf that is linked; the system's may be older.
    SkeletonBuilder::new()
        .source(bpf_dir.join("cohort.bpf.c"))
        .clang(clang()?)
        .clang_args(clang_args)
        .build_and_generate(out_dir.join("cohort.skel.rs"))
        .map_err(|e| format!("{e:#}"))?;
    SkeletonBuilder::new()
        .source(probe_dir.join("probe.bpf.c"))
        .clang(clang()?)
        .clang_args([
            "-I".into(),
            probe_dir.into_os_string(),
            "-mcpu=v3".into(),
            "-Wall".into(),
            "-Werror".into(),
        ])
        .build_and_generate(out_dir.join("probe.skel.rs"))
        .map_err(|e| format!("{e:#}"))?;
    fs::write(out_dir.join("sources.rs"), sources::generate(&depfile, &bpf_dir)?)?;

    complete_libelf();
    Ok(())
}

fn clang() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(path) = env::var_os("CLANG") {
        return Ok(path.into());
    }
    let works = |name: &&&str| {
        let status = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    };
    let found = CLANGS.iter().find(works);
    found.map(PathBuf::from).ok_or_else(|| "no clang found: install clang 16 or newer, or set CLANG".into())
}

/// What a static libelf needs beyond itself differs between distributions; see which one is here.
fn complete_libelf() {
    println!("cargo:rustc-check-cfg=cfg(libelf_lacks_search_tree)");
    println!("cargo:rerun-if-env-changed=LIBBPF_SYS_LIBRARY_PATH");
    let path = env::var("LIBBPF_SYS_LIBRARY_PATH").unwrap_or_default();
    let find = |name: &str| path.split(':').map(Path::new).find(|dir| dir.join(name).exists());

    // Some libelf decompress with zstd. All of the archive is offered to the linker, because it comes before libelf on the command line;
    // unused functions are dropped again.
    if let Some(dir) = find("libzstd.a") {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static:+whole-archive=zstd");
    }

    // src/libelf.rs. An archive lists its members' names in the clear.
    if let Some(libelf) = find("libelf.a").map(|dir| dir.join("libelf.a")) {
        println!("cargo:rerun-if-changed={}", libelf.display());
        let bytes = fs::read(&libelf).unwrap_or_default();
        let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        if has(b"eu_search_tree_init") && !has(b"eu-search.o/") {
            println!("cargo:rustc-cfg=libelf_lacks_search_tree");
        }
    }
}
