// SPDX-License-Identifier: GPL-2.0-only
//! Halting, polling, waking; timers; devices.

use cohort_sim::class::fair::{Fair, FairConfig};
use cohort_sim::class::AnyClass;
use cohort_sim::kvm::HaltPoll;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::TaskConfig;
use cohort_sim::{CpuId, TaskId};

use crate::common::*;

/// Sleeps 50 us, four times, with 10 us of work each.
const SLEEPER: &str = "
    [[thread]]
    name = 'sleeper'
    times = 4
    steps = [{ compute = '10us' }, { sleep = '50us' }, { done = 'round' }]";

fn rounds(s: &Sim) -> Vec<u64> {
    s.list(|what| matches!(what, What::Progress { .. }).then_some(())).iter().map(|(at, ())| *at).collect()
}

fn halts(s: &Sim) -> Vec<(u64, u64)> {
    s.list(|what| match what {
        What::Halt { polled_ns, .. } => Some(*polled_ns),
        _ => None,
    })
}

#[test]
fn a_sleeping_task_lets_its_vcpu_block() {
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[vm(1, SLEEPER)], &[], 1).until(MS);
    assert_eq!(rounds(&s), [60 * US, 120 * US, 180 * US, 240 * US]);
    assert_eq!(halts(&s)[0], (10 * US, 0));
    assert_eq!(s.end_ns(), Some(240 * US));
}

#[test]
fn the_way_out_of_a_halt_costs_what_it_costs() {
    let mut machine = MachineConfig::ideal(1);
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    machine.costs.idle_exit_ns = 2_000;
    let mut config = vm(1, SLEEPER);
    config.kvm.costs.timer_ns = 100;
    config.kvm.costs.halt_ns = 50;
    config.guest.costs.irq_ns = 400;
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).until(MS);
    // The pCPU leaves idle, 10 us of work; the timer is armed and goes off 50 us later; the pCPU leaves idle, entry, the handler.
    let first = 2_000 + 10_000 + 50_000 + 2_000 + 500 + 400;
    assert_eq!(rounds(&s)[..2], [first, first + 10_000 + 50_000 + 2_000 + 500 + 400]);
    // Setting the timer is an exit, halting another.
    assert_eq!(halts(&s)[0], (12_000 + 700 + 100 + 500 + 700 + 50, 0));
}

#[test]
fn polling_grows_until_it_covers_the_halts() {
    let mut config = vm(1, SLEEPER);
    config.kvm.halt_poll = HaltPoll::default();
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(MS);
    assert_eq!(rounds(&s), [60 * US, 120 * US, 180 * US, 240 * US]);
    // Halts of 50 us: poll 0, 10, 20, 40 us before blocking; at the end 80 us, with nothing to wait for.
    assert_eq!(
        halts(&s),
        [(10 * US, 0), (80 * US, 10 * US), (150 * US, 20 * US), (230 * US, 40 * US), (320 * US, 80 * US)]
    );
}

/// idle_call_stop_or_retain_tick() of Linux 7.0 and later: one tick comes after a vCPU has gone idle, and no more.
#[test]
fn an_idle_vcpu_keeps_its_tick_until_that_has_woken_it() {
    let halted = |retains_tick| {
        let text = "[[thread]]\nname = 't'\ntimes = 2\nsteps = [{ compute = '1ms' }, { sleep = '30ms' }]";
        let mut config = vm(1, text);
        config.guest.tick_ns = 4 * MS;
        config.guest.retains_tick = retains_tick;
        let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(80 * MS);
        halts(&s).iter().map(|(at_ns, _)| *at_ns).collect::<Vec<_>>()
    };
    let [without, with] = [false, true].map(halted);
    assert_eq!(without, [MS, 32 * MS, 62 * MS], "after each work, and after the last sleep");
    assert_eq!(with.len(), 6, "a tick after each: {with:?}");
    let ticks: Vec<u64> = with.iter().copied().filter(|at_ns| !without.contains(at_ns)).collect();
    assert!(ticks.iter().zip(&without).all(|(tick_ns, idle_ns)| (1..=4 * MS).contains(&(tick_ns - idle_ns))));
    assert!(ticks.windows(2).all(|pair| (pair[1] - pair[0]) % (4 * MS) == 0), "{ticks:?}");
}

/// Without CONFIG_NO_HZ: all ticks come, however long a vCPU idles.
#[test]
fn a_periodic_tick_wakes_an_idle_vcpu_each_time() {
    let text = "[[thread]]\nname = 't'\ntimes = 2\nsteps = [{ compute = '1ms' }, { sleep = '30ms' }]";
    let mut config = vm(1, text);
    config.guest.tick_ns = 4 * MS;
    config.guest.periodic_tick = true;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(80 * MS);
    let without = [MS, 32 * MS, 62 * MS];
    let halted = halts(&s);
    let ticks: Vec<u64> =
        halted.iter().map(|(at_ns, _)| *at_ns).filter(|at_ns| !without.contains(at_ns)).collect();
    assert!((16..=20).contains(&ticks.len()), "those of 80 ms, but for two or fewer in the work: {ticks:?}");
    assert!(ticks.windows(2).all(|pair| (pair[1] - pair[0]) % (4 * MS) == 0), "{ticks:?}");
}

#[test]
fn a_vmms_thread_runs_when_it_is_asked_to() {
    let asked = TaskConfig {
        name: "vm/asked".into(),
        nice: 0,
        cpus: vec![],
        run_ns: 2 * MS,
        sleep_ns: 0,
        random: false,
        vm: Some("vm".into()),
        start_ns: 10 * MS,
        once: true,
    };
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[vm(1, SLEEPER)], &[asked], 1).until(100 * MS);
    let core = &s.sim.host.core;
    let (vcpu, thread) = (core.task(TaskId(0)), core.task(TaskId::from(core.tasks.len() - 1)));
    assert_eq!((thread.group, thread.tgid), (vcpu.group, vcpu.tgid));
    let turns = s.list(|what| match what {
        What::Switch { next: Some(task), .. } if task.index() == core.tasks.len() - 1 => Some(()),
        _ => None,
    });
    // For a moment at first, after the vCPU, which sleeps at once: it is no new thread when it is asked.
    assert_eq!(turns, [(10 * US, ()), (10 * MS, ())]);
    assert_eq!(thread.run_ns, 2 * MS + US);
}

#[test]
fn nobody_polls_while_somebody_else_wants_the_pcpu() {
    let mut config = vm(1, SLEEPER);
    // Halts last for a turn of the other one's: short enough that polls would grow.
    config.kvm.halt_poll = HaltPoll { max_ns: 10 * MS, grow_start_ns: 100 * US, ..HaltPoll::default() };
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[hog(0)], 1).until(5 * MS);
    assert!(halts(&s).len() > 2, "{:?}", halts(&s));
    assert!(halts(&s).iter().all(|(_, polled_ns)| *polled_ns == 0), "{:?}", halts(&s));
}

#[test]
fn a_request_goes_through_the_vmms_thread_and_the_device() {
    let text = "
        [[thread]]
        name = 'reader'
        steps = [{ compute = '10us' }, { io = { device = '100us', host = '20us' } }, { compute = '5us' }]";
    let mut machine = MachineConfig::ideal(2);
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    let mut config = vm(1, text);
    config.kvm.costs.io_ns = 800;
    let mut s = build(&machine, turns_of_a_ms(), &[config], &[], 1);
    let thread = s.sim.bodies.vms[0].device.as_ref().unwrap().task;
    s.sim.host.set_affinity(thread, Some([CpuId(1)].into_iter().collect()));
    let s = s.until(MS);
    // Exit and submission; the thread; the device; the entry after the halt.
    assert_eq!(s.end_ns(), Some(10_000 + 1_500 + 20_000 + 100_000 + 500 + 5_000));
}

#[test]
fn the_tick_comes_at_its_beat_and_costs_its_handler() {
    let text = "[[thread]]\nname = 't'\nsteps = [{ compute = '10ms' }]";
    let mut config = vm(1, text);
    config.guest.tick_ns = 4 * MS;
    config.guest.costs.irq_ns = 500;
    config.guest.costs.tick_work_ns = 1_500;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(20 * MS);
    // Ticks at 4 and 8 ms.
    assert_eq!(s.end_ns(), Some(10 * MS + 2 * 2_000));
}

/// One vCPU and the VMM's thread on one pCPU: each needs the other to give way.
#[test]
fn a_request_is_served_while_another_task_spins() {
    let text = "
        [[thread]]
        name = 'reader'
        times = 3
        steps = [{ io = { device = '0ns', host = '1ns' } }, { barrier = { name = 'b', spin = 'forever' } }]
        [[thread]]
        name = 'spinner'
        times = 3
        steps = [{ compute = '0ns' }, { barrier = { name = 'b', spin = 'forever' } }]
        [[thread]]
        name = 'drain'
        process = true
        background = true
        times = 'forever'
        steps = [{ recv = 'endless' }]";
    let mut config = vm(1, text);
    config.kvm = cohort_sim::kvm::KvmConfig { steal_time: false, ..Default::default() };
    config.guest = Default::default();
    let machine = MachineConfig { cores_per_socket: 1, ..MachineConfig::default() };
    let class = AnyClass::Fair(Fair::new(FairConfig::default()));
    let s = build(&machine, class, &[config], &[], 0).until(100 * MS);
    assert!(s.end_ns().is_some());
}
