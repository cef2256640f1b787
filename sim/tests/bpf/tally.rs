// SPDX-License-Identifier: GPL-2.0-only
//! What a VM is told of what its tasks have counted.

use crate::common::*;
use crate::spec::Spec;
use crate::world::World;

/// TELL_NS of tally.h; it is looked at when run time is charged, at ticks at the latest.
const TELL_NS: u64 = 20 * MS;

#[test]
fn a_vm_is_told_within_two_ticks_of_its_time() {
    let mut w = world(2);
    let (vm, vcpus) = busy_vm(&mut w, 2);
    busy_vm(&mut w, 2);
    w.run(400 * MS);
    let slot = w.slot_of(vm).unwrap();
    let late = vcpus.len() as u64 * (TELL_NS + 2 * w.config.tick_ns);
    let (mut last, mut changes) = (w.peek_vm_told(slot).runtime_ns, 0);
    for _ in 0..400 {
        w.run(MS);
        let (told, counted) = (w.peek_vm_told(slot).runtime_ns, w.peek_vm(slot).runtime_ns);
        assert!(told <= counted && counted - told <= late, "{} of {} us", told / 1000, counted / 1000);
        changes += u64::from(told != last);
        last = told;
    }
    // Nor more often: at other times no line is touched that the VM's other vCPUs touch.
    assert!(changes <= vcpus.len() as u64 * 400 * MS / TELL_NS, "told {changes} times");
}

#[test]
fn who_leaves_tells_first() {
    let mut w = world(2);
    let (vm, vcpus) = busy_vm(&mut w, 3);
    busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    let slot = w.slot_of(vm).unwrap();
    to_a_tick(&mut w);
    let used = |w: &World| vcpus.iter().map(|id| w.task(*id).used_ns).sum::<u64>();
    let (counted_before, used_before) = (w.peek_vm(slot).runtime_ns, used(&w));
    for id in &vcpus[..2] {
        w.run(3 * MS + 300_000);
        w.exit(*id);
    }
    to_a_tick(&mut w);
    assert_eq!(w.peek_vm(slot).runtime_ns - counted_before, used(&w) - used_before);
}

#[test]
fn each_exit_of_a_spinner_is_counted_once() {
    let mut w = world(1);
    let (vm, vcpus) = busy_vm(&mut w, 1);
    w.run(400 * MS);
    let slot = w.slot_of(vm).unwrap();
    let before = w.peek_vm(slot).ple;
    for done in 1..=40 {
        w.run(MS);
        w.pause_exit(vcpus[0]);
        assert_eq!(w.peek_vm(slot).ple - before, done);
    }
    w.run(TELL_NS + 2 * w.config.tick_ns);
    assert_eq!(w.peek_vm_told(slot).ple - before, 40);
}

#[test]
fn a_thread_takes_no_counts_to_another_vm() {
    let mut w = world(1);
    let (first, vcpus) = busy_vm(&mut w, 1);
    let io = w.spawn(Spec::busy().thread_of(w.vm_tgid(first)));
    w.run(400 * MS);
    assert_ne!(w.peek_task(io).vm, 0);
    w.exit(vcpus[0]);
    w.run(5 * MS);
    let (second, _) = busy_vm(&mut w, 1);
    w.run(400 * MS);
    let slot = w.slot_of(second).unwrap();
    assert!(w.peek_vm(slot).runtime_ns < 400 * MS);
    assert_eq!(w.peek_task(io).vm, 0);
}

/// Every runner has just been charged.
fn to_a_tick(w: &mut World) {
    let tick_ns = w.config.tick_ns;
    w.run(tick_ns - w.now_ns % tick_ns);
}
