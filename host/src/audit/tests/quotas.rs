// SPDX-License-Identifier: GPL-2.0-only
//! Quotas in cgroups whose names are no text, or not as /proc has them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{one_guest, read};
use crate::checks::tests::FakeHost;

/// A file in a cgroup that is called so.
fn with(host: FakeHost, cgroup: &[u8], file: &str, text: &str) -> FakeHost {
    let dir = host.host().path(&Path::new("/sys/fs/cgroup").join(OsStr::from_bytes(cgroup)));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(file), text).unwrap();
    host
}

/// The process and both vCPUs are in a cgroup of this line.
fn is_in(line: &[u8]) -> FakeHost {
    let files = ["/proc/100/cgroup", "/proc/100/task/101/cgroup", "/proc/100/task/102/cgroup"];
    files.iter().fold(one_guest(), |host, file| host.bytes(file, line))
}

#[test]
fn a_quota_is_found_whatever_bytes_its_cgroup_is_called() {
    let quotas = |host: &FakeHost| {
        let found = read(host).vms.remove(0).quotas;
        found.into_iter().map(|quota| (quota.cgroup, quota.quota_us)).collect::<Vec<_>>()
    };
    let host = with(is_in(b"0::/\xff.slice/a.scope\n"), b"\xff.slice", "cpu.max", "50000 100000\n");
    // So is another one, when both are made into text.
    let host = with(host, "\u{fffd}.slice".as_bytes(), "cpu.max", "70000 100000\n");
    assert_eq!(quotas(&host), [("/\u{fffd}.slice".to_string(), 50_000)]);
    let (host, dir) = (is_in(b"5:cpu,cpuacct:/\xff\n0::/\n"), b"cpu,cpuacct/\xff");
    let host = with(host, dir, "cpu.cfs_quota_us", "20000\n");
    let host = with(host, dir, "cpu.cfs_period_us", "10000\n");
    assert_eq!(quotas(&host), [("/\u{fffd}".to_string(), 20_000)]);
}

#[test]
fn a_folder_that_names_its_controllers_in_another_order_is_found() {
    let dir = b"cpu,cpuacct/a";
    let host = with(is_in(b"4:cpuacct,cpu:/a\n"), dir, "cpu.cfs_quota_us", "20000\n");
    let host = with(host, dir, "cpu.cfs_period_us", "10000\n").link("/sys/fs/cgroup/cpu", "cpu,cpuacct");
    let found = read(&host).vms.remove(0).quotas;
    assert_eq!((found.len(), found[0].quota_us, found[0].cgroup.as_str()), (1, 20_000, "/a"));
}
