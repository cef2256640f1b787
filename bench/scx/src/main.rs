// SPDX-License-Identifier: GPL-2.0-only
//! `bench-scx minimal`: schedule with the minimal scheduler until a line (or the end) of standard input.
//! `bench-scx cost SECONDS`: print what the loaded scheduler's programs cost meanwhile, one JSON object: for each its calls and time, by the kernel's
//! BPF run-time statistics.

mod skel {
    #![allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
    #![allow(non_camel_case_types, dead_code)]
    include!(concat!(env!("OUT_DIR"), "/minimal.skel.rs"));
}

#[cfg(libelf_lacks_search_tree)]
#[path = "../../../host/src/libelf.rs"]
mod libelf;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;
use std::{env, io};

use anyhow::{bail, Context, Result};
use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::ProgramType;
use serde_json::json;

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["minimal"] => minimal(),
        ["cost", seconds] => cost(seconds.parse().context("SECONDS")?),
        _ => bail!("bench-scx minimal | bench-scx cost SECONDS"),
    }
}

fn minimal() -> Result<()> {
    let mut storage = MaybeUninit::uninit();
    let mut skel = skel::MinimalSkelBuilder::default().open(&mut storage)?.load()?;
    let _link = skel.maps.minimal_ops.attach_struct_ops()?;
    println!("scheduling");
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Calls and nanoseconds of every program of a sched_ext scheduler and of what it traces, by name.
fn programs() -> BTreeMap<String, (u64, u64)> {
    let ours = |kind: ProgramType| matches!(kind, ProgramType::StructOps | ProgramType::Tracing);
    ProgInfoIter::default()
        .filter(|info| ours(info.ty))
        .map(|info| (info.name.to_string_lossy().into_owned(), (info.run_cnt, info.run_time_ns)))
        .collect()
}

fn cost(seconds: f64) -> Result<()> {
    // SAFETY: takes an integer; what it returns is a new descriptor, or negative.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::last_os_error()).context("BPF run-time statistics");
    }
    // SAFETY: nobody else has it. Statistics are kept until it is closed.
    let _on = unsafe { OwnedFd::from_raw_fd(fd) };
    let before = programs();
    sleep(Duration::from_secs_f64(seconds));
    let mut found = serde_json::Map::new();
    for (name, (calls, ns)) in programs() {
        let (calls_before, ns_before) = before.get(&name).copied().unwrap_or_default();
        found.insert(name, json!({ "calls": calls - calls_before, "ns": ns - ns_before }));
    }
    println!("{}", serde_json::Value::Object(found));
    Ok(())
}
