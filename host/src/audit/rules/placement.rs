// SPDX-License-Identifier: GPL-2.0-only
//! Where vCPUs may run, and how many there are.

use std::collections::BTreeMap;

use crate::audit::cpuset::CpuSet;
use crate::audit::rules::{each_vm, Hit, Rule, Severity};
use crate::audit::snapshot::{Quota, Snapshot, Vm};

/// vCPUs per pCPU from which vendors' guides call a host at risk.
const OVERCOMMIT_MAX: usize = 4;

pub const RULES: [Rule; 7] = [
    Rule {
        id: "wider-than-host",
        severity: Severity::Critical,
        reason: "its vCPUs can never all run at the same time, so that one always waits for a sibling that has no pCPU, even on an idle host",
        remedy: "give the VM at most as many vCPUs as the host has pCPUs",
        check: wider_than_host,
    },
    Rule {
        id: "stacked-by-cpuset",
        severity: Severity::Critical,
        reason: "the VM may use fewer pCPUs than it has vCPUs, so that siblings always share one, even while the rest of the host is idle",
        remedy: "widen its cpuset or affinity (cpuset.cpus, libvirt's <vcpu cpuset> and <vcpupin>, taskset), or give it fewer vCPUs",
        check: stacked_by_cpuset,
    },
    Rule {
        id: "pinned-siblings",
        severity: Severity::Critical,
        reason: "vCPUs of one VM are pinned to the same pCPU: whichever waits for the other waits for as long as a turn lasts",
        remedy: "pin each of its vCPUs to a pCPU of its own (libvirt: <vcpupin>), or none of them",
        check: pinned_siblings,
    },
    Rule {
        id: "pinned-over-others",
        severity: Severity::Warning,
        reason: "vCPUs of several VMs are pinned to the same pCPU and share it, also while other pCPUs are idle",
        remedy: "pin to different pCPUs, or let the VMs run on all pCPUs and share by cpu.weight",
        check: pinned_over_others,
    },
    Rule {
        id: "isolated-cpus",
        severity: Severity::Critical,
        reason: "the kernel does not balance between isolated pCPUs: vCPUs that may use several of them stay where they were started, often all on the first",
        remedy: "pin each vCPU to one of them, or isolate by a cgroup with cpuset.cpus.partition = root instead of isolcpus=",
        check: isolated_cpus,
    },
    Rule {
        id: "overcommit",
        severity: Severity::Warning,
        reason: "with more than four vCPUs per pCPU a busy vCPU waits several turns for its next one, and guests report soft lockups",
        remedy: "move VMs to another host, or give them fewer vCPUs",
        check: overcommit,
    },
    Rule {
        id: "cpu-max",
        severity: Severity::Warning,
        reason: "when the quota is used up all vCPUs stop until the period ends, one that holds a lock or owes an answer among them",
        remedy: "share by cpu.weight instead (libvirt: <shares>, not <quota>); where a cap is wanted, a short period makes the stops short",
        check: cpu_max,
    },
];

fn wider_than_host(snapshot: &Snapshot) -> Vec<Hit> {
    let pcpus = snapshot.cpus.online.len();
    each_vm(snapshot, |vm| {
        (pcpus > 0 && vm.vcpus > pcpus).then(|| format!("{} vCPUs, and the host has {pcpus} pCPUs", vm.vcpus))
    })
}

/// The pCPUs that any of its vCPUs may use. None: that is not known of all of them.
fn reach(snapshot: &Snapshot, vm: &Vm) -> Option<CpuSet> {
    let all = vm.threads.len() == vm.vcpus && vm.threads.iter().all(|thread| !thread.allowed.is_empty());
    let union = vm.threads.iter().fold(CpuSet::default(), |set, thread| set.or(&thread.allowed));
    all.then(|| union.and(&snapshot.cpus.online))
}

fn stacked_by_cpuset(snapshot: &Snapshot) -> Vec<Hit> {
    let pcpus = snapshot.cpus.online.len();
    each_vm(snapshot, |vm| {
        let reach = reach(snapshot, vm)?;
        // Wider than the host, or every vCPU pinned: other rules say so.
        let is_narrow = reach.len() < vm.vcpus && reach.len() < pcpus;
        let all_pinned = vm.threads.iter().all(|thread| thread.allowed.only().is_some());
        (is_narrow && !all_pinned).then(|| format!("{} vCPUs may use pCPUs {reach} only", vm.vcpus))
    })
}

/// The pCPUs that vCPUs are pinned to, with how many.
fn pins(vm: &Vm) -> BTreeMap<u32, usize> {
    let mut pins = BTreeMap::new();
    for cpu in vm.threads.iter().filter_map(|thread| thread.allowed.only()) {
        *pins.entry(cpu).or_default() += 1;
    }
    pins
}

fn pinned_siblings(snapshot: &Snapshot) -> Vec<Hit> {
    // On a host of one pCPU nobody was pinned.
    if snapshot.cpus.online.len() < 2 {
        return vec![];
    }
    each_vm(snapshot, |vm| {
        let shared = pins(vm).into_iter().filter(|(_, vcpus)| *vcpus > 1);
        let parts: Vec<String> = shared.map(|(cpu, vcpus)| format!("{vcpus} vCPUs on pCPU {cpu}")).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    })
}

fn pinned_over_others(snapshot: &Snapshot) -> Vec<Hit> {
    if snapshot.cpus.online.len() < 2 {
        return vec![];
    }
    let mut on: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    for vm in &snapshot.vms {
        for cpu in pins(vm).into_keys() {
            on.entry(cpu).or_default().push(&vm.name);
        }
    }
    let shared = on.into_iter().filter(|(_, names)| names.len() > 1);
    shared.flat_map(|(cpu, names)| Hit::host(format!("pCPU {cpu}: {}", names.join(", ")))).collect()
}

fn isolated_cpus(snapshot: &Snapshot) -> Vec<Hit> {
    each_vm(snapshot, |vm| {
        let roaming = vm.threads.iter().map(|thread| thread.allowed.and(&snapshot.cpus.isolated));
        let roaming: Vec<CpuSet> = roaming.filter(|cpus| cpus.len() > 1).collect();
        let cpus = roaming.iter().fold(CpuSet::default(), |all, cpus| all.or(cpus));
        (!roaming.is_empty()).then(|| {
            format!("{} of {} vCPUs may use several of the isolated pCPUs {cpus}", roaming.len(), vm.vcpus)
        })
    })
}

fn overcommit(snapshot: &Snapshot) -> Vec<Hit> {
    let (vcpus, pcpus) = (snapshot.vcpus(), snapshot.cpus.online.len());
    if pcpus == 0 || vcpus <= OVERCOMMIT_MAX * pcpus {
        return vec![];
    }
    Hit::host(format!("{vcpus} vCPUs on {pcpus} pCPUs, {:.1} to 1", vcpus as f64 / pcpus as f64))
}

fn cpu_max(snapshot: &Snapshot) -> Vec<Hit> {
    let pcpus = snapshot.cpus.online.len() as u64;
    // A quota of as much as can be used stops nobody. Where the pCPUs are not known, any may.
    let can_bind = |quota: &&Quota| {
        let usable = if quota.of_one_vcpu { 1 } else { pcpus };
        usable == 0 || quota.quota_us < usable.saturating_mul(quota.period_us)
    };
    let part = |quota: &Quota| {
        let pcpus = quota.quota_us as f64 / quota.period_us as f64;
        format!("{}: {pcpus:.2} pCPUs in periods of {} µs", quota.cgroup, quota.period_us)
    };
    each_vm(snapshot, |vm| {
        let parts: Vec<String> = vm.quotas.iter().filter(can_bind).map(part).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::rules::tests::{check, hits, host, vm, wide};

    #[test]
    fn wider_than_the_host() {
        check(
            "wider-than-host",
            &[
                ("wider", host(vec![wide(10, 5)]), &["5 vCPUs", "4 pCPUs"]),
                ("as wide", host(vec![wide(10, 4)]), &[]),
                ("pCPUs not known", Snapshot { cpus: Default::default(), ..host(vec![wide(10, 5)]) }, &[]),
            ],
        );
    }

    #[test]
    fn fewer_pcpus_than_vcpus() {
        let mut untold = vm(10, &["0-1"; 3]);
        untold.vcpus = 4;
        check(
            "stacked-by-cpuset",
            &[
                ("narrow", host(vec![vm(10, &["0-1"; 3])]), &["3 vCPUs", "pCPUs 0-1"]),
                ("one pCPU pinned, others free", host(vec![vm(10, &["0", "0-1", "1"])]), &["pCPUs 0-1"]),
                ("offline ones do not count", host(vec![vm(10, &["3-9"; 2])]), &["pCPUs 3 only"]),
                ("room", host(vec![vm(10, &["0-2"; 3])]), &[]),
                ("wider than the host", host(vec![wide(10, 5)]), &[]),
                ("all pinned", host(vec![vm(10, &["0", "0"])]), &[]),
                ("not all threads known", host(vec![untold]), &[]),
            ],
        );
    }

    #[test]
    fn pinned_on_top_of_each_other() {
        check(
            "pinned-siblings",
            &[
                ("stacked", host(vec![vm(10, &["0", "1", "1"])]), &["2 vCPUs on pCPU 1"]),
                ("apart", host(vec![vm(10, &["0", "1"])]), &[]),
                ("not pinned", host(vec![vm(10, &["0-1", "0-1"])]), &[]),
                (
                    "one pCPU",
                    Snapshot {
                        cpus: crate::audit::snapshot::Cpus {
                            online: CpuSet::parse("0"),
                            ..Default::default()
                        },
                        ..host(vec![vm(10, &["0", "0"])])
                    },
                    &[],
                ),
            ],
        );
        check(
            "pinned-over-others",
            &[
                ("shared", host(vec![vm(10, &["0", "1"]), vm(20, &["1", "2"])]), &["pCPU 1: vm10, vm20"]),
                ("apart", host(vec![vm(10, &["0", "1"]), vm(20, &["2", "3"])]), &[]),
                ("its own siblings", host(vec![vm(10, &["0", "0"])]), &[]),
                ("free to go elsewhere", host(vec![vm(10, &["0-1"]), vm(20, &["0-1"])]), &[]),
            ],
        );
    }

    #[test]
    fn isolated() {
        let isolating = |vms: Vec<Vm>, cpus: &str| {
            let mut snapshot = host(vms);
            snapshot.cpus.isolated = CpuSet::parse(cpus);
            snapshot
        };
        check(
            "isolated-cpus",
            &[
                (
                    "several allowed",
                    isolating(vec![vm(10, &["2-3"; 2])], "2-3"),
                    &["2 of 2 vCPUs", "pCPUs 2-3"],
                ),
                ("each pinned", isolating(vec![vm(10, &["2", "3"])], "2-3"), &[]),
                ("elsewhere", isolating(vec![vm(10, &["0-1"; 2])], "2-3"), &[]),
                ("none isolated", host(vec![wide(10, 2)]), &[]),
            ],
        );
    }

    #[test]
    fn more_than_four_to_one() {
        let fleet = |vms: i32| host((0..vms).map(|n| wide(10 * (n + 1), 4)).collect());
        check(
            "overcommit",
            &[("5:1", fleet(5), &["20 vCPUs on 4 pCPUs", "5.0 to 1"]), ("4:1", fleet(4), &[])],
        );
    }

    #[test]
    fn quotas() {
        let quota = |cgroup: &str, quota_us| Quota {
            cgroup: cgroup.into(),
            quota_us,
            period_us: 100_000,
            of_one_vcpu: cgroup.contains("/vcpu"),
        };
        let limited = |quotas: &[(&str, u64)]| {
            let quotas = quotas.iter().map(|(cgroup, quota_us)| quota(cgroup, *quota_us)).collect();
            host(vec![Vm { quotas, ..wide(10, 2) }])
        };
        let without_pcpus = |snapshot| Snapshot { cpus: Default::default(), ..snapshot };
        check(
            "cpu-max",
            &[
                ("set", limited(&[("/m/a", 150_000)]), &["/m/a", "1.50 pCPUs", "100000 µs"]),
                ("just below the host", limited(&[("/m/a", 399_999)]), &["/m/a"]),
                ("the whole host", limited(&[("/m/a", 400_000)]), &[]),
                ("pCPUs not known", without_pcpus(limited(&[("/m/a", 400_000)])), &["/m/a: 4.00"]),
                ("less than a pCPU for a vCPU", limited(&[("/m/a/vcpu0", 99_999)]), &["/m/a/vcpu0"]),
                ("a pCPU for each vCPU", limited(&[("/m/a/vcpu0", 100_000), ("/m/a/vcpu1", 200_000)]), &[]),
                ("a pCPU for a vCPU, known or not", without_pcpus(limited(&[("/m/a/vcpu0", 100_000)])), &[]),
                ("a pCPU for the VM", limited(&[("/m/a", 100_000)]), &["/m/a: 1.00 pCPUs"]),
                ("not set", host(vec![wide(10, 2)]), &[]),
            ],
        );
        // Each cgroup for itself, whatever is around it.
        let nested = [("/m", 300_000), ("/m/a", 400_000), ("/m/a/vcpu0", 50_000), ("/m/a/vcpu1", 100_000)];
        assert_eq!(
            hits("cpu-max", &limited(&nested)),
            ["/m: 3.00 pCPUs in periods of 100000 µs, /m/a/vcpu0: 0.50 pCPUs in periods of 100000 µs"]
        );
        assert_eq!(hits("cpu-max", &host(vec![])), Vec::<String>::new());
    }
}
