// SPDX-License-Identifier: GPL-2.0-only
//! Reads traces back: are slices nested, strings known, flows complete, times in order?

use std::collections::{BTreeMap, BTreeSet};

use super::super::protobuf::{decode, Field};
use super::fields::*;
use super::writer::SEQUENCE;
use super::*;
use crate::ids::{CpuId, VmId};
use crate::metrics::layout::{TaskLayout, VmLayout};
use crate::observe::Spin;

fn numbers(fields: &[(u32, Field)], wanted: u32) -> Vec<u64> {
    let number = |(field, value): &(u32, Field)| match value {
        Field::Number(number) if *field == wanted => Some(*number),
        _ => None,
    };
    fields.iter().filter_map(number).collect()
}

fn messages(fields: &[(u32, Field)], wanted: u32) -> Vec<Vec<(u32, Field)>> {
    let message = |(field, value): &(u32, Field)| match value {
        Field::Data(bytes) if *field == wanted => Some(decode(bytes).expect("a message")),
        _ => None,
    };
    fields.iter().filter_map(message).collect()
}

fn text(fields: &[(u32, Field)], wanted: u32) -> String {
    let found = fields.iter().find_map(|(field, value)| match value {
        Field::Data(bytes) if *field == wanted => Some(String::from_utf8(bytes.clone()).unwrap()),
        _ => None,
    });
    found.unwrap_or_default()
}

/// What a reader makes of a trace.
#[derive(Debug, Default)]
struct Read {
    tracks: BTreeMap<u64, String>,
    /// Track, name, start, end; in the order of the ends.
    slices: Vec<(u64, String, Ns, Ns)>,
    instants: Vec<(u64, String, Ns)>,
    /// By their ids: where each was, as track and time, and whether it has ended.
    flows: BTreeMap<u64, (Vec<(u64, Ns)>, bool)>,
}

fn read(bytes: &[u8]) -> Read {
    let (mut read, mut last_ns) = (Read::default(), 0);
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<(String, Ns)>> = BTreeMap::new();
    for packet in messages(&decode(bytes).expect("a trace"), 1) {
        assert_eq!(numbers(&packet, packet::SEQUENCE_ID), [SEQUENCE]);
        for track in messages(&packet, packet::TRACK_DESCRIPTOR) {
            let uuid = numbers(&track, descriptor::UUID)[0];
            let process = messages(&track, descriptor::PROCESS);
            let name = process.first().map_or_else(
                || text(&track, descriptor::NAME),
                |process| text(process, descriptor::PROCESS_NAME),
            );
            for parent in numbers(&track, descriptor::PARENT) {
                assert!(read.tracks.contains_key(&parent), "a track before its parent");
            }
            assert!(read.tracks.insert(uuid, name).is_none(), "a track twice");
        }
        for interned in messages(&packet, packet::INTERNED_DATA) {
            for entry in messages(&interned, NAMES) {
                assert!(names.insert(numbers(&entry, 1)[0], text(&entry, 2)).is_none(), "a name twice");
            }
        }
        for event in messages(&packet, packet::TRACK_EVENT) {
            let now_ns = numbers(&packet, packet::TIMESTAMP)[0];
            assert!(now_ns >= last_ns, "time goes backwards");
            last_ns = now_ns;
            let track = numbers(&event, event::TRACK)[0];
            assert!(read.tracks.contains_key(&track), "an event on no track");
            let name =
                numbers(&event, event::NAME).first().map(|iid| names.get(iid).expect("a known name").clone());
            match numbers(&event, event::TYPE)[..] {
                [event::BEGIN] => open.entry(track).or_default().push((name.expect("a name"), now_ns)),
                [event::END] => {
                    let (name, start_ns) = open.get_mut(&track).and_then(Vec::pop).expect("an open slice");
                    read.slices.push((track, name, start_ns, now_ns));
                }
                [event::INSTANT] => read.instants.push((track, name.expect("a name"), now_ns)),
                _ => panic!("an event of no type"),
            }
            for flow in numbers(&event, event::FLOW) {
                let (places, ended) = read.flows.entry(flow).or_default();
                assert!(!*ended, "a flow goes on after its end");
                places.push((track, now_ns));
            }
            for flow in numbers(&event, event::FLOW_END) {
                let (places, ended) = read.flows.get_mut(&flow).expect("a flow that has begun");
                assert!(!std::mem::replace(ended, true), "a flow ends twice");
                places.push((track, now_ns));
            }
        }
    }
    assert!(open.values().all(Vec::is_empty), "slices left open");
    read
}

fn layout() -> Layout {
    let vm = VmLayout { name: "work".into(), vcpus: 2, weight: 100, pinned: false };
    let vcpu = |id: u32| TaskLayout {
        name: format!("work/{id}"),
        vm: Some(0),
        vcpu: Some(VcpuId { vm: VmId(0), id }),
        waits_on: None,
    };
    let other = TaskLayout { name: "daemon".into(), ..TaskLayout::default() };
    Layout { pcpus: 1, vms: vec![vm], tasks: vec![vcpu(0), vcpu(1), other], ..Layout::default() }
}

const V0: VcpuId = VcpuId { vm: VmId(0), id: 0 };
const V1: VcpuId = VcpuId { vm: VmId(0), id: 1 };

fn switch(prev: Option<u32>, why: Stop, next: Option<u32>) -> What {
    What::Switch { cpu: CpuId(0), prev: prev.map(TaskId), why, next: next.map(TaskId) }
}

fn trace(events: &[(Ns, What)], bytes_max: usize, end_ns: Ns) -> (Vec<u8>, bool) {
    let mut trace = Perfetto::new(layout(), bytes_max);
    for (now_ns, what) in events {
        trace.record(*now_ns, what);
    }
    (trace.finish(end_ns), trace.is_truncated())
}

#[test]
fn a_spin_goes_on_across_preemptions_and_a_yield_leads_to_its_target() {
    let events = [
        (0, What::Wakeup { task: TaskId(0), cpu: CpuId(0) }),
        (0, switch(None, Stop::Preempted, Some(0))),
        (1, What::Wakeup { task: TaskId(1), cpu: CpuId(0) }),
        (2, What::ShootdownStart { vcpu: V0, targets: 1 }),
        (2, What::GuestIpiSent { from: V0, to: V1, vector: 250 }),
        (3, What::SpinStart { vcpu: V0, why: Spin::Shootdown }),
        (5, What::Ple { vcpu: V0, kernel: true }),
        (5, What::DirectedYield { from: V0, to: V1, granted: true }),
        (6, switch(Some(0), Stop::Preempted, Some(1))),
        (7, What::GuestIpiTaken { vcpu: V1, vector: 250 }),
        (9, switch(Some(1), Stop::Blocked, Some(0))),
        (10, What::SpinEnd { vcpu: V0, why: Spin::Shootdown, spun_ns: 4 }),
        (11, What::ShootdownEnd { vcpu: V0, targets: 1, took_ns: 9 }),
    ];
    let read = read(&trace(&events, usize::MAX, 12).0);
    let tracks: Vec<_> = read.tracks.values().map(String::as_str).collect();
    assert_eq!(tracks, ["host", "pCPU 0", "work", "vCPU 0", "vCPU 1", "vCPU 0, guest", "vCPU 1, guest"]);
    let slice = |track: u64, name: &str, start_ns, end_ns| (track, name.to_string(), start_ns, end_ns);
    assert_eq!(
        read.slices,
        [
            slice(VCPU, "waiting", 0, 0),
            slice(PCPU, "work/0", 0, 6),
            slice(VCPU, "running", 0, 6),
            slice(VCPU + 1, "waiting", 1, 6),
            slice(PCPU, "work/1", 6, 9),
            slice(VCPU + 1, "running", 6, 9),
            slice(VCPU, "waiting", 6, 9),
            slice(GUEST, "spin: shootdown", 3, 10),
            slice(GUEST, "TLB shootdown", 2, 11),
            slice(PCPU, "work/0", 9, 12),
            slice(VCPU, "running", 9, 12),
        ]
    );
    let names: Vec<_> = read.instants.iter().map(|(_, name, at_ns)| (name.as_str(), *at_ns)).collect();
    assert_eq!(names, [("IPI sent", 2), ("PAUSE exit", 5), ("yield", 5), ("IPI taken", 7)]);
    let flows: Vec<_> = read.flows.into_values().collect();
    let of_ple = vec![(GUEST, 5), (GUEST, 5), (VCPU + 1, 6)];
    assert_eq!(flows, [(vec![(GUEST, 2), (GUEST + 1, 7)], true), (of_ple, true)]);
}

#[test]
fn a_pause_loop_exit_leads_to_the_turn_that_its_yield_gave_and_to_no_other() {
    let ple = What::Ple { vcpu: V0, kernel: true };
    let asks = |granted| What::DirectedYield { from: V0, to: V1, granted };
    let ipi = What::GuestIpiSent { from: V0, to: V1, vector: 250 };
    let flows = |events: &[(Ns, What)]| -> Vec<_> {
        let begin = [(0, switch(None, Stop::Preempted, Some(0)))];
        let end = [(8, switch(Some(0), Stop::Preempted, Some(1)))];
        read(&trace(&[&begin, events, &end].concat(), usize::MAX, 9).0).flows.into_values().collect()
    };
    let turn = (VCPU + 1, 8);
    // Refused, then granted: one exit. Between them lies what KVM needs.
    let found = flows(&[(1, ple), (2, asks(false)), (3, asks(true))]);
    assert_eq!(found, [(vec![(GUEST, 1), (GUEST, 3), turn], true)]);
    // Nobody could be had: it leads nowhere. The next one does.
    let found = flows(&[(1, ple), (2, asks(false)), (4, ple), (5, asks(true))]);
    assert_eq!(found, [(vec![(GUEST, 1)], false), (vec![(GUEST, 4), (GUEST, 5), turn], true)]);
    // A hypercall's yield: the guest went on after the exit, or was away.
    let found = flows(&[(1, ple), (2, ipi), (3, asks(true))]);
    let sent = (vec![(GUEST, 2)], false);
    assert_eq!(found, [(vec![(GUEST, 1)], false), sent, (vec![(GUEST, 3), turn], true)]);
    let away =
        [(1, ple), (2, switch(Some(0), Stop::Preempted, None)), (3, switch(None, Stop::Preempted, Some(0)))];
    let found = flows(&[&away[..], &[(4, asks(true))]].concat());
    assert_eq!(found, [(vec![(GUEST, 1)], false), (vec![(GUEST, 4), turn], true)]);
}

#[test]
fn a_guests_tasks_go_on_whether_or_not_their_vcpu_runs() {
    let mut perfetto = Perfetto::new(layout(), usize::MAX).with_tasks([V1]);
    perfetto.task(1, V1, Some(("make", 77)));
    perfetto.record(2, &switch(None, Stop::Preempted, Some(1)));
    perfetto.record(4, &switch(Some(1), Stop::Preempted, Some(0)));
    perfetto.task(5, V1, Some(("cc1", 78)));
    perfetto.task(6, V1, None);
    perfetto.task(8, V1, Some(("make", 77)));
    let read = read(&perfetto.finish(9));
    let tracks: Vec<_> = read.tracks.iter().filter(|(_, name)| name.ends_with("tasks")).collect();
    assert_eq!(tracks, [(&(TASKS + 1), &"vCPU 1, tasks".to_string())]);
    let slices: Vec<_> = read.slices.iter().filter(|(track, ..)| *track == TASKS + 1).collect();
    let told: Vec<_> =
        slices.iter().map(|(_, name, begin_ns, end_ns)| (name.as_str(), *begin_ns, *end_ns)).collect();
    assert_eq!(told, [("make", 1, 5), ("cc1", 5, 6), ("make", 8, 9)]);
}

#[test]
fn a_spin_goes_with_its_task_to_another_vcpu() {
    let spin = |vcpu, why| What::SpinStart { vcpu, why };
    let end = |vcpu, why| What::SpinEnd { vcpu, why, spun_ns: 0 };
    let guest_switch = |vcpu, prev, next| What::GuestSwitch { vcpu, prev, next };
    let events = [
        (0, guest_switch(V0, u32::MAX, 5)),
        (0, guest_switch(V1, u32::MAX, 6)),
        (10, spin(V0, Spin::Barrier)),
        (20, guest_switch(V0, 5, 7)),
        // Task 7 waits as well, on the same vCPU.
        (22, spin(V0, Spin::Barrier)),
        (30, guest_switch(V1, 6, 5)),
        (32, spin(V1, Spin::Lock)),
        (35, end(V1, Spin::Lock)),
        (37, end(V1, Spin::Barrier)),
        (42, end(V0, Spin::Barrier)),
    ];
    let slice = |track: u64, name: &str, start_ns, end_ns| (track, name.to_string(), start_ns, end_ns);
    assert_eq!(
        read(&trace(&events, usize::MAX, 50).0).slices,
        [
            slice(GUEST, "spin: barrier", 10, 20),
            slice(GUEST + 1, "spin: lock", 32, 35),
            slice(GUEST + 1, "spin: barrier", 30, 37),
            slice(GUEST, "spin: barrier", 22, 42),
        ]
    );
}

#[test]
fn slices_nest_even_if_their_ends_do_not() {
    let events = [
        (1, What::ShootdownStart { vcpu: V0, targets: 1 }),
        (2, What::SpinStart { vcpu: V0, why: Spin::Lock }),
        (3, What::ShootdownEnd { vcpu: V0, targets: 1, took_ns: 2 }),
        (4, What::SpinEnd { vcpu: V0, why: Spin::Lock, spun_ns: 2 }),
        (5, What::SpinEnd { vcpu: V1, why: Spin::User, spun_ns: 2 }),
    ];
    let ends: Vec<_> =
        read(&trace(&events, usize::MAX, 9).0).slices.into_iter().map(|(.., end_ns)| end_ns).collect();
    assert_eq!(ends, [3, 3]);
}

#[test]
fn a_trace_that_is_cut_off_is_whole() {
    let turns: Vec<_> = (0..1000u64)
        .map(|at_ns| {
            (
                at_ns,
                switch(
                    (at_ns > 0).then_some(at_ns as u32 % 2),
                    Stop::Preempted,
                    Some((at_ns as u32 + 1) % 2),
                ),
            )
        })
        .collect();
    let (bytes, truncated) = trace(&turns, 4000, 1000);
    assert!(truncated);
    assert!(bytes.len() < 5000, "{}", bytes.len());
    let read = read(&bytes);
    // Nothing is said of the time after its last event.
    let last_ns = read.slices.iter().map(|(_, _, start_ns, _)| *start_ns).max();
    assert_eq!(read.slices.iter().map(|(.., end_ns)| *end_ns).max(), last_ns);
    let names: BTreeSet<_> = read.slices.into_iter().map(|(_, name, ..)| name).collect();
    assert!(names.contains("work/0") && names.contains("running"));
}
