// SPDX-License-Identifier: GPL-2.0-only
//! How the kernel, KVM and the host's scheduler are set.

use crate::audit::rules::{each_vm, Hit, Rule, Severity};
use crate::audit::snapshot::Snapshot;
use crate::checks::OURS;

/// kvm_vcpu_on_spin() stores a wrong index since 7e513617da71, and no longer since 32bd348be3fa.
const ON_SPIN_BUG_SINCE: (u32, u32, u32) = (6, 13, 0);
const ON_SPIN_BUG_UNTIL: (u32, u32, u32) = (6, 18, 3);

pub const RULES: [Rule; 8] = [
    Rule {
        id: "ple-off",
        severity: Severity::Warning,
        reason: "a vCPU that spins for a preempted sibling is not caught: it burns its whole turn, and KVM cannot let the sibling run instead; Cohort can if it was called by an interrupt, not if it holds a lock",
        remedy: "load kvm_intel without ple_gap=0 or kvm_amd without pause_filter_count=0 or pause_filter_thresh=0; where the processor has no pause-loop exits (nested hosts), ask the level below for them",
        check: ple_off,
    },
    Rule {
        id: "on-spin-bug",
        severity: Severity::Warning,
        reason: "Linux 6.13 to 6.18.2 forgets which sibling it has boosted last, so that pause-loop exits boost the same few again and again",
        remedy: "boot Linux 6.18.3 or newer, or a distribution's kernel with 32bd348be3fa (KVM: Fix last_boosted_vcpu index assignment bug)",
        check: on_spin_bug,
    },
    Rule {
        id: "core-scheduling",
        severity: Severity::Warning,
        reason: "with SMT a core whose other thread has nothing of the same cookie to run stays half idle, and under any sched_ext scheduler cookies can hang the host",
        remedy: "start the VMM without (cloud-hypervisor: --cpus core_scheduling=off), or switch SMT off (echo off > /sys/devices/system/cpu/smt/control)",
        check: core_scheduling,
    },
    Rule {
        id: "cgroup-concur",
        severity: Severity::Warning,
        reason: "cgroup_mode=concur, the default since Linux 7.3, counts a VM's weight by its runnable vCPUs rounded down: one whose vCPUs sleep now and then counts for as little as half",
        remedy: "echo smp > /sys/kernel/debug/sched/cgroup_mode, which is how older kernels did it; or cohort run",
        check: cgroup_concur,
    },
    Rule {
        id: "preempt-rt",
        severity: Severity::Warning,
        reason: "under PREEMPT_RT interrupts and timers are threads that wait for a pCPU as vCPUs do, and Cohort was never tested on it",
        remedy: "boot a kernel built without PREEMPT_RT, unless guests need its guarantees",
        check: preempt_rt,
    },
    Rule {
        id: "deaf-scheduler",
        severity: Severity::Warning,
        reason: "a sched_ext scheduler other than Cohort is loaded: those known do not run the sibling that KVM asks for when a vCPU spins",
        remedy: "run VMs under the kernel's own scheduler or cohort run, or ask that scheduler's authors for ops.yield",
        check: deaf_scheduler,
    },
    Rule {
        id: "halt-polling",
        severity: Severity::Info,
        reason: "a vCPU that halts keeps its pCPU for a while in case it is woken: the pCPU looks busy to whoever looks for an idle one, and takes power and cycles from its core's other thread",
        remedy: "echo 0 > /sys/module/kvm/parameters/halt_poll_ns on an overcommitted host, unless wake-up latency of idle guests matters more",
        check: halt_polling,
    },
    Rule {
        id: "schedstats-off",
        severity: Severity::Info,
        reason: "libvirt's vcpu.N.wait, and what KubeVirt and exporters make of it, stays 0; vcpu.N.delay counts in any case",
        remedy: "sysctl kernel.sched_schedstats=1, or schedstats=enable on the kernel's command line",
        check: schedstats_off,
    },
];

fn has_smp_guest(snapshot: &Snapshot) -> bool {
    snapshot.vms.iter().any(|vm| vm.vcpus > 1)
}

fn ple_off(snapshot: &Snapshot) -> Vec<Hit> {
    let Some(exits) = snapshot.kvm.pause_exits.as_ref().filter(|exits| exits.value == 0) else {
        return vec![];
    };
    let why = match exits.in_processor {
        Some(true) => "",
        Some(false) => ": the processor has none",
        None => "; whether the processor has pause-loop exits, this kernel does not say",
    };
    Hit::host(format!("{} is 0{why}", exits.parameter))
}

fn on_spin_bug(snapshot: &Snapshot) -> Vec<Hit> {
    let kernel = &snapshot.kernel;
    if !(ON_SPIN_BUG_SINCE..ON_SPIN_BUG_UNTIL).contains(&kernel.version) {
        return vec![];
    }
    Hit::host(format!("this kernel is {}", kernel.release))
}

fn core_scheduling(snapshot: &Snapshot) -> Vec<Hit> {
    if !snapshot.cpus.smt {
        return vec![];
    }
    each_vm(snapshot, |vm| {
        (vm.core_cookie == Some(true)).then(|| "has a core-scheduling cookie, and SMT is on".to_string())
    })
}

fn cgroup_concur(snapshot: &Snapshot) -> Vec<Hit> {
    // Under a sched_ext scheduler it has no effect.
    let is_concur = snapshot.sched.cgroup_mode.as_deref() == Some("concur");
    if !is_concur || snapshot.sched.extension.is_some() || !has_smp_guest(snapshot) {
        return vec![];
    }
    Hit::host("cgroup_mode is concur")
}

fn preempt_rt(snapshot: &Snapshot) -> Vec<Hit> {
    if !snapshot.kernel.real_time {
        return vec![];
    }
    Hit::host(format!("this kernel ({}) is built with PREEMPT_RT", snapshot.kernel.release))
}

fn deaf_scheduler(snapshot: &Snapshot) -> Vec<Hit> {
    let deaf = |name: &&String| !name.starts_with(OURS);
    match snapshot.sched.extension.as_ref().filter(deaf) {
        Some(name) if has_smp_guest(snapshot) => {
            Hit::host(format!("{} is loaded", crate::vmname::printable(name)))
        }
        _ => vec![],
    }
}

fn halt_polling(snapshot: &Snapshot) -> Vec<Hit> {
    match snapshot.kvm.halt_poll_ns {
        Some(time_ns) if time_ns > 0 && snapshot.is_overcommitted() => Hit::host(format!(
            "for up to {} µs, with {} vCPUs on {} pCPUs",
            time_ns / 1000,
            snapshot.vcpus(),
            snapshot.cpus.online.len()
        )),
        _ => vec![],
    }
}

fn schedstats_off(snapshot: &Snapshot) -> Vec<Hit> {
    let is_asked = snapshot.vms.iter().any(|vm| vm.libvirt);
    if snapshot.sched.schedstats != Some(false) || !is_asked {
        return vec![];
    }
    Hit::host("kernel.sched_schedstats is 0, and libvirt runs VMs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::rules::tests::{check, host, wide};
    use crate::audit::snapshot::{version, Kernel, Kvm, PauseExits, Sched, Vm};

    fn kernel(release: &str) -> Snapshot {
        let kernel = Kernel { release: release.into(), version: version(release), real_time: false };
        Snapshot { kernel, ..host(vec![]) }
    }

    fn exits(value: u64, in_processor: Option<bool>) -> Snapshot {
        let exits = PauseExits { parameter: "kvm_intel.ple_gap".into(), value, in_processor };
        Snapshot { kvm: Kvm { pause_exits: Some(exits), ..Kvm::default() }, ..host(vec![]) }
    }

    #[test]
    fn pause_loop_exits() {
        check(
            "ple-off",
            &[
                ("off", exits(0, Some(true)), &["kvm_intel.ple_gap is 0"]),
                ("not in the processor", exits(0, Some(false)), &["the processor has none"]),
                ("not known", exits(0, None), &["ple_gap is 0; whether the processor has pause-loop exits"]),
                ("on", exits(128, Some(true)), &[]),
                ("KVM is not loaded", host(vec![]), &[]),
            ],
        );
    }

    #[test]
    fn round_robin_that_forgets() {
        for release in ["6.13.0", "6.17.13+deb14-amd64", "6.18.0", "6.18.2", "6.18-rc4"] {
            check("on-spin-bug", &[(release, kernel(release), &[release])]);
        }
        for release in ["6.1.0-40-amd64", "6.12.48", "6.18.3", "6.18.15+deb14", "6.19.0", "7.3.4", "custom"] {
            check("on-spin-bug", &[(release, kernel(release), &[])]);
        }
    }

    #[test]
    fn cookies() {
        let tagged = || Vm { core_cookie: Some(true), ..wide(10, 2) };
        let smt = |vms| {
            let mut snapshot = host(vms);
            snapshot.cpus.smt = true;
            snapshot
        };
        check(
            "core-scheduling",
            &[
                ("with SMT", smt(vec![tagged(), wide(20, 2)]), &["cookie"]),
                ("without SMT", host(vec![tagged()]), &[]),
                ("no cookie", smt(vec![wide(10, 2)]), &[]),
            ],
        );
    }

    fn sched(sched: Sched, vms: Vec<Vm>) -> Snapshot {
        Snapshot { sched, ..host(vms) }
    }

    #[test]
    fn weights_of_sleepers() {
        let mode = |mode: &str, extension: Option<&str>| Sched {
            cgroup_mode: Some(mode.into()),
            extension: extension.map(Into::into),
            schedstats: None,
        };
        check(
            "cgroup-concur",
            &[
                ("concur", sched(mode("concur", None), vec![wide(10, 2)]), &["concur"]),
                ("smp", sched(mode("smp", None), vec![wide(10, 2)]), &[]),
                ("one vCPU each", sched(mode("concur", None), vec![wide(10, 1)]), &[]),
                ("another scheduler", sched(mode("concur", Some("cohort")), vec![wide(10, 2)]), &[]),
                ("older kernel", host(vec![wide(10, 2)]), &[]),
            ],
        );
    }

    #[test]
    fn schedulers_and_directed_yields() {
        let loaded = |name: Option<&str>| Sched { extension: name.map(Into::into), ..Sched::default() };
        check(
            "deaf-scheduler",
            &[
                ("another", sched(loaded(Some("bpfland_1.1.2")), vec![wide(10, 2)]), &["bpfland_1.1.2"]),
                ("ours", sched(loaded(Some("cohort")), vec![wide(10, 2)]), &[]),
                ("no siblings", sched(loaded(Some("bpfland")), vec![wide(10, 1)]), &[]),
                ("none", sched(loaded(None), vec![wide(10, 2)]), &[]),
            ],
        );
    }

    #[test]
    fn real_time() {
        let mut snapshot = kernel("7.3.4-rt");
        check("preempt-rt", &[("without", snapshot.clone(), &[])]);
        snapshot.kernel.real_time = true;
        check("preempt-rt", &[("with", snapshot, &["7.3.4-rt", "PREEMPT_RT"])]);
    }

    #[test]
    fn polling() {
        let polling = |time_ns, vms| Snapshot {
            kvm: Kvm { halt_poll_ns: Some(time_ns), ..Kvm::default() },
            ..host(vms)
        };
        check(
            "halt-polling",
            &[
                (
                    "overcommitted",
                    polling(200_000, vec![wide(10, 4), wide(20, 4)]),
                    &["200 µs", "8 vCPUs on 4"],
                ),
                ("room for all", polling(200_000, vec![wide(10, 4)]), &[]),
                ("off", polling(0, vec![wide(10, 4), wide(20, 4)]), &[]),
            ],
        );
    }

    #[test]
    fn statistics_that_libvirt_reads() {
        let stats = |on, libvirt| {
            sched(Sched { schedstats: on, ..Sched::default() }, vec![Vm { libvirt, ..wide(10, 2) }])
        };
        check(
            "schedstats-off",
            &[
                ("off", stats(Some(false), true), &["sched_schedstats is 0"]),
                ("on", stats(Some(true), true), &[]),
                ("nobody asks", stats(Some(false), false), &[]),
                ("not known", stats(None, true), &[]),
            ],
        );
    }
}
