// SPDX-License-Identifier: GPL-2.0-only
//! A report of trace-cmd, damaged: what is made of it makes sense, or there is an error of one line; never a panic.
//!
//! `PROPTEST_CASES=1000000 PROPTEST_RNG_SEED=1 cargo test --release -p cohort-recording --test tracecmd` tries a million.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail as the test does")]

use cohort_recording::event::NOBODY;
use cohort_recording::reader::PCPUS_MAX;
use cohort_recording::tracecmd::read;
use cohort_recording::Kind;
use proptest::prelude::*;
use proptest::sample::{select, Index};

mod cases;

/// Lines of a host, by the kernel's formats and by the plugins'.
const HOST: &str = "\
cpus=2
       CPU 0/KVM-101   [000]  1.000000100: kvm_entry:            vcpu 0, rip 0xffffffff81000000
       CPU 1/KVM-102   [001]  1.000000100: kvm_entry:             vcpu 1 rip 0x0
       CPU 0/KVM-201   [001]  1.000000200: kvm_entry:             vcpu 0 rip 0x0
       CPU 1/KVM-102   [001]  1.000000300: kvm_exit:             vcpu 1 reason PAUSE_INSTRUCTION rip 0x0 info1 0x0 info2 0x0
       CPU 1/KVM-102   [001]  1.000000400: kvm_exit:             reason EXIT_PAUSE rip 0x0 info 0 0
       CPU 0/KVM-101   [000]  1.000001000: sched_switch:         prev_comm=CPU 0/KVM prev_pid=101 prev_prio=120 prev_state=R+ ==> next_comm=x next_pid=9 next_prio=120
     kworker/0:1-9     [000] d..2.  1.000001500: sched_wakeup:         CPU 0/KVM:201 [120] success=1 CPU:001
     kworker/0:1-9     [000]  1.000001600: sched_migrate_task:   comm=CPU 0/KVM pid=101 prio=120 orig_cpu=0 dest_cpu=1
       CPU 0/KVM-101   [000]  1.000001700: kvm_apic_accept_irq:  apicid 1 vec 253 (Fixed|edge)
       CPU 0/KVM-101   [000]  1.000001800: kvm_hypercall:        nr 0xa a0 0x2 a1 0x0 a2 0x0 a3 0xfb
       CPU 0/KVM-101   [000]  1.000001900: kvm_pv_tlb_flush:     vcpu 1 need_flush_tlb true
CPU:1 [17 EVENTS DROPPED]
     kworker/0:1-9     [000]  1.000002000: sched_switch:         kworker/0:1:9 [120] W ==> CPU 0/KVM:101 [120]
       CPU 0/KVM-101   [000]  1.000003000: sched_switch:         CPU 0/KVM:101 [120] S ==> swapper/0:0 [120]
       CPU 0/KVM-101   [000]  1.000004000: sched_waking:         comm=CPU 0/KVM pid=101 prio=120 target_cpu=000
";

/// As `trace-cmd report -i trace.dat -i guest.dat` prints, with so many lines of the guest.
fn merged(guest: usize) -> String {
    let of_host = HOST.lines().map(|line| format!("trace.dat: {line}\n"));
    let switch = "make-7 [001] 1.000000150: sched_switch: make:7 [120] S ==> cc1:8 [120]";
    let of_guest = (0..guest).map(|_| format!("guest.dat: {switch}\n"));
    of_host.chain(["guest.dat: cpus=2\n".to_string()]).chain(of_guest).collect()
}

/// What parsers cut at, and what they do not expect there.
const PIECES: [&str; 24] = [
    "[",
    "]",
    "[]",
    ":",
    ": ",
    "-",
    "=",
    " ==> ",
    "\n",
    " pid=",
    "reason ",
    "vcpu ",
    "cpus=",
    "trace.dat: ",
    "CPU:0 [",
    " EVENTS DROPPED]",
    "99999999999999999999",
    "4294967295",
    "4096",
    "-1",
    "\u{0}",
    "é",
    "\u{1f600}",
    "\t",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(HOST.to_string()), (0usize..40).prop_map(merged)]
}

/// The nearest place at which the text may be cut.
fn place(text: &str, at: Index) -> usize {
    let at = at.index(text.len() + 1);
    (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap()
}

proptest! {
    #![proptest_config(cases::cases())]

    #[test]
    fn damaged_lines_never_panic(
        whole in text(),
        put in prop::collection::vec((any::<Index>(), select(PIECES.to_vec())), 0..6),
        taken in prop::collection::vec((any::<Index>(), 0usize..60), 0..4),
        swapped in prop::collection::vec((any::<Index>(), any::<Index>()), 0..6),
        cut in prop::option::of(any::<Index>()),
    ) {
        let mut lines: Vec<&str> = whole.lines().collect();
        for (a, b) in &swapped {
            let (a, b) = (a.index(lines.len()), b.index(lines.len()));
            lines.swap(a, b);
        }
        let mut damaged = lines.join("\n");
        for (at, piece) in put {
            damaged.insert_str(place(&damaged, at), piece);
        }
        for (at, length) in taken {
            let from = place(&damaged, at);
            damaged = damaged.char_indices().filter(|(at, _)| !(from..from + length).contains(at)).map(|(_, c)| c).collect();
        }
        if let Some(cut) = cut {
            damaged.truncate(place(&damaged, cut));
        }
        match read(&damaged) {
            Ok(recording) => {
                let slots: usize = recording.end.vms.iter().map(|vm| vm.vcpus.len()).sum();
                let events = &recording.events;
                prop_assert!(!events.is_empty() && events.is_sorted_by_key(|event| event.time_ns));
                prop_assert!(events.iter().all(|event| usize::from(event.vcpu) < slots && u32::from(event.cpu) < PCPUS_MAX));
                let of_two = |kind| kind == Kind::Ipi;
                prop_assert!(events.iter().all(|event| !of_two(event.kind) || usize::from(event.b) < slots || event.b == NOBODY));
                let switches = &recording.tasks.switches;
                prop_assert!(switches.is_sorted_by_key(|switch| switch.time_ns));
                let known = |name: u32| (name as usize) < recording.tasks.names.len();
                prop_assert!(switches.iter().all(|to| usize::from(to.slot) < slots && to.to.is_none_or(|(name, _)| known(name))));
                prop_assert!(recording.header.notes.iter().all(|note| !note.contains('\n')));
            }
            Err(error) => prop_assert!(!error.contains('\n') && !error.is_empty(), "{error}"),
        }
    }
}

#[test]
fn what_is_damaged_here_is_read_while_it_is_whole() {
    for text in [HOST.to_string(), merged(30)] {
        let recording = read(&text).unwrap();
        assert_eq!(recording.counts()[&Kind::Ple], 2);
        assert_eq!(recording.end.dropped, 17);
    }
    let recording = read(&merged(30)).unwrap();
    assert_eq!(
        (recording.tasks.switches.len(), recording.tasks.names.len()),
        (30, 1),
        "{:?}",
        recording.header.notes
    );
}
