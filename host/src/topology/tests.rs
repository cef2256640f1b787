// SPDX-License-Identifier: GPL-2.0-only
//! Topology, read from folders that look like hosts.

use super::*;
use crate::checks::tests::FakeHost;
use crate::intf;
use libbpf_rs::{MapHandle, MapType};

const MAX: u32 = intf::MAX_CPUS;

/// A host of pCPUs 0 to `cpus` - 1, of which nothing is known.
fn host(cpus: u32) -> FakeHost {
    FakeHost::new().file(&format!("{CPUS}/possible"), &format!("0-{}\n", cpus - 1))
}

fn with_core(host: FakeHost, cpu: u32, siblings: &str, package: u32) -> FakeHost {
    let dir = format!("{CPUS}/cpu{cpu}/topology");
    host.file(&format!("{dir}/core_cpus_list"), &format!("{siblings}\n"))
        .file(&format!("{dir}/physical_package_id"), &format!("{package}\n"))
}

fn with_cache(host: FakeHost, cpu: u32, index: u32, level: u32, kind: &str, shared: &str) -> FakeHost {
    let dir = format!("{CPUS}/cpu{cpu}/cache/index{index}");
    host.file(&format!("{dir}/level"), &format!("{level}\n"))
        .file(&format!("{dir}/type"), &format!("{kind}\n"))
        .file(&format!("{dir}/shared_cpu_list"), &format!("{shared}\n"))
}

/// First-level caches of its own, and a last-level one shared with `shared`.
fn with_llc(host: FakeHost, cpu: u32, shared: &str) -> FakeHost {
    let host = with_cache(host, cpu, 0, 1, "Data", &cpu.to_string());
    let host = with_cache(host, cpu, 1, 1, "Instruction", &cpu.to_string());
    with_cache(host, cpu, 2, 3, "Unified", shared)
}

fn with_node(host: FakeHost, node: u32, cpus: &str) -> FakeHost {
    host.file(&format!("{NODES}/node{node}/cpulist"), &format!("{cpus}\n"))
}

/// (core, cache, node) of each pCPU that has a place.
fn places(host: &FakeHost) -> Vec<(u32, u32, u32)> {
    read(&host.host(), MAX).into_iter().flatten().map(|place| (place.core, place.llc, place.node)).collect()
}

#[test]
fn lists_of_the_kernel() {
    assert_eq!(cpu_list("0-3,8,10-11\n", MAX), [0, 1, 2, 3, 8, 10, 11]);
    assert_eq!(cpu_list("8,0-1", MAX), [0, 1, 8]);
    assert_eq!(cpu_list("", MAX), [] as [u32; 0]);
    assert_eq!(cpu_list("x,3-,2-1,1", MAX), [1]);
    assert_eq!(cpu_list("1022-4294967295", MAX), [1022, 1023], "as many as the scheduler handles");
    assert_eq!(cpu_list("0-4294967295,4095", 4096).len(), 4096);
}

#[test]
fn nothing_is_known() {
    assert_eq!(places(&FakeHost::new()), []);
    assert_eq!(places(&host(3)), [(0, 0, 0), (1, 0, 0), (2, 0, 0)]);
}

#[test]
fn two_cpus_without_caches() {
    let host = with_core(with_core(host(2), 0, "0", 0), 1, "1", 0);
    assert_eq!(places(&host), [(0, 0, 0), (1, 0, 0)], "one package, so one cache");
    let host = with_core(host, 1, "1", 1);
    assert_eq!(places(&host), [(0, 0, 0), (1, 1, 0)]);
}

#[test]
fn threads_of_a_core() {
    // Numbered as most hosts do it: first all cores, then their second threads.
    let host = (0..8).fold(host(8), |host, cpu| {
        let core = cpu % 4;
        with_llc(with_core(host, cpu, &format!("{core},{}", core + 4), 0), cpu, "0-7")
    });
    let cores: Vec<u32> = places(&host).iter().map(|place| place.0).collect();
    assert_eq!(cores, [0, 1, 2, 3, 0, 1, 2, 3]);
    assert!(places(&host).iter().all(|place| (place.1, place.2) == (0, 0)));
}

#[test]
fn two_sockets_of_four_caches() {
    // 2 x 4 x 2 cores x 2 threads, a node per socket.
    let host = (0..32).fold(host(32), |host, cpu| {
        let core = cpu % 16;
        let first = core / 2 * 2;
        let shared = format!("{first}-{},{}-{}", first + 1, first + 16, first + 17);
        with_llc(with_core(host, cpu, &format!("{core},{}", core + 16), core / 8), cpu, &shared)
    });
    let host = with_node(with_node(host, 0, "0-7,16-23"), 1, "8-15,24-31");
    let places = places(&host);
    for (cpu, place) in places.iter().enumerate() {
        let core = cpu as u32 % 16;
        assert_eq!(*place, (core, core / 2, core / 8), "pCPU {cpu}");
    }
    assert_eq!(places.len(), 32);
}

#[test]
fn numbers_with_holes() {
    // pCPU 1 cannot be, and neither nodes nor packages count from 0.
    let host = FakeHost::new().file(&format!("{CPUS}/possible"), "0,2-3\n");
    let host = with_llc(with_core(host, 0, "0", 7), 0, "0");
    let host = with_llc(with_core(host, 2, "2-3", 9), 2, "2-3");
    let host = with_llc(with_core(host, 3, "2-3", 9), 3, "2-3");
    let host = with_node(with_node(with_node(host, 4, "0"), 5, "\n"), 12, "2-3");
    let place = |core, llc, node| Some(Place { core, llc, node });
    assert_eq!(read(&host.host(), MAX), [place(0, 0, 0), None, place(1, 1, 1), place(1, 1, 1)]);
}

#[test]
fn cores_of_two_kinds() {
    // Two fast cores of two threads with a common cache; four small ones that share another, and nothing above it.
    let host = (0..4).fold(host(8), |host, cpu| {
        let first = cpu / 2 * 2;
        with_llc(with_core(host, cpu, &format!("{first}-{}", first + 1), 0), cpu, "0-3")
    });
    let host = (4..8).fold(host, |host, cpu| {
        with_cache(with_core(host, cpu, &cpu.to_string(), 0), cpu, 0, 2, "Unified", "4-7")
    });
    let wanted = [(0, 0), (0, 0), (1, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1)];
    assert_eq!(places(&host), wanted.map(|(core, llc)| (core, llc, 0)));
}

#[test]
fn the_cache_of_instructions_is_not_the_last() {
    let host = with_cache(host(2), 0, 0, 1, "Data", "0");
    let host = with_cache(host, 0, 1, 2, "Instruction", "0-1");
    let host = with_cache(host, 1, 0, 1, "Data", "1");
    assert_eq!(places(&host), [(0, 0, 0), (1, 1, 0)]);
}

#[test]
fn a_cache_across_nodes_counts_as_one_in_each() {
    let host = (0..4).fold(host(4), |host, cpu| with_llc(host, cpu, "0-3"));
    let host = with_node(with_node(host, 0, "0-1"), 1, "2-3");
    assert_eq!(places(&host), [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 1)]);
}

#[test]
fn a_host_with_more_cpus_than_the_scheduler_handles() {
    let host = with_core(host(2048), 2000, "1999-2000", 0);
    let host = with_core(host, 1999, "1999-2000", 0);
    let places = read(&host.host(), 4096);
    assert_eq!((places.len(), read(&host.host(), MAX).len()), (2048, MAX as usize));
    assert_eq!(places[1999], places[2000], "one core");
    assert_ne!(places[2000], places[2001]);
}

#[test]
fn an_offline_cpu_has_no_place() {
    // Threads switched off: their folders are empty.
    let host =
        (0..2).fold(host(4), |host, cpu| with_llc(with_core(host, cpu, &cpu.to_string(), 0), cpu, "0-1"));
    let host = host.file(&format!("{CPUS}/online"), "0-1\n");
    let place = |core| Some(Place { core, llc: 0, node: 0 });
    assert_eq!(read(&host.host(), MAX), [place(0), place(1), None, None]);
    // It comes while we read: online, and nothing of it is there yet.
    let host = host.file(&format!("{CPUS}/online"), "0-2\n");
    assert_eq!(read(&host.host(), MAX)[2], Some(Place { core: 2, llc: 1, node: 0 }));
}

#[test]
fn the_scheduler_is_told() {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let size = size_of::<cohort_topology::Neighbours>() as u32;
    // Where this user may have no map there is nobody to tell.
    let Ok(map) = MapHandle::create(MapType::Array, None::<&str>, 4, size, 3, &opts) else { return };
    let host = (0..2)
        .fold(host(3), |host, cpu| with_core(host, cpu, "0-1", 0))
        .file(&format!("{CPUS}/online"), "0-1\n");
    tell(&map, &read(&host.host(), MAX)).unwrap();
    let told = |cpu: u32| {
        let bytes = map.lookup(&cpu.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let words = bytes.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        words.take(5).collect::<Vec<_>>()
    };
    // One neighbour, of the same core.
    assert_eq!(told(0), [1, 1, 1, 1, 1]);
    assert_eq!(told(1), [1, 1, 1, 1, 0]);
    assert_eq!(told(2), [0; 5]);
}
