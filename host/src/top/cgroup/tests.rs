// SPDX-License-Identifier: GPL-2.0-only
//! What cgroups say, read from folders that look like hosts.

use super::*;
use crate::checks::tests::FakeHost;
use crate::top::sample::{Vcpu, Vm};

const SCOPE: &str = "/sys/fs/cgroup/machine.slice/a.scope";

/// A host on which process 7 with the threads 8 and 9 is in that cgroup, without a quota.
fn plain() -> FakeHost {
    tasks(FakeHost::new(), ["/machine.slice/a.scope"; 3])
        .file("/sys/fs/cgroup/machine.slice/cpu.stat", "usage_usec 9\n")
        .file(&format!("{SCOPE}/cpu.stat"), "usage_usec 9\nthrottled_usec 0\n")
}

/// Process 7 and its threads 8 and 9 are in these cgroups.
fn tasks(host: FakeHost, [process, first, second]: [&str; 3]) -> FakeHost {
    host.file("/proc/7/cgroup", &format!("0::{process}\n"))
        .file("/proc/7/task/8/cgroup", &format!("0::{first}\n"))
        .file("/proc/7/task/9/cgroup", &format!("0::{second}\n"))
}

/// As libvirt makes them, with a quota for each vCPU.
fn libvirt() -> FakeHost {
    let below = |name: &str| format!("/machine.slice/a.scope/libvirt/{name}");
    let host = tasks(plain(), [&below("emulator"), &below("vcpu0"), &below("vcpu1")]);
    let host = host
        .file(&format!("{SCOPE}/libvirt/cpu.stat"), "throttled_usec 0\n")
        .file(&format!("{SCOPE}/libvirt/cpu.max"), "max 100000\n")
        .file(&format!("{SCOPE}/libvirt/emulator/cpu.stat"), "throttled_usec 900\n");
    ["vcpu0", "vcpu1"].iter().fold(host, |host, name| {
        host.file(&format!("{SCOPE}/libvirt/{name}/cpu.stat"), "throttled_usec 30\n")
            .file(&format!("{SCOPE}/libvirt/{name}/cpu.max"), "50000 100000\n")
    })
}

fn of(host: &FakeHost) -> Cgroups {
    Cgroups::of(&host.host(), 7, [8, 9].into_iter()).unwrap()
}

fn why_not(host: &FakeHost) -> Option<Unknown> {
    Cgroups::of(&host.host(), 7, [8, 9].into_iter()).err()
}

fn throttled_ns(host: &FakeHost) -> Result<u64, Unknown> {
    of(host).throttled_ns(&host.host(), &mut Stats::default(), None).map(|(ns, _)| ns)
}

fn quota_us(host: &FakeHost) -> Option<Quota> {
    of(host).quota_us(&host.host())
}

fn sample() -> Sample {
    let vcpus = [8, 9].map(|tid| Vcpu { tid, ..Vcpu::default() }).into();
    Sample { vms: vec![Vm { id: 1, pid: 7, vcpus, ..Vm::default() }], ..Sample::default() }
}

/// Weight, throttled time, and what is missing of a sample that is taken now.
fn updated(figures: &mut Figures, host: &FakeHost) -> (f64, u64, Vec<String>) {
    let mut sample = sample();
    figures.update(&mut sample, &host.host());
    assert_eq!(sample.notes.len(), usize::from(!sample.missing.is_empty()), "{:?}", sample.notes);
    (sample.vms[0].weight, sample.vms[0].throttled_ns, sample.missing)
}

#[test]
fn weights_multiply_along_the_path() {
    let host = plain()
        .file("/sys/fs/cgroup/machine.slice/cpu.weight", "300\n")
        .file(&format!("{SCOPE}/cpu.weight"), "50\n");
    assert_eq!(of(&host).weight(&host.host()), 150.0);
    assert_eq!(of(&plain()).weight(&plain().host()), 100.0, "without the controller");
    let idle = host.file(&format!("{SCOPE}/cpu.weight"), "0\n");
    assert!((0.1..1.0).contains(&of(&idle).weight(&idle.host())), "nobody has no weight at all");
}

#[test]
fn a_name_that_is_no_text_is_a_name() {
    let name = OsString::from_vec(b"\xff.scope".to_vec());
    let host = plain();
    let dir = host.host().path(&PathBuf::from("/sys/fs/cgroup").join(&name));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("cpu.weight"), "300\n").unwrap();
    std::fs::write(dir.join("cpu.stat"), "throttled_usec 7\n").unwrap();
    let inside = ["/proc/7/cgroup", "/proc/7/task/8/cgroup", "/proc/7/task/9/cgroup"];
    let host = inside.iter().fold(host, |host, file| host.bytes(file, b"0::/\xff.scope\n"));
    assert_eq!(updated(&mut Figures::default(), &host), (300.0, 7_000, vec![]));
}

#[test]
fn the_quota_that_holds_back_most_is_the_one_that_counts() {
    let host = plain().file("/sys/fs/cgroup/machine.slice/cpu.stat", "usage_usec 9\nthrottled_usec 3\n");
    let host = host.file(&format!("{SCOPE}/cpu.stat"), "throttled_usec 40\n");
    assert_eq!(throttled_ns(&host), Ok(40_000));
}

#[test]
fn the_tightest_quota_is_of_any_level() {
    let host = plain()
        .file("/sys/fs/cgroup/machine.slice/cpu.max", "150000 100000\n")
        .file(&format!("{SCOPE}/cpu.max"), "max 100000\n");
    assert_eq!(quota_us(&host), Some((150_000, 100_000)));
    assert_eq!(quota_us(&plain()), None);
    let damaged = plain().file(&format!("{SCOPE}/cpu.max"), "1000 0\n");
    assert_eq!(quota_us(&damaged), None);
}

#[test]
fn quotas_of_the_vcpus_own_cgroups_add_up() {
    assert_eq!(throttled_ns(&libvirt()), Ok(60_000), "the emulator's is no vCPU's");
    assert_eq!(quota_us(&libvirt()), Some((100_000, 100_000)));
    let other_period = libvirt().file(&format!("{SCOPE}/libvirt/vcpu1/cpu.max"), "50000 50000\n");
    assert_eq!(quota_us(&other_period), Some((150_000, 100_000)));
    let host = libvirt().file(&format!("{SCOPE}/libvirt/cpu.stat"), "throttled_usec 70\n");
    assert_eq!(throttled_ns(&host), Ok(70_000), "the same time is not counted twice");
}

#[test]
fn one_vcpu_without_a_quota_may_use_a_whole_pcpu() {
    let host = libvirt().file(&format!("{SCOPE}/libvirt/vcpu1/cpu.max"), "max 100000\n");
    assert_eq!(quota_us(&host), None);
    let host = host.file(&format!("{SCOPE}/cpu.max"), "120000 100000\n");
    assert_eq!(quota_us(&host), Some((120_000, 100_000)), "all of them have that one");
    let both = libvirt().file(&format!("{SCOPE}/cpu.max"), "120000 100000\n");
    assert_eq!(quota_us(&both), Some((100_000, 100_000)), "the tighter one");
}

#[test]
fn a_thread_that_is_gone_is_no_reason_to_know_nothing() {
    let host = libvirt().without("/proc/7/task/9");
    assert_eq!(throttled_ns(&host), Ok(30_000));
    assert_eq!(why_not(&host.without("/proc/7")), Some(Unknown::Gone));
}

#[test]
fn what_cannot_be_read_is_not_known() {
    for text in [
        "0::/../../machine.slice/a.scope\n",
        "4:cpu,cpuacct:/machine.slice/a.scope\n",
        "4:cpu,cpuacct:/machine.slice/a.scope\n0::/machine.slice/a.scope\n",
    ] {
        let host = plain().file("/proc/7/cgroup", text);
        assert_eq!(why_not(&host), Some(Unknown::Hidden), "{text}");
    }
    assert_eq!(throttled_ns(&plain().without(SCOPE)), Err(Unknown::Hidden));
    let named = plain().file("/proc/7/cgroup", "1:name=systemd:/init.scope\n0::/machine.slice/a.scope\n");
    assert_eq!(why_not(&named), None, "the second version has the controller");
}

#[test]
fn in_a_part_of_the_hosts_cgroups_nothing_is_known_of_quotas_and_weights() {
    // As in a container in which VMs run as well: what the container itself may use is above them.
    let part = plain().file("/sys/fs/cgroup/cgroup.type", "domain\n");
    assert_eq!(why_not(&part), Some(Unknown::Hidden));
    assert_eq!(updated(&mut Figures::default(), &part).2, [OF_QUOTAS, OF_WEIGHTS].concat());
}

#[test]
fn a_process_that_proc_hides_has_not_ended() {
    let ended = plain().file(&format!("{SCOPE}/cpu.weight"), "200\n").without("/proc/7");
    assert_eq!(updated(&mut Figures::default(), &ended), (100.0, 0, vec![]));
    let hidden = ended.with_tasks(|pid| pid == 7);
    assert_eq!(why_not(&hidden), Some(Unknown::ProcessHidden));
    let mut sample = sample();
    Figures::default().update(&mut sample, &hidden.host());
    assert_eq!(sample.missing, [OF_QUOTAS, OF_WEIGHTS].concat());
    assert!(sample.notes.len() == 1 && sample.notes[0].contains("CAP_SYS_PTRACE"), "{:?}", sample.notes);
    // Somebody is still to be told of its end.
    let zombie = hidden.file("/proc/7/cgroup", "0::/machine.slice/a.scope (deleted)\n");
    assert_eq!(why_not(&zombie), Some(Unknown::Gone));
    // A thread's number is another one's by now.
    let host = libvirt().without("/proc/7/task/9").with_tasks(|_| true);
    assert_eq!(throttled_ns(&host), Ok(30_000));
}

#[test]
fn what_is_not_known_of_a_vm_is_missing_and_keeps_its_value() {
    let mut figures = Figures::default();
    let host = plain()
        .file(&format!("{SCOPE}/cpu.weight"), "200\n")
        .file(&format!("{SCOPE}/cpu.max"), "50000 100000\n")
        .file(&format!("{SCOPE}/cpu.stat"), "throttled_usec 40\n");
    assert_eq!(updated(&mut figures, &host), (200.0, 40_000, vec![]));
    let less = host.file(&format!("{SCOPE}/cpu.stat"), "throttled_usec 30\n");
    assert_eq!(updated(&mut figures, &less), (200.0, 40_000, vec![]), "no counter goes back");
    let more = less.file(&format!("{SCOPE}/cpu.stat"), "throttled_usec 35\n");
    assert_eq!(updated(&mut figures, &more), (200.0, 45_000, vec![]), "and goes on from what is left");
    let hidden = more.without(SCOPE);
    let fields: Vec<String> = [OF_QUOTAS, OF_WEIGHTS].concat().iter().map(ToString::to_string).collect();
    assert_eq!(updated(&mut Figures::default(), &hidden), (100.0, 0, fields));
    // A VM that ends while it is looked at hides nothing.
    let ended = hidden.file("/proc/7/cgroup", "0::/machine.slice/a.scope (deleted)\n");
    assert_eq!(updated(&mut figures, &ended), (200.0, 45_000, vec![]));
    assert_eq!(updated(&mut figures, &ended.without("/proc/7")), (200.0, 45_000, vec![]));
    figures.update(&mut Sample::default(), &plain().host());
    assert!(figures.known.is_empty());
}

#[test]
fn what_no_quota_changes_is_not_read_again() {
    let mut figures = Figures::default();
    let (stat, max) = (format!("{SCOPE}/cpu.stat"), format!("{SCOPE}/cpu.max"));
    let mut throttled_ns = |host: &FakeHost| updated(&mut figures, host).1;
    assert_eq!(throttled_ns(&libvirt()), 60_000);
    let own = format!("{SCOPE}/libvirt/vcpu0/cpu.stat");
    let host = libvirt().file(&stat, "throttled_usec 900\n").file(&own, "throttled_usec 40\n");
    assert_eq!(throttled_ns(&host), 70_000, "only a vCPU's own has one");
    let host = host.file(&max, "120000 100000\n");
    assert_eq!(throttled_ns(&host), 970_000, "after what the vCPUs' own quotas did");
    let host = host.file(&max, "max 100000\n").file(&stat, "throttled_usec 950\n");
    assert_eq!(throttled_ns(&host), 1_020_000, "until it was taken away");
    assert_eq!(throttled_ns(&host.file(&stat, "throttled_usec 990\n")), 1_020_000);
}

#[test]
fn what_was_throttled_while_nobody_could_look_is_of_no_interval() {
    let mut figures = Figures::default();
    let mut throttled_ns = |host: &FakeHost| updated(&mut figures, host).1;
    let (stat, process) = (format!("{SCOPE}/cpu.stat"), "/proc/7/cgroup");
    let hide = |host: FakeHost| host.file(process, "0::/../a.scope\n");
    let show = |host: FakeHost| host.file(process, "0::/machine.slice/a.scope\n");
    let limited = plain().file(&format!("{SCOPE}/cpu.max"), "50000 100000\n");
    let host = hide(limited.file(&stat, "throttled_usec 7000000\n"));
    assert_eq!(throttled_ns(&host), 0);
    let host = show(host);
    assert_eq!(throttled_ns(&host), 0, "the cgroup's past");
    let host = host.file(&stat, "throttled_usec 7000005\n");
    assert_eq!(throttled_ns(&host), 5_000);
    let host = hide(host.file(&stat, "throttled_usec 8000000\n"));
    assert_eq!(throttled_ns(&host), 5_000);
    let host = show(host);
    assert_eq!(throttled_ns(&host), 5_000, "nobody knows how much of it is of the last interval");
    assert_eq!(throttled_ns(&host.file(&stat, "throttled_usec 8000007\n")), 12_000);
}

#[test]
fn who_is_moved_leaves_the_past_of_its_new_cgroup_behind() {
    let mut figures = Figures::default();
    let mut throttled_ns = |host: &FakeHost| updated(&mut figures, host).1;
    let other = "/sys/fs/cgroup/machine.slice/b.scope";
    let host = plain()
        .file(&format!("{SCOPE}/cpu.max"), "50000 100000\n")
        .file(&format!("{SCOPE}/cpu.stat"), "throttled_usec 40\n")
        .file(&format!("{other}/cpu.max"), "50000 100000\n")
        .file(&format!("{other}/cpu.stat"), "throttled_usec 9000000\n");
    assert_eq!(throttled_ns(&host), 40_000);
    let host = tasks(host, ["/machine.slice/b.scope"; 3]);
    assert_eq!(throttled_ns(&host), 40_000);
    let host = host.file(&format!("{other}/cpu.stat"), "throttled_usec 9000003\n");
    assert_eq!(throttled_ns(&host), 43_000);
}

#[test]
fn a_vcpu_that_joins_brings_no_past_and_hides_nothing_of_its_siblings() {
    let mut figures = Figures::default();
    let mut throttled_ns = |host: &FakeHost| updated(&mut figures, host).1;
    let own = |n: u32, us: u64, host: FakeHost| {
        host.file(&format!("{SCOPE}/libvirt/vcpu{n}/cpu.stat"), &format!("throttled_usec {us}\n"))
    };
    let host = libvirt().without("/proc/7/task/9");
    assert_eq!(throttled_ns(&host), 30_000);
    let joined = "0::/machine.slice/a.scope/libvirt/vcpu1\n";
    let host = own(0, 35, host.file("/proc/7/task/9/cgroup", joined));
    assert_eq!(throttled_ns(&host), 35_000);
    let host = own(1, 31, host);
    assert_eq!(throttled_ns(&host), 36_000);
}

#[test]
fn a_cgroup_is_read_once_for_all_of_its_vms() {
    let mut stats = Stats::default();
    let host = libvirt();
    let dir = PathBuf::from(SCOPE).join("libvirt/vcpu0");
    assert_eq!(stats.throttled_us(&host.host(), &dir), Some(30));
    let host = host.file(&format!("{SCOPE}/libvirt/vcpu0/cpu.stat"), "throttled_usec 40\n");
    assert_eq!(stats.throttled_us(&host.host(), &dir), Some(30));
    stats.begin_look();
    assert_eq!(stats.throttled_us(&host.host(), &dir), Some(40));
    stats.begin_look();
    stats.begin_look();
    assert!(stats.known.is_empty(), "nobody is in it");
}

#[test]
fn a_cgroup_that_goes_while_it_is_looked_at_hides_nothing() {
    let seen = |mut looks: Vec<Result<u32, Unknown>>| surely(move || looks.remove(0));
    assert_eq!(seen(vec![Err(Unknown::Hidden), Ok(1)]), Ok(1), "a vCPU was unplugged");
    assert_eq!(seen(vec![Err(Unknown::Hidden), Err(Unknown::Gone)]), Err(Unknown::Gone), "it has ended");
    assert_eq!(seen(vec![Err(Unknown::Hidden), Err(Unknown::Hidden)]), Err(Unknown::Hidden));
    assert_eq!(seen(vec![Ok(1)]), Ok(1));
}

#[test]
fn nobody_counts_what_another_scheduler_throttles() {
    let loaded = |host: FakeHost| {
        host.file("/sys/kernel/sched_ext/state", "enabled\n")
            .file("/sys/kernel/sched_ext/root/ops", "cohort\n")
    };
    let mut figures = Figures::default();
    assert_eq!(updated(&mut figures, &loaded(plain())), (100.0, 0, vec![]), "no quota, nothing throttled");
    let (_, _, missing) = updated(&mut figures, &loaded(libvirt()));
    assert_eq!(missing, OF_QUOTAS);
    assert_eq!(updated(&mut figures, &libvirt()).2, Vec::<String>::new(), "the kernel's own");
}
