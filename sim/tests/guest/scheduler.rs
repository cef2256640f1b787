// SPDX-License-Identifier: GPL-2.0-only
//! The guest's scheduler.

use cohort_sim::guest::{GuestConfig, Heeds};
use cohort_sim::kvm::{exit, vector, Ipi};
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;

use crate::common::*;

fn switches(s: &Sim, v: u32) -> Vec<(u64, Option<u32>)> {
    s.list(|what| match what {
        What::GuestSwitch { vcpu, next, .. } if vcpu.id == v => {
            Some(Some(*next).filter(|next| *next != u32::MAX))
        }
        _ => None,
    })
}

#[test]
fn two_tasks_share_a_vcpu_by_ticks() {
    let text = "[[thread]]\nname = 't'\ncount = 2\nsteps = [{ compute = '20ms' }]";
    let mut config = vm(1, text);
    config.guest.tick_ns = 4 * MS;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(100 * MS);
    // Slices of 3 ms end with a tick. Tasks are numbered after the idle ones.
    let at_ms: Vec<(u64, Option<u32>)> = switches(&s, 0).iter().map(|(at, next)| (*at / MS, *next)).collect();
    assert_eq!(at_ms[..5], [(0, Some(1)), (4, Some(2)), (8, Some(1)), (12, Some(2)), (16, Some(1))]);
    assert_eq!(s.end_ns(), Some(40 * MS));
}

/// When tasks of one vCPU are switched, in us, with slices of 1.4 ms that end on time, and how many exits set timers.
fn on_time(text: &str, tick_ns: u64) -> (Vec<u64>, u64) {
    let mut config = vm(1, text);
    config.guest.hrtick = true;
    (config.guest.slice_ns, config.guest.latency_ns) = (1_400 * US, 2_800 * US);
    config.guest.tick_ns = tick_ns;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(5 * MS);
    let at_us = switches(&s, 0).iter().map(|(at, _)| *at / US).collect();
    (at_us, s.sim.bodies.vms[0].counters.exits[usize::from(exit::TIMER)])
}

#[test]
fn slices_end_on_time_since_7_3() {
    let two = "[[thread]]\nname = 't'\ncount = 2\nsteps = [{ compute = '20ms' }]";
    // Each is set by an exit, the last at 4.2 ms.
    assert_eq!(on_time(two, 0), (vec![0, 1_400, 2_800, 4_200], 4));
    // The tick at 4 ms is one more.
    assert_eq!(on_time(two, 4 * MS), (vec![0, 1_400, 2_800, 4_200], 5));
    // Who is alone has no end of a slice. From 0.5 ms on somebody waits, and the runner has 0.9 ms left. At 0 the slice of the one that sleeps is set, and then
    // the end of its sleep. At 2.8 ms both have had 1.4 ms.
    let late = "
        [[thread]]
        name = 'late'
        steps = [{ sleep = '500us' }, { compute = '20ms' }]
        [[thread]]
        name = 'first'
        steps = [{ compute = '20ms' }]";
    assert_eq!(on_time(late, 0), (vec![0, 0, 1_400, 4_200], 6));
}

#[test]
fn an_idle_vcpu_takes_a_waiting_task() {
    // Threads 0 and 2 are vCPU 0's, thread 1 vCPU 1's; that becomes idle at 1 ms and takes thread 2.
    let text = "
        [[thread]]
        name = 'long'
        steps = [{ compute = '10ms' }]
        [[thread]]
        name = 'short'
        steps = [{ compute = '1ms' }]
        [[thread]]
        name = 'waits'
        steps = [{ compute = '10ms' }]";
    let s =
        build(&MachineConfig::ideal(2), turns_of_a_ms(), &[vm(2, text)], &[], 1).pin(&[0, 1]).until(100 * MS);
    assert_eq!(switches(&s, 1)[..2], [(0, Some(3)), (MS, Some(4))]);
    assert_eq!(s.end_ns(), Some(11 * MS));
    assert_eq!(s.sim.bodies.vms[0].counters.steals, 1);
}

#[test]
fn a_vcpu_where_only_pinned_tasks_wait_is_passed_over() {
    // Two threads are on vCPU 0 and two on vCPU 1; of those on vCPU 0 none may leave. vCPU 2 becomes idle at 1 ms and takes one from vCPU 1.
    let text = "
        [[thread]]
        name = 'stays'
        vcpu = 0
        steps = [{ compute = '10ms' }]
        [[thread]]
        name = 'may-go'
        steps = [{ compute = '10ms' }]
        [[thread]]
        name = 'short'
        steps = [{ compute = '1ms' }]
        [[thread]]
        name = 'stays-too'
        vcpu = 0
        steps = [{ compute = '10ms' }]
        [[thread]]
        name = 'may-go-too'
        steps = [{ compute = '10ms' }]";
    let vms = [vm(3, text)];
    let s = build(&MachineConfig::ideal(3), turns_of_a_ms(), &vms, &[], 1).pin(&[0, 1, 2]).until(100 * MS);
    assert_eq!(s.sim.bodies.vms[0].counters.steals, 1);
    assert_eq!(switches(&s, 2)[1].0, MS);
    assert_eq!(s.end_ns(), Some(20 * MS));
}

/// vCPU 0 wakes, at 100 us, a task that sleeps on vCPU 1.
const WAKER: &str = "
    [[thread]]
    name = 'waker'
    steps = [{ compute = '100us' }, { signal = 'c' }, { compute = '1ms' }]
    [[thread]]
    name = 'woken'
    steps = [{ wait = 'c' }, { done = 'woken' }]";

fn woken_ns(ipi: Ipi, change: impl Fn(&mut cohort_sim::scenario::VmConfig)) -> u64 {
    let mut machine = MachineConfig::ideal(2);
    machine.costs.ipi_ns = 1_000;
    machine.costs.idle_exit_ns = 2_000;
    machine.costs.vm_exit_ns = 700;
    machine.costs.vm_entry_ns = 500;
    let mut config = vm(2, WAKER);
    config.kvm.ipi = ipi;
    config.guest.costs.wake_ns = 300;
    config.guest.costs.irq_ns = 400;
    config.guest.costs.switch_ns = 600;
    change(&mut config);
    let s = build(&machine, turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(4 * MS);
    let sent =
        s.list(|what| matches!(what, What::GuestIpiSent { vector: vector::RESCHED, .. }).then_some(()));
    assert_eq!(sent.len(), 1);
    let woken = s.list(|what| matches!(what, What::Progress { .. }).then_some(()));
    woken[0].0
}

#[test]
fn a_wake_up_across_vcpus_is_an_interrupt_that_ends_a_halt() {
    // The first switch of each vCPU, 600 ns after its pCPU has left idle; 100 us; waking under the run queue's lock.
    let sent = 2_000 + 600 + 100_000 + 300;
    // The host's wake-up: an interrupt for the other pCPU, which leaves idle; entry, handler, switch.
    let there = 1_000 + 2_000 + 500 + 400 + 600;
    assert_eq!(woken_ns(Ipi::Virtualized, |_| {}), sent + there);
    assert_eq!(woken_ns(Ipi::Trapped, |_| {}), sent + 700 + there);
}

#[test]
fn a_kernel_that_is_not_preemptible_ends_its_system_call_first() {
    // One vCPU. At 4 ms (slice over) and at 8 ms: the task in user mode goes at once, the one in the kernel when it leaves it.
    let text = "
        [[thread]]
        name = 'user'
        steps = [{ compute = '20ms' }]
        [[thread]]
        name = 'kernel'
        steps = [{ kernel = '6ms' }, { compute = '1ms' }]";
    let run = |preemptible| {
        let mut config = vm(1, text);
        config.guest.tick_ns = 4 * MS;
        config.guest.preemptible_kernel = preemptible;
        let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(100 * MS);
        switches(&s, 0).iter().map(|(at, next)| (*at / MS, *next)).take(4).collect::<Vec<_>>()
    };
    assert_eq!(run(false), [(0, Some(1)), (4, Some(2)), (10, Some(1)), (16, Some(2))]);
    assert_eq!(run(true), [(0, Some(1)), (4, Some(2)), (8, Some(1)), (12, Some(2))]);
}

#[test]
fn a_lazy_wish_is_heard_on_the_way_to_user_mode_and_in_the_kernel_a_tick_later() {
    let text = "
        [[thread]]
        name = 'kernel'
        steps = [{ kernel = '30ms' }, { compute = '1ms' }]
        [[thread]]
        name = 'user'
        steps = [{ compute = '30ms' }]";
    let run = |lazy_preemption| {
        let mut config = vm(1, text);
        config.guest.tick_ns = 4 * MS;
        config.guest.lazy_preemption = lazy_preemption;
        let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(40 * MS);
        switches(&s, 0).iter().map(|(at, next)| (*at / MS, *next)).take(4).collect::<Vec<_>>()
    };
    // Slices are over at the first tick after 3 ms; at 12 ms the second has still had less.
    assert_eq!(run(true), [(0, Some(1)), (8, Some(2)), (16, Some(1)), (24, Some(2))]);
    assert_eq!(run(false)[..2], [(0, Some(1)), (30, Some(2))]);
}

/// Task 1 sleeps to 6.025 ms. Tasks 2 and 3 share the vCPU, with slices of 3 ms that end on time; each switch to one of them sets a timer, which takes 10 us.
#[test]
fn who_wakes_while_a_preempted_one_is_put_back_is_not_forgotten() {
    let text = "
        [[thread]]
        name = 'sleeper'
        steps = [{ sleep = '6015us' }, { compute = '1ms' }]
        [[thread]]
        name = 't'
        count = 2
        steps = [{ compute = '20ms' }]";
    let mut config = vm(1, text);
    config.guest.hrtick = true;
    config.kvm.costs.timer_ns = 10 * US;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(7 * MS);
    // From 6.02 to 6.03 ms the timer is set for task 2, which was preempted before.
    let at_us: Vec<_> = switches(&s, 0).iter().map(|(at, next)| (*at / US, *next)).collect();
    assert_eq!(
        at_us[..5],
        [(0, Some(1)), (20, Some(2)), (3_020, Some(3)), (6_020, Some(2)), (6_030, Some(1))]
    );
}

#[test]
fn the_mode_is_known_at_every_moment() {
    let text =
        "[[thread]]\nname = 't'\nsteps = [{ compute = '10us' }, { kernel = '5us' }, { compute = '10us' }]";
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[vm(1, text)], &[], 1).until(MS);
    let modes = s.list(|what| match what {
        What::Mode { kernel, .. } => Some(*kernel),
        _ => None,
    });
    assert_eq!(modes, [(0, false), (10 * US, true), (15 * US, false), (25 * US, true)]);
}

#[test]
fn steal_time_uses_up_slices_unless_the_kernel_accounts_for_it() {
    // Two tasks on one vCPU, which has its pCPU every other ms. Task 1's first slice of 3 ms: 5 ms of the host's time.
    let text = "[[thread]]\nname = 't'\ncount = 2\nsteps = [{ compute = '20ms' }]";
    let first_switch = |accounts, steal_time| {
        let mut config = vm(1, text);
        config.guest.tick_ns = MS;
        config.guest.paravirt_time_accounting = accounts;
        config.kvm.steal_time = steal_time;
        let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[hog(0)], 1).until(20 * MS);
        switches(&s, 0)[1].0
    };
    // Ticks come at 1 ms, when the vCPU has just lost its pCPU, and are taken at 2, 4, 6 ms ...: 3 ms had at 6 ms, or 4 ms gone at 4 ms.
    assert_eq!(first_switch(true, true), 6 * MS);
    assert_eq!(first_switch(true, false), 4 * MS, "it knows none");
    assert_eq!(first_switch(false, true), 4 * MS);
    assert_eq!(
        first_switch(GuestConfig::default().paravirt_time_accounting, true),
        4 * MS,
        "as Debian's are built"
    );
}

#[test]
fn a_woken_task_goes_back_to_where_it_was_if_that_idles() {
    let text = "
        [[thread]]
        name = 'a'
        steps = [{ compute = '100us' }, { signal = 'c' }, { compute = '300us' }]
        [[thread]]
        name = 'b'
        steps = [{ wait = 'c' }, { compute = '10us' }]";
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[vm(2, text)], &[], 1).pin(&[0, 1]).until(MS);
    assert_eq!(s.end_ns(), Some(400 * US));
    assert_eq!(switches(&s, 1).iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 0, 100 * US, 110 * US]);
}

/// vCPU 1 is on its way into idle when it loses its pCPU, from 1 to 2 ms; vCPU 2 idles.
#[test]
fn a_preempted_vcpu_is_not_taken_for_idle() {
    let text = "
        [[thread]]
        name = 'waker'
        steps = [{ compute = '1500us' }, { signal = 'c' }, { compute = '100us' }]
        [[thread]]
        name = 'woken'
        steps = [{ compute = '900us' }, { wait = 'c' }, { done = 'woken' }]
        [[thread]]
        name = 'short'
        steps = [{ compute = '10us' }]";
    let woken = |steal_time, heeds| {
        let mut config = vm(3, text);
        config.guest.costs.idle_ns = 300 * US;
        config.kvm.steal_time = steal_time;
        config.guest.heeds_preempted = heeds;
        let s = build(&MachineConfig::ideal(3), turns_of_a_ms(), &[config], &[hog(1)], 1)
            .pin(&[0, 1, 2])
            .until(4 * MS);
        done_on(&s)[0]
    };
    assert_eq!(woken(true, Heeds::All), (1_500 * US, 2));
    assert_eq!(woken(false, Heeds::All), (2_000 * US, 1));
    // Before 4.18 nobody asked.
    assert_eq!(woken(true, Heeds::Owners), (2_000 * US, 1));
}

#[test]
fn no_guest_ticks_when_the_host_does() {
    // Ticks that come together would be preemptions within the tick's handler, where it has a lock.
    let phases = |seed| {
        let mut host = cohort_sim::Host::new(&MachineConfig::ideal(2), turns_of_a_ms(), seed).unwrap();
        let mut config = vm(1, "[[thread]]\nname = 't'\nsteps = []");
        config.guest.tick_ns = 4 * MS;
        let guests =
            cohort_sim::guest::Guests::build(&mut host, &[config.clone(), config], &[], seed).unwrap();
        guests.vms.iter().map(|vm| vm.tick_phase_ns).collect::<Vec<_>>()
    };
    for seed in 1..20 {
        let found = phases(seed);
        assert!(
            found.iter().all(|phase_ns| (1..4 * MS).contains(phase_ns)) && found[0] != found[1],
            "{found:?}"
        );
    }
    assert_ne!(phases(1), phases(2));
}

/// A task holds a spin lock when its slice ends, at 4 ms; leaving the kernel takes 0.5 ms each time. When the other one comes.
#[test]
fn a_preemptible_kernel_lets_others_go_first_where_its_lock_is_released() {
    let text = "
        [[thread]]
        name = 'holder'
        steps = [{ lock = { name = 'l', hold = '5ms' } }, { compute = '20ms' }]
        [[thread]]
        name = 'other'
        steps = [{ compute = '20ms' }]";
    let second = |preemptible_kernel, irqs_off: bool| {
        let text = text.replace("'5ms'", &format!("'5ms', irqs_off = {irqs_off}"));
        let mut config = vm(1, &text);
        config.guest.tick_ns = 4 * MS;
        config.guest.preemptible_kernel = preemptible_kernel;
        config.guest.costs.syscall_ns = 500 * US;
        let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[config], &[], 1).until(20 * MS);
        switches(&s, 0)[1]
    };
    for irqs_off in [false, true] {
        assert_eq!(second(true, irqs_off), (6 * MS, Some(2)), "{irqs_off}");
        assert_eq!(second(false, irqs_off), (6_500 * US, Some(2)), "{irqs_off}");
    }
}

#[test]
fn until_5_18_a_halted_vcpu_seemed_to_be_preempted() {
    // Who is woken was on vCPU 1, which halts; vCPU 2 has never run.
    let text = "
        [[thread]]
        name = 'waker'
        steps = [{ compute = '1500us' }, { signal = 'c' }, { compute = '100us' }]
        [[thread]]
        name = 'woken'
        steps = [{ compute = '10us' }, { wait = 'c' }, { done = 'woken' }]";
    for (tells_always, expected) in [(false, 1), (true, 2)] {
        let mut config = vm(3, text);
        config.kvm.tells_always = tells_always;
        let s =
            build(&MachineConfig::ideal(3), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1, 2]).until(4 * MS);
        assert_eq!(done_on(&s), [(1_500 * US, expected)]);
    }
}
