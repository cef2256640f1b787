// SPDX-License-Identifier: GPL-2.0-only
//! The virtual machines of a host, by what their processes have open: any VMM's, whatever it calls its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::ask::Silent;
use crate::audit::cpuset::CpuSet;
use crate::audit::guest_cpu::{is_qemu, GuestCpu, QemuArgs};
use crate::audit::libvirt;
use crate::audit::snapshot::{names_in, Quota, Thread, Vm};
use crate::checks::{numbered, Host};
use crate::probe::Told;
use crate::vmname::{cmdlines, name_of, nameless, printable, printable_path};

/// The model that QEMU takes when it is told none.
const QEMU_DEFAULT: &str = "qemu64";
const CGROUPS: &str = "/sys/fs/cgroup";
/// The ioctl that runs a vCPU, as /proc/PID/task/TID/syscall has it behind the number of ioctl.
const IN_KVM_RUN: (&str, &str) = ("16", "0xae80");
/// The fields of /proc/PID/stat that have flags, and ticks in a guest, after the program's name.
const FLAGS: usize = 9 - 3;
const GUEST_TIME: usize = 43 - 3;
/// The flag of the kernel's threads.
const PF_KTHREAD: u32 = 0x0020_0000;
/// KVM's own threads in a VMM's process. They have copied the creator's registers, which say KVM_RUN.
const HELPERS: [&str; 3] = ["kvm-nx-lpage", "vhost-", "iou-"];

/// Asks the kernel what guests are told; or why it cannot be asked.
pub type Ask = fn(&Host) -> Result<Vec<Told>, String>;

pub fn read(host: &Host, ask: Ask, unknown: &mut Vec<String>) -> Vec<Vm> {
    let (domains, unread) = libvirt::domains(host);
    let (mut closed, mut hidden) = (0, BTreeSet::new());
    let mut found = Vec::new();
    for pid in numbered(&host.path("/proc")) {
        let named = vcpus_by_name(host, pid);
        let vcpus = match vcpus_by_file(host, pid) {
            Some(Files { vms: 0, .. }) => continue,
            // QEMU keeps the file of a vCPU that was unplugged, whose thread is gone.
            Some(files) if named.is_empty() => files.vcpus,
            Some(_) => named.len(),
            // Not ours to look into. What its threads are called may tell.
            None => {
                closed += usize::from(is_of_a_user(host, pid));
                if named.is_empty() {
                    continue;
                }
                named.len()
            }
        };
        found.push((pid, named, vcpus));
    }
    let cmdlines = cmdlines(host, found.iter().map(|(pid, ..)| *pid));
    let mut vms = Vec::new();
    for (pid, named, vcpus) in found {
        let domain = domains.get(&pid);
        let told = cmdlines.get(&pid).and_then(|told| told.as_deref().ok());
        let cmdline = told.unwrap_or_default();
        let args = QemuArgs::parse(cmdline);
        let from_args =
            is_qemu(cmdline).then(|| args.cpu.unwrap_or_else(|| GuestCpu::from_model(QEMU_DEFAULT)));
        let cpu = from_args.or_else(|| domain.and_then(|domain| domain.cpu.clone()));
        let mut threads = if named.is_empty() { vcpus_by_deed(host, pid) } else { named };
        // Old kernels do not number the files.
        let vcpus = if vcpus == 0 { threads.len() } else { vcpus };
        // They serve the vCPUs in turn, and none of them is one.
        if threads.len() > vcpus {
            threads.clear();
        }
        let threads: Vec<Thread> =
            threads.into_iter().map(|tid| Thread { tid, allowed: allowed(host, pid, tid) }).collect();
        vms.push(Vm {
            pid,
            name: domain
                .map(|domain| printable(&domain.name))
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| told.map_or_else(|| nameless(pid), |words| name_of(host, pid, words))),
            vcpus,
            cpu,
            cpu_pm: args.cpu_pm,
            quotas: quotas(host, pid, vcpus, &threads, &mut hidden),
            core_cookie: core_cookie(host, &threads, vcpus),
            libvirt: domain.is_some(),
            threads,
        });
    }
    // Who ended meanwhile was half looked at.
    vms.retain(|vm| host.comm(vm.pid).is_some());
    let silent = |why: Silent| vms.iter().filter(|vm| cmdlines.get(&vm.pid) == Some(&Err(why))).count();
    let (stuck, unasked) = (silent(Silent::Late), silent(Silent::Unasked));
    if stuck > 0 {
        unknown.push(format!(
            "what the VMMs of {stuck} VMs were told: their memory is held, and with it their command lines"
        ));
    }
    if unasked > 0 {
        unknown.push(format!(
            "what the VMMs of {unasked} VMs were told: no thread was free to read their command lines: too many others are held, or `ulimit -u` is too low"
        ));
    }
    if closed > 0 {
        unknown.push(format!(
            "what {closed} processes of other users have open, and so which are VMs: needs root"
        ));
    }
    if !hidden.is_empty() {
        unknown.push(format!(
            "quotas of {} VMs (cpu-max): their cgroups are outside of those that are seen here: run outside containers, or with the host's (--cgroupns=host) at /sys/fs/cgroup",
            hidden.len()
        ));
    }
    if unread && !vms.is_empty() {
        unknown.push(
            "which VMs are libvirt's (schedstats-off): its files in /run/libvirt/qemu cannot be read: needs root"
                .to_string(),
        );
    }
    ask_of_the_untold(host, ask, &mut vms, unknown);
    let lost = vms.iter().filter(|vm| vm.threads.len() < vm.vcpus).count();
    if lost > 0 {
        unknown.push(format!(
            "which threads are the vCPUs of {lost} VMs, and so where they may run \
             (hint-dedicated, cpu-pm, stacked-by-cpuset)"
        ));
    }
    vms
}

/// Of VMMs that do not say what their guests are told, KVM may.
fn ask_of_the_untold(host: &Host, ask: Ask, vms: &mut [Vm], unknown: &mut Vec<String>) {
    if vms.iter().all(|vm| vm.cpu.is_some()) {
        return;
    }
    let (told, why) = match ask(host) {
        Ok(told) => (told, "none of its vCPUs is inside KVM, or this kernel does not keep it".to_string()),
        Err(why) => (Vec::new(), why),
    };
    let mut untold = BTreeSet::new();
    for vm in vms.iter_mut().filter(|vm| vm.cpu.is_none()) {
        vm.cpu = told.iter().find(|told| told.pid == vm.pid).map(GuestCpu::from_cpuid);
        if vm.cpu.is_none() {
            untold.insert(host.comm(vm.pid).map_or("?".to_string(), |comm| printable(&comm)));
        }
    }
    for vmm in untold {
        unknown.push(format!(
            "what guests of {vmm} are told of KVM: its command line does not say, nor the kernel: {why}"
        ));
    }
}

struct Files {
    vms: usize,
    vcpus: usize,
}

/// What of KVM the process has open; None if that may not be seen.
fn vcpus_by_file(host: &Host, pid: i32) -> Option<Files> {
    let entries = fs::read_dir(host.path(&format!("/proc/{pid}/fd"))).ok()?;
    let mut vms = 0;
    let mut vcpus = Vec::new();
    for target in entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()) {
        let target = target.to_string_lossy();
        if target == "anon_inode:kvm-vm" {
            vms += 1;
        } else if let Some(number) = target.strip_prefix("anon_inode:kvm-vcpu:") {
            vcpus.push(number.to_string());
        }
    }
    // Of one VM a number is one vCPU; a second VM of the process has the same ones.
    if vms == 1 {
        vcpus.sort_unstable();
        vcpus.dedup();
    }
    Some(Files { vms, vcpus: vcpus.len() })
}

/// Not the kernel's own thread, nor one that has ended and waits for its parent.
fn is_of_a_user(host: &Host, pid: i32) -> bool {
    let stat = host.read(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = fields(&stat);
    let is_over = fields.next() == Some("Z");
    let flags = fields.nth(FLAGS - 1).and_then(|flags| flags.parse::<u32>().ok());
    !is_over && flags.is_some_and(|flags| flags & PF_KTHREAD == 0)
}

/// Those of /proc/PID/stat behind the program's name, which is in brackets and may hold anything.
fn fields(stat: &str) -> std::str::Split<'_, char> {
    stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ')
}

fn tids(host: &Host, pid: i32) -> Vec<i32> {
    numbered(&host.path(&format!("/proc/{pid}/task")))
}

fn task(host: &Host, pid: i32, tid: i32, file: &str) -> String {
    host.read(&format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default()
}

/// QEMU's `CPU 0/KVM` (with `debug-threads=on`, as libvirt starts it), Firecracker's `fc_vcpu 0`, crosvm's `crosvm_vcpu0`, cloud-hypervisor's `vcpu0`.
fn vcpus_by_name(host: &Host, pid: i32) -> Vec<i32> {
    let is_vcpu = |comm: &str| {
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        comm.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM")).is_some_and(number)
            || ["fc_vcpu ", "crosvm_vcpu", "vcpu"]
                .iter()
                .any(|prefix| comm.strip_prefix(prefix).is_some_and(number))
    };
    tids(host, pid).into_iter().filter(|tid| is_vcpu(&task(host, pid, *tid, "comm"))).collect()
}

/// Threads that have run a guest, or wait inside KVM.
fn vcpus_by_deed(host: &Host, pid: i32) -> Vec<i32> {
    let has_run = |tid: i32| {
        let stat = task(host, pid, tid, "stat");
        fields(&stat).nth(GUEST_TIME).and_then(|ticks| ticks.parse::<u64>().ok()).is_some_and(|t| t > 0)
    };
    let waits = |tid: i32| {
        let syscall = task(host, pid, tid, "syscall");
        let mut words = syscall.split(' ');
        words.next() == Some(IN_KVM_RUN.0) && words.nth(1) == Some(IN_KVM_RUN.1)
    };
    let helps = |tid: i32| {
        let comm = task(host, pid, tid, "comm");
        HELPERS.iter().any(|name| comm.starts_with(name))
    };
    tids(host, pid).into_iter().filter(|tid| !helps(*tid) && (has_run(*tid) || waits(*tid))).collect()
}

/// Has one of so many vCPUs a core-scheduling cookie? None: that was not found out of all of them.
fn core_cookie(host: &Host, threads: &[Thread], vcpus: usize) -> Option<bool> {
    let has: Vec<Option<bool>> = threads.iter().map(|thread| host.has_core_cookie(thread.tid)).collect();
    let is_known = has.len() >= vcpus && !has.contains(&None);
    (is_known || has.contains(&Some(true))).then(|| has.contains(&Some(true)))
}

fn allowed(host: &Host, pid: i32, tid: i32) -> CpuSet {
    let status = task(host, pid, tid, "status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    CpuSet::parse(list.unwrap_or_default())
}

/// Every quota between the root and the cgroups that its vCPUs are in, so many; for those that are not known
/// the process' own stands in. `hidden`: of which processes some of these cannot be seen.
fn quotas(
    host: &Host,
    pid: i32,
    vcpu_count: usize,
    threads: &[Thread],
    hidden: &mut BTreeSet<i32>,
) -> Vec<Quota> {
    // Names of cgroups may be any bytes, and made into text some would be those of no cgroup.
    let read = |file: String| host.bytes(&file).unwrap_or_default();
    let mut files = vec![(false, read(format!("/proc/{pid}/cgroup")))];
    let of_vcpus =
        threads.iter().map(|thread| (true, read(format!("/proc/{pid}/task/{}/cgroup", thread.tid))));
    files.extend(of_vcpus.filter(|(_, bytes)| !bytes.is_empty()));
    // What holds back the VMM's own threads alone, as libvirt's `emulator`, stops no vCPU.
    let are_all_known = files.len() > vcpu_count.max(1);
    let mut of_a_vcpu = BTreeSet::new();
    let mut found: BTreeMap<PathBuf, Quota> = BTreeMap::new();
    // They are not mounted here.
    if names_in(host, CGROUPS).is_empty() {
        hidden.insert(pid);
    }
    // The root of all cgroups has no type: this is a part of them, as in a container, and what is above is not seen.
    if host.exists(&format!("{CGROUPS}/cgroup.type")) {
        hidden.insert(pid);
        if let Some((quota_us, period_us)) =
            quota(&host.read(&format!("{CGROUPS}/cpu.max")).unwrap_or_default())
        {
            let root = Quota { cgroup: "/".to_string(), quota_us, period_us, of_one_vcpu: false };
            found.insert(PathBuf::new(), root);
        }
    }
    let lines = files
        .iter()
        .flat_map(|(is_vcpu, bytes)| bytes.split(|byte| *byte == b'\n').map(move |line| (*is_vcpu, line)));
    for (is_vcpu, line) in lines {
        let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let is_first_version = !controllers.is_empty();
        if is_first_version && !controllers.split(|byte| *byte == b',').any(|name| name == b"cpu") {
            continue;
        }
        let names = || path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        // Outside this cgroup namespace the kernel writes "/../x", and below the mount another one may be called so.
        if names().any(|name| name == b"..") {
            hidden.insert(pid);
            continue;
        }
        // Of the second version no controllers are named, and all of it is one tree.
        let mut tree = Path::new(CGROUPS).join(OsStr::from_bytes(controllers));
        // Old kernels name them in another order than the folder does (RHEL 7: `cpuacct,cpu`). `cpu` is a link to it.
        if is_first_version && !host.path(&tree).exists() {
            tree = Path::new(CGROUPS).join("cpu");
        }
        let mut at = PathBuf::new();
        for name in names().map(OsStr::from_bytes) {
            at.push(name);
            if is_vcpu {
                of_a_vcpu.insert(at.clone());
            }
            let dir = tree.join(&at);
            let quota = if is_first_version {
                first_version_quota(host, &dir)
            } else {
                quota(&host.read(&dir.join("cpu.max")).unwrap_or_default())
            };
            if let Some((quota_us, period_us)) = quota {
                // What a second thread leads through has more than one in it.
                let of_one_vcpu = is_vcpu && is_of_one_vcpu(name) && !found.contains_key(&at);
                let cgroup = printable_path(&format!("/{}", at.display()));
                found.insert(at.clone(), Quota { cgroup, quota_us, period_us, of_one_vcpu });
            }
        }
    }
    // The root, which has no name here, holds everybody.
    found.retain(|at, _| !are_all_known || at.as_os_str().is_empty() || of_a_vcpu.contains(at));
    found.into_values().collect()
}

/// libvirt's `vcpu3`. A cgroup of another name may have threads of other VMs, or the VMM's own.
fn is_of_one_vcpu(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("vcpu"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// "50000 100000"; "max 100000" is none.
fn quota(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.split_once(' ')?;
    Some((quota.parse().ok()?, period.trim().parse().ok().filter(|period| *period > 0)?))
}

fn first_version_quota(host: &Host, dir: &Path) -> Option<(u64, u64)> {
    let read = |file: &str| host.read(&dir.join(file));
    quota(&format!("{} {}", read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?))
}
