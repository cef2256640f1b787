// SPDX-License-Identifier: GPL-2.0-only
//! Whether the scheduler can and may run on this host. Every refusal is one sentence with its remedy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::intf;

/// The oldest kernel on which the scheduler was tested, and is let run.
pub const OLDEST_TESTED: &str = "6.18";
const OLDEST_TESTED_VERSION: (u32, u32) = (6, 18);

/// A scheduler that is just going away is waited for this long.
const LEAVING_MAX: Duration = Duration::from_secs(5);

/// Reads the core-scheduling cookie of a thread; 0 is none.
type CookieOf = fn(tid: i32) -> io::Result<u64>;

/// This machine, or in tests a folder that looks like one.
pub struct Host {
    root: PathBuf,
    cookie_of: CookieOf,
}

impl Host {
    pub fn this_machine() -> Self {
        Host { root: PathBuf::from("/"), cookie_of: core_sched_cookie }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_string())
    }

    /// Everything that stands in the way, the most basic first.
    pub fn refusals(&self) -> Vec<String> {
        let kernel = [self.sched_ext(), self.version(), self.btf()];
        let state = [
            self.capabilities(),
            self.cpus().err(),
            self.other_scheduler(),
            self.core_scheduling(),
            self.kvm_btf(),
        ];
        kernel.into_iter().chain(state).flatten().collect()
    }

    fn release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown version".to_string())
    }

    fn sched_ext(&self) -> Option<String> {
        (!self.exists("/sys/kernel/sched_ext")).then(|| {
            format!(
                "this kernel ({}) has no sched_ext: boot one of version {OLDEST_TESTED} or newer built with CONFIG_SCHED_CLASS_EXT=y \
                 (on Debian 13: linux-image-amd64 from trixie-backports)",
                self.release()
            )
        })
    }

    fn version(&self) -> Option<String> {
        let release = self.release();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            return Some(format!(
                "cannot read a version from this kernel's name {release:?}: boot a kernel of version {OLDEST_TESTED} or newer"
            ));
        };
        ((major, minor) < OLDEST_TESTED_VERSION).then(|| {
            format!(
                "this kernel ({release}) is older than the oldest tested, {OLDEST_TESTED}: boot a newer one"
            )
        })
    }

    fn btf(&self) -> Option<String> {
        (!self.exists("/sys/kernel/btf/vmlinux")).then(|| {
            "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing): boot one built with CONFIG_DEBUG_INFO_BTF=y"
                .to_string()
        })
    }

    /// KVM as a module needs BTF of its own; without it no vCPU can be told from an ordinary thread.
    fn kvm_btf(&self) -> Option<String> {
        let is_module = self.exists("/sys/module/kvm/initstate");
        (is_module && self.kvm_is_live() && !self.exists("/sys/kernel/btf/kvm")).then(|| {
            "the kvm module does not describe its types (/sys/kernel/btf/kvm is missing): boot a kernel built with \
             CONFIG_DEBUG_INFO_BTF_MODULES=y"
                .to_string()
        })
    }

    pub fn capabilities(&self) -> Option<String> {
        // CAP_SYS_ADMIN includes the right to load BPF, and is needed to find the BTF of the kvm module.
        const CAP_SYS_ADMIN: u32 = 21;
        let status = self.read("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        (effective & (1 << CAP_SYS_ADMIN) == 0).then(|| {
            "no right to load a scheduler: run as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN".to_string()
        })
    }

    /// 1 + the highest CPU number that can ever appear.
    pub fn cpus(&self) -> Result<u32, String> {
        let possible = self.read("/sys/devices/system/cpu/possible").unwrap_or_default();
        let last = possible.rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
        match last {
            Some(last) if last < intf::MAX_CPUS => Ok(last + 1),
            Some(last) => Err(format!(
                "this host can have {} CPUs, more than the {} that the scheduler handles: boot with possible_cpus={} on the kernel's command line",
                last + 1,
                intf::MAX_CPUS,
                intf::MAX_CPUS
            )),
            None => Err("cannot read the number of CPUs from /sys/devices/system/cpu/possible: mount /sys".to_string()),
        }
    }

    /// The sched_ext scheduler that is loaded, if any.
    pub fn loaded_scheduler(&self) -> Option<String> {
        let state = self.read("/sys/kernel/sched_ext/state")?;
        (state != "disabled").then(|| {
            self.read("/sys/kernel/sched_ext/root/ops").unwrap_or_else(|| format!("in state {state}"))
        })
    }

    fn other_scheduler(&self) -> Option<String> {
        // One that was just killed is gone in a moment.
        let deadline = Instant::now() + LEAVING_MAX;
        while self.read("/sys/kernel/sched_ext/state").is_some_and(|s| s == "disabling")
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(50));
        }
        self.loaded_scheduler().map(|name| {
            format!("another sched_ext scheduler ({name}) is loaded: stop it first, the kernel runs one at a time")
        })
    }

    /// Cookies of core scheduling together with SMT and any sched_ext scheduler can hang a host (sched-ext/scx issue 3715).
    fn core_scheduling(&self) -> Option<String> {
        if self.read("/sys/devices/system/cpu/smt/active").as_deref() != Some("1") {
            return None;
        }
        let (pid, name) = numbered(&self.path("/proc")).into_iter().find_map(|pid| {
            let tids = numbered(&self.path(&format!("/proc/{pid}/task")));
            tids.into_iter().find(|tid| (self.cookie_of)(*tid).is_ok_and(|cookie| cookie != 0))?;
            Some((pid, self.read(&format!("/proc/{pid}/comm")).unwrap_or_default()))
        })?;
        Some(format!(
            "process {pid} ({name}) uses core scheduling, which can hang a host with SMT under any sched_ext scheduler: start it without \
             (cloud-hypervisor: --cpus core_scheduling=off), or switch SMT off (echo off > /sys/devices/system/cpu/smt/control)"
        ))
    }

    /// KVM is loaded and initialized (or built in).
    pub fn kvm_is_live(&self) -> bool {
        self.exists("/sys/module/kvm")
            && self.read("/sys/module/kvm/initstate").is_none_or(|state| state == "live")
    }

    /// The name of a thread's or process' program.
    pub fn comm(&self, pid: i32) -> Option<String> {
        self.read(&format!("/proc/{pid}/comm"))
    }

    /// A process' command line, word by word.
    pub fn cmdline(&self, pid: i32) -> Vec<String> {
        let bytes = fs::read(self.path(&format!("/proc/{pid}/cmdline"))).unwrap_or_default();
        bytes.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }
}

/// The entries of a folder whose names are numbers, in order.
fn numbered(dir: &Path) -> Vec<i32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn core_sched_cookie(tid: i32) -> io::Result<u64> {
    const PIDTYPE_PID: libc::c_ulong = 0;
    let mut cookie: u64 = 0;
    // SAFETY: the kernel writes 8 bytes to the last argument, which points to a u64 that lives across the call.
    let result = unsafe {
        libc::prctl(
            libc::PR_SCHED_CORE,
            libc::PR_SCHED_CORE_GET as libc::c_ulong,
            tid as libc::c_ulong,
            PIDTYPE_PID,
            &raw mut cookie,
        )
    };
    if result == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A folder that looks like a host.
    pub struct FakeHost {
        dir: tempfile::TempDir,
        cookie_of: CookieOf,
    }

    impl FakeHost {
        pub fn new() -> Self {
            FakeHost {
                dir: tempfile::tempdir().unwrap(),
                cookie_of: |_| Err(io::Error::from_raw_os_error(libc::ENODEV)),
            }
        }

        /// A host on which everything is as it should be.
        pub fn good() -> Self {
            FakeHost::new()
                .file("/proc/sys/kernel/osrelease", "7.3.4+deb13-amd64\n")
                .file("/proc/self/status", "Name:\tcohort\nCapEff:\t000001ffffffffff\n")
                .file("/sys/kernel/sched_ext/state", "disabled\n")
                .file("/sys/kernel/btf/vmlinux", "")
                .file("/sys/kernel/btf/kvm", "")
                .file("/sys/module/kvm/initstate", "live\n")
                .file("/sys/devices/system/cpu/possible", "0-3\n")
                .file("/sys/devices/system/cpu/smt/active", "0\n")
        }

        pub fn file(self, path: &str, content: &str) -> Self {
            let path = self.host().path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            self
        }

        fn without(self, path: &str) -> Self {
            let path = self.host().path(path);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
            self
        }

        pub fn host(&self) -> Host {
            Host { root: self.dir.path().to_path_buf(), cookie_of: self.cookie_of }
        }

        /// The one refusal, which is one sentence on one line and names all of `wanted`.
        fn refused_for(&self, wanted: &[&str]) {
            let refusals = self.host().refusals();
            let [line] = refusals.as_slice() else { panic!("one refusal expected: {refusals:?}") };
            assert!(!line.contains('\n'), "{line}");
            for part in wanted {
                assert!(line.contains(part), "{part:?} is not in {line:?}");
            }
        }
    }

    #[test]
    fn a_good_host_is_not_refused() {
        assert_eq!(FakeHost::good().host().refusals(), Vec::<String>::new());
        assert_eq!(FakeHost::good().host().cpus(), Ok(4));
    }

    #[test]
    fn kernel_without_sched_ext() {
        FakeHost::good().without("/sys/kernel/sched_ext").refused_for(&[
            "sched_ext",
            "7.3.4",
            "CONFIG_SCHED_CLASS_EXT=y",
            "trixie-backports",
        ]);
    }

    #[test]
    fn kernel_older_than_tested() {
        for old in ["6.17.0-cloud", "6.1.0-40-amd64", "5.19"] {
            FakeHost::good().file("/proc/sys/kernel/osrelease", old).refused_for(&[old, "6.18", "newer"]);
        }
        for fine in ["6.18.15+deb14", "6.19-rc1", "7.0", "10.2.1"] {
            let refusals = FakeHost::good().file("/proc/sys/kernel/osrelease", fine).host().refusals();
            assert!(refusals.is_empty(), "{fine}: {refusals:?}");
        }
        FakeHost::good().file("/proc/sys/kernel/osrelease", "custom").refused_for(&["custom", "6.18"]);
    }

    #[test]
    fn kernel_without_btf() {
        FakeHost::good()
            .without("/sys/kernel/btf/vmlinux")
            .refused_for(&["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF=y"]);
        FakeHost::good()
            .without("/sys/kernel/btf/kvm")
            .refused_for(&["/sys/kernel/btf/kvm", "CONFIG_DEBUG_INFO_BTF_MODULES=y"]);
    }

    #[test]
    fn built_in_kvm_needs_no_btf_of_its_own() {
        let host = FakeHost::good().without("/sys/module/kvm/initstate").without("/sys/kernel/btf/kvm");
        assert_eq!(host.host().refusals(), Vec::<String>::new());
        assert!(host.host().kvm_is_live());
    }

    #[test]
    fn kvm_not_loaded_is_no_refusal() {
        let host = FakeHost::good().without("/sys/module/kvm").without("/sys/kernel/btf/kvm");
        assert_eq!(host.host().refusals(), Vec::<String>::new());
        assert!(!host.host().kvm_is_live());
        assert!(!FakeHost::good().file("/sys/module/kvm/initstate", "coming\n").host().kvm_is_live());
    }

    #[test]
    fn not_root() {
        FakeHost::good()
            .file("/proc/self/status", "CapInh:\t0000000000000000\nCapEff:\t0000000000000000\n")
            .refused_for(&["root", "CAP_BPF", "CAP_SYS_ADMIN"]);
        // CAP_BPF and CAP_PERFMON alone cannot find the kvm module's BTF.
        FakeHost::good()
            .file("/proc/self/status", "CapEff:\t000000c000000000\n")
            .refused_for(&["CAP_SYS_ADMIN"]);
    }

    #[test]
    fn another_scheduler_is_named() {
        FakeHost::good()
            .file("/sys/kernel/sched_ext/state", "enabled\n")
            .file("/sys/kernel/sched_ext/root/ops", "bpfland_1.1.2\n")
            .refused_for(&["bpfland_1.1.2", "stop it first"]);
    }

    #[test]
    fn too_many_cpus() {
        FakeHost::good().file("/sys/devices/system/cpu/possible", "0-2047\n").refused_for(&[
            "2048",
            "1024",
            "possible_cpus=",
        ]);
        FakeHost::good()
            .file("/sys/devices/system/cpu/possible", "")
            .refused_for(&["/sys/devices/system/cpu/possible"]);
        assert_eq!(FakeHost::good().file("/sys/devices/system/cpu/possible", "0,2-5\n").host().cpus(), Ok(6));
    }

    #[test]
    fn core_scheduling_with_smt() {
        let tagged: CookieOf = |tid| Ok(if tid == 4243 { 0xbeef } else { 0 });
        let mut host = FakeHost::good()
            .file("/proc/1/task/1/comm", "init\n")
            .file("/proc/4242/task/4242/comm", "cloud-hyperviso\n")
            .file("/proc/4242/task/4243/comm", "vcpu0\n")
            .file("/proc/4242/comm", "cloud-hyperviso\n");
        host.cookie_of = tagged;
        assert_eq!(host.host().refusals(), Vec::<String>::new(), "harmless without SMT");
        let host = host.file("/sys/devices/system/cpu/smt/active", "1\n");
        host.refused_for(&["4242", "cloud-hyperviso", "core_scheduling=off", "smt/control"]);
    }

    #[test]
    fn smt_without_core_scheduling_is_fine() {
        let mut host = FakeHost::good()
            .file("/proc/1/task/1/comm", "init\n")
            .file("/sys/devices/system/cpu/smt/active", "1\n");
        host.cookie_of = |_| Ok(0);
        assert_eq!(host.host().refusals(), Vec::<String>::new());
    }

    #[test]
    fn everything_in_the_way_is_listed() {
        let host = FakeHost::good().without("/sys/kernel/sched_ext").without("/sys/kernel/btf/vmlinux");
        assert_eq!(host.host().refusals().len(), 2);
    }

    #[test]
    fn reading_a_cookie_does_not_fail_in_strange_ways() {
        // None, or this kernel or machine knows no core scheduling.
        match core_sched_cookie(std::process::id() as i32) {
            Ok(cookie) => assert_eq!(cookie, 0),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)), "{error}")
            }
        }
    }
}
