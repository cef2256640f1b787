// SPDX-License-Identifier: GPL-2.0-only
//! What the rules look at: this host's settings and its virtual machines, read once.

use std::fs;

use crate::audit::cpuset::CpuSet;
use crate::audit::guest_cpu::GuestCpu;
use crate::audit::vms;
use crate::checks::Host;
use crate::vmname::printable;

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub kernel: Kernel,
    pub cpus: Cpus,
    pub kvm: Kvm,
    pub sched: Sched,
    pub vms: Vec<Vm>,
    /// What could not be read, and what is therefore not known: a line each.
    pub unknown: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Kernel {
    pub release: String,
    /// As far as the release says; (0, 0, 0) is not known.
    pub version: (u32, u32, u32),
    pub real_time: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Cpus {
    pub online: CpuSet,
    /// Between these the kernel does not balance: isolated at boot or by a cpuset partition.
    pub isolated: CpuSet,
    pub smt: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Kvm {
    pub pause_exits: Option<PauseExits>,
    pub halt_poll_ns: Option<u64>,
    /// The processor delivers interrupts between vCPUs without an exit.
    pub virtual_ipis: bool,
}

/// The parameter that switches pause-loop exits, and whether the processor has them.
#[derive(Clone, Debug, Default)]
pub struct PauseExits {
    pub parameter: String,
    pub value: u64,
    /// None: the kernel does not list what of the kind the processor has.
    pub in_processor: Option<bool>,
}

#[derive(Clone, Debug, Default)]
pub struct Sched {
    pub schedstats: Option<bool>,
    /// How a cgroup's weight is divided among pCPUs; Linux 7.3 and newer.
    pub cgroup_mode: Option<String>,
    /// The sched_ext scheduler that is loaded.
    pub extension: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Vm {
    pub pid: i32,
    pub name: String,
    pub vcpus: usize,
    /// The vCPU threads that were recognized; may be fewer than `vcpus`.
    pub threads: Vec<Thread>,
    /// None: its VMM does not say.
    pub cpu: Option<GuestCpu>,
    pub cpu_pm: bool,
    pub quotas: Vec<Quota>,
    /// One of its vCPUs has a core-scheduling cookie; None: not known.
    pub core_cookie: Option<bool>,
    pub libvirt: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub tid: i32,
    pub allowed: CpuSet,
}

/// `cpu.max` of a cgroup that a VM is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quota {
    pub cgroup: String,
    pub quota_us: u64,
    pub period_us: u64,
    /// Nothing of the VM is there but one vCPU's thread, as in libvirt's `vcpuN`.
    pub of_one_vcpu: bool,
}

impl Snapshot {
    pub fn read(host: &Host, ask: vms::Ask) -> Self {
        let mut unknown = Vec::new();
        let cpus = cpus(host);
        if cpus.online.is_empty() {
            unknown.push("which pCPUs are online: /sys/devices/system/cpu/online is missing".to_string());
        }
        let kernel = kernel(host);
        let sched = sched(host);
        if kernel.version >= CGROUP_MODE_SINCE && sched.cgroup_mode.is_none() {
            unknown.push(
                "how weights of cgroups are divided (cgroup_mode): needs root, and debugfs at /sys/kernel/debug"
                    .to_string(),
            );
        }
        if !host.kvm_is_live() {
            unknown.push(
                "KVM's settings: it is not loaded, so that no VM can run here (modprobe kvm_intel, or kvm_amd)"
                    .to_string(),
            );
        }
        let kvm = kvm(host);
        if host.kvm_is_live() && kvm.pause_exits.is_none() {
            unknown.push(
                "whether KVM catches vCPUs that spin (ple-off): neither kvm_intel nor kvm_amd is loaded with a parameter that says it"
                    .to_string(),
            );
        }
        if host.kvm_is_live() && kvm.halt_poll_ns.is_none() {
            unknown.push(
                "for how long KVM polls before a halt (halt-polling): /sys/module/kvm/parameters/halt_poll_ns does not say"
                    .to_string(),
            );
        }
        if sched.schedstats.is_none() {
            unknown.push(
                "whether the kernel counts what libvirt shows as vcpu.N.wait (schedstats-off): /proc/sys/kernel/sched_schedstats does not say"
                    .to_string(),
            );
        }
        if let Some(why) = host.foreign_process_numbers().filter(|_| !host.is_another()) {
            unknown.push(format!("which VMs there are: {why}"));
        }
        if host.hides_processes() {
            unknown.push(
                "which VMs there are: /proc hides processes (hidepid=): run as root, or with CAP_SYS_PTRACE as well"
                    .to_string(),
            );
        }
        let vms = vms::read(host, ask, &mut unknown);
        let untold = vms.iter().filter(|vm| vm.core_cookie.is_none()).count();
        // Without SMT a cookie does nothing.
        if cpus.smt && untold > 0 {
            unknown.push(format!(
                "whether vCPUs of {untold} VMs have core-scheduling cookies (core-scheduling): takes root, and no --root"
            ));
        }
        Snapshot { kernel, cpus, kvm, sched, vms, unknown }
    }

    /// All vCPUs of all VMs.
    pub fn vcpus(&self) -> usize {
        self.vms.iter().map(|vm| vm.vcpus).sum()
    }

    /// More vCPUs than pCPUs.
    pub fn is_overcommitted(&self) -> bool {
        !self.cpus.online.is_empty() && self.vcpus() > self.cpus.online.len()
    }
}

pub const CGROUP_MODE_SINCE: (u32, u32, u32) = (7, 3, 0);

fn kernel(host: &Host) -> Kernel {
    let release = host.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let flag = host.read("/sys/kernel/realtime").is_some_and(|value| value == "1");
    let named = host.read("/proc/sys/kernel/version").is_some_and(|text| text.contains("PREEMPT_RT"));
    Kernel { version: version(&release), release: printable(&release), real_time: flag || named }
}

/// The first numbers of `6.18.15+deb14-amd64`. A release candidate counts as the release.
pub fn version(release: &str) -> (u32, u32, u32) {
    let numbers = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    let mut numbers = numbers.split('.').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

fn cpus(host: &Host) -> Cpus {
    let list = |path| CpuSet::parse(&host.read(path).unwrap_or_default());
    Cpus {
        online: list("/sys/devices/system/cpu/online"),
        isolated: list("/sys/devices/system/cpu/isolated").or(&list("/sys/fs/cgroup/cpuset.cpus.isolated")),
        smt: host.read("/sys/devices/system/cpu/smt/active").as_deref() == Some("1"),
    }
}

fn parameter(host: &Host, module: &str, name: &str) -> Option<String> {
    host.read(&format!("/sys/module/{module}/parameters/{name}"))
}

/// Does KVM catch vCPUs that spin?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spins {
    /// No module for this processor is loaded.
    Unknown,
    Caught,
    /// It does not, by this parameter.
    Uncaught(String),
}

/// Looked for all the time, so it reads little.
pub fn spins(host: &Host) -> Spins {
    let parameters =
        [("kvm_intel", "ple_gap"), ("kvm_amd", "pause_filter_count"), ("kvm_amd", "pause_filter_thresh")];
    let mut found = Spins::Unknown;
    for (module, name) in parameters {
        match parameter(host, module, name).as_deref() {
            Some("0") => return Spins::Uncaught(format!("{module}.{name}")),
            Some(_) => found = Spins::Caught,
            None => {}
        }
    }
    found
}

/// Does the processor deliver interrupts between vCPUs without KVM?
pub fn delivers_ipis(host: &Host) -> bool {
    let parameter = |module: &str, name: &str| parameter(host, module, name);
    let on = |module, name| parameter(module, name).is_some_and(|value| matches!(value.as_str(), "Y" | "1"));
    // Before kvm_amd had a parameter for it, its AVIC always delivered them.
    let by = |module, apic| {
        on(module, apic)
            && (on(module, "enable_ipiv")
                || (module == "kvm_amd" && parameter(module, "enable_ipiv").is_none()))
    };
    by("kvm_intel", "enable_apicv") || by("kvm_amd", "avic")
}

/// How KVM's module for this processor catches vCPUs that spin; None: no such module is loaded.
fn pause_exits(host: &Host) -> Option<PauseExits> {
    let cpuinfo = host.read("/proc/cpuinfo").unwrap_or_default();
    // Before Linux 5.6 there is no line of VMX's own flags, which does not mean that there are none.
    let has = |list: &str, flag: &str| {
        let lists = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut flags = lists.filter(|(name, _)| name.trim() == list).map(|(_, flags)| flags).peekable();
        flags.peek()?;
        Some(flags.any(|flags| flags.split_whitespace().any(|word| word == flag)))
    };
    let exits = |module: &str, name: &str, list: &str, flag: &str| {
        let value = parameter(host, module, name)?.parse().ok()?;
        Some(PauseExits { parameter: format!("{module}.{name}"), value, in_processor: has(list, flag) })
    };
    // Without a threshold KVM of AMD does without the filter, too (svm_vm_init()).
    let no_threshold =
        || exits("kvm_amd", "pause_filter_thresh", "flags", "pfthreshold").filter(|exits| exits.value == 0);
    exits("kvm_intel", "ple_gap", "vmx flags", "ple").or_else(|| {
        let filter = exits("kvm_amd", "pause_filter_count", "flags", "pausefilter")?;
        Some(if filter.value > 0 { no_threshold().unwrap_or(filter) } else { filter })
    })
}

fn kvm(host: &Host) -> Kvm {
    Kvm {
        pause_exits: pause_exits(host),
        halt_poll_ns: parameter(host, "kvm", "halt_poll_ns").and_then(|value| value.parse().ok()),
        virtual_ipis: delivers_ipis(host),
    }
}

fn sched(host: &Host) -> Sched {
    let modes = host.read("/sys/kernel/debug/sched/cgroup_mode");
    let chosen = |text: &String| {
        text.split_whitespace().find_map(|word| word.strip_prefix('(')?.strip_suffix(')')).map(str::to_string)
    };
    Sched {
        schedstats: host
            .read("/proc/sys/kernel/sched_schedstats")
            .and_then(|value| value.parse::<u32>().ok())
            .map(|on| on != 0),
        cgroup_mode: modes.as_ref().and_then(chosen),
        extension: host.loaded_scheduler(),
    }
}

/// The names in a folder, in order.
pub fn names_in(host: &Host, dir: &str) -> Vec<String> {
    let entries = fs::read_dir(host.path(dir)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
