// SPDX-License-Identifier: GPL-2.0-only
//! Compiles `../bpf`, scheduler and probe, into skeletons, and turns what its headers say (counters, limits, knobs' defaults) into Rust, so that each is
//! written down once.

#[path = "build/chains.rs"]
mod chains;
#[path = "build/code.rs"]
mod code;
#[path = "../sim/build/common.rs"]
mod common;
#[path = "build/constants.rs"]
mod constants;
#[path = "build/depth.rs"]
mod depth;
#[path = "../sim/build/enums.rs"]
mod enums;
#[path = "build/headers.rs"]
mod headers;
#[path = "build/objects.rs"]
mod objects;
#[path = "../sim/build/policies.rs"]
mod policies;
#[path = "../sim/build/sources.rs"]
mod sources;
#[path = "build/tools.rs"]
mod tools;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use libbpf_cargo::SkeletonBuilder;

fn main() -> ExitCode {
    common::exit(build())
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
    println!("cargo:rerun-if-changed=build/chains.rs");
    println!("cargo:rerun-if-changed=build/code.rs");
    println!("cargo:rerun-if-changed=build/constants.rs");
    println!("cargo:rerun-if-changed=build/depth.rs");
    println!("cargo:rerun-if-changed=build/headers.rs");
    println!("cargo:rerun-if-changed=build/objects.rs");
    println!("cargo:rerun-if-changed=build/tools.rs");
    println!("cargo:rerun-if-changed=../sim/build/enums.rs");
    println!("cargo:rerun-if-changed=../sim/build/policies.rs");
    println!("cargo:rerun-if-changed=../sim/build/sources.rs");
    println!("cargo:rerun-if-env-changed=CLANG");

    fs::write(out_dir.join("intf.rs"), headers::generate(&bpf_dir)?)?;
    fs::write(out_dir.join("policies.rs"), policies::generate(&bpf_dir, &out_dir)?)?;
    let probe_enums = ["probe_limits", "probe_state", "probe_kind"];
    fs::write(out_dir.join("probe_intf.rs"), constants::of(&probe_dir.join("intf.h"), &probe_enums)?)?;

    let depfile = out_dir.join("kernel.d");
    let mut clang_args: Vec<OsString> =
        // v3: atomic operations that return the old value, which every kernel with sched_ext has.
        vec!["-I".into(), bpf_dir.clone().into(), "-I".into(), out_dir.clone().into(), "-mcpu=v3".into(), "-Wall".into(), "-Werror".into()];
    clang_args.push(format!("-DLAYOUT_NUMBER={}U", headers::layout(&bpf_dir)?).into());
    clang_args.extend(sources::flags(&depfile));
    // The <bpf/...> headers are libbpf-sys' own, those of the libbpf that is linked; the system's may be older.
    let gangs = policies::names(&bpf_dir, "GANGS")?;
    objects::build(&bpf_dir.join("cohort.bpf.c"), &tools::clang()?, &clang_args, &gangs, &out_dir)?;
    for (source, skeleton) in [("probe.bpf.c", "probe.skel.rs"), ("guest.bpf.c", "guest.skel.rs")] {
        SkeletonBuilder::new()
            .source(probe_dir.join(source))
            .clang(tools::clang()?)
            .clang_args([
                "-I".into(),
                probe_dir.clone().into_os_string(),
                "-mcpu=v3".into(),
                "-Wall".into(),
                "-Werror".into(),
            ])
            .build_and_generate(out_dir.join(skeleton))
            .map_err(|e| format!("{e:#}"))?;
    }
    fs::write(out_dir.join("sources.rs"), sources::generate(&depfile, &bpf_dir)?)?;

    tools::complete_libelf();
    Ok(())
}
