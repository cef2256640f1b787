// SPDX-License-Identifier: GPL-2.0-only
//! Reports of a host merged with its guests.

use super::read;
use crate::reader::Recording;
use crate::tasks::Switch;

const TURNS: u64 = 40;
const TURN_US: u64 = 1_000;
/// Host and guests begin then, by their common clock.
const START_US: u64 = 5_000_000;

fn line(file: &str, task: &str, cpu: u64, at_us: u64, what: &str) -> String {
    let (seconds, fraction) = (at_us / 1_000_000, at_us % 1_000_000);
    format!("{file:>14}: {task:>16} [{cpu:03}]  {seconds}.{fraction:06}000: {what}\n")
}

/// Two VMs of two vCPUs in turn on two pCPUs; each turn's middle is inside of the guest.
fn host() -> String {
    host_of([[101, 102], [201, 202]])
}

/// The same with these threads: by VM and vCPU.
fn host_of(tids: [[u64; 2]; 2]) -> String {
    let mut text = "     trace.dat: cpus=2\n".to_string();
    for turn in 0..TURNS {
        let begin_us = START_US + turn * TURN_US;
        for cpu in 0..2 {
            let of = |turn: u64| tids[turn as usize % 2][cpu as usize];
            let (tid, before) = (of(turn), of(turn + 1));
            let mut put = |after_us: u64, pid: u64, what: &str| {
                text += &line("trace.dat", &format!("CPU {cpu}/KVM-{pid}"), cpu, begin_us + after_us, what);
            };
            put(
                0,
                before,
                &format!("sched_switch: CPU {cpu}/KVM:{before} [120] R ==> CPU {cpu}/KVM:{tid} [120]"),
            );
            put(50, tid, &format!("kvm_entry:  vcpu {cpu} rip 0x0"));
            put(950, tid, "kvm_exit: reason EXIT_INTR rip 0x0 info 0 0");
        }
    }
    text
}

/// What the VM of the even (0) or of the odd turns (1) says of itself: on its CPU 1 a task and idleness in turn.
fn guest(file: &str, parity: u64, ahead_us: u64) -> String {
    let mut text = format!("{file:>14}: cpus=2\n");
    for turn in (parity..TURNS).step_by(2) {
        let at_us = START_US + ahead_us + turn * TURN_US + 300;
        let wakes = "sched_wakeup: make:77 [120] CPU:001";
        text += &line(file, "swapper/1-0", 1, at_us, wakes);
        let to = "sched_switch: swapper/1:0 [120] R ==> make:77 [120]";
        text += &line(file, "swapper/1-0", 1, at_us + 100, to);
        let to = "sched_switch: prev_comm=make prev_pid=77 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120";
        text += &line(file, "make-77", 1, at_us + 300, to);
    }
    text
}

fn names(recording: &Recording) -> Vec<&str> {
    recording.end.vms.iter().map(|vm| vm.name.as_str()).collect()
}

#[test]
fn a_guest_is_the_vm_that_was_inside_when_it_said_something() {
    for order in [["trace-work.dat", "trace-hog.dat"], ["trace-hog.dat", "trace-work.dat"]] {
        let parity = |file: &str| u64::from(file == "trace-hog.dat");
        let text = host() + &order.map(|file| guest(file, parity(file), 0)).concat();
        let recording = read(&text).unwrap();
        assert_eq!(names(&recording), ["work", "hog"]);
        assert_eq!(recording.tasks.names, ["make"]);
        let first = START_US * 1_000;
        let turns = &recording.tasks.switches;
        assert_eq!(turns.len() as u64, 2 * TURNS);
        assert_eq!(
            turns[..3],
            [
                Switch { time_ns: first + 400_000, slot: 1, to: Some((0, 77)) },
                Switch { time_ns: first + 600_000, slot: 1, to: None },
                Switch { time_ns: first + 1_400_000, slot: 3, to: Some((0, 77)) },
            ]
        );
        let notes = &recording.header.notes;
        assert!(notes.contains(&"trace-work.dat: is the VM work; 40 switches of its tasks are in the trace, its other 20 lines are not used".into()), "{notes:?}");
        assert_eq!(recording.events, read(&host()).unwrap().events);
    }
}

#[test]
fn vcpus_of_vms_that_began_together_are_told_apart_by_their_guests() {
    let both = |file: &str, parity: u64| {
        guest(file, parity, 0) + &guest(file, parity, 0).replace("[001]", "[000]").replace("make", "sh")
    };
    // Each VM's thread follows the other's: by their order alone, the last two would be swapped.
    let host = host_of([[101, 103], [102, 104]]);
    let tids = |recording: &Recording| -> Vec<Vec<u32>> {
        recording.end.vms.iter().map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.tid).collect()).collect()
    };
    let alone = read(&host).unwrap();
    assert_eq!(tids(&alone), [[101, 104], [102, 103]]);
    assert!(alone.header.notes[0].starts_with("which of the vCPUs are whose is a guess"));
    for (file, parity, wanted) in [("trace-a.dat", 0, ["a", "vm1"]), ("trace-b.dat", 1, ["vm0", "b"])] {
        let recording = read(&(host.clone() + &both(file, parity))).unwrap();
        assert_eq!(tids(&recording), [[101, 103], [102, 104]]);
        assert_eq!(names(&recording), wanted);
        assert_eq!(recording.header.notes.len(), 1, "{:?}", recording.header.notes);
        assert_eq!(recording.tasks.switches.len() as u64, 2 * TURNS);
    }
    // One CPU alone says nothing of the other.
    let recording = read(&(host + &guest("trace-a.dat", 0, 0))).unwrap();
    assert_eq!(tids(&recording), [[101, 104], [102, 103]]);
    assert!(recording.header.notes[0].starts_with("which of the vCPUs are whose is a guess"));
}

#[test]
fn a_guests_cpu_is_the_vcpu_of_its_number_or_of_its_place() {
    let slots = |host: &str, cpu: &str| {
        let guests = guest("trace-a.dat", 0, 0) + &guest("trace-b.dat", 1, 0);
        let recording = read(&(host.to_string() + &guests.replace("[001]", cpu))).unwrap();
        let slots: Vec<u16> = recording.tasks.switches.iter().map(|switch| switch.slot).collect();
        if !slots.is_empty() {
            assert_eq!(names(&recording), ["a", "b"]);
            assert_eq!(slots.len() as u64, 2 * TURNS);
        }
        // Both VMs' first turns.
        slots.into_iter().take(3).collect::<Vec<_>>()
    };
    // Their vCPU 1 never entered, or there is none.
    let hole = host().replace("vcpu 1 ", "vcpu 2 ");
    assert_eq!(slots(&hole, "[002]"), [1, 1, 3], "by its number");
    assert_eq!(slots(&hole, "[001]"), [1, 1, 3], "by its place");
    assert_eq!(slots(&hole, "[000]"), [0, 0, 2], "by either");
    assert_eq!(slots(&hole, "[003]"), Vec::<u16>::new(), "it has no such vCPU");
    // Both fit: the first one never entered.
    let later = hole.replace("vcpu 0 ", "vcpu 1 ");
    assert_eq!(slots(&later, "[001]"), [0, 0, 2]);
    assert_eq!(slots(&later, "[002]"), [1, 1, 3]);
}

#[test]
fn a_guest_that_fits_nobody_is_left_out_and_named() {
    let told = |guests: &str| {
        let recording = read(&(host() + guests)).unwrap();
        assert_eq!((names(&recording)[1], recording.tasks.switches.len()), ("vm1", 0));
        recording.header.notes.join("\n")
    };
    // Another clock.
    let notes = told(&guest("other.dat", 0, 60_000_000));
    assert!(notes.starts_with("other.dat: is left out, 60 lines: it fits no VM; best vm"), "{notes}");
    // Of another host, or of no VM that there is: its CPU 1 says something in each turn.
    let both = guest("other.dat", 0, 0) + &guest("other.dat", 1, 0);
    let notes = told(&both);
    assert!(notes.contains("it fits no VM; best vm0, which was in its guest for 50 % of them"), "{notes}");
    let few: String = guest("other.dat", 0, 0).lines().take(10).map(|line| format!("{line}\n")).collect();
    assert_eq!(told(&few), "other.dat: is left out, 9 lines: too few to know which VM it is");
    assert_eq!(
        told("     other.dat: cpus=2\n"),
        "other.dat: is left out, 0 lines: too few to know which VM it is"
    );
}

#[test]
fn two_that_could_be_the_same_are_not_guessed() {
    let text = host() + &guest("a.dat", 0, 0) + &guest("b.dat", 0, 1);
    let recording = read(&text).unwrap();
    assert_eq!(names(&recording), ["a", "vm1"]);
    let notes = &recording.header.notes;
    assert_eq!(notes[1], "b.dat: is left out, 60 lines: it fits a, and so does a.dat");
    // Both VMs run all of the time, on a pCPU each.
    let each = |tid: u64, cpu: u64| {
        line("trace.dat", &format!("x-{tid}"), cpu, START_US, "kvm_entry:  vcpu 0 rip 0x0")
            + &line(
                "trace.dat",
                "x-9",
                cpu,
                START_US,
                &format!("sched_switch: x:9 [120] S ==> x:{tid} [120]"),
            )
    };
    let ones = "     trace.dat: cpus=2\n".to_string() + &each(101, 0) + &each(102, 1);
    let recording = read(&(ones + &guest("a.dat", 0, 0).replace("[001]", "[000]"))).unwrap();
    assert_eq!(recording.header.notes, ["a.dat: is left out, 60 lines: it fits vm0 and vm1"]);
    assert!(recording.tasks.switches.is_empty());
}

#[test]
fn what_was_lost_of_a_guest_is_said() {
    let lost = "     other.dat: CPU:1 [17 EVENTS DROPPED]\n";
    let recording = read(&(host() + &guest("other.dat", 0, 0) + lost)).unwrap();
    assert_eq!(recording.header.notes[0], "other.dat: trace-cmd lost 17 events of it, or more");
    assert_eq!(recording.end.dropped, 0);
}
