// SPDX-License-Identifier: GPL-2.0-only
//! What a VM is told of what its tasks have counted.

use crate::common::*;
use crate::spec::Spec;
use crate::view::Task;
use crate::world::{TaskId, World};

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
fn each_switch_and_each_wait_is_counted_once() {
    let mut w = world(2);
    let (vm, vcpus) = busy_vm(&mut w, 3);
    busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    let slot = w.slot_of(vm).unwrap();
    let truth = |w: &World| {
        let sum = |count: fn(&Task) -> u64| vcpus.iter().map(|id| count(w.task(*id))).sum::<u64>();
        (sum(|task| task.switches), sum(|task| task.wait_ns))
    };
    let counted = |w: &mut World| (w.peek_vm(slot).switches, w.peek_vm(slot).wait_ns);
    let (true_before, before) = (truth(&w), counted(&mut w));
    for _ in 0..100 {
        w.run(7 * MS);
        let (now, wanted) = (counted(&mut w), truth(&w));
        assert_eq!(
            (now.0 - before.0, now.1 - before.1),
            (wanted.0 - true_before.0, wanted.1 - true_before.1)
        );
    }
    assert!(truth(&w).0 > true_before.0 + 20);
}

/// A process with two VMs, and a thread of it that belonged to the first; they run on pCPUs of their own. It sleeps, with something to tell.
fn thread_of_two_vms(w: &mut World) -> (usize, TaskId, TaskId, usize) {
    let first = w.new_vm(1);
    let tgid = w.vm_tgid(first);
    let vcpu = w.spawn(Spec::busy().on(&[0]).vcpu(first, 0));
    introduce(w, &[vcpu]);
    let io = w.spawn(Spec::busy().on(&[1]).thread_of(tgid));
    let slot = w.slot_of(first).unwrap();
    w.run(400 * MS);
    assert_eq!(w.peek_task(io).vm as usize, slot as usize);
    while w.peek_vm(slot).runtime_ns - w.peek_vm_told(slot).runtime_ns < 25 * MS {
        w.run(MS);
    }
    w.sleep(io);
    w.sleep(vcpu);
    // Of this the vCPU has not more than may be late.
    assert!(w.peek_vm(slot).runtime_ns - w.peek_vm_told(slot).runtime_ns > 24 * MS);
    (first, vcpu, io, w.new_vm(1))
}

#[test]
fn a_thread_tells_the_vm_that_it_leaves() {
    let mut w = world(3);
    let (first, _, io, second) = thread_of_two_vms(&mut w);
    let slot = w.slot_of(first).unwrap();
    let other = w.spawn(Spec::busy().on(&[2]).thread_of(w.vm_tgid(first)).vcpu(second, 0));
    introduce(&mut w, &[other]);
    let now = w.slot_of(second).unwrap();
    let (counted, used) = (w.peek_vm(slot).runtime_ns, w.task(io).used_ns);
    let (before, other_used) = (w.peek_vm(now).runtime_ns, w.task(other).used_ns);
    w.wake(io);
    w.run(100 * MS);
    to_a_tick(&mut w);
    assert_eq!(w.peek_task(io).vm as usize, now as usize);
    assert_eq!(w.peek_vm(slot).runtime_ns, counted);
    let since = w.task(io).used_ns - used + w.task(other).used_ns - other_used;
    assert_eq!(w.peek_vm(now).runtime_ns - before, since);
}

#[test]
fn a_thread_takes_no_counts_to_another_vm() {
    let mut w = world(3);
    let (first, vcpu, io, second) = thread_of_two_vms(&mut w);
    let used = w.task(io).used_ns;
    w.exit(vcpu);
    w.run(100 * MS);
    let other = w.spawn(Spec::busy().on(&[2]).thread_of(w.vm_tgid(first)).vcpu(second, 0));
    introduce(&mut w, &[other]);
    let now = w.slot_of(second).unwrap();
    let before = w.peek_vm(now).runtime_ns;
    let other_used = w.task(other).used_ns;
    w.wake(io);
    w.run(100 * MS);
    to_a_tick(&mut w);
    let since = w.task(io).used_ns - used + w.task(other).used_ns - other_used;
    assert_eq!(w.peek_vm(now).runtime_ns - before, since);
}

/// Every runner has just been charged.
fn to_a_tick(w: &mut World) {
    let tick_ns = w.config.tick_ns;
    w.run(tick_ns - w.now_ns % tick_ns);
}
