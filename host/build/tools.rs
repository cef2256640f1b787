// SPDX-License-Identifier: GPL-2.0-only
//! What a build with BPF in it needs of the machine: clang, and what a static libelf lacks.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Newest first. The scheduler needs clang 16 at least.
const CLANGS: [&str; 5] = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"];

/// The compiler for BPF: CLANG, or the newest that is there.
pub fn clang() -> Result<PathBuf, Box<dyn Error>> {
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
pub fn complete_libelf() {
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
