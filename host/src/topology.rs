// SPDX-License-Identifier: GPL-2.0-only
//! Where each pCPU is: its core, its last-level cache, its NUMA node, as sysfs has them.
//!
//! Nothing here is an error. A host that does not say (a virtual machine without caches, a kernel without NUMA) is taken for a plainer one.

use std::collections::BTreeMap;
use std::fs;

use cohort_topology::Place;
use libbpf_rs::{MapCore, MapFlags};

use crate::checks::Host;

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";
/// No processor has so many caches for one pCPU.
const CACHES_MAX: u32 = 16;

/// What tells one last-level cache from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Llc {
    /// The first pCPU that shares it.
    SharedFrom(u32),
    /// No cache is known: whoever is in the same package, as the kernel assumes too.
    OfPackage(Option<i64>),
}

/// The place of each pCPU by its number; None: one that cannot be or is offline. Which core is which is given by numbers that count from 0, in the
/// order of the pCPUs; a core is within one cache, and a cache within one node, also where the hardware's is not (as with sub-NUMA clustering). Whoever asks
/// handles `cpus_max` pCPUs.
pub fn read(host: &Host, cpus_max: u32) -> Vec<Option<Place>> {
    let list = |file| {
        let text = host.read(&format!("{CPUS}/{file}"))?;
        Some(cpu_list(&text, cpus_max)).filter(|list| !list.is_empty())
    };
    let possible = list("possible").unwrap_or_default();
    let online = list("online").unwrap_or_else(|| possible.clone());
    let nodes = node_of_cpus(host, cpus_max);

    let (mut cores, mut llcs, mut node_numbers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut places = vec![None; possible.last().map_or(0, |last| *last as usize + 1)];
    for cpu in online {
        let node = number(&mut node_numbers, nodes.get(&cpu).copied().unwrap_or(0));
        let llc = number(&mut llcs, (node, llc_of(host, cpu, cpus_max)));
        let core = number(&mut cores, (llc, core_of(host, cpu, cpus_max)));
        if let Some(place) = places.get_mut(cpu as usize) {
            *place = Some(Place { core, llc, node });
        }
    }
    places
}

/// Tell the scheduler which pCPUs are near which. It looks at a few of them only, so that this is to be told again when pCPUs come or go; one that is
/// not told yet has no neighbours, and is nobody's.
pub fn tell(neighbours: &impl MapCore, places: &[Option<Place>]) -> libbpf_rs::Result<()> {
    let table = cohort_topology::neighbours(places);
    let mut entries = table.iter().zip(0..neighbours.max_entries());
    entries.try_for_each(|(value, cpu)| neighbours.update(&cpu.to_ne_bytes(), &value.bytes(), MapFlags::ANY))
}

/// The number of `key`, the next one if it is new.
fn number<K: Ord>(known: &mut BTreeMap<K, u32>, key: K) -> u32 {
    let next = known.len() as u32;
    *known.entry(key).or_insert(next)
}

/// The first pCPU of the core.
fn core_of(host: &Host, cpu: u32, cpus_max: u32) -> u32 {
    let siblings = host.read(&format!("{CPUS}/cpu{cpu}/topology/core_cpus_list")).unwrap_or_default();
    cpu_list(&siblings, cpus_max).first().copied().unwrap_or(cpu)
}

fn llc_of(host: &Host, cpu: u32, cpus_max: u32) -> Llc {
    let cache = |index: u32| {
        let read = |file| host.read(&format!("{CPUS}/cpu{cpu}/cache/index{index}/{file}"));
        let level: u32 = read("level")?.parse().ok()?;
        let shared = cpu_list(&read("shared_cpu_list")?, cpus_max).first().copied()?;
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
fn node_of_cpus(host: &Host, cpus_max: u32) -> BTreeMap<u32, u32> {
    let lists = numbered(host, NODES, "node").into_iter().map(|node| {
        let list = host.read(&format!("{NODES}/node{node}/cpulist")).unwrap_or_default();
        (node, cpu_list(&list, cpus_max))
    });
    lists.flat_map(|(node, cpus)| cpus.into_iter().map(move |cpu| (cpu, node))).collect()
}

/// The numbers behind `prefix` in the names in a folder, in order.
fn numbered(host: &Host, dir: &str, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(host.path(dir)).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// The kernel's "0-3,8,10-11", in order. What is not of that form is left out, and so is `cpus_max` and what is above.
pub fn cpu_list(text: &str, cpus_max: u32) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(first..last.saturating_add(1).min(cpus_max))
    };
    let mut cpus: Vec<u32> = text.split(',').filter_map(range).flatten().collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

#[cfg(test)]
mod tests;
