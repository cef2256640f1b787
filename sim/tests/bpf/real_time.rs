// SPDX-License-Identifier: GPL-2.0-only
//! Tasks of a higher class take pCPUs, for a moment or for good.

use cohort_sim::class::ext::Cost;

use crate::common::*;
use crate::spec::{Config, Spec};
use crate::world::World;

#[test]
fn a_real_time_task_sends_the_vcpu_elsewhere_and_nobody_comes() {
    // Linux 7 tells of it at the switch, 6.18 by ops.cpu_release().
    for sched_switch in [true, false] {
        a_real_time_task_comes(World::new(Config { sched_switch, ..Config::cpus(3) }));
    }
}

#[test]
fn a_real_time_task_that_becomes_an_ordinary_one_gives_its_pcpu_back() {
    // `chrt -o -p`, or the end of a borrowed priority: when it is switched out nothing says any more that it was one.
    let mut w = world(2);
    let (_, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    w.run(100 * MS);
    w.rt_takes(1);
    w.run(50 * MS);
    assert!(w.believes_taken(1));
    w.rt_is_demoted_and_leaves(1);
    w.run(50 * MS);
    assert!(!w.believes_taken(1), "nobody is sent there any more");
    audit(&mut w);
}

#[test]
fn who_waits_where_a_real_time_task_comes_does_not_wait_for_it() {
    // Two on each pCPU, and then three on the one, and one where nobody has a turn any more.
    let mut w = world(2);
    let tasks: Vec<_> = (0..4).map(|_| w.spawn(Spec::busy())).collect();
    w.run(200 * MS);
    let waits =
        *tasks.iter().find(|id| w.task(**id).cpu == 1 && !w.is_running(**id)).expect("one waits there");
    w.rt_takes(1);
    let before = w.task(waits).used_ns;
    w.run(70 * MS);
    assert!(w.task(waits).used_ns > before, "it waits for the real-time task");
    audit(&mut w);
}

#[test]
fn who_was_running_goes_on_after_an_interrupts_thread() {
    let mut w = world(2);
    let (_, vcpus) = busy_vm(&mut w, 1);
    introduce(&mut w, &vcpus);
    (0..2).for_each(|cpu| {
        w.spawn(Spec::busy().on(&[cpu]));
    });
    w.run(100 * MS);
    until_it_runs(&mut w, vcpus[0]);
    let cpu = w.task(vcpus[0]).cpu;
    w.rt_are_kthreads(true);
    w.rt_takes(cpu);
    w.run(5_000);
    assert!(!w.believes_taken(cpu));
    w.rt_leaves(cpu);
    w.settle();
    assert!(w.is_running(vcpus[0]), "somebody else has its pCPU");
    assert_eq!(w.task(vcpus[0]).cpu, cpu);
    audit(&mut w);
}

#[test]
fn a_real_time_task_that_comes_after_an_interrupts_thread_takes_the_pcpu() {
    // A kernel that tells by ops.cpu_release tells once, until it runs somebody of ours there again.
    for sched_switch in [true, false] {
        let mut w = World::new(Config { sched_switch, ..Config::cpus(2) });
        let (_, vcpus) = busy_vm(&mut w, 1);
        introduce(&mut w, &vcpus);
        let cpu = w.task(vcpus[0]).cpu;
        w.rt_are_kthreads(true);
        w.rt_takes(cpu);
        w.rt_are_kthreads(false);
        w.rt_switches(cpu);
        w.settle();
        assert!(w.believes_taken(cpu));
        assert!(w.is_running(vcpus[0]), "the vCPU waits although a pCPU idles");
        audit(&mut w);
    }
}

#[test]
fn real_time_tasks_that_take_turns_ask_once_who_waits_there_to_go() {
    // An exiting task cannot go. Linux 7.3 ejects a scheduler that asks it for the 257th time.
    let mut w = world(2);
    let (_, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    w.run(100 * MS);
    let before = w.costs();
    w.rt_takes(1);
    (0..300).for_each(|_| w.rt_switches(1));
    assert_eq!(w.costs().since(&before).total(Cost::Reenqueue), 1);
    // Once somebody has run there it is asked again.
    w.rt_leaves(1);
    w.run(100 * MS);
    w.rt_takes(1);
    assert_eq!(w.costs().since(&before).total(Cost::Reenqueue), 2);
    audit(&mut w);
}

fn a_real_time_task_comes(mut w: World) {
    let (_, vcpus) = busy_vm(&mut w, 2);
    introduce(&mut w, &vcpus);
    w.run(100 * MS);
    let victim = vcpus[0];
    let cpu = w.task(victim).cpu;
    w.rt_takes(cpu);
    w.settle();
    assert!(w.is_running(victim), "the vCPU waits although a pCPU idles");
    assert_ne!(w.task(victim).cpu, cpu);
    let sleepers: Vec<_> = (0..6).map(|i| w.spawn(Spec::cycle(MS, 2 * MS + i * 100_000))).collect();
    for _ in 0..400 {
        w.run(500_000);
        let there: Vec<_> = sleepers.iter().chain(&vcpus).filter(|id| w.task(**id).cpu == cpu).collect();
        assert!(
            there.iter().all(|id| w.task(**id).queue.is_none()),
            "{there:?} wait where a real-time task is, at {}",
            w.now_ns
        );
    }
    w.rt_leaves(cpu);
    w.run(50 * MS);
    assert_work_conserving(&mut w);
    audit(&mut w);
}
