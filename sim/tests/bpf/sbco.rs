// SPDX-License-Identifier: GPL-2.0-only
//! Order sbco: the paper's worked examples, and what it promises.

use crate::common::*;
use crate::spec::{knob, Knobs, Spec};
use crate::view::State;
use crate::world::{TaskId, World};

/// alpha = 1, of which its values are parts.
const ONE: u32 = 65_536;

fn sbco(cpus: usize) -> World {
    world_with(cpus, Knobs { order: Some(knob::ORDER_SBCO), boost: Some(0), ..Knobs::default() })
}

/// As many VMs of one vCPU for each pCPU, known as such, not in step.
fn crowd(cpus: usize, vms: usize) -> (World, Vec<Vec<TaskId>>) {
    let mut w = sbco(cpus);
    let vms: Vec<Vec<TaskId>> = (0..vms).map(|_| busy_vm(&mut w, cpus).1).collect();
    vms.iter().for_each(|vm| introduce(&mut w, vm));
    (w, vms)
}

/// What has been lent and not yet received is on a debt list, and who is on a debt list, as one or the other, is dirty: once.
#[track_caller]
fn audit_loans(w: &mut World, vm: &[TaskId]) {
    let known: Vec<_> = vm.iter().map(|id| w.peek_sbco(*id)).collect();
    let lent: i64 = known.iter().map(|vcpu| vcpu.lent).sum();
    let owed: u64 = known.iter().map(|vcpu| vcpu.owed).sum();
    assert_eq!(lent, owed as i64, "lent and owed: {known:?}");
    let debts = known.iter().filter(|vcpu| vcpu.owed > 0).count();
    let dirty = known.iter().filter(|vcpu| vcpu.dirty != 0).count();
    assert_eq!(dirty, 2 * debts, "dirty, and debts: {known:?}");
}

/// The same for every VM of whose vCPUs none has exited, and perhaps taken its debts with it.
#[track_caller]
pub fn audit_all_loans(w: &mut World) {
    for vm in 0..w.vm_count() {
        let of_vm = |i: &usize| w.tasks[*i].vcpu.is_some_and(|vcpu| vcpu.vm.index() == vm);
        let vcpus: Vec<TaskId> = (0..w.tasks.len()).filter(of_vm).map(TaskId).collect();
        if vcpus.iter().all(|id| w.task(*id).state != State::Dead && !w.task(*id).is_exiting()) {
            audit_loans(w, &vcpus);
        }
    }
}

#[test]
fn the_run_queue_of_figure_3_has_ordinates_0_to_7() {
    // Thread, virtual run time in us less 5556 ms, whether it is a vCPU; and the order in which they come.
    let figure = [
        (3173, 399, true),
        (3161, 620, false),
        (3177, 792, false),
        (3164, 1_007, true),
        (3159, 1_192, false),
        (3181, 1_198, true),
        (3168, 3_010, false),
        (3187, 4_140, true),
    ];
    let come = [0, 5, 2, 7, 1, 6, 3, 4];
    // vCPUs and the others weigh the same, so that nobody preempts, and virtual time is time.
    let mut w = sbco(1);
    let vm = w.new_vm(4);
    let mut vcpus = 0..4;
    let tasks: Vec<TaskId> = figure
        .iter()
        .map(|(_, _, vcpu)| match vcpu {
            true => w.spawn(Spec::busy().vcpu(vm, vcpus.next().unwrap())),
            false => w.spawn(Spec::busy()),
        })
        .collect();
    introduce(&mut w, &tasks);
    tasks.iter().for_each(|id| w.sleep(*id));
    w.run(100 * MS);
    assert!(tasks.iter().all(|id| w.task(*id).state == State::Asleep));
    // The figure's eight are in the tree, and so do not run: somebody else has the pCPU, and nobody deserves that more by a preemption's margin.
    let runner = w.spawn(Spec::busy());
    w.settle();
    let base = w.peek_sbco(runner).place;
    for (id, (_, vruntime_us, _)) in tasks.iter().zip(figure) {
        w.set_vtime(*id, base + vruntime_us * 1_000);
    }
    come.iter().for_each(|i| w.wake(tasks[*i]));
    let ordinates: Vec<u32> = tasks.iter().map(|id| w.peek_sbco(*id).ordinate).collect();
    assert!(w.is_running(runner), "test");
    assert_eq!(ordinates, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn siblings_far_apart_are_brought_together_and_share_what_they_lend() {
    let (mut w, vms) = crowd(4, 7);
    let (mut owed, mut lent) = (0, 0);
    for _ in 0..4_000 {
        w.run(MS / 2);
        for vm in &vms {
            audit_loans(&mut w, vm);
            owed += vm.iter().filter(|id| w.peek_sbco(**id).owed > 0).count();
            // A turn of 16 ms, of a quarter of the VM's weight.
            let most = vm.iter().map(|id| w.peek_sbco(*id).lent.abs()).max().unwrap();
            assert!(most <= 4 * 16 * MS as i64, "lent or borrowed in all: {most}");
            lent += vm.iter().filter(|id| w.peek_sbco(**id).lent != 0).count();
        }
    }
    audit(&mut w);
    assert!(w.stats().sbco_balanced > 10, "{} loans: test", w.stats().sbco_balanced);
    assert!(owed > 10 && lent > 10, "seen: {owed} debts, {lent} loans: test");
}

/// Three queues, each with somebody who has the pCPU and then those that wait, in the order of their virtual times, given in us. Letters are vCPUs of one VM, all others host tasks.
const QUEUES: [&[(&str, u64)]; 3] = [
    &[("x0", 0), ("a", 100), ("h1", 2_000), ("h2", 3_000), ("h3", 60_000)],
    &[("x1", 0), ("h4", 1_000), ("h5", 2_000), ("h6", 3_000), ("h7", 4_000), ("b", 40_000)],
    &[("x2", 0), ("c", 100), ("h8", 2_000), ("h9", 3_000), ("d", 5_000)],
];

/// Those queues, and who is who in them.
fn three_queues() -> (World, impl Fn(&str) -> TaskId) {
    let mut w = sbco(3);
    let vm = w.new_vm(4);
    let mut by_name = Vec::new();
    for (cpu, queue) in QUEUES.iter().enumerate() {
        for (name, vtime_us) in *queue {
            let vcpu = ["a", "b", "c", "d"].iter().position(|letter| letter == name);
            let spec = Spec::busy().on(&[cpu]);
            let spec = if let Some(id) = vcpu { spec.vcpu(vm, id) } else { spec };
            by_name.push((*name, w.spawn(spec), *vtime_us));
        }
    }
    let all: Vec<TaskId> = by_name.iter().map(|(_, id, _)| *id).collect();
    introduce(&mut w, &all);
    all.iter().for_each(|id| w.sleep(*id));
    while !all.iter().all(|id| w.task(*id).state == State::Asleep) {
        w.run(MS);
    }
    let base = all.iter().map(|id| w.peek_sbco(*id).place).max().unwrap();
    for (_, id, vtime_us) in &by_name {
        w.set_vtime(*id, base + vtime_us * 1_000);
    }
    // Who comes first has the pCPU, and nobody after it deserves that more.
    for (_, id, _) in &by_name {
        w.wake(*id);
    }
    let find = move |name: &str| by_name.iter().find(|(known, ..)| *known == name).unwrap().1;
    for queue in QUEUES {
        for (ordinate, (name, _)) in queue[1..].iter().enumerate() {
            let task = w.peek_sbco(find(name));
            assert_eq!(task.ordinate as usize, ordinate, "{name}: test");
        }
    }
    (w, find)
}

#[test]
fn a_dirty_vcpu_is_skipped() {
    // a is first in its queue of four, b has four ahead of it in another, more than two thirds of that: a is passed over, and both are dirty.
    let (mut w, id) = three_queues();
    w.sleep(id("x0"));
    w.settle();
    assert_eq!(w.stats().sbco_balanced, 1);
    assert!(w.is_running(id("h1")), "a's successor");
    assert_eq!(["a", "b", "c", "d"].map(|name| w.peek_sbco(id(name)).dirty), [1, 1, 0, 0]);
    // c is first in its queue. The one that is far back for it is dirty: c runs.
    w.sleep(id("x2"));
    w.settle();
    assert_eq!(w.stats().sbco_balanced, 1);
    assert!(w.is_running(id("c")));
    audit_loans(&mut w, &["a", "b", "c", "d"].map(&id));
    // When b's queue is looked at next, b receives what a has lent, and nobody is dirty.
    w.sleep(id("x1"));
    w.settle();
    assert_eq!(["a", "b", "c", "d"].map(|name| w.peek_sbco(id(name)).dirty), [0; 4]);

    // Had b's queue been looked at before, c would have been passed over: b has moved, and is still far back.
    let (mut w, id) = three_queues();
    for name in ["x0", "x1", "x2"] {
        w.sleep(id(name));
        w.settle();
    }
    assert_eq!(w.stats().sbco_balanced, 2);
    assert!(w.is_running(id("h8")), "c's successor");
    audit_loans(&mut w, &["a", "b", "c", "d"].map(&id));
}

#[test]
fn a_dirty_vcpu_that_is_first_in_its_queue_runs() {
    let (mut w, id) = three_queues();
    // Whoever was between a and where it is now is gone before b's queue has been looked at.
    for name in ["x0", "h1", "h2"] {
        w.sleep(id(name));
        w.settle();
    }
    assert_eq!(w.peek_sbco(id("b")).dirty, 1, "test");
    assert!(w.peek_sbco(id("d")).ordinate >= 2, "far back for a queue of two: test");
    assert!(w.is_running(id("a")));
    assert_eq!(w.stats().sbco_balanced, 1);
    audit_loans(&mut w, &["a", "b", "c", "d"].map(&id));
}

/// The part of the time that a VM has a pCPU in which it has all of them.
fn together(w: &mut World, vm: &[TaskId], looks: usize) -> f64 {
    let (mut all, mut some) = (0, 0);
    for _ in 0..looks {
        w.run(MS);
        let running = vm.iter().filter(|id| w.is_running(**id)).count();
        all += usize::from(running == vm.len());
        some += usize::from(running > 0);
    }
    all as f64 / some as f64
}

#[test]
fn siblings_run_together_more_than_without() {
    // Of four in a queue nobody is as far as two thirds.
    let (mut w, vms) = crowd(4, 4);
    w.set_sbco_alpha(ONE / 2);
    let with = together(&mut w, &vms[0], 4_000);
    let (mut w, vms) = crowd(4, 4);
    w.set_sbco_alpha(ONE);
    let without = together(&mut w, &vms[0], 4_000);
    assert!(without < 0.01, "{without:.3} without: test");
    assert!(with > 0.02, "{with:.3} of the time all siblings run, without loans {without:.3}");
}

#[test]
fn alpha_changes_while_it_runs() {
    let (mut w, _) = crowd(4, 7);
    w.set_sbco_alpha(2 * ONE);
    let before = w.stats().sbco_balanced;
    w.run(2_000 * MS);
    assert_eq!(w.stats().sbco_balanced, before);
    let mut loans = Vec::new();
    for alpha in [2 * ONE / 3, ONE / 3] {
        w.set_sbco_alpha(alpha);
        let before = w.stats().sbco_balanced;
        w.run(2_000 * MS);
        loans.push(w.stats().sbco_balanced - before);
    }
    assert!(0 < loans[0] && loans[0] < loans[1], "{loans:?}");
}

#[test]
fn a_vm_has_its_share_within_1_percent_over_10_s() {
    for (cpus, vms) in [(2, 2), (2, 3), (4, 5), (8, 3)] {
        let (mut w, vms) = crowd(cpus, vms);
        w.run(1_000 * MS);
        let used: Vec<u64> = {
            let all: Vec<TaskId> = vms.iter().flatten().copied().collect();
            used_in(&mut w, 10_000 * MS, &all)
        };
        let due = 10_000.0 * MS as f64 * cpus as f64 / vms.len() as f64;
        for (number, vm) in used.chunks(cpus).enumerate() {
            let got = vm.iter().sum::<u64>() as f64;
            assert!(
                (got / due - 1.0).abs() < 0.01,
                "VM {number} of {} on {cpus}: {:.4}",
                vms.len(),
                got / due
            );
        }
    }
}

#[test]
fn a_vms_weight_is_divided_among_its_active_vcpus() {
    let mut w = sbco(2);
    let heavy = w.new_cgroup(0, 300);
    let (a, b) = (w.new_vm(2), w.new_vm(2));
    let a: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(a, id).cgroup(heavy))).collect();
    let b: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(b, id))).collect();
    let all = [a[0], a[1], b[0], b[1]];
    introduce(&mut w, &all);
    w.run(500 * MS);
    let got = shares(&mut w, 10_000 * MS, &all);
    assert_near(got[0] + got[1], 1.5, 0.015);
    // With one busy vCPU each they have what they want.
    w.sleep(a[1]);
    w.sleep(b[0]);
    w.run(500 * MS);
    let got = shares(&mut w, 4_000 * MS, &all);
    assert_near(got[0], 1.0, 0.01);
    assert_near(got[3], 1.0, 0.01);
}

#[test]
fn a_vm_whose_vcpus_sleep_in_turn_has_no_more_than_its_share() {
    for (run_ms, sleep_ms) in [(1, 1), (3, 3), (8, 4), (20, 10)] {
        let mut w = sbco(2);
        let vm = w.new_vm(2);
        let a: Vec<_> = (0..2)
            .map(|id| w.spawn(Spec::cycle(run_ms * MS + id as u64 * MS / 3, sleep_ms * MS).vcpu(vm, id)))
            .collect();
        let (_, b) = busy_vm(&mut w, 2);
        introduce(&mut w, &b);
        w.run(500 * MS);
        let got = shares(&mut w, 10_000 * MS, &[a[0], a[1], b[0], b[1]]);
        // Neither is one that sleeps briefly left out: it wants as much, and has it.
        assert_near(got[0] + got[1], 1.0, 0.01);
    }
}

/// Two busy VMs of one size, the first with such threads of its VMM, too: all three.
fn with_vmm_threads(vcpus: usize, threads: &[Spec]) -> (World, Vec<TaskId>, Vec<TaskId>, Vec<TaskId>) {
    let mut w = sbco(vcpus);
    let (vm, a) = busy_vm(&mut w, vcpus);
    let (_, b) = busy_vm(&mut w, vcpus);
    introduce(&mut w, &a);
    introduce(&mut w, &b);
    let tgid = w.vm_tgid(vm);
    let of_vmm = threads.iter().map(|spec| w.spawn(spec.clone().thread_of(tgid))).collect();
    w.run(2_000 * MS);
    (w, a, b, of_vmm)
}

/// A VM whose disk is busy: its VMM's thread wakes every millisecond for a moment, and takes no vCPU's part.
#[test]
fn a_vm_whose_vmm_works_for_moments_has_its_share() {
    for (vcpus, run_us) in [(2, 20), (2, 300), (4, 20)] {
        let (mut w, a, _, io) = with_vmm_threads(vcpus, &[Spec::cycle(run_us * MS / 1_000, MS)]);
        let got = shares(&mut w, 10_000 * MS, &[a, io].concat());
        assert!(got[vcpus] > 0.015, "it works: {got:?}: test");
        assert_near(got.iter().sum(), vcpus as f64 / 2.0, 0.01 * vcpus as f64 / 2.0);
    }
}

/// What its VMM's threads use is the VM's, too, if they work all the time.
#[test]
fn what_a_vmms_busy_threads_use_is_its_vms() {
    for (vcpus, threads) in [(1, 1), (2, 1), (2, 4)] {
        let (mut w, _, b, _) = with_vmm_threads(vcpus, &vec![Spec::busy(); threads]);
        let got: f64 = shares(&mut w, 10_000 * MS, &b).iter().sum();
        assert_near(got, vcpus as f64 / 2.0, 0.03 * vcpus as f64 / 2.0);
    }
}

/// What a busy VM has of the one pCPU beside a VM whose vCPU and VMM's threads run and sleep for so many ms, and together want more than half.
fn beside_one_that_works_in_turn(vcpu_ms: [u64; 2], threads: &[[u64; 2]]) -> f64 {
    let mut w = sbco(1);
    let vm = w.new_vm(1);
    w.spawn(Spec::cycle(vcpu_ms[0] * MS, vcpu_ms[1] * MS).vcpu(vm, 0));
    let (_, b) = busy_vm(&mut w, 1);
    introduce(&mut w, &b);
    let tgid = w.vm_tgid(vm);
    for [run_ms, sleep_ms] in threads {
        w.spawn(Spec::cycle(run_ms * MS, sleep_ms * MS).thread_of(tgid));
    }
    w.run(2_000 * MS);
    shares(&mut w, 10_000 * MS, &b)[0]
}

#[test]
fn a_vm_whose_vcpu_and_vmm_work_in_turn_has_its_share() {
    // Parts are those of the threads that are active at an instant: so this is not as exact as where all are busy.
    for (vcpu_ms, threads) in [
        ([5, 5], &[[5, 5]][..]),
        ([20, 20], &[[20, 20]]),
        ([5, 1], &[[1, 5], [1, 5], [1, 5]]),
        ([1, 20], &[[50, 1]]),
    ] {
        let got = beside_one_that_works_in_turn(vcpu_ms, threads);
        assert_near(got, 0.5, 0.07);
    }
}
