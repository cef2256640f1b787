// SPDX-License-Identifier: GPL-2.0-only
//! What guests are told of the hypervisor.

use crate::audit::guest_cpu::GuestCpu;
use crate::audit::rules::{each_vm, Hit, Rule, Severity};
use crate::audit::snapshot::{Snapshot, Vm};

pub const RULES: [Rule; 7] = [
    Rule {
        id: "pv-tlb-flush",
        severity: Severity::Warning,
        reason: "a vCPU that flushes the TLBs of its siblings sends interrupts and spins until each of them has run, also those that wait for a pCPU",
        remedy: "QEMU: -cpu MODEL,+kvm-pv-tlb-flush (host and max have it); Windows guests: hv-tlbflush with hv-vpindex",
        check: |snapshot| each_smp(snapshot, |cpu| {
            if cpu.hyper_v { says(!cpu.hv_tlb_flush, "hv-tlbflush is off") }
            else { missing(cpu, cpu.tlb_flush && cpu.steal_time, "kvm-pv-tlb-flush is off, or without kvm-steal-time, which it needs") }
        }),
    },
    Rule {
        id: "pv-unhalt",
        severity: Severity::Warning,
        reason: "without it the guest's kernel cannot put a vCPU to sleep that waits for a spin lock: it spins until the holder has run again",
        remedy: "QEMU: -cpu MODEL,+kvm-pv-unhalt (host and max have it); libvirt: <pvspinlock state='on'/>; Windows guests: hv-spinlocks=0x1fff",
        check: |snapshot| each_smp(snapshot, |cpu| {
            if cpu.hyper_v { says(!cpu.hv_spinlocks, "hv-spinlocks is off") }
            else { missing(cpu, cpu.unhalt, "kvm-pv-unhalt is off") }
        }),
    },
    Rule {
        id: "steal-time",
        severity: Severity::Warning,
        reason: "the guest takes time without a pCPU for time that its tasks have used, its operators see no steal, and it cannot avoid vCPUs that are preempted",
        remedy: "QEMU: leave -kvm-steal-time and kvm=off out of -cpu",
        check: |snapshot| each_vm(snapshot, |vm| {
            let cpu = vm.cpu.as_ref()?;
            if cpu.hyper_v { None } else { missing(cpu, cpu.steal_time, "kvm-steal-time is off") }
        }),
    },
    Rule {
        id: "pv-ipi",
        severity: Severity::Info,
        reason: "an interrupt to several siblings leaves the guest once for each of them, not once for all, where the processor does not deliver it by itself",
        remedy: "QEMU: -cpu MODEL,+kvm-pv-ipi (host and max have it); Windows guests: hv-ipi with hv-vpindex",
        check: |snapshot| {
            if snapshot.kvm.virtual_ipis {
                return vec![];
            }
            each_smp(snapshot, |cpu| {
                if cpu.hyper_v { says(!cpu.hv_ipi, "hv-ipi is off") } else { missing(cpu, cpu.ipi, "kvm-pv-ipi is off") }
            })
        },
    },
    Rule {
        id: "pv-sched-yield",
        severity: Severity::Info,
        reason: "a vCPU that has sent an interrupt to a preempted sibling cannot give it its pCPU, but spins for the answer until it is caught spinning",
        remedy: "QEMU: -cpu MODEL,+kvm-pv-sched-yield (host and max have it)",
        check: |snapshot| each_smp(snapshot, |cpu| {
            if cpu.hyper_v { None } else { missing(cpu, cpu.sched_yield && cpu.steal_time, "kvm-pv-sched-yield is off, or without kvm-steal-time, which it needs") }
        }),
    },
    Rule {
        id: "hint-dedicated",
        severity: Severity::Critical,
        reason: "the guest was promised a pCPU for each vCPU: it switches off its paravirtual locks and TLB flushes, and spins for siblings that wait for a pCPU",
        remedy: "QEMU: leave kvm-hint-dedicated=on out of -cpu; libvirt: no <hint-dedicated state='on'/>; or give its vCPUs pCPUs of their own",
        check: |snapshot| promised(snapshot, |vm| {
            says(vm.cpu.as_ref().is_some_and(|cpu| cpu.hint_dedicated), "kvm-hint-dedicated is on")
        }),
    },
    Rule {
        id: "cpu-pm",
        severity: Severity::Critical,
        reason: "an idle vCPU keeps its pCPU, because HLT and MWAIT no longer leave the guest, and none is caught spinning, because PAUSE does not either",
        remedy: "QEMU: leave cpu-pm=on out of -overcommit; or give its vCPUs pCPUs of their own",
        check: |snapshot| promised(snapshot, |vm| says(vm.cpu_pm, "-overcommit cpu-pm=on")),
    },
];

/// A VM of one vCPU has no siblings to wait for.
fn each_smp(snapshot: &Snapshot, detail: impl Fn(&GuestCpu) -> Option<String>) -> Vec<Hit> {
    each_vm(snapshot, |vm| vm.cpu.as_ref().filter(|_| vm.vcpus > 1).and_then(&detail))
}

/// Settings that are right for a VM with pCPUs of its own, where it has not. Where that is not known, nothing
/// is said.
fn promised(snapshot: &Snapshot, detail: impl Fn(&Vm) -> Option<String>) -> Vec<Hit> {
    if !snapshot.is_overcommitted() {
        return vec![];
    }
    each_vm(snapshot, |vm| detail(vm).filter(|_| is_alone(snapshot, vm) == Some(false)))
}

/// Has each of its vCPUs a pCPU that no other VM may use? None: that takes threads of which it is not known
/// where they may run.
fn is_alone(snapshot: &Snapshot, vm: &Vm) -> Option<bool> {
    // A thread that ended while it was looked at may run nowhere.
    let known = |vm: &Vm| vm.threads.iter().filter(|thread| !thread.allowed.is_empty()).count();
    let mut own = vm.threads.iter().filter_map(|thread| thread.allowed.only()).collect::<Vec<_>>();
    own.sort_unstable();
    own.dedup();
    let taken = |cpu: &u32| {
        let others = snapshot.vms.iter().filter(|other| other.pid != vm.pid);
        others.flat_map(|other| &other.threads).any(|thread| thread.allowed.contains(*cpu))
    };
    if own.len() < known(vm) || own.iter().any(taken) {
        return Some(false);
    }
    snapshot.vms.iter().all(|vm| known(vm) == vm.vcpus).then_some(true)
}

fn says(wrong: bool, what: &str) -> Option<String> {
    wrong.then(|| what.to_string())
}

fn missing(cpu: &GuestCpu, has: bool, what: &str) -> Option<String> {
    match (has, cpu.hidden) {
        (true, _) => None,
        (false, true) => Some("kvm=off hides it".to_string()),
        (false, false) => Some(what.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::rules::tests::{check, hits, host, vm, wide};

    /// A host with one VM of this many vCPUs and this -cpu.
    fn guest(vcpus: usize, model: &str) -> Snapshot {
        host(vec![Vm { cpu: Some(GuestCpu::from_model(model)), ..wide(10, vcpus) }])
    }

    #[test]
    fn paravirtual_calls() {
        for (id, feature, hyper_v) in [
            ("pv-tlb-flush", "kvm-pv-tlb-flush", Some("hv-tlbflush")),
            ("pv-unhalt", "kvm-pv-unhalt", Some("hv-spinlocks=0x1fff")),
            ("pv-ipi", "kvm-pv-ipi", Some("hv-ipi")),
            ("pv-sched-yield", "kvm-pv-sched-yield", None),
        ] {
            check(
                id,
                &[
                    ("named model", guest(2, "EPYC"), &[feature, "is off"]),
                    ("switched on", guest(2, &format!("EPYC,+{feature}")), &[]),
                    ("host", guest(2, "host"), &[]),
                    ("host, switched off", guest(2, &format!("host,-{feature}")), &[feature]),
                    ("hidden", guest(2, "host,kvm=off"), &["kvm=off"]),
                    ("no siblings", guest(1, "EPYC"), &[]),
                    ("not known", host(vec![wide(10, 2)]), &[]),
                ],
            );
            let windows = format!("EPYC,kvm=off,hv-relaxed,{}", hyper_v.unwrap_or("hv-time"));
            check(id, &[("Windows", guest(2, &windows), &[])]);
            if let Some(name) = hyper_v {
                let wanted = name.split('=').next().unwrap();
                check(id, &[("Windows, without", guest(2, "host,hv-relaxed"), &[wanted])]);
            }
        }
    }

    #[test]
    fn calls_that_need_steal_time() {
        for id in ["pv-tlb-flush", "pv-sched-yield"] {
            check(id, &[("without", guest(2, "host,-kvm-steal-time"), &["kvm-steal-time"])]);
        }
    }

    #[test]
    fn interrupts_that_the_processor_delivers() {
        let mut snapshot = guest(2, "EPYC");
        snapshot.kvm.virtual_ipis = true;
        check("pv-ipi", &[("by the processor", snapshot, &[])]);
    }

    #[test]
    fn steal_time() {
        check(
            "steal-time",
            &[
                ("off", guest(1, "host,-kvm-steal-time"), &["kvm-steal-time is off"]),
                ("hidden", guest(2, "EPYC,kvm=off"), &["kvm=off"]),
                ("on", guest(2, "EPYC"), &[]),
                ("Windows knows none", guest(2, "EPYC,kvm=off,hv-time"), &[]),
            ],
        );
    }

    #[test]
    fn promises_to_guests_that_share() {
        let hint = |vm: Vm| Vm { cpu: Some(GuestCpu::from_model("host,kvm-hint-dedicated=on")), ..vm };
        let power = |vm: Vm| Vm { cpu_pm: true, ..vm };
        type With = fn(Vm) -> Vm;
        for (id, with, part) in
            [("hint-dedicated", hint as With, "hint-dedicated"), ("cpu-pm", power as With, "cpu-pm")]
        {
            check(
                id,
                &[
                    ("shared", host(vec![with(wide(10, 4)), wide(20, 2)]), &[part]),
                    ("room for all", host(vec![with(wide(10, 2)), wide(20, 2)]), &[]),
                    ("not set", host(vec![wide(10, 4), wide(20, 4)]), &[]),
                    ("pCPUs of its own", host(vec![with(vm(10, &["0", "1"])), vm(20, &["2-3"; 4])]), &[]),
                    (
                        "somebody else's, too",
                        host(vec![with(vm(10, &["0", "1"])), vm(20, &["1-3"; 4])]),
                        &[part],
                    ),
                ],
            );
        }
        assert_eq!(hits("cpu-pm", &host(vec![power(wide(10, 4)), power(wide(20, 4))])).len(), 2);
    }

    #[test]
    fn promises_are_not_judged_by_threads_that_are_not_known() {
        let power = |vm: Vm| Vm { cpu_pm: true, ..vm };
        let untold = |pid, allowed: &[&str]| Vm { vcpus: 4, ..vm(pid, allowed) };
        check(
            "cpu-pm",
            &[
                ("none of its own", host(vec![power(untold(10, &[])), wide(20, 4)]), &[]),
                ("not all of its own", host(vec![power(untold(10, &["0"])), vm(20, &["2-3"; 4])]), &[]),
                ("those of another", host(vec![power(vm(10, &["0", "1"])), untold(20, &[])]), &[]),
                ("one that has ended", host(vec![power(vm(10, &["0", ""])), vm(20, &["2-3"; 4])]), &[]),
                (
                    "one that shares is enough",
                    host(vec![power(untold(10, &["0-1"])), wide(20, 4)]),
                    &["cpu-pm"],
                ),
                (
                    "so is one of another",
                    host(vec![power(untold(10, &["0"])), untold(20, &["0-1"])]),
                    &["cpu-pm"],
                ),
            ],
        );
    }
}
