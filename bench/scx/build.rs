// SPDX-License-Identifier: GPL-2.0-only
//! Compiles the minimal scheduler as host/ compiles ours: the same compiler, headers and flags.

#[path = "../../host/build/tools.rs"]
mod tools;

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let bpf_dir = manifest_dir.join("../../bpf").canonicalize()?;
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    for file in [
        "build.rs",
        "minimal.bpf.c",
        "../../bpf/kernel.h",
        "../../bpf/kernel_types.h",
        "../../host/build/tools.rs",
    ] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    SkeletonBuilder::new()
        .source(manifest_dir.join("minimal.bpf.c"))
        .clang(tools::clang()?)
        .clang_args([
            "-I".into(),
            bpf_dir.into_os_string(),
            "-mcpu=v3".into(),
            "-Wall".into(),
            "-Werror".into(),
        ])
        .build_and_generate(out_dir.join("minimal.skel.rs"))?;
    tools::complete_libelf();
    Ok(())
}
