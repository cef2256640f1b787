// SPDX-License-Identifier: GPL-2.0-only
//! Where each pCPU is: its core, its last-level cache, its NUMA node, as sysfs has them.
//!
//! Nothing here is an error. A host that does not say (a virtual machine without caches, a kernel without NUMA, a pCPU that is offline, whose folders
//! are then empty) is taken for a plainer one.

use std::collections::BTreeMap;
use std::fs;

use crate::checks::Host;
use crate::intf;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
/// No processor has so many caches for one pCPU.
const CACHES_MAX: u32 = 16;

/// Where a pCPU is. Numbers count from 0 without holes, in the order of the pCPUs; a core is within one cache, and a cache within one node, also
/// where the hardware's is not (as with sub-NUMA clustering), so that one is a part of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub core: u32,
    pub llc: u32,
    pub node: u32,
}

/// What tells one last-level cache from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Llc {
    /// The first pCPU that shares it.
    SharedFrom(u32),
    /// No cache is known: whoever is in the same package, as the kernel assumes too.
    OfPackage(Option<i64>),
}

/// The seat of each pCPU by its number; None where no pCPU can be.
pub fn read(host: &Host) -> Vec<Option<Seat>> {
    let possible = host.read(&format!("{CPUS}/possible")).unwrap_or_default();
    let possible = cpu_list(&possible);
    let nodes = node_of_cpus(host);

    let (mut cores, mut llcs, mut node_numbers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut seats = vec![None; possible.last().map_or(0, |last| *last as usize + 1)];
    for cpu in possible {
        // An offline pCPU is in no node's list, but may have a link to its node.
        let node = nodes.get(&cpu).copied().or_else(|| linked_node(host, cpu)).unwrap_or(0);
        let node = number(&mut node_numbers, node);
        let llc = number(&mut llcs, (node, llc_of(host, cpu)));
        let core = number(&mut cores, (llc, core_of(host, cpu)));
        seats[cpu as usize] = Some(Seat { core, llc, node });
    }
    seats
}

/// The number of `key`, the next one if it is new.
fn number<K: Ord>(known: &mut BTreeMap<K, u32>, key: K) -> u32 {
    let next = known.len() as u32;
    *known.entry(key).or_insert(next)
}

/// The first pCPU of the core.
fn core_of(host: &Host, cpu: u32) -> u32 {
    let siblings = host.read(&format!("{CPUS}/cpu{cpu}/topology/core_cpus_list")).unwrap_or_default();
    cpu_list(&siblings).first().copied().unwrap_or(cpu)
}

fn llc_of(host: &Host, cpu: u32) -> Llc {
    let cache = |index: u32| {
        let read = |file| host.read(&format!("{CPUS}/cpu{cpu}/cache/index{index}/{file}"));
        let level: u32 = read("level")?.parse().ok()?;
        let shared = cpu_list(&read("shared_cpu_list")?).first().copied()?;
        (read("type")? != "Instruction").then_some((level, shared))
    };
    match (0..CACHES_MAX).filter_map(cache).max_by_key(|(level, _)| *level) {
        Some((_, first)) => Llc::SharedFrom(first),
        None => {
            let package = host.read(&format!("{CPUS}/cpu{cpu}/topology/physical_package_id"));
            Llc::OfPackage(package.and_then(|id| id.parse().ok()))
        }
    }
}

/// The node of each pCPU that is online.
fn node_of_cpus(host: &Host) -> BTreeMap<u32, u32> {
    let lists = numbered(host, NODES, "node").into_iter().map(|node| {
        let list = host.read(&format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
        (node, cpu_list(&list))
    });
    lists.flat_map(|(node, cpus)| cpus.into_iter().map(move |cpu| (cpu, node))).collect()
}

fn linked_node(host: &Host, cpu: u32) -> Option<u32> {
    numbered(host, &format!("{CPUS}/cpu{cpu}"), "node").first().copied()
}

/// The numbers behind `prefix` in the names in a folder, in order.
fn numbered(host: &Host, dir: &str, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(host.path(dir)).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// The kernel's "0-3,8,10-11", in order. What is not of that form is left out, and so is what the scheduler cannot handle.
fn cpu_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(first..=last.min(intf::MAX_CPUS - 1))
    };
    let mut cpus: Vec<u32> = text.split(',').filter_map(range).flatten().collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

#[cfg(test)]
mod tests;
