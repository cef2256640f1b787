// SPDX-License-Identifier: GPL-2.0-only
//! Topology, read from folders that look like hosts.

use super::*;
use crate::checks::tests::FakeHost;

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

/// (core, cache, node) of each pCPU that can be.
fn seats(host: &FakeHost) -> Vec<(u32, u32, u32)> {
    read(&host.host()).into_iter().flatten().map(|seat| (seat.core, seat.llc, seat.node)).collect()
}

#[test]
fn lists_of_the_kernel() {
    assert_eq!(cpu_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
    assert_eq!(cpu_list("8,0-1"), [0, 1, 8]);
    assert_eq!(cpu_list(""), [] as [u32; 0]);
    assert_eq!(cpu_list("x,3-,2-1,1"), [1]);
    assert_eq!(cpu_list("1022-4294967295"), [1022, 1023], "as many as the scheduler handles");
}

#[test]
fn nothing_is_known() {
    assert_eq!(seats(&FakeHost::new()), []);
    assert_eq!(seats(&host(3)), [(0, 0, 0), (1, 0, 0), (2, 0, 0)]);
}

#[test]
fn two_cpus_without_caches() {
    let host = with_core(with_core(host(2), 0, "0", 0), 1, "1", 0);
    assert_eq!(seats(&host), [(0, 0, 0), (1, 0, 0)], "one package, so one cache");
    let host = with_core(host, 1, "1", 1);
    assert_eq!(seats(&host), [(0, 0, 0), (1, 1, 0)]);
}

#[test]
fn threads_of_a_core() {
    // Numbered as most hosts do it: first all cores, then their second threads.
    let host = (0..8).fold(host(8), |host, cpu| {
        let core = cpu % 4;
        with_llc(with_core(host, cpu, &format!("{core},{}", core + 4), 0), cpu, "0-7")
    });
    let cores: Vec<u32> = seats(&host).iter().map(|seat| seat.0).collect();
    assert_eq!(cores, [0, 1, 2, 3, 0, 1, 2, 3]);
    assert!(seats(&host).iter().all(|seat| (seat.1, seat.2) == (0, 0)));
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
    let seats = seats(&host);
    for (cpu, seat) in seats.iter().enumerate() {
        let core = cpu as u32 % 16;
        assert_eq!(*seat, (core, core / 2, core / 8), "pCPU {cpu}");
    }
    assert_eq!(seats.len(), 32);
}

#[test]
fn numbers_with_holes() {
    // pCPU 1 cannot be, and neither nodes nor packages count from 0.
    let host = FakeHost::new().file(&format!("{CPUS}/possible"), "0,2-3\n");
    let host = with_llc(with_core(host, 0, "0", 7), 0, "0");
    let host = with_llc(with_core(host, 2, "2-3", 9), 2, "2-3");
    let host = with_llc(with_core(host, 3, "2-3", 9), 3, "2-3");
    let host = with_node(with_node(with_node(host, 4, "0"), 5, "\n"), 12, "2-3");
    let seat = |core, llc, node| Some(Seat { core, llc, node });
    assert_eq!(read(&host.host()), [seat(0, 0, 0), None, seat(1, 1, 1), seat(1, 1, 1)]);
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
    assert_eq!(seats(&host), wanted.map(|(core, llc)| (core, llc, 0)));
}

#[test]
fn the_cache_of_instructions_is_not_the_last() {
    let host = with_cache(host(2), 0, 0, 1, "Data", "0");
    let host = with_cache(host, 0, 1, 2, "Instruction", "0-1");
    let host = with_cache(host, 1, 0, 1, "Data", "1");
    assert_eq!(seats(&host), [(0, 0, 0), (1, 1, 0)]);
}

#[test]
fn a_cache_across_nodes_counts_as_one_in_each() {
    let host = (0..4).fold(host(4), |host, cpu| with_llc(host, cpu, "0-3"));
    let host = with_node(with_node(host, 0, "0-1"), 1, "2-3");
    assert_eq!(seats(&host), [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 1)]);
}

#[test]
fn an_offline_cpu_has_a_seat_of_its_own() {
    // Its folders are empty, but for the link to its node.
    let host =
        (0..3).fold(host(4), |host, cpu| with_llc(with_core(host, cpu, &cpu.to_string(), 0), cpu, "0-2"));
    let host =
        with_node(with_node(host, 0, "0-1"), 1, "2").file(&format!("{CPUS}/cpu3/node1/cpulist"), "2\n");
    assert_eq!(seats(&host), [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 2, 1)]);
    // Without the link it is in node 0.
    let host = (0..2).fold(self::host(3), |host, cpu| with_llc(host, cpu, "0-1"));
    assert_eq!(seats(&with_node(host, 0, "0-1")), [(0, 0, 0), (1, 0, 0), (2, 1, 0)]);
}
