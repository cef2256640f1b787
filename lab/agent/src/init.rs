// SPDX-License-Identifier: GPL-2.0-only
//! PID 1: mounts, then reaps whatever ends, until the server ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{mount, MountFlags};
use rustix::process::{wait, WaitOptions};
use rustix::system::{reboot, RebootCommand};

/// File system type, where it goes. Several are missing from some kernels: a failed one is only reported.
const MOUNTS: &[(&str, &str)] = &[
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/tmp"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

pub fn run() -> Result<()> {
    for &(kind, target) in MOUNTS {
        mount_one(kind, target);
    }
    let server =
        Command::new("/proc/self/exe").arg("serve").spawn().context("cannot start the agent's server")?;
    // Orphans of every job end up here; the server waits for its own children itself.
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == server.id() => {
                eprintln!("cohort-lab-agent: the server ended ({status:?}), powering off");
                break;
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                eprintln!("cohort-lab-agent: cannot wait for processes ({error}), powering off");
                break;
            }
        }
    }
    reboot(RebootCommand::PowerOff).context("cannot power off")
}

fn mount_one(kind: &str, target: &str) {
    // Fails where it exists already, or inside a read-only file system; the mount then tells.
    let _ = fs::create_dir(Path::new(target));
    match mount(kind, target, kind, MountFlags::empty(), None) {
        Ok(()) | Err(Errno::BUSY) => {}
        Err(error) => eprintln!("cohort-lab-agent: cannot mount {kind} on {target}: {error}"),
    }
}
