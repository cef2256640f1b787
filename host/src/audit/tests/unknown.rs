// SPDX-License-Identifier: GPL-2.0-only
//! What cannot be read is said to be unknown, and no rule takes it for right.

use std::io;

use super::{good, one_guest, read};
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
