// SPDX-License-Identifier: GPL-2.0-only
//! What a build with BPF in it needs of the machine: clang, and what a static libelf lacks.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What `bpf/` needs, and `cohortlab doctor` asks for.
const OLDEST_CLANG: u32 = 16;

/// The compiler for BPF: CLANG, or the one that is tried here, or the newest.
pub fn clang() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(path) = env::var_os("CLANG").map(PathBuf::from) {
        return match major(&path) {
            None => Err(format!("CLANG: {} is no clang that runs", path.display()).into()),
            Some(found) if found < OLDEST_CLANG => {
                Err(format!("CLANG: {} is clang {found}: {OLDEST_CLANG} or newer is needed", path.display())
                    .into())
            }
            Some(_) => Ok(path),
        };
    }
    let newest_first = (OLDEST_CLANG..=30).rev().map(|n| format!("clang-{n}"));
    let mut names = ["clang-19".to_string()].into_iter().chain(newest_first).chain(["clang".to_string()]);
    let found = names.find(|name| major(Path::new(name)).is_some_and(|found| found >= OLDEST_CLANG));
    let missing = || format!("no clang found: install clang {OLDEST_CLANG} or newer, or set CLANG");
    found.map(PathBuf::from).ok_or_else(|| missing().into())
}

/// The first number of that clang's version.
fn major(clang: &Path) -> Option<u32> {
    let said = Command::new(clang).arg("-dumpversion").stderr(Stdio::null()).output().ok()?;
    String::from_utf8(said.stdout).ok()?.split('.').next()?.trim().parse().ok()
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
