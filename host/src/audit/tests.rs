// SPDX-License-Identifier: GPL-2.0-only
//! The whole audit, on folders that look like hosts.

mod quotas;
mod unknown;

use std::os::unix::fs::{symlink, OpenOptionsExt};

use super::snapshot::{spins, Quota, Spins};
use super::*;
use crate::checks::tests::FakeHost;
use crate::vmname::tests::fifo;

/// A process with a VM of two vCPUs; `comms` are its threads' names, the first the process' own.
fn vmm(host: FakeHost, pid: i32, cmdline: &str, comms: &[&str]) -> FakeHost {
    let mut host = host
        .file(&format!("/proc/{pid}/comm"), &format!("{}\n", comms[0]))
        .file(&format!("/proc/{pid}/cmdline"), &cmdline.replace(' ', "\0"))
        .file(&format!("/proc/{pid}/stat"), &format!("{pid} ({}) S 1 1 1 0 -1 4194560 9", comms[0]))
        .file(&format!("/proc/{pid}/cgroup"), &format!("0::/machine.slice/{pid}.scope\n"));
    for (n, comm) in comms.iter().enumerate() {
        let task = format!("/proc/{pid}/task/{}", pid + n as i32);
        host = host
            .file(&format!("{task}/comm"), &format!("{comm}\n"))
            .file(&format!("{task}/cgroup"), &format!("0::/machine.slice/{pid}.scope\n"))
            .file(&format!("{task}/status"), "Name:\tx\nCpus_allowed_list:\t0-3\n");
    }
    host
}

fn opens(host: FakeHost, pid: i32, targets: &[&str]) -> FakeHost {
    let dir = host.host().path(&format!("/proc/{pid}/fd"));
    std::fs::create_dir_all(&dir).unwrap();
    for (n, target) in targets.iter().enumerate() {
        symlink(target, dir.join(n.to_string())).unwrap();
    }
    host
}

const TWO_VCPUS: [&str; 5] = [
    "/dev/kvm",
    "anon_inode:kvm-vm",
    "anon_inode:kvm-vcpu:0",
    "anon_inode:kvm-vcpu-stats:0",
    "anon_inode:kvm-vcpu:1",
];
const QEMU: &str = "qemu-system-x86_64 -name web -cpu qemu64 -smp 2";

fn good() -> FakeHost {
    FakeHost::good()
        .file("/sys/devices/system/cpu/online", "0-3\n")
        .file("/sys/kernel/debug/sched/cgroup_mode", "up (smp) concur max tasks\n")
        .file("/sys/module/kvm_intel/parameters/ple_gap", "128\n")
        .file("/sys/module/kvm/parameters/halt_poll_ns", "200000\n")
        .file("/proc/sys/kernel/sched_schedstats", "1\n")
        .file("/sys/fs/cgroup/cgroup.controllers", "cpu\n")
}

/// Its KVM is loaded without a module for the processor.
fn without_a_processors_module() -> FakeHost {
    good().without("/sys/module/kvm_intel/parameters/ple_gap")
}

/// QEMU as libvirt starts it, which names its threads.
fn one_guest() -> FakeHost {
    let host = vmm(good(), 100, QEMU, &["qemu-system-x86", "CPU 0/KVM", "CPU 1/KVM", "vhost-100"]);
    opens(host, 100, &TWO_VCPUS)
}

fn read(host: &FakeHost) -> Snapshot {
    Snapshot::read(&host.host(), |_| Err("needs root".into()))
}

#[test]
fn a_good_host_without_guests() {
    let snapshot = read(&good());
    assert_eq!((snapshot.vms.len(), snapshot.cpus.online.len()), (0, 4));
    assert_eq!(snapshot.kernel.version, (7, 3, 4));
    let hostile = read(&good().file("/proc/sys/kernel/osrelease", "7.3.4\x1b[2J\n")).kernel;
    assert_eq!((hostile.version, hostile.release.as_str()), ((7, 3, 4), "7.3.4?[2J"));
    assert_eq!(snapshot.unknown, Vec::<String>::new());
    let report = Report::of(&snapshot);
    assert_eq!(report.at_least(Severity::Info), 0);
    assert!(report.text().contains("nothing was found"));
}

#[test]
fn a_guest_is_found_by_what_its_process_has_open() {
    let snapshot = read(&one_guest());
    let [vm] = snapshot.vms.as_slice() else { panic!("{:?}", snapshot.vms) };
    assert_eq!((vm.pid, vm.name.as_str(), vm.vcpus, vm.libvirt), (100, "web", 2, false));
    assert_eq!(vm.threads.iter().map(|t| t.tid).collect::<Vec<_>>(), [101, 102]);
    assert_eq!(vm.threads[0].allowed.to_string(), "0-3");
    assert!(vm.cpu.as_ref().is_some_and(|cpu| cpu.steal_time && !cpu.unhalt));
    let report = Report::of(&snapshot);
    let text = report.text();
    for part in [
        "1 VMs of 2 vCPUs",
        "warning   pv-tlb-flush",
        "- web (100): kvm-pv-tlb-flush is off",
        "  why     ",
        "  remedy  ",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!((report.at_least(Severity::Critical), report.at_least(Severity::Warning)), (0, 2));
    assert_eq!(report.at_least(Severity::Info), 4);
}

#[test]
fn threads_without_names_are_known_by_what_they_did() {
    let mut host = vmm(good(), 100, QEMU, &["qemu (a) b"; 5]);
    let stat = |ticks: u32| format!("1 (qemu (a) b) S{} {ticks} 0", " 0".repeat(39));
    for (tid, file, text) in [
        (100, "stat", stat(0)),
        (100, "syscall", "271 0x5 0x47 0x7f 0x0".into()),
        (101, "stat", stat(233)),
        (101, "syscall", "running".into()),
        (102, "stat", stat(0)),
        (102, "syscall", "16 0xe 0xae80 0x0".into()),
        (103, "syscall", "16 0xe 0xae80 0x0".into()),
        (103, "comm", "kvm-nx-lpage-re".into()),
        (104, "syscall", "16 0xe 0xae41 0x0".into()),
    ] {
        host = host.file(&format!("/proc/100/task/{tid}/{file}"), &text);
    }
    let snapshot = read(&opens(host, 100, &TWO_VCPUS));
    assert_eq!(snapshot.vms[0].threads.iter().map(|t| t.tid).collect::<Vec<_>>(), [101, 102]);
    assert_eq!(snapshot.unknown, Vec::<String>::new());
}

#[test]
fn guests_of_other_users_are_found_by_their_threads_names() {
    let host = vmm(good(), 100, QEMU, &["qemu-system-x86", "CPU 0/KVM"]);
    let host = vmm(host, 200, "sh", &["sh", "vcpu manager"]);
    // One of the kernel's threads, and what is left of a process.
    let host = vmm(host, 2, "", &["kthreadd"]).file("/proc/2/stat", "2 (kthreadd) S 0 0 0 0 -1 2129984 0");
    let host =
        vmm(host, 300, "", &["x) S 1 1"]).file("/proc/300/stat", "300 (x) S 1 1) Z 1 1 1 0 -1 4194560 9");
    let snapshot = read(&host);
    assert_eq!(snapshot.vms.len(), 1);
    let line = "what 2 processes of other users have open, and so which are VMs: needs root";
    assert!(snapshot.unknown.iter().any(|unknown| unknown == line), "{:?}", snapshot.unknown);
}

#[test]
fn a_vmm_that_is_stuck_does_not_stop_the_audit() {
    let host = opens(vmm(good(), 100, QEMU, &["qemu-system-x86", "CPU 0/KVM", "CPU 1/KVM"]), 100, &TWO_VCPUS)
        .without("/proc/100/cmdline");
    fifo(&host, "/proc/100/cmdline");
    let snapshot = read(&host);
    assert_eq!((snapshot.vms[0].name.as_str(), snapshot.vms[0].vcpus), ("pid 100", 2));
    let line = "what the VMMs of 1 VMs were told: their memory is held, and with it their command lines";
    assert_eq!(snapshot.unknown[0], line, "{:?}", snapshot.unknown);
}

#[test]
fn a_vmm_that_is_stuck_does_not_hide_one_that_is_slow() {
    let mut host = good();
    for pid in [100, 200] {
        host = opens(vmm(host, pid, QEMU, &["qemu-system-x86", "CPU 0/KVM", "CPU 1/KVM"]), pid, &TWO_VCPUS)
            .without(&format!("/proc/{pid}/cmdline"));
    }
    fifo(&host, "/proc/100/cmdline");
    let slow = fifo(&host, "/proc/200/cmdline");
    let says = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::write(slow, QEMU.replace(' ', "\0"))
    });
    let snapshot = read(&host);
    says.join().unwrap().unwrap();
    let names: Vec<_> = snapshot.vms.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["pid 100", "web"]);
    assert!(snapshot.unknown[0].contains("the VMMs of 1 VMs"), "{:?}", snapshot.unknown);
}

#[test]
fn a_vmm_that_nobody_could_ask_is_not_said_to_be_stuck() {
    let pids: Vec<i32> = (1..=70).map(|n| 100 * n).collect();
    let mut host = good();
    let mut cmdlines = Vec::new();
    for &pid in &pids {
        host = opens(vmm(host, pid, QEMU, &["qemu-system-x86", "CPU 0/KVM", "CPU 1/KVM"]), pid, &TWO_VCPUS)
            .without(&format!("/proc/{pid}/cmdline"));
        cmdlines.push(fifo(&host, &format!("/proc/{pid}/cmdline")));
    }
    let snapshot = read(&host);
    assert_eq!(snapshot.vms.len(), pids.len());
    // All that are asked at a time are stuck.
    let says = |at: usize, line: &str| snapshot.unknown[at].starts_with(line);
    assert!(says(0, "what the VMMs of 64 VMs were told: their memory is held"), "{:?}", snapshot.unknown);
    assert!(says(1, "what the VMMs of 6 VMs were told: no thread was free"), "{:?}", snapshot.unknown);
    // Let those go that wait for a writer.
    for path in cmdlines {
        let _ = std::fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
    }
}

#[test]
fn who_ends_meanwhile_is_not_listed() {
    assert_eq!(read(&one_guest().without("/proc/100/comm")).vms.len(), 0);
}

#[test]
fn emulated_guests_are_none_of_kvms() {
    let host = vmm(good(), 100, QEMU, &["qemu-system-x86", "CPU 0/TCG"]);
    assert_eq!(read(&opens(host, 100, &["/dev/null", "socket:[1]"])).vms.len(), 0);
}

#[test]
fn what_a_vmm_does_not_say_is_said_to_be_unknown() {
    let host = vmm(good(), 100, "firecracker --id fc1", &["firecracker", "fc_vcpu 0", "fc_vcpu 1"]);
    let snapshot = read(&opens(host, 100, &TWO_VCPUS));
    assert_eq!((snapshot.vms[0].name.as_str(), &snapshot.vms[0].cpu), ("fc1", &None));
    let line = "what guests of firecracker are told of KVM: its command line does not say, nor the kernel: needs root";
    assert_eq!(snapshot.unknown, [line]);
    assert_eq!(Report::of(&snapshot).at_least(Severity::Info), 0);
}

#[test]
fn guests_without_a_name_have_their_process_number_once() {
    let mut host = good();
    for pid in [100, 200] {
        let line = "qemu-system-x86_64 -smp 2 -cpu qemu64";
        host = opens(vmm(host, pid, line, &["qemu-system-x86", "CPU 0/KVM", "CPU 1/KVM"]), pid, &TWO_VCPUS)
            .file(&format!("/proc/{pid}/comm"), "qemu-system-x86\n")
            .file(&format!("/proc/{pid}/cgroup"), "0::/\n");
    }
    let text = Report::of(&read(&host)).text();
    assert!(text.contains("- qemu-system-x86:100: ") && text.contains("- qemu-system-x86:200: "), "{text}");
}

#[test]
fn what_a_vmm_does_not_say_the_kernel_may() {
    let ask = |_: &Host| {
        // Steal time and paravirtual locks; of a process that is no VM of ours, everything.
        let told = |pid, features| Told { pid, features, hyper_v: None };
        Ok(vec![told(99, 0x2aa0), told(100, 1 << 5 | 1 << 7)])
    };
    let host = vmm(good(), 100, "firecracker --id fc1", &["firecracker", "fc_vcpu 0", "fc_vcpu 1"]);
    let host = opens(host, 100, &TWO_VCPUS);
    let snapshot = Snapshot::read(&host.host(), ask);
    assert_eq!(snapshot.unknown, Vec::<String>::new());
    let text = Report::of(&snapshot).text();
    for (rule, hit) in [
        ("pv-tlb-flush", true),
        ("pv-ipi", true),
        ("pv-sched-yield", true),
        ("pv-unhalt", false),
        ("steal-time", false),
    ] {
        assert_eq!(text.contains(&format!(" {rule}\n")), hit, "{rule}: {text}");
    }
    // A second one has no vCPU inside KVM: nothing is said of its guest but that.
    let host = vmm(host, 200, "vmm2", &["vmm2", "vcpu0", "vcpu1"]);
    let snapshot = Snapshot::read(&opens(host, 200, &TWO_VCPUS).host(), ask);
    assert!(snapshot.vms[0].cpu.is_some() && snapshot.vms[1].cpu.is_none());
    let [line] = snapshot.unknown.as_slice() else { panic!("{:?}", snapshot.unknown) };
    assert!(line.contains("vmm2") && line.contains("none of its vCPUs is inside KVM"), "{line}");
}

#[test]
fn the_kernel_is_not_asked_of_guests_that_are_known() {
    let snapshot = Snapshot::read(&one_guest().host(), |_| panic!("asked"));
    assert!(snapshot.vms[0].cpu.is_some());
}

#[test]
fn libvirts_name_is_taken() {
    let host = one_guest().file("/proc/sys/kernel/sched_schedstats", "0\n").file(
        "/run/libvirt/qemu/shop.xml",
        "<domstatus pid='100'><domain><name>shop</name><vcpu>2</vcpu></domain></domstatus>",
    );
    let snapshot = read(&host);
    assert_eq!((snapshot.vms[0].name.as_str(), snapshot.vms[0].libvirt), ("shop", true));
    assert!(Report::of(&snapshot).text().contains("schedstats-off"));
}

#[test]
fn kvm_that_is_not_loaded_is_said() {
    let snapshot = read(&good().file("/sys/module/kvm/initstate", "coming\n"));
    assert!(matches!(snapshot.unknown.as_slice(), [line] if line.contains("modprobe kvm_intel")));
}

#[test]
fn pause_exits_of_which_no_module_tells_are_said_to_be_unknown() {
    let snapshot = read(&without_a_processors_module());
    assert!(matches!(snapshot.unknown.as_slice(), [line] if line.contains("neither kvm_intel nor kvm_amd")));
    assert!(Report::of(&snapshot).json().contains("(ple-off)"));
    let amd = without_a_processors_module().file("/sys/module/kvm_amd/parameters/pause_filter_count", "0\n");
    assert_eq!(read(&amd).unknown, Vec::<String>::new());
    // Without KVM one line is enough.
    let none = without_a_processors_module().file("/sys/module/kvm/initstate", "coming\n");
    assert_eq!(read(&none).unknown.len(), 1);
}

#[test]
fn quotas_of_a_guest_and_above_it() {
    let host = one_guest()
        .file("/sys/fs/cgroup/machine.slice/cpu.max", "300000 100000\n")
        .file("/sys/fs/cgroup/machine.slice/100.scope/cpu.max", "max 100000\n")
        .file("/sys/fs/cgroup/machine.slice/100.scope/vcpu1/cpu.max", "50000 50000\n")
        .file("/sys/fs/cgroup/other/cpu.max", "1 2\n")
        .file("/proc/100/task/102/cgroup", "0::/machine.slice/100.scope/vcpu1\n");
    let wanted = [
        ("/machine.slice", 300_000, 100_000, false),
        ("/machine.slice/100.scope/vcpu1", 50_000, 50_000, true),
    ];
    let quota = |(cgroup, quota_us, period_us, of_one_vcpu): (&str, u64, u64, bool)| Quota {
        cgroup: cgroup.into(),
        quota_us,
        period_us,
        of_one_vcpu,
    };
    assert_eq!(read(&host).vms[0].quotas, wanted.map(quota));
    // A VM may be called so, and then all of it is there.
    let host = host
        .file("/sys/fs/cgroup/machine.slice/vcpu2/cpu.max", "100000 100000\n")
        .file("/sys/fs/cgroup/machine.slice/vcpu2/vcpu3/cpu.max", "100000 100000\n")
        .file("/sys/fs/cgroup/machine.slice/vcpu2/vcpus/cpu.max", "100000 100000\n")
        .file("/proc/100/cgroup", "0::/machine.slice/vcpu2\n")
        .file("/proc/100/task/101/cgroup", "0::/machine.slice/vcpu2/vcpus\n")
        .file("/proc/100/task/102/cgroup", "0::/machine.slice/vcpu2/vcpu3\n");
    let of_one = read(&host).vms[0].quotas.iter().map(|quota| quota.of_one_vcpu).collect::<Vec<_>>();
    assert_eq!(of_one, [false, false, true, false]);
    let host = host.file("/proc/100/task/101/cgroup", "0::/machine.slice/vcpu2/vcpu3\n");
    assert!(read(&host).vms[0].quotas.iter().all(|quota| !quota.of_one_vcpu), "two vCPUs in one");
    let first_version = "5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n";
    let host = one_guest()
        .file("/proc/100/cgroup", first_version)
        .file("/proc/100/task/101/cgroup", first_version)
        .file("/proc/100/task/102/cgroup", first_version)
        .file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "20000\n")
        .file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "10000\n");
    assert_eq!(read(&host).vms[0].quotas, [quota(("/a", 20_000, 10_000, false))]);
}

#[test]
fn what_holds_back_the_vmms_own_threads_alone_is_no_quota_of_the_guest() {
    let dir = "/machine.slice/100.scope/libvirt";
    let host = one_guest()
        .file("/proc/100/cgroup", &format!("0::{dir}/emulator\n"))
        .file("/proc/100/task/101/cgroup", &format!("0::{dir}/vcpu0\n"))
        .file("/proc/100/task/102/cgroup", &format!("0::{dir}/vcpu1\n"))
        .file(&format!("/sys/fs/cgroup{dir}/emulator/cpu.max"), "20000 100000\n");
    assert_eq!(read(&host).vms[0].quotas, []);
    let host = host.file(&format!("/sys/fs/cgroup{dir}/cpu.max"), "90000 100000\n");
    let quotas = |host: &FakeHost| {
        read(host).vms[0].quotas.iter().map(|quota| quota.cgroup.clone()).collect::<Vec<_>>()
    };
    assert_eq!(quotas(&host), [dir], "all are in it");
    let host = host.without("/proc/100/task/102/cgroup");
    assert_eq!(quotas(&host), [dir.to_string(), format!("{dir}/emulator")], "where a vCPU is, is not known");
}

#[test]
fn what_a_container_does_not_see_is_said() {
    let host = one_guest()
        .file("/proc/100/cgroup", "0::/../web.service\n")
        .file("/sys/fs/cgroup/web.service/cpu.max", "50000 100000\n");
    let snapshot = read(&host);
    assert_eq!(snapshot.vms[0].quotas, [], "another one's, which is called so below what is seen here");
    assert!(
        matches!(snapshot.unknown.as_slice(), [line] if line.contains("quotas of 1 VMs") && line.contains("--cgroupns=host")),
        "{:?}",
        snapshot.unknown
    );
    // The container's own limit, and those above it.
    let host = one_guest()
        .file("/sys/fs/cgroup/cgroup.type", "domain\n")
        .file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    let snapshot = read(&host);
    let found: Vec<_> =
        snapshot.vms[0].quotas.iter().map(|quota| (quota.cgroup.as_str(), quota.quota_us)).collect();
    assert_eq!(found, [("/", 150_000)]);
    assert!(
        matches!(snapshot.unknown.as_slice(), [line] if line.contains("quotas of 1 VMs")),
        "{:?}",
        snapshot.unknown
    );
    // Its own process numbers: there may be VMs that are not in its /proc.
    let host = good().in_a_container();
    let unknown = read(&host).unknown;
    assert!(
        matches!(unknown.as_slice(), [line] if line.contains("which VMs there are") && line.contains("--pid=host")),
        "{unknown:?}"
    );
    let below = Host::below(host.host().path("/"));
    let unknown = Snapshot::read(&below, |_| Err("needs root".into())).unknown;
    assert_eq!(unknown, Vec::<String>::new(), "of another root, whose link is the reader's");
}

#[test]
fn parameters_of_the_kvm_modules() {
    let host = without_a_processors_module()
        .file("/sys/module/kvm/parameters/halt_poll_ns", "200000\n")
        .file("/sys/module/kvm_amd/parameters/pause_filter_count", "0\n")
        .file("/sys/module/kvm_amd/parameters/avic", "Y\n")
        .file("/sys/module/kvm_amd/parameters/enable_ipiv", "N\n")
        .file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu svm pausefilter\n");
    let kvm = read(&host).kvm;
    let exits = kvm.pause_exits.unwrap();
    assert_eq!(
        (exits.parameter.as_str(), exits.value, exits.in_processor),
        ("kvm_amd.pause_filter_count", 0, Some(true))
    );
    assert_eq!((kvm.halt_poll_ns, kvm.virtual_ipis), (Some(200_000), false));
    let filter =
        without_a_processors_module().file("/sys/module/kvm_amd/parameters/pause_filter_count", "3000\n");
    assert_eq!(
        read(&filter).kvm.pause_exits.unwrap().value,
        3000,
        "an older KVM has no parameter for the threshold"
    );
    let filter = filter.file("/sys/module/kvm_amd/parameters/pause_filter_thresh", "0\n");
    let exits = read(&filter).kvm.pause_exits.unwrap();
    assert_eq!((exits.parameter.as_str(), exits.value), ("kvm_amd.pause_filter_thresh", 0));
    assert_eq!(spins(&filter.host()), Spins::Uncaught("kvm_amd.pause_filter_thresh".to_string()));
    let intel = without_a_processors_module().file("/sys/module/kvm_intel/parameters/ple_gap", "128\n");
    assert_eq!(spins(&intel.host()), Spins::Caught);
    assert_eq!(spins(&without_a_processors_module().host()), Spins::Unknown);
    let host = host.file("/sys/module/kvm_amd/parameters/enable_ipiv", "Y\n");
    assert!(read(&host).kvm.virtual_ipis);
    let older = without_a_processors_module().file("/sys/module/kvm_amd/parameters/avic", "1\n");
    assert!(read(&older).kvm.virtual_ipis);
    let host = without_a_processors_module()
        .file("/sys/module/kvm_intel/parameters/enable_apicv", "Y\n")
        .file("/sys/module/kvm_intel/parameters/ple_gap", "128\n")
        .file("/proc/cpuinfo", "flags\t\t: fpu vmx\nvmx flags\t: vnmi ple\n");
    let kvm = read(&host).kvm;
    assert!(!kvm.virtual_ipis, "an APIC in the processor need not deliver interrupts of guests");
    let exits = kvm.pause_exits.unwrap();
    assert_eq!((exits.value, exits.in_processor), (128, Some(true)));
}

#[test]
fn kernel_and_scheduler() {
    let host = good()
        .file("/sys/kernel/debug/sched/cgroup_mode", "up smp (concur) max tasks \n")
        .file("/proc/sys/kernel/sched_schedstats", "0\n")
        .file("/sys/kernel/realtime", "1\n")
        .file("/sys/devices/system/cpu/isolated", "2\n")
        .file("/sys/fs/cgroup/cpuset.cpus.isolated", "3\n");
    let snapshot = read(&host);
    assert_eq!(snapshot.sched.cgroup_mode.as_deref(), Some("concur"));
    assert_eq!((snapshot.sched.schedstats, snapshot.kernel.real_time), (Some(false), true));
    assert_eq!(snapshot.cpus.isolated.to_string(), "2-3");
    let hidden = FakeHost::good().file("/sys/devices/system/cpu/online", "0\n");
    assert!(read(&hidden).unknown[0].contains("cgroup_mode"), "a kernel of 7.3 that does not show it");
}

#[test]
fn json_names_each_finding() {
    let json: serde_json::Value = serde_json::from_str(&Report::of(&read(&one_guest())).json()).unwrap();
    assert_eq!((&json["vms"], &json["vcpus"], &json["pcpus"]), (&1.into(), &2.into(), &4.into()));
    let findings = json["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 4);
    assert_eq!(findings[0]["severity"], "warning");
    assert_eq!(findings[0]["vm"], serde_json::json!({"pid": 100, "name": "web"}));
    for field in ["rule", "detail", "reason", "remedy"] {
        assert!(findings[0][field].as_str().is_some_and(|text| !text.is_empty()), "{field}");
    }
}

#[test]
fn many_findings_are_counted() {
    let vm = |pid| rules::tests::wide(pid, 5);
    let snapshot = rules::tests::host((0..12).map(|n| vm(10 * (n + 1))).collect());
    let text = Report::of(&snapshot).text();
    assert!(text.contains("  - and 4 more\n"), "{text}");
}

#[test]
fn a_root_that_is_none_is_refused_by_name() {
    let args = Audit { json: false, fail_on: Severity::Info, root: Some("/nowhere".into()) };
    let failure = run(&args).unwrap_err();
    assert_eq!(failure.status, 2);
    assert!(failure.line.contains("--root /nowhere"), "{}", failure.line);
}
