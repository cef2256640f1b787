// SPDX-License-Identifier: GPL-2.0-only
//! What cannot be read is said to be unknown, and no rule takes it for right.

use std::io;

use super::{good, one_guest, opens, read, vmm, QEMU, TWO_VCPUS};
use crate::audit::rules;
use crate::checks::tests::FakeHost;

fn unknown(host: &FakeHost) -> Vec<String> {
    read(host).unknown
}

/// The one line, which names the rule that cannot tell.
fn is_said(host: &FakeHost, rule: &str) {
    let unknown = unknown(host);
    let [line] = unknown.as_slice() else { panic!("one line expected: {unknown:?}") };
    assert!(line.contains(&format!("({rule})")), "{line}");
}

#[test]
fn settings_that_cannot_be_read() {
    let polling = "/sys/module/kvm/parameters/halt_poll_ns";
    is_said(&good().without(polling), "halt-polling");
    is_said(&good().file(polling, "?\n"), "halt-polling");
    let statistics = "/proc/sys/kernel/sched_schedstats";
    is_said(&good().without(statistics), "schedstats-off");
    is_said(&good().file(statistics, "?\n"), "schedstats-off");
}

#[test]
fn pause_exits_of_a_processor_whose_flags_are_not_listed() {
    let in_processor = |text: &str| {
        let host = FakeHost::good()
            .file("/sys/module/kvm_intel/parameters/ple_gap", "0\n")
            .file("/proc/cpuinfo", text);
        let exits = read(&host).kvm.pause_exits.unwrap();
        assert_eq!((exits.parameter.as_str(), exits.value), ("kvm_intel.ple_gap", 0));
        exits.in_processor
    };
    assert_eq!(in_processor("flags\t\t: fpu vmx\nvmx flags\t: vnmi ple\n"), Some(true));
    assert_eq!(in_processor("flags\t\t: fpu vmx\nvmx flags\t: vnmi\n"), Some(false));
    assert_eq!(in_processor("flags\t\t: fpu vmx\n"), None, "Linux before 5.6");
    assert_eq!(in_processor(""), None);
}

#[test]
fn cookies_that_cannot_be_read() {
    let smt = |state: &str| one_guest().file("/sys/devices/system/cpu/smt/active", state);
    let forbidden = |_| Err(io::Error::from_raw_os_error(libc::EPERM));
    is_said(&smt("1\n").with_cookies(forbidden), "core-scheduling");
    assert_eq!(unknown(&smt("0\n").with_cookies(forbidden)), Vec::<String>::new(), "it would do nothing");
    assert_eq!(unknown(&smt("1\n").with_cookies(|_| Ok(0))), Vec::<String>::new());
    // One of two may be read, and is found.
    let tagged = smt("1\n").with_cookies(|tid| match tid {
        101 => Err(io::Error::from_raw_os_error(libc::EPERM)),
        _ => Ok(7),
    });
    let snapshot = read(&tagged);
    assert_eq!((snapshot.unknown.len(), snapshot.vms[0].core_cookie), (0, Some(true)));
}

#[test]
fn threads_that_serve_vcpus_in_turn_are_not_as_many_vcpus() {
    let waiting = |host: FakeHost, tid: i32| {
        host.file(&format!("/proc/100/task/{tid}/syscall"), "16 0xe 0xae80 0x0 0x0")
    };
    let threads = || (100..106).fold(vmm(good(), 100, "sandbox", &["exe"; 6]), waiting);
    let snapshot = read(&opens(threads(), 100, &TWO_VCPUS));
    assert_eq!((snapshot.vms[0].vcpus, snapshot.vms[0].threads.len()), (2, 0));
    let lost = |line: &String| line.starts_with("which threads are the vCPUs of 1 VMs");
    assert!(snapshot.unknown.iter().any(lost), "{:?}", snapshot.unknown);
    // Two VMs of three vCPUs each: as many as there are threads.
    let three = [&TWO_VCPUS[..], &["anon_inode:kvm-vcpu:2"]].concat();
    let snapshot = read(&opens(threads(), 100, &[three.clone(), three].concat()));
    assert_eq!((snapshot.vms[0].vcpus, snapshot.vms[0].threads.len()), (6, 6));
    assert!(!snapshot.unknown.iter().any(lost), "{:?}", snapshot.unknown);
}

#[test]
fn vcpus_whose_threads_are_not_known() {
    // Nothing of them is called as vCPUs are, nor has run a guest.
    let host = opens(vmm(good(), 100, QEMU, &["qemu-system-x86"; 3]), 100, &TWO_VCPUS);
    let unknown = unknown(&host);
    let [line] = unknown.as_slice() else { panic!("one line expected: {unknown:?}") };
    assert!(line.starts_with("which threads are the vCPUs of 1 VMs"), "{line}");
    assert!(line.ends_with("(hint-dedicated, cpu-pm, stacked-by-cpuset)"), "{line}");
    let mut named = line.split(['(', ')']).nth(1).unwrap().split(", ");
    assert!(named.all(|name| rules::all().iter().any(|rule| rule.id == name)), "{line}");
}

#[test]
fn vms_whose_processes_proc_hides() {
    let hides = good().with_tasks(|pid| pid == 1);
    let unknown_there = unknown(&hides);
    let [line] = unknown_there.as_slice() else { panic!("one line expected: {unknown_there:?}") };
    assert!(line.starts_with("which VMs there are: ") && line.contains("CAP_SYS_PTRACE"), "{line}");
    let shows = hides.file("/proc/1/task/1/comm", "init\n");
    assert_eq!(unknown(&shows), Vec::<String>::new());
}

#[test]
fn files_of_libvirts_that_may_not_be_read() {
    // Also root cannot read a folder as a file.
    is_said(&one_guest().file("/run/libvirt/qemu/web.xml/x", ""), "schedstats-off");
    let without_guests = good().file("/run/libvirt/qemu/web.xml/x", "");
    assert_eq!(unknown(&without_guests), Vec::<String>::new(), "nobody is asked of");
}

#[test]
fn quotas_where_no_cgroups_are_mounted() {
    is_said(&one_guest().without("/sys/fs/cgroup"), "cpu-max");
}
