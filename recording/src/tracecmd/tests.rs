// SPDX-License-Identifier: GPL-2.0-only
//! Lines as trace-cmd prints them, by the kernel's formats and by the plugins of libtraceevent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::read;
use crate::event::Kind;
use crate::reader::Recording;

const NS_PER_S: u64 = 1_000_000_000;

/// As the kernel's formats say.
const KERNEL: &str = "\
cpus=2
       CPU 0/KVM-101   [000]  1.000000100: kvm_entry:            vcpu 0, rip 0xffffffff81000000
       CPU 1/KVM-102   [001]  1.000000100: kvm_exit:             vcpu 1 reason PAUSE_INSTRUCTION rip 0x0 info1 0x0000000000000000 info2 0x0000000000000000 intr_info 0x00000000 error_code 0x00000000
       CPU 0/KVM-201   [001]  1.000000200: kvm_entry:            vcpu 0, rip 0x0
       CPU 0/KVM-101   [000]  1.000001000: sched_switch:         prev_comm=CPU 0/KVM prev_pid=101 prev_prio=120 prev_state=R+ ==> next_comm=kworker/0:1 next_pid=9 next_prio=120
     kworker/0:1-9     [000]  1.000001500: sched_wakeup:         comm=CPU 0/KVM pid=201 prio=120 target_cpu=001
     kworker/0:1-9     [000]  1.000001600: sched_migrate_task:   comm=CPU 0/KVM pid=101 prio=120 orig_cpu=0 dest_cpu=1
     kworker/0:1-9     [000]  1.000001700: sched_migrate_task:   comm=CPU 1/KVM pid=102 prio=120 orig_cpu=0 dest_cpu=1
     kworker/0:1-9     [000] d..2.  1.000002000: sched_switch:         prev_comm=kworker/0:1 prev_pid=9 prev_prio=120 prev_state=I ==> next_comm=CPU 0/KVM next_pid=101 next_prio=120
";

/// The same by the plugins, on a host of AMD's.
const PLUGIN: &str = "\
cpus=2
       CPU 0/KVM-101   [000]     1.000000100: kvm_entry:             vcpu 0 rip 0xffffffff81000000
       CPU 1/KVM-102   [001]     1.000000100: kvm_entry:             vcpu 1 rip 0x0
       CPU 1/KVM-102   [001]     1.000000100: kvm_exit:             reason EXIT_PAUSE rip 0x0 info 0 0
       CPU 0/KVM-201   [001]     1.000000200: kvm_entry:             vcpu 0 rip 0x0
       CPU 0/KVM-101   [000]     1.000001000: sched_switch:         CPU 0/KVM:101 [120] R ==> kworker/0:1:9 [120]
     kworker/0:1-9     [000]     1.000001500: sched_wakeup:         CPU 0/KVM:201 [120] success=1 CPU:001
     kworker/0:1-9     [000]     1.000001600: sched_migrate_task:   comm=CPU 0/KVM pid=101 prio=120 orig_cpu=0 dest_cpu=1
     kworker/0:1-9     [000]     1.000001700: sched_migrate_task:   comm=CPU 1/KVM pid=102 prio=120 orig_cpu=0 dest_cpu=1
     kworker/0:1-9     [000]     1.000002000: sched_switch:         kworker/0:1:9 [120] W ==> CPU 0/KVM:101 [120]
";

/// Time after the first second, pCPU, slot and kind of each event.
fn told(recording: &Recording) -> Vec<(u64, u16, u16, Kind)> {
    recording.events.iter().map(|e| (e.time_ns % NS_PER_S, e.cpu, e.vcpu, e.kind)).collect()
}

/// What is told of a vCPU with thread 7 after these lines: `NAME: REST` by that thread, a microsecond apart.
fn after(lines: &[&str]) -> Vec<Kind> {
    let lines = ["kvm_entry:             vcpu 0 rip 0x0"].iter().chain(lines).zip(100..);
    let text: String =
        lines.map(|(line, at)| format!("   CPU 0/KVM-7   [000]  1.000{at}: {line}\n")).collect();
    read(&text).unwrap().events.iter().map(|event| event.kind).collect()
}

#[test]
fn threads_become_vcpus_of_vms_and_lines_events() {
    for text in [KERNEL, PLUGIN] {
        let recording = read(text).unwrap();
        let vms: Vec<Vec<u32>> =
            recording.end.vms.iter().map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.tid).collect()).collect();
        assert_eq!(vms, [vec![101, 102], vec![201]]);
        assert_eq!(recording.header.pcpus.len(), 2);
        assert_eq!(
            told(&recording),
            [
                (100, 1, 1, Kind::Ple),
                (1_000, 0, 0, Kind::Preempted),
                (1_500, 1, 2, Kind::Woken),
                (1_600, 1, 0, Kind::Moved),
                (2_000, 0, 0, Kind::Run),
            ]
        );
    }
}

/// The vCPUs' numbers of each VM, if threads with these numbers of vCPUs follow each other; and what is said of them.
fn vms(numbers: &[u32]) -> (Vec<Vec<u32>>, Vec<String>) {
    let enter =
        |(vcpu, tid): (&u32, u32)| format!("   x-{tid}   [000]  1.0: kvm_entry:  vcpu {vcpu} rip 0x0\n");
    let run = "   x-9 [000]  1.1: sched_switch: x:9 [120] S ==> x:100 [120]\n";
    let recording = read(&(numbers.iter().zip(100..).map(enter).collect::<String>() + run)).unwrap();
    let of = |vm: &crate::VmAbout| vm.vcpus.iter().map(|vcpu| vcpu.vcpu).collect();
    (recording.end.vms.iter().map(of).collect(), recording.header.notes)
}

#[test]
fn a_vcpu_is_of_the_vm_that_lacks_it() {
    assert_eq!(vms(&[0, 1, 2, 0, 0, 1]), (vec![vec![0, 1, 2], vec![0], vec![0, 1]], vec![]));
    assert_eq!(vms(&[0, 2, 0, 1]).0, [vec![0, 2], vec![0, 1]], "one is never seen");
    assert_eq!(vms(&[1, 0, 1]).0, [vec![1], vec![0, 1]]);
    assert_eq!(vms(&[u32::MAX, 0]).0, [vec![u32::MAX], vec![0]]);
    // Two began at the same time.
    let (found, notes) = vms(&[0, 0, 0, 1, 1]);
    assert_eq!(found, [vec![0], vec![0, 1], vec![0, 1]]);
    assert_eq!(notes, ["which of the vCPUs are whose is a guess: VMs began at the same time: vm1, vm2"]);
}

#[test]
fn what_is_guessed_of_many_vms_is_kept_once_of_each() {
    let vms = 1000;
    // All begin, and then each has a second vCPU, the last one first. Each of these but the first says of all behind it, too, that they are a guess.
    let numbers = [0, 1].into_iter().flat_map(|number| std::iter::repeat_n(number, vms));
    let threads: BTreeMap<u32, u32> = (100..).zip(numbers).collect();
    assert_eq!(threads.len(), 2000);
    let (found, slots, guessed) = super::vms(&threads).unwrap();
    assert_eq!((found.len(), slots.len()), (vms, 2000));
    assert_eq!(guessed, (0..vms).collect::<BTreeSet<usize>>());
    assert!(found.iter().all(|vm| vm.vcpus.len() == 2));
}

#[test]
fn a_pause_loop_exit_has_a_name_on_each_processor_and_in_each_way() {
    for reason in ["PAUSE_INSTRUCTION", "EXIT_PAUSE", "pause"] {
        assert_eq!(after(&[&format!("kvm_exit:  vcpu 0 reason {reason} rip 0x0")]), [Kind::Ple], "{reason}");
        assert_eq!(
            after(&[&format!("kvm_exit:  reason {reason} rip 0x0 info 0 0")]),
            [Kind::Ple],
            "{reason}"
        );
    }
    let run = "sched_switch: x:9 [120] S ==> CPU 0/KVM:7 [120]";
    for reason in ["EXIT_MSR", "PAUSES", "UNKNOWN (1031)", "EXIT_HLT rip pause"] {
        assert_eq!(after(&[&format!("kvm_exit:  reason {reason} rip 0x0"), run]), [Kind::Run], "{reason}");
    }
}

#[test]
fn who_sleeps_has_halted_unless_it_left_its_guest_for_another_reason() {
    let slept = |exit: &str, state: &str| {
        let switch = format!("sched_switch: CPU 0/KVM:7 [120] {state} ==> swapper/0:0 [120]");
        after(&[exit, &switch])
    };
    for exit in
        ["kvm_exit: reason EXIT_HLT rip 0x0", "kvm_exit: reason HLT rip 0", "kvm_exit: reason hlt rip 0"]
    {
        assert_eq!(slept(exit, "S"), [Kind::Halted]);
    }
    assert_eq!(slept("kvm_halt_poll_ns: no exit is known", "S"), [Kind::Halted]);
    assert_eq!(slept("kvm_exit: reason EXIT_IOIO rip 0x0", "S"), [Kind::Blocked]);
    assert_eq!(slept("kvm_exit: reason EXIT_HLT rip 0x0", "D"), [Kind::Blocked], "it waits for a page");
}

#[test]
fn what_the_probe_has_from_tracepoints_is_there_too() {
    let by = |thread: &str, what: &str| {
        let text = format!("{PLUGIN}  {thread}   [001]  1.000003000: {what}\n");
        let last = *read(&text).unwrap().events.last().unwrap();
        (last.kind, last.vcpu, last.a, last.b)
    };
    let none = (Kind::Run, 0, 0, 0);
    let (v0, v1) = ("CPU 0/KVM-101", "CPU 1/KVM-102");
    assert_eq!(by(v0, "kvm_apic_accept_irq:  apicid 1 vec 253 (Fixed|edge)"), (Kind::Ipi, 0, 253, 1));
    assert_eq!(by(v1, "kvm_apic_accept_irq:  apicid 0 vec 251 (Fixed|edge)"), (Kind::Ipi, 1, 251, 0));
    assert_eq!(by(v1, "kvm_apic_accept_irq:  apicid 1f vec 2 (NMI|edge)"), (Kind::Ipi, 1, 2, u16::MAX));
    // Its own timer; a device, which another thread brings.
    assert_eq!(by(v1, "kvm_apic_accept_irq:  apicid 1 vec 236 (Fixed|edge)"), none);
    assert_eq!(by("vhost-7", "kvm_apic_accept_irq:  apicid 1 vec 37 (Fixed|edge)"), none);
    assert_eq!(by(v0, "kvm_hypercall:  nr 0xa a0 0x2 a1 0x0 a2 0x0 a3 0xfb"), (Kind::Hypercall, 0, 10, 0));
    assert_eq!(by(v0, "kvm_pv_tlb_flush:  vcpu 1 need_flush_tlb true"), (Kind::TlbDeferred, 0, 0, 1));
    assert_eq!(by(v0, "kvm_pv_tlb_flush:  vcpu 1 need_flush_tlb false"), none);
    let flush = "kvm_hv_flush_tlb:  processor_mask 0x2 address_space 0x0 flags 0x0";
    assert_eq!(by(v0, flush), (Kind::TlbHypercall, 0, 0, 0));
}

#[test]
fn whatever_tasks_are_called_they_are_known_by_their_numbers() {
    for other in ["tmux: server", "a [1] b", "x:7 [120] S", "pid=7", "next_pid=7", "CPU:7"] {
        let plugin = format!("sched_switch: {other}:9 [120] S ==> CPU 0/KVM:7 [120]");
        let kernel = format!(
            "sched_switch: prev_comm={other} prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=CPU 0/KVM next_pid=7 next_prio=120"
        );
        assert_eq!(after(&[&plugin]), [Kind::Run], "{other}");
        assert_eq!(after(&[&kernel]), [Kind::Run], "{other}");
        let text = format!("{KERNEL}   {other}-9 [001] 1.000003: {plugin}\n");
        assert_eq!(read(&text.replace("M:7", "M:201")).unwrap().events.last().unwrap().vcpu, 2, "{other}");
    }
}

#[test]
fn wakings_count_where_there_are_no_wakeups() {
    let waking = "sched_waking: comm=CPU 0/KVM pid=7 prio=120 target_cpu=003";
    assert_eq!(after(&[waking]), [Kind::Woken]);
    let both = after(&[waking, "sched_wakeup: CPU 0/KVM:7 [120] CPU:003", "sched_wakeup: x:8 [120] CPU:003"]);
    assert_eq!(both, [Kind::Woken]);
    let run = "sched_switch: x:9 [120] S ==> CPU 0/KVM:7 [120]";
    assert_eq!(after(&["sched_wakeup: CPU 0/KVM:7 [120] success=0 CPU:003", run]), [Kind::Run]);
    assert_eq!(after(&["sched_wakeup_new: CPU 0/KVM:7 [120] CPU:003"]), [Kind::Woken]);
}

/// As `trace-cmd report -i trace.dat -i guest.dat` prints: names are as wide as the longest.
fn merged(host: &str, guest: &str) -> String {
    let named = |name: &'static str, text: &str| -> String {
        text.lines().map(|line| format!("{name:>9}: {line}\n")).collect()
    };
    named("trace.dat", host) + &named("guest.dat", guest)
}

#[test]
fn of_a_merged_report_the_lines_of_the_host_count() {
    for text in [KERNEL, PLUGIN] {
        // A guest may have guests, too.
        for guest in [text, &text.replace("kvm_", "vmk_")] {
            let (both, alone) = (read(&merged(text, guest)).unwrap(), read(text).unwrap());
            assert_eq!((both.events, both.end), (alone.events, alone.end));
        }
    }
}

#[test]
fn what_trace_cmd_lost_is_counted_and_the_event_behind_has_its_file() {
    let ple = "     CPU 1/KVM-102   [001]  1.000000300: kvm_exit:   reason EXIT_PAUSE rip 0x0 info 0 0\n";
    let lost = |text: &str| format!("CPU:1 [17 EVENTS DROPPED]\n{text}");
    let recording = read(&format!("{PLUGIN}{}", lost(ple))).unwrap();
    assert_eq!((recording.end.dropped, recording.header.notes.len()), (17, 0));
    assert_eq!(recording.counts()[&Kind::Ple], 2);
    let recording = read(&(PLUGIN.to_string() + "CPU:1 [EVENTS DROPPED]\nCPU:0 [EVENTS DROPPED]\n")).unwrap();
    assert_eq!(recording.end.dropped, 0);
    assert_eq!(recording.header.notes, ["trace-cmd lost events 2 times of which it does not say how many"]);
    // trace-cmd prints the file's name before what was lost, and not before the event that follows.
    let text = merged(PLUGIN, PLUGIN);
    let of_host = read(&format!("{text}trace.dat: {}", lost(ple))).unwrap();
    assert_eq!((of_host.end.dropped, of_host.counts()[&Kind::Ple]), (17, 2));
    let of_guest = read(&format!("{text}guest.dat: {}", lost(ple))).unwrap();
    assert_eq!((of_guest.end.dropped, of_guest.counts()[&Kind::Ple]), (0, 1));
}

#[test]
fn a_host_has_its_idle_pcpus_too() {
    assert_eq!(read(&KERNEL.replace("cpus=2", "cpus=8")).unwrap().header.pcpus.len(), 8);
    assert_eq!(read(&KERNEL.replace("cpus=2", "")).unwrap().header.pcpus.len(), 2);
    assert_eq!(read(&KERNEL.replace("cpus=2", "cpus=4000000000")).unwrap().header.pcpus.len(), 4096);
}

#[test]
fn what_is_no_report_is_one_line() {
    for text in ["", "nonsense", "a-1 [000] 1.0: sched_switch: a:1 [1] R ==> b:2 [1]", "\u{0}\n[[]]]--::"] {
        let error = read(text).unwrap_err();
        assert!(error.contains("trace-cmd record") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_long_line_of_something_else_is_refused_at_once() {
    for piece in ["[", "[1],", "-7 [", "1 [0]"] {
        let begun = Instant::now();
        assert!(read(&piece.repeat(1_000_000)).is_err());
        assert!(begun.elapsed() < Duration::from_secs(20), "{piece}: {:?}", begun.elapsed());
    }
}
