// SPDX-License-Identifier: GPL-2.0-only
//! The checks, tried on folders that look like hosts.

use super::*;

/// A folder that looks like a host.
pub struct FakeHost {
    dir: tempfile::TempDir,
    cookie_of: CookieOf,
    ops_of: OpsOf,
    has_task: HasTask,
}

impl FakeHost {
    pub fn new() -> Self {
        FakeHost {
            dir: tempfile::tempdir().unwrap(),
            cookie_of: |_| Err(io::Error::from_raw_os_error(libc::ENODEV)),
            ops_of: |_| Some(["cgroup_set_bandwidth".to_string()].into()),
            has_task: |_| false,
        }
    }

    /// A host on which everything is as it should be.
    pub fn good() -> Self {
        FakeHost::new()
            .file("/proc/sys/kernel/osrelease", "7.3.4+deb13-amd64\n")
            .file("/proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 7.3.4-1\n")
            .file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/vda1 quiet\n")
            .file("/sys/devices/system/cpu/isolated", "\n")
            .file("/proc/self/status", "Name:\tcohort\nCapEff:\t000001ffffffffff\n")
            .file("/sys/kernel/sched_ext/state", "disabled\n")
            .file("/sys/kernel/btf/vmlinux", "")
            .file("/sys/kernel/btf/kvm", "")
            .file("/sys/module/kvm/initstate", "live\n")
            .file("/sys/devices/system/cpu/possible", "0-3\n")
            .file("/sys/devices/system/cpu/smt/active", "0\n")
    }

    pub fn file(self, path: &str, content: &str) -> Self {
        self.bytes(path, content.as_bytes())
    }

    /// A file that need not be text.
    pub fn bytes(self, path: &str, content: &[u8]) -> Self {
        let path = self.host().path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    pub fn link(self, path: &str, target: &str) -> Self {
        let path = self.host().path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    /// Its kernel answers so when it is asked for a thread's cookie.
    pub fn with_cookies(mut self, cookie_of: CookieOf) -> Self {
        self.cookie_of = cookie_of;
        self
    }

    /// In a container with process numbers of its own.
    pub fn in_a_container(self) -> Self {
        self.link("/proc/self/ns/pid", "pid:[4026532000]")
    }

    /// Its kernel has these operations, or does not say.
    pub fn with_ops(mut self, ops_of: OpsOf) -> Self {
        self.ops_of = ops_of;
        self
    }

    /// Its kernel has these processes and threads, whether they are in its /proc or not.
    pub fn with_tasks(mut self, has_task: HasTask) -> Self {
        self.has_task = has_task;
        self
    }

    pub fn without(self, path: &str) -> Self {
        let path = self.host().path(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        self
    }

    pub fn host(&self) -> Host {
        Host {
            root: self.dir.path().to_path_buf(),
            is_another: false,
            cookie_of: self.cookie_of,
            ops_of: self.ops_of,
            has_task: self.has_task,
        }
    }

    /// The one refusal, which is one sentence on one line and names all of `wanted`.
    pub fn refused_for(&self, wanted: &[&str]) {
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
fn real_time_kernel() {
    let wanted = ["7.3.4", "PREEMPT_RT", "without it"];
    FakeHost::good().file("/sys/kernel/realtime", "1\n").refused_for(&wanted);
    FakeHost::good()
        .file("/proc/sys/kernel/version", "#1 SMP PREEMPT_RT Debian 7.3.4-1\n")
        .refused_for(&wanted);
    let host = FakeHost::good().file("/sys/kernel/realtime", "0\n");
    assert_eq!(host.host().refusals(), Vec::<String>::new());
}

#[test]
fn cpus_isolated_since_boot() {
    FakeHost::good()
        .file("/sys/devices/system/cpu/isolated", "2-3\n")
        .file("/proc/cmdline", "quiet isolcpus=domain,managed_irq,2-3 nohz_full=2-3\n")
        .refused_for(&[
            "CPU 2-3,",
            "isolcpus=domain,managed_irq,2-3 on",
            "boot without",
            "cpuset.cpus.partition",
        ]);
    FakeHost::good().file("/sys/devices/system/cpu/isolated", "7\n").refused_for(&["CPU 7,", "isolcpus="]);
    // Only ticks and interrupts are kept away: the kernel lists no CPU, and lets the scheduler start.
    let host = FakeHost::good().file("/proc/cmdline", "isolcpus=nohz,managed_irq,2-3\n");
    assert_eq!(host.host().refusals(), Vec::<String>::new());
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
    FakeHost::good().file("/proc/self/status", "CapEff:\t000000c000000000\n").refused_for(&["CAP_SYS_ADMIN"]);
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
fn process_numbers_are_the_hosts_outside_of_containers() {
    let hosts = FakeHost::new().link("/proc/self/ns/pid", FIRST_PID_NAMESPACE);
    assert_eq!(hosts.host().foreign_process_numbers(), None);
    assert_eq!(FakeHost::new().host().foreign_process_numbers(), None, "a kernel without namespaces");
    let why = FakeHost::new().in_a_container().host().foreign_process_numbers().unwrap();
    assert!(why.contains("--pid=host"), "{why}");
}

#[test]
fn core_scheduling_with_smt() {
    let tagged: CookieOf = |tid| Ok(if tid == 4243 { 0xbeef } else { 0 });
    let host = FakeHost::good()
        .file("/proc/1/task/1/comm", "init\n")
        .file("/proc/4242/task/4242/comm", "cloud-hyperviso\n")
        .file("/proc/4242/task/4243/comm", "vcpu0\n")
        .file("/proc/4242/comm", "cloud-hyperviso\n")
        .with_cookies(tagged);
    assert_eq!(host.host().refusals(), Vec::<String>::new(), "harmless without SMT");
    let host = host.file("/sys/devices/system/cpu/smt/active", "1\n");
    host.refused_for(&["4242", "cloud-hyperviso", "core_scheduling=off", "smt/control"]);
    host.file("/proc/4242/comm", "a\x1b[2J\nb\n").refused_for(&["process 4242 (a?[2J?b)"]);
}

#[test]
fn kernel_whose_memory_no_program_may_read() {
    let locked = |state: &str| FakeHost::good().file("/sys/kernel/security/lockdown", state);
    for fine in ["[none] integrity confidentiality\n", "none [integrity] confidentiality\n"] {
        assert_eq!(locked(fine).host().refusals(), Vec::<String>::new());
    }
    locked("none integrity [confidentiality]\n").refused_for(&["locked down", "lockdown=integrity"]);
}

#[test]
fn smt_without_core_scheduling_is_fine() {
    let host = FakeHost::good()
        .file("/proc/1/task/1/comm", "init\n")
        .file("/sys/devices/system/cpu/smt/active", "1\n")
        .with_cookies(|_| Ok(0));
    assert_eq!(host.host().refusals(), Vec::<String>::new());
}

#[test]
fn threads_that_may_not_be_asked_for_their_cookie_are_a_reason_where_there_is_smt() {
    let host = FakeHost::good()
        .file("/proc/1/task/1/comm", "init\n")
        .with_cookies(|_| Err(io::Error::from_raw_os_error(libc::EPERM)));
    assert_eq!(host.host().refusals(), Vec::<String>::new(), "harmless without SMT");
    host.file("/sys/devices/system/cpu/smt/active", "1\n").refused_for(&["cannot see", "CAP_SYS_PTRACE"]);
}

#[test]
fn threads_that_proc_hides_are_a_reason_as_well() {
    let host = FakeHost::good()
        .file("/proc/4242/task/4242/comm", "ours\n")
        .file("/sys/devices/system/cpu/smt/active", "1\n")
        .with_cookies(|_| Ok(0))
        .with_tasks(|tid| tid == 1);
    host.refused_for(&["cannot see", "CAP_SYS_PTRACE"]);
    let shown = host.file("/proc/1/task/1/comm", "init\n");
    assert_eq!(shown.host().refusals(), Vec::<String>::new());
}

#[test]
fn a_cookie_that_may_not_be_read_is_not_none() {
    let has = |cookie_of: CookieOf| FakeHost::new().with_cookies(cookie_of).host().has_core_cookie(7);
    assert_eq!((has(|_| Ok(0xbeef)), has(|_| Ok(0))), (Some(true), Some(false)));
    assert_eq!(has(|_| Err(io::Error::from_raw_os_error(libc::EPERM))), None);
    for none in [
        |_| Err(io::Error::from_raw_os_error(libc::EINVAL)),
        |_| Err(io::Error::from_raw_os_error(libc::ENODEV)),
        |_| Err(io::Error::from_raw_os_error(libc::ESRCH)),
    ] {
        assert_eq!(has(none), Some(false));
    }
    assert_eq!(Host::below("/nowhere".into()).has_core_cookie(7), None);
}

#[test]
fn of_a_command_line_without_end_the_beginning_is_read() {
    let host = FakeHost::new()
        .file("/proc/7/cmdline", &"\0".repeat(3 << 20))
        .file("/proc/8/cmdline", &"x".repeat(3 << 20))
        .file("/proc/9/cmdline", "qemu\0-name\0web\0");
    assert_eq!(host.host().cmdline(7).len(), WORDS_MAX);
    assert_eq!(host.host().cmdline(8), ["x".repeat(CMDLINE_MAX as usize)]);
    assert_eq!(host.host().cmdline(9), ["qemu", "-name", "web", ""]);
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

#[test]
fn a_task_is_there_also_where_no_signal_may_be_sent() {
    // SAFETY: it takes nothing, and always succeeds.
    let thread = unsafe { libc::gettid() };
    // The first process is root's.
    for tid in [std::process::id() as i32, thread, 1] {
        assert!(task_is_there(tid), "{tid}");
    }
    // 0 and -1 would be groups of processes that are there.
    for tid in [0, -1, i32::MAX] {
        assert!(!task_is_there(tid), "{tid}");
    }
    assert!(!Host::below("/".into()).has_task(1));
}
