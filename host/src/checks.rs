// SPDX-License-Identifier: GPL-2.0-only
//! Whether the scheduler can and may run on this host. Every refusal is one sentence with its remedy.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::intf;
use crate::kernel_ops;
use crate::vmname::printable;

/// The oldest kernel on which the scheduler was tested, and is let run.
pub const OLDEST_TESTED: &str = "6.18";
const OLDEST_TESTED_VERSION: (u32, u32) = (6, 18);

/// A scheduler that is just going away is waited for this long.
const LEAVING_MAX: Duration = Duration::from_secs(5);

/// The first namespace of process numbers, in which the kernel's own numbers are those of /proc.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Of a command line no more is read. A process may tell the kernel where its own is (PR_SET_MM_MAP), and so
/// have all its memory read, of which zeros cost it nothing, by one that the kernel would kill last.
const CMDLINE_MAX: u64 = 1 << 20;
const WORDS_MAX: usize = 1 << 14;

/// What our scheduler is called in sysfs.
pub const OURS: &str = "cohort";

/// Reads the core-scheduling cookie of a thread; 0 is none.
type CookieOf = fn(tid: i32) -> io::Result<u64>;
/// Reads which operations the kernel has whose types this file describes.
type OpsOf = fn(btf: &Path) -> Option<kernel_ops::Names>;
/// Whether there is a process or thread of that number, also one that /proc hides.
type HasTask = fn(tid: i32) -> bool;

/// This machine, or in tests a folder that looks like one.
#[derive(Clone)]
pub struct Host {
    root: PathBuf,
    is_another: bool,
    cookie_of: CookieOf,
    ops_of: OpsOf,
    has_task: HasTask,
}

impl Host {
    pub fn this_machine() -> Self {
        Host {
            root: PathBuf::from("/"),
            is_another: false,
            cookie_of: core_sched_cookie,
            ops_of: kernel_ops::of,
            has_task: task_is_there,
        }
    }

    pub fn path(&self, path: &(impl AsRef<Path> + ?Sized)) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Not this machine as this process sees it: what is told of the reader is told of nobody there.
    pub fn is_another(&self) -> bool {
        self.is_another
    }

    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    pub fn read(&self, path: &(impl AsRef<Path> + ?Sized)) -> Option<String> {
        // The kernel cuts names of tasks in the middle of a character, and cgroups may be called anything.
        let bytes = self.bytes(path)?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// Where names are read that lead to other files.
    pub fn bytes(&self, path: &(impl AsRef<Path> + ?Sized)) -> Option<Vec<u8>> {
        fs::read(self.path(path)).ok()
    }

    /// Everything that stands in the way, the most basic first.
    pub fn refusals(&self) -> Vec<String> {
        let kernel = [
            self.sched_ext(),
            self.version(),
            self.btf(),
            self.lockdown(),
            self.real_time(),
            self.isolated_cpus(),
        ];
        let state = [
            self.capabilities(),
            self.cpus().err(),
            self.other_scheduler(),
            self.core_scheduling(),
            self.kvm_btf(),
            self.quotas(),
        ];
        kernel.into_iter().chain(state).flatten().collect()
    }

    fn release(&self) -> String {
        self.read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "of unknown version".to_string())
    }

    fn sched_ext(&self) -> Option<String> {
        (!self.exists("/sys/kernel/sched_ext/state")).then(|| {
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

    /// The kernel withholds the helpers that read its memory (bpf_base_func_proto()), and the verifier ends at the first call of one.
    pub fn lockdown(&self) -> Option<String> {
        let state = self.read("/sys/kernel/security/lockdown")?;
        state.contains("[confidentiality]").then(|| {
            "this kernel is locked down so that no BPF program may read its memory (/sys/kernel/security/lockdown): \
             boot it with lockdown=integrity or without"
                .to_string()
        })
    }

    /// Loading would work. But timers and interrupts are threads there, below the real-time tasks, and nobody has tried what that does to guests.
    fn real_time(&self) -> Option<String> {
        let flag = self.read("/sys/kernel/realtime").is_some_and(|value| value == "1");
        let named = self.read("/proc/sys/kernel/version").is_some_and(|v| v.contains("PREEMPT_RT"));
        (flag || named).then(|| {
            format!(
                "this kernel ({}) is built with PREEMPT_RT, on which the scheduler was never tested: boot one built without it",
                self.release()
            )
        })
    }

    /// The kernel enables no sched_ext scheduler while CPUs are kept out of its scheduling domains since boot, and says -EINVAL. This file lists
    /// those. What a cpuset partition isolates is not among them and does no harm, nor is `isolcpus=nohz,…` or `isolcpus=managed_irq,…`.
    fn isolated_cpus(&self) -> Option<String> {
        let cpus = self.read("/sys/devices/system/cpu/isolated").filter(|cpus| !cpus.is_empty())?;
        let line = self.read("/proc/cmdline").unwrap_or_default();
        let word = line.split_whitespace().find(|word| word.starts_with("isolcpus=")).unwrap_or("isolcpus=");
        Some(format!(
            "{word} on the kernel's command line isolates CPU {cpus}, with which the kernel runs no sched_ext scheduler: boot without it, and \
             isolate CPUs by a cgroup instead (cpuset.cpus.partition = root)"
        ))
    }

    /// Some kernels take no sched_ext scheduler beside these either (Linux 7.0 until 6ae315d37924); which, attaching tells.
    pub fn isolated_partitions(&self) -> Option<String> {
        let cpus = self.read("/sys/fs/cgroup/cpuset.cpus.isolated").filter(|cpus| !cpus.is_empty())?;
        Some(format!(
            "a cgroup isolates CPU {cpus} (cpuset.cpus.partition = isolated), with which this kernel runs no sched_ext scheduler: make that partition \
             a root, or boot a newer kernel"
        ))
    }

    /// KVM as a module needs BTF of its own; without it no vCPU can be told from an ordinary thread.
    pub fn kvm_btf(&self) -> Option<String> {
        let is_module = self.exists("/sys/module/kvm/initstate");
        (is_module && self.kvm_is_live() && !self.exists("/sys/kernel/btf/kvm")).then(|| {
            "the kvm module does not describe its types (/sys/kernel/btf/kvm is missing): boot a kernel built with \
             CONFIG_DEBUG_INFO_BTF_MODULES=y"
                .to_string()
        })
    }

    /// Why a process number that the kernel tells is another process' in /proc. A kernel without namespaces has no link to read.
    pub fn foreign_process_numbers(&self) -> Option<&'static str> {
        let namespace = fs::read_link(self.path("/proc/self/ns/pid")).ok()?;
        (namespace.as_os_str() != FIRST_PID_NAMESPACE).then_some(
            "process numbers here are not the host's: run outside containers, or with the host's (--pid=host)",
        )
    }

    /// Why KVM does not map guests' pages by its TDP MMU, the only one that is watched.
    pub fn no_tdp_mmu(&self) -> Option<String> {
        let off = |parameter: &str| self.read(parameter).is_some_and(|value| value == "N" || value == "0");
        let parameters = ["kvm/parameters/tdp_mmu", "kvm_amd/parameters/npt", "kvm_intel/parameters/ept"];
        let found = parameters.iter().find(|parameter| off(&format!("/sys/module/{parameter}")));
        found.map(|parameter| format!("KVM is loaded with {}=N", parameter.replace("/parameters/", ".")))
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
        match self.possible_cpus()? {
            cpus if cpus <= intf::MAX_CPUS => Ok(cpus),
            cpus => Err(format!(
                "this host can have {cpus} CPUs, more than the {} that the scheduler handles: boot with possible_cpus={} on the kernel's command line",
                intf::MAX_CPUS,
                intf::MAX_CPUS
            )),
        }
    }

    /// The same, however many they are.
    pub fn possible_cpus(&self) -> Result<u32, String> {
        let possible = self.read("/sys/devices/system/cpu/possible").unwrap_or_default();
        let last = possible.rsplit([',', '-']).next().and_then(|n| n.parse::<u32>().ok());
        let wrong =
            || "cannot read the number of CPUs from /sys/devices/system/cpu/possible: mount /sys".to_string();
        last.and_then(|last| last.checked_add(1)).ok_or_else(wrong)
    }

    /// How many CPUs are online.
    pub fn online_cpu_count(&self) -> u32 {
        let count = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
            Some(last.checked_sub(first)? + 1)
        };
        self.online_cpus().unwrap_or_default().split(',').filter_map(count).sum()
    }

    /// The CPUs that are online, as the kernel writes it.
    pub fn online_cpus(&self) -> Option<String> {
        self.read("/sys/devices/system/cpu/online")
    }

    /// The sched_ext scheduler that is loaded, if any.
    pub fn loaded_scheduler(&self) -> Option<String> {
        let state = self.read("/sys/kernel/sched_ext/state")?;
        (state != "disabled").then(|| {
            self.read("/sys/kernel/sched_ext/root/ops").unwrap_or_else(|| format!("in state {state}"))
        })
    }

    pub fn other_scheduler(&self) -> Option<String> {
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
    pub fn core_scheduling(&self) -> Option<String> {
        if self.read("/sys/devices/system/cpu/smt/active").as_deref() != Some("1") {
            return None;
        }
        // This kernel has no cookies.
        if (self.cookie_of)(std::process::id() as i32)
            .is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
        {
            return None;
        }
        let mut unseen = self.hides_processes() || self.foreign_process_numbers().is_some();
        let found = numbered(&self.path("/proc")).into_iter().find_map(|pid| {
            let tids = numbered(&self.path(&format!("/proc/{pid}/task")));
            tids.into_iter().find(|tid| {
                let has = self.has_core_cookie(*tid);
                unseen |= has.is_none();
                has == Some(true)
            })?;
            Some((pid, printable(&self.comm(pid).unwrap_or_default())))
        });
        let Some((pid, name)) = found else {
            return unseen.then(|| {
                "cannot see whether threads use core scheduling, which can hang a host with SMT under any sched_ext scheduler: run as root, or with \
                 CAP_SYS_PTRACE as well, and outside containers or with the host's process numbers (--pid=host)"
                    .to_string()
            });
        };
        Some(format!(
            "process {pid} ({name}) uses core scheduling, which can hang a host with SMT under any sched_ext scheduler: start it without \
             (cloud-hypervisor: --cpus core_scheduling=off), or switch SMT off (echo off > /sys/devices/system/cpu/smt/control)"
        ))
    }

    /// Another root, such as a host's as a container sees it. Of its threads nothing is asked of this kernel.
    pub fn below(root: PathBuf) -> Self {
        Host {
            root,
            is_another: true,
            cookie_of: |_| Err(io::ErrorKind::Unsupported.into()),
            ops_of: kernel_ops::of,
            has_task: |_| false,
        }
    }

    /// None: the kernel does not say it to this user, or is not to be asked.
    pub fn has_core_cookie(&self, tid: i32) -> Option<bool> {
        match (self.cookie_of)(tid) {
            Ok(cookie) => Some(cookie != 0),
            // It has no core scheduling, or no SMT; or the thread has gone.
            Err(error) => {
                let none = [libc::EINVAL, libc::ENODEV, libc::ESRCH].map(Some);
                none.contains(&error.raw_os_error()).then_some(false)
            }
        }
    }

    /// Has this kernel such a process or thread? Of another root's it says nothing.
    pub fn has_task(&self, tid: i32) -> bool {
        (self.has_task)(tid)
    }

    /// Does /proc hide processes (hidepid=)? Then the first one, which has all rights, is among them.
    pub fn hides_processes(&self) -> bool {
        self.has_task(1) && numbered(&self.path("/proc/1/task")).is_empty()
    }

    /// The operations of this kernel's sched_ext, if its types can be read.
    pub fn kernel_ops(&self) -> Option<kernel_ops::Names> {
        (self.ops_of)(&self.path("/sys/kernel/btf/vmlinux"))
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

    /// A process' command line, word by word; of one that is too long, the beginning.
    pub fn cmdline(&self, pid: i32) -> Vec<String> {
        let read = |file: File| {
            let mut bytes = Vec::new();
            file.take(CMDLINE_MAX).read_to_end(&mut bytes).map(|_| bytes)
        };
        let file = File::open(self.path(&format!("/proc/{pid}/cmdline")));
        let bytes = file.and_then(read).unwrap_or_default();
        let words = bytes.split(|b| *b == 0).take(WORDS_MAX);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }
}

/// The entries of a folder whose names are numbers, in order.
pub fn numbered(dir: &Path) -> Vec<i32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn task_is_there(tid: i32) -> bool {
    // Other numbers stand for groups of processes.
    if tid <= 0 {
        return false;
    }
    // SAFETY: no signal is sent, and no memory is touched.
    let result = unsafe { libc::kill(tid, 0) };
    // Others' may not be sent any.
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
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

mod quotas;
#[cfg(test)]
pub mod tests;
