// SPDX-License-Identifier: GPL-2.0-only
//! One scheduler: the object that `cohort` loads into the kernel and the simulator are compiled from the same files of `bpf/`. Each build has recorded
//! what its compiler read.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Around the scheduler in the kernel's object: libbpf's headers, and the list of policies that the build writes.
const KERNEL_ONLY: [&str; 5] =
    ["bpf_core_read.h", "bpf_helper_defs.h", "bpf_helpers.h", "bpf_tracing.h", "policy_headers.h"];
/// In the simulator: windows for tests, and the list of variables to exchange between simulations.
const SIMULATOR_ONLY: [&str; 3] = ["peek.c", "policy_headers.h", "variables.h"];
/// The one file of `bpf/` that only one of them reads: it is to the simulator what libbpf's headers are to the kernel's object.
const INSTEAD_OF_LIBBPF: &str = "native.h";

type Files = BTreeMap<String, String>;

/// The scheduler's files with their digests, and the names of the others.
fn of_the_kernel() -> (Files, Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_cohort")).arg("sources").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let file = |line: &str| line.split_once("  ").map(|(hex, name)| (name.to_string(), hex.to_string()));
    let other = |line: &str| line.strip_prefix("# with ").map(str::to_string);
    (text.lines().filter_map(file).collect(), text.lines().filter_map(other).collect())
}

fn of_the_simulator() -> Files {
    cohort_sim::SOURCES.iter().map(|(name, hex)| (name.to_string(), hex.to_string())).collect()
}

#[test]
fn kernel_object_and_simulator_are_of_the_same_files() {
    let ((kernel, surroundings), mut simulator) = (of_the_kernel(), of_the_simulator());
    assert_eq!(surroundings, KERNEL_ONLY);
    assert_eq!(cohort_sim::SURROUNDINGS, SIMULATOR_ONLY);
    let all: Vec<String> = simulator.keys().cloned().collect();
    assert!(simulator.remove(INSTEAD_OF_LIBBPF).is_some());
    let differ: Vec<&String> = simulator
        .keys()
        .chain(kernel.keys())
        .filter(|name| kernel.get(*name) != simulator.get(*name))
        .collect();
    assert!(differ.is_empty(), "not in both, or not with the same contents: {differ:?}");
    assert!(kernel.contains_key("cohort.bpf.c") && kernel.len() > 8, "{kernel:?}");
    // And they are all of bpf/, as it is now.
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bpf");
    // What is in folders below is not the scheduler.
    let entries =
        fs::read_dir(&bpf).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let mut there: Vec<String> =
        entries.map(|path| path.file_name().unwrap().to_str().unwrap().to_string()).collect();
    there.sort();
    assert_eq!(all, there);
}

/// The same text can still be two programs, by the preprocessor: only what accesses the kernel may ask how it is compiled.
#[test]
fn only_kernel_access_depends_on_the_build() {
    let bpf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bpf");
    for name in of_the_kernel().0.keys() {
        let text = fs::read_to_string(bpf.join(name)).unwrap();
        let asks = |line: &&str| {
            let directive = line.trim_start().strip_prefix('#').map(str::trim_start);
            directive.is_some_and(|rest| rest.starts_with("if") || rest.starts_with("elif"))
        };
        let asked: Vec<&str> = text
            .lines()
            .filter(asks)
            .filter(|line| !line.starts_with("#ifndef COHORT_") || !line.ends_with("_H"))
            .filter(|line| {
                name != "kernel.h" || !["#ifdef COHORT_NATIVE", "#ifndef COHORT_NATIVE"].contains(line)
            })
            .collect();
        assert!(asked.is_empty(), "{name}: {asked:?}");
    }
}
