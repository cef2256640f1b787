// SPDX-License-Identifier: GPL-2.0-only
//! What the tests share: worlds, shares, and an audit of the scheduler's books against what is true.

// Each test file uses a part of it.
#![allow(dead_code)]

use proptest::test_runner::{Config as ProptestConfig, RngSeed};

use cohort_sim::class::ext::{PeekEntity, PeekTask};

use crate::spec::{knob, Config, Knobs, Spec};
use crate::view::{Queue, State};
use crate::world::{TaskId, World};

pub const MS: u64 = 1_000_000;

pub fn world(cpus: usize) -> World {
    World::new(Config::cpus(cpus))
}

pub fn world_with(cpus: usize, knobs: Knobs) -> World {
    World::new(Config { knobs, ..Config::cpus(cpus) })
}

/// A VM whose vCPUs are all busy, or only the first `busy` of them. Returns its number and the threads.
pub fn busy_vm(w: &mut World, vcpus: usize) -> (usize, Vec<TaskId>) {
    let vm = w.new_vm(vcpus);
    (vm, (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id))).collect())
}

/// Let each sleep for a moment, so that the scheduler sees that it is a vCPU by now.
pub fn introduce(w: &mut World, vcpus: &[TaskId]) {
    w.run(MS);
    for id in vcpus {
        w.sleep(*id);
    }
    w.run(100 * MS);
    for id in vcpus {
        w.wake(*id);
    }
    w.run(MS);
}

/// Let time pass until the task has a pCPU.
pub fn until_it_runs(w: &mut World, id: TaskId) {
    while !w.is_running(id) {
        w.run(MS);
    }
}

/// Let time pass until the task, which runs, has lost its pCPU.
pub fn until_it_waits(w: &mut World, id: TaskId) {
    while w.is_running(id) {
        w.run(MS);
    }
    assert_eq!(w.task(id).state, State::Runnable);
}

/// Let a waiting vCPU have been preempted in kernel mode: run it, and take the pCPU from it.
pub fn preempt_in_kernel(w: &mut World, id: TaskId) {
    w.set_guest_kernel(id, true);
    until_it_runs(w, id);
    until_it_waits(w, id);
}

/// The one of these that runs spins in kernel mode, to a pause-loop exit. Returns which.
pub fn the_running_one_spins(w: &mut World, vcpus: &[TaskId]) -> TaskId {
    let spinner = *vcpus.iter().find(|id| w.is_running(**id)).expect("test: one of them is to run");
    w.set_guest_kernel(spinner, true);
    w.pause_exit(spinner);
    spinner
}

/// The time that each of these had a pCPU during the next `ns`.
pub fn used_in(w: &mut World, ns: u64, tasks: &[TaskId]) -> Vec<u64> {
    let before: Vec<u64> = tasks.iter().map(|id| w.task(*id).used_ns).collect();
    w.run(ns);
    audit(w);
    tasks.iter().zip(before).map(|(id, before)| w.task(*id).used_ns - before).collect()
}

/// As parts of one pCPU.
pub fn shares(w: &mut World, ns: u64, tasks: &[TaskId]) -> Vec<f64> {
    used_in(w, ns, tasks).into_iter().map(|used| used as f64 / ns as f64).collect()
}

#[track_caller]
pub fn assert_near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value:.3} is not {expected:.3} +- {tolerance}");
}

/// As enum cohort_entity_kind has it.
const ENTITY_VM: u32 = 2;

/// Each entity counts those of its own that are active, and of its tasks those that run.
#[track_caller]
fn audit_entities(w: &mut World, known: &[(TaskId, PeekTask)]) {
    let entities: Vec<PeekEntity> = (0..64).map(|slot| w.peek_entity(slot)).collect();
    let running: Vec<bool> = known.iter().map(|(id, _)| w.is_running(*id)).collect();
    // Those that are gone as well: a thread that outlives its VM counts in its entity, and above it, until it next runs or sleeps.
    for (slot, entity) in entities.iter().enumerate().skip(1) {
        let own = known.iter().filter(|(_, task)| task.leaf as usize == slot && task.cpu >= 0).count();
        let children = entities
            .iter()
            .skip(1)
            .filter(|child| child.parent as usize == slot && child.nr_active > 0)
            .count();
        assert_eq!(
            entity.nr_active as usize,
            own + children,
            "nr_active of entity {slot}: {own} + {children}"
        );
        let runs =
            known.iter().zip(&running).filter(|((_, task), runs)| **runs && task.run_leaf as usize == slot);
        assert_eq!(entity.nr_running as usize, runs.count(), "nr_running of entity {slot}");
        // A VM has no entities below it. Of a cgroup it is known when nobody at all runs.
        let count = (entity.turns & 0xffff) as u32;
        assert!(entity.kind != ENTITY_VM || count <= entity.nr_running, "turns of VM {slot}: {count}");
        let nobody = match entity.kind {
            ENTITY_VM => entity.nr_running == 0,
            _ => !running.contains(&true),
        };
        assert!(
            !nobody || entity.turns == 0,
            "turns of entity {slot}, of which none runs: {:x}",
            entity.turns
        );
    }
}

/// Every task is in one place; the scheduler's counts are those of a recount.
#[track_caller]
pub fn audit(w: &mut World) {
    let tasks: Vec<TaskId> = (0..w.tasks.len()).map(TaskId).collect();
    for id in &tasks {
        if let Err(problem) = w.place_of(*id) {
            panic!("{problem}");
        }
    }
    for (cpu, state) in w.cpus.iter().enumerate() {
        assert!(state.online || state.curr.is_none(), "pCPU {cpu} is offline and runs {:?}", state.curr);
    }

    let alive: Vec<TaskId> = tasks.into_iter().filter(|id| w.task(*id).state != State::Dead).collect();
    let known: Vec<_> = alive.iter().map(|id| (*id, w.peek_task(*id))).collect();
    let last = known.iter().map(|(_, task)| task.vm).max().unwrap_or(0);
    for number in 1..=last {
        let vm = w.peek_vm(number);
        if vm.kvm == 0 {
            // Freed; what is left in it counts for nothing.
            continue;
        }
        let vcpus: Vec<_> = known.iter().filter(|(_, task)| task.vm == number && task.vcpu >= 0).collect();
        // Where each is believed to be is compared with the truth below.
        let active = vcpus.iter().filter(|(_, task)| task.cpu >= 0).count();
        assert_eq!(vm.nr_vcpus as usize, vcpus.len(), "nr_vcpus of VM {number}");
        assert_eq!(vm.nr_active as usize, active, "nr_active of VM {number}");
        for cpu in 0..w.cpus.len() {
            let there = vcpus.iter().filter(|(_, task)| task.cpu == cpu as i32).count();
            assert_eq!(w.vm_on_cpu(number, cpu) as usize, there, "vm_on_cpu of VM {number} on pCPU {cpu}");
        }
    }
    audit_entities(w, &known);
    if matches!(w.config.knobs.order, Some(knob::ORDER_CREDIT | knob::ORDER_SEDF)) {
        let active = known.iter().filter(|(_, task)| task.cpu >= 0).count();
        assert_eq!(w.domain_tasks() as usize, active, "tasks that domains count");
    }
    for (id, task) in &known {
        let truth = match (w.task(*id).state, w.task(*id).queue) {
            (State::Asleep | State::Dead, _) => -1,
            // After the run queues come those of the overdue, then those of who must not run now.
            (State::Runnable, Some(Queue::User(dsq))) if dsq as usize >= 2 * w.cpus.len() => -1,
            (State::Runnable, Some(Queue::User(dsq))) => (dsq as usize % w.cpus.len()) as i32,
            (State::Runnable, _) => w.task(*id).cpu as i32,
        };
        // Of those that the kernel has put elsewhere by its own choice the scheduler learns when they run.
        if !matches!(w.task(*id).queue, Some(Queue::Local(_) | Queue::Global)) {
            assert_eq!(task.cpu, truth, "where the scheduler believes {id:?} to be");
        }
    }
}

/// No pCPU idles while a task that may run there waits.
#[track_caller]
pub fn assert_work_conserving(w: &mut World) {
    w.settle();
    // For one that has only now begun to wait, somebody may be on the way.
    let long_ago_ns = w.now_ns - 4 * w.config.ipi_ns;
    for cpu in (0..w.cpus.len()).filter(|cpu| w.cpus[*cpu].idles()) {
        // Tasks that exit or may not migrate are put in a local queue by the kernel, which shows them to nobody. Such a task, or a kernel
        // thread, may also get to a pCPU before the one that the pCPU was woken for.
        let movable = |i: &usize| !w.tasks[*i].is_exiting() && !w.tasks[*i].migration_disabled;
        let cut_off = |i: &usize| match w.tasks[*i].queue {
            Some(Queue::Local(at)) => w.cpus[at].curr,
            Some(Queue::User(dsq)) => w.cpus[dsq as usize % w.cpus.len()].curr,
            _ => None,
        };
        let cut_off =
            |i: &usize| cut_off(i).is_some_and(|id| w.task(id).is_kthread() || w.task(id).is_exiting());
        let waits = |i: &usize| {
            let task = &w.tasks[*i];
            // A set waits until there is room for all of it.
            let in_set = task.vcpu.is_some_and(|vcpu| w.vms_of_sets.contains(&vcpu.vm.index()));
            task.queue.is_some() && task.allowed(cpu) && task.waits_since_ns < long_ago_ns && !in_set
        };
        let waiting: Vec<usize> =
            (0..w.tasks.len()).filter(|i| waits(i) && movable(i) && !cut_off(i)).collect();
        assert!(waiting.is_empty(), "at {} pCPU {cpu} idles while tasks {waiting:?} wait", w.now_ns);
    }
}

/// How many cases of a property to try: the same ones every time, unless PROPTEST_CASES or PROPTEST_RNG_SEED ask for others.
pub fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(20_260),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
