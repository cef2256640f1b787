// SPDX-License-Identifier: GPL-2.0-only
//! What holds whatever happens: random hosts, random events, and the books audited after every one of them.

use cohort_sim::host::NO_QUOTA;
use cohort_sim::policies::{GANGS, OF_VMS, ORDERS, PRESETS};

use crate::common::*;
use crate::presets;
use crate::sbco::audit_all_loans;
use crate::spec::{knob, Config, Knobs, Spec};
use crate::view::State;
use crate::world::{TaskId, World};
use proptest::prelude::*;
use proptest::test_runner::{contextualize_config, TestRunner};

#[derive(Clone, Debug)]
enum Event {
    Run(u64),
    Sleep(usize),
    Wake(usize),
    Pause(usize),
    Yield(usize),
    GuestKernel(usize, bool),
    Irq(usize, bool),
    /// By an IPI, a vCPU another of its VM.
    Call(usize, usize),
    Affinity(usize, u8),
    Pin(usize, u64),
    Offline(usize),
    Online(usize),
    Exit(usize),
    Host(u32),
    Vm(usize),
    /// A thread of a VMM that is not a vCPU.
    Thread(usize),
    Kthread(usize),
    Cgroup(usize, usize),
    Weight(usize, u32),
    /// A VM's vCPUs are sets: of so many neighbours each.
    Sets(usize, usize),
    /// A real-time task takes a pCPU, gives it to another, leaves.
    RealTime(usize),
    RealTimeSwitches(usize),
    RealTimeLeaves(usize),
    /// A cgroup's cpu.max, us in 20 ms; 0: "max".
    Quota(usize, u64),
    Idle(usize, bool),
}

#[derive(Clone, Debug)]
struct Machine {
    cpus: usize,
    shape: Shape,
    knobs: Knobs,
    preempt_rcu: bool,
    sched_switch: bool,
    vms: Vec<usize>,
    tasks: Vec<(u32, u64, u64)>,
}

/// What pCPUs share, as far as their number lets them.
#[derive(Clone, Copy, Debug)]
enum Shape {
    OneCache,
    TwoThreads,
    TwoNodes,
    CacheEach,
}

impl Shape {
    fn of(self, cpus: usize) -> Config {
        let flat = Config::cpus(cpus);
        match self {
            Shape::TwoThreads if cpus % 2 == 0 => Config { threads_per_core: 2, ..flat },
            Shape::TwoNodes if cpus % 2 == 0 => Config { sockets: 2, ..flat },
            Shape::CacheEach => Config { cores_per_cache: 1, ..flat },
            _ => flat,
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let any_task = 0..40usize;
    prop_oneof![
        8 => (1..12_000u64).prop_map(|us| Event::Run(us * 1_000)),
        3 => any_task.clone().prop_map(Event::Sleep),
        4 => any_task.clone().prop_map(Event::Wake),
        6 => any_task.clone().prop_map(Event::Pause),
        1 => any_task.clone().prop_map(Event::Yield),
        2 => (any_task.clone(), any::<bool>()).prop_map(|(id, on)| Event::GuestKernel(id, on)),
        1 => (any_task.clone(), any::<bool>()).prop_map(|(id, on)| Event::Irq(id, on)),
        4 => (any_task.clone(), 0..4usize).prop_map(|(id, to)| Event::Call(id, to)),
        2 => (any_task.clone(), any::<u8>()).prop_map(|(id, mask)| Event::Affinity(id, mask)),
        1 => (any_task.clone(), 1..5_000u64).prop_map(|(id, us)| Event::Pin(id, us)),
        1 => (0..6usize).prop_map(Event::Offline),
        1 => (0..6usize).prop_map(Event::Online),
        1 => any_task.clone().prop_map(Event::Exit),
        1 => (1..1_000u32).prop_map(Event::Host),
        1 => (1..5usize).prop_map(Event::Vm),
        1 => (0..4usize).prop_map(Event::Thread),
        1 => (0..6usize).prop_map(Event::Kthread),
        1 => (any_task, 0..4usize).prop_map(|(id, cgroup)| Event::Cgroup(id, cgroup)),
        1 => (1..4usize, 1..10_000u32).prop_map(|(cgroup, weight)| Event::Weight(cgroup, weight)),
        2 => (0..4usize, 0..5usize).prop_map(|(vm, size)| Event::Sets(vm, size)),
    ]
}

/// The same, and what keeps tasks waiting for as long as it likes.
fn event_of_any_kind() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => event(),
        1 => (0..6usize).prop_map(Event::RealTime),
        1 => (0..6usize).prop_map(Event::RealTimeSwitches),
        2 => (0..6usize).prop_map(Event::RealTimeLeaves),
        1 => (1..4usize, prop_oneof![1 => Just(0), 2 => 1_000..40_000u64]).prop_map(|(at, us)| Event::Quota(at, us)),
        1 => (1..4usize, any::<bool>()).prop_map(|(cgroup, on)| Event::Idle(cgroup, on)),
    ]
}

fn knobs() -> impl Strategy<Value = Knobs> {
    // Kinds of boost are spin boost's.
    let spins = prop_oneof![3 => (1..2u32, 0..32u32), 1 => (2..4u32, 0..1u32)];
    (0..2u32, 0..ORDERS.len() as u32, 0..GANGS.len() as u32, spins, 0..3u32, 1..10u64).prop_map(
        |(placement, order, gang, (spin, boost), guard, slice_ms)| Knobs {
            placement: Some(placement),
            order: Some(order),
            // A gang needs an order that knows VMs.
            gang: Some(if OF_VMS.contains(&format!("order {}", ORDERS[order as usize][0]).as_str()) {
                gang
            } else {
                knob::GANG_OFF
            }),
            spin: Some(spin),
            boost: Some(boost),
            guard: Some(guard),
            slice_ns: Some(slice_ms * MS),
            ..Knobs::default()
        },
    )
}

fn machine(knobs: impl Strategy<Value = Knobs>) -> impl Strategy<Value = Machine> {
    let task = (1..1_000u32, 100..8_000u64, 0..8_000u64);
    let (vms, tasks) = (prop::collection::vec(1..5usize, 0..4), prop::collection::vec(task, 0..5));
    let shape = prop_oneof![
        2 => Just(Shape::OneCache),
        1 => Just(Shape::TwoThreads),
        1 => Just(Shape::TwoNodes),
        1 => Just(Shape::CacheEach),
    ];
    (1..6usize, shape, knobs, any::<[bool; 2]>(), vms, tasks).prop_map(
        |(cpus, shape, knobs, [preempt_rcu, sched_switch], vms, tasks)| Machine {
            cpus,
            shape,
            knobs,
            preempt_rcu,
            sched_switch,
            vms,
            tasks,
        },
    )
}

fn make(machine: &Machine) -> World {
    // A failure is reported once, when the smallest input is found, and not at every step towards it.
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload().downcast_ref::<String>().map_or("", |text| text);
        if text.starts_with("Test failed") {
            eprintln!("{text}");
        }
    }));
    let config = Config {
        knobs: machine.knobs.clone(),
        preempt_rcu: machine.preempt_rcu,
        sched_switch: machine.sched_switch,
        ..machine.shape.of(machine.cpus)
    };
    let mut w = World::new(config);
    for parent in [0, 0, 1] {
        w.new_cgroup(parent, 100);
    }
    for vcpus in &machine.vms {
        busy_vm(&mut w, *vcpus);
    }
    for (weight, run_us, sleep_us) in &machine.tasks {
        let spec = if *sleep_us < 500 { Spec::busy() } else { Spec::cycle(run_us * 1_000, sleep_us * 1_000) };
        w.spawn(spec.weight(*weight));
    }
    w
}

fn apply(w: &mut World, event: &Event) {
    let tasks = w.tasks.len();
    let alive = |w: &World, id: &usize| {
        Some(TaskId(id % tasks.max(1)))
            .filter(|id| tasks > 0 && w.task(*id).state != State::Dead && !w.task(*id).is_exiting())
    };
    match event {
        Event::Run(ns) => w.run(*ns),
        Event::Sleep(id) => drop(alive(w, id).map(|id| w.sleep(id))),
        Event::Wake(id) => drop(alive(w, id).map(|id| w.wake(id))),
        Event::Pause(id) => drop(alive(w, id).map(|id| w.pause_exit(id))),
        Event::Yield(id) => drop(alive(w, id).map(|id| w.yield_now(id))),
        Event::GuestKernel(id, on) => drop(alive(w, id).map(|id| w.set_guest_kernel(id, *on))),
        Event::Irq(id, on) => drop(alive(w, id).map(|id| w.set_irq_pending(id, *on))),
        Event::Call(id, to) => {
            let Some(id) = alive(w, id) else { return };
            let Some(caller) = w.task(id).vcpu else { return };
            let is_sibling = |id: &TaskId| w.task(*id).vcpu.is_some_and(|vcpu| vcpu.vm == caller.vm);
            let siblings: Vec<TaskId> = (0..tasks).map(TaskId).filter(is_sibling).collect();
            w.call(id, siblings[to % siblings.len()]);
        }
        Event::Affinity(id, mask) => {
            let cpus: Vec<usize> =
                (0..w.cpus.len()).filter(|cpu| mask >> cpu & 1 == 1 && w.cpus[*cpu].online).collect();
            if let (Some(id), false) = (alive(w, id), cpus.is_empty()) {
                w.set_affinity(id, &cpus);
            }
        }
        Event::Pin(id, us) => {
            // Only what runs can disable its migration, and not for long: the kernel keeps it on the pCPU before everybody else.
            real_time_leaves(w);
            if let Some(id) = alive(w, id).filter(|id| w.is_running(*id) && w.task(*id).vcpu.is_none()) {
                w.set_migration_disabled(id, true);
                w.run(us * 1_000);
                // It enables it again when it runs.
                while !w.is_running(id) && w.task(id).state == State::Runnable {
                    w.run(MS);
                }
                w.set_migration_disabled(id, false);
            }
        }
        Event::Offline(cpu) => w.cpu_offline(cpu % w.cpus.len()),
        Event::Online(cpu) => w.cpu_online(cpu % w.cpus.len()),
        Event::Exit(id) => drop(alive(w, id).map(|id| w.exit(id))),
        Event::Host(weight) if tasks < 40 => drop(w.spawn(Spec::busy().weight(*weight))),
        Event::Vm(vcpus) if tasks < 36 => drop(busy_vm(w, *vcpus)),
        Event::Thread(vm) if tasks < 40 && w.vm_count() > 0 => {
            let tgid = w.vm_tgid(vm % w.vm_count());
            w.spawn(Spec::cycle(300_000, 900_000).thread_of(tgid));
        }
        Event::Kthread(cpu) if tasks < 40 => {
            let cpu = cpu % w.cpus.len();
            if w.cpus[cpu].online {
                w.spawn(Spec::cycle(40_000, 3 * MS).kthread().on(&[cpu]));
            }
        }
        Event::Host(_) | Event::Vm(_) | Event::Thread(_) | Event::Kthread(_) => {}
        Event::Cgroup(id, cgroup) => drop(alive(w, id).map(|id| w.move_to_cgroup(id, *cgroup))),
        Event::Weight(cgroup, weight) => w.set_cgroup_weight(*cgroup, *weight),
        Event::Sets(vm, size) if w.vm_count() > 0 => {
            let vm = vm % w.vm_count();
            // Until one of its vCPUs has run, nobody knows it.
            if w.slot_of(vm).is_some() {
                let vcpus: Vec<u32> = (0..5).collect();
                let sets: Vec<&[u32]> = if *size == 0 { Vec::new() } else { vcpus.chunks(*size).collect() };
                w.set_sets(vm, &sets);
            }
        }
        Event::Sets(..) => {}
        Event::RealTime(cpu) => w.rt_takes(cpu % w.cpus.len()),
        Event::RealTimeSwitches(cpu) => w.rt_switches(cpu % w.cpus.len()),
        Event::RealTimeLeaves(cpu) => w.rt_leaves(cpu % w.cpus.len()),
        Event::Quota(cgroup, 0) => w.set_quota(*cgroup, 20_000, NO_QUOTA, 0),
        Event::Quota(cgroup, us) => w.set_quota(*cgroup, 20_000, *us, 0),
        Event::Idle(cgroup, on) => w.set_cgroup_idle(*cgroup, *on),
    }
}

fn real_time_leaves(w: &mut World) {
    (0..w.cpus.len()).for_each(|cpu| w.rt_leaves(cpu));
}

/// At a tick every runner has just been charged: from one tick to another the VMs' books and the clock must agree to the nanosecond.
fn books_agree(w: &mut World) {
    real_time_leaves(w);
    let tick_ns = w.config.tick_ns;
    w.run(tick_ns - w.now_ns % tick_ns);
    let tasks: Vec<TaskId> =
        (0..w.tasks.len()).map(TaskId).filter(|id| w.task(*id).state != State::Dead).collect();
    let look = |w: &mut World| -> Vec<(u32, u64)> {
        tasks.iter().map(|id| (w.peek_task(*id).vm, w.task(*id).used_ns)).collect()
    };
    let busy = |w: &World| w.cpus.iter().map(|cpu| cpu.busy_ns).sum::<u64>();
    let (before, busy_before) = (look(w), busy(w));
    let slots = before.iter().map(|(vm, _)| *vm).max().unwrap_or(0);
    let runtime = |w: &mut World| (1..=slots).map(|slot| w.peek_vm(slot).runtime_ns).collect::<Vec<u64>>();
    let runtime_before = runtime(w);
    w.run(20 * tick_ns);
    let (after, busy_after, runtime_after) = (look(w), busy(w), runtime(w));

    let used: u64 = before.iter().zip(&after).map(|(before, after)| after.1 - before.1).sum();
    assert_eq!(used, busy_after - busy_before);
    let all_live = tasks.iter().all(|id| w.task(*id).state != State::Dead);
    if all_live && before.iter().map(|(vm, _)| vm).eq(after.iter().map(|(vm, _)| vm)) {
        for slot in 1..=slots {
            let of_vm = before.iter().zip(&after).filter(|(before, _)| before.0 == slot);
            let used: u64 = of_vm.map(|(before, after)| after.1 - before.1).sum();
            let charged = runtime_after[slot as usize - 1] - runtime_before[slot as usize - 1];
            assert_eq!(charged, used, "charged to slot {slot}");
        }
    }
}

/// The books are audited after every event.
fn nothing_is_lost(machine: &Machine, events: &[Event]) {
    let mut w = make(machine);
    // These leave pCPUs idle for the sake of siblings, or of one that sleeps.
    let wastes = matches!(machine.knobs.gang, Some(knob::GANG_STRICT | knob::GANG_RELAXED))
        || machine.knobs.guard == Some(knob::GUARD_HALTED);
    // By cgroup: it has a quota.
    let mut limited = [false; 4];
    for event in events {
        apply(&mut w, event);
        audit(&mut w);
        if machine.knobs.order == Some(knob::ORDER_SBCO) {
            audit_all_loans(&mut w);
        }
        if let Event::Quota(cgroup, us) = event {
            let had = std::mem::replace(&mut limited[*cgroup], *us > 0);
            if had && limited == [false; 4] {
                // Who was aside is let go when a turn ends there, or a real-time task has gone.
                real_time_leaves(&mut w);
                w.run(100 * MS);
                audit(&mut w);
            }
        }
        // Who has used up its quota waits beside pCPUs that idle.
        if !wastes && limited == [false; 4] {
            assert_work_conserving(&mut w);
        }
    }
    audit(&mut w);
    books_agree(&mut w);
    audit(&mut w);
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn nothing_is_lost_and_no_pcpu_idles(
        machine in machine(knobs()),
        events in prop::collection::vec(event_of_any_kind(), 1..120),
    ) {
        nothing_is_lost(&machine, &events);
    }
}

/// Ten thousand of each: docs/development.md. `PRESET=strict` asks for those of one.
#[test]
fn every_presets_books_hold() {
    let only = std::env::var("PRESET").ok();
    assert!(
        only.iter().all(|name| PRESETS.iter().any(|preset| preset[0] == name)),
        "PRESET={only:?} is none"
    );
    for preset in PRESETS.iter().filter(|preset| only.as_deref().is_none_or(|name| name == preset[0])) {
        let histories =
            (machine(Just(presets::knobs(preset))), prop::collection::vec(event_of_any_kind(), 1..120));
        let mut runner = TestRunner::new(contextualize_config(cases(8)));
        let found = runner.run(&histories, |(machine, events)| {
            nothing_is_lost(&machine, &events);
            Ok(())
        });
        found.unwrap_or_else(|error| panic!("Test failed under {}: {error}", preset[0]));
        println!("{}: {} histories", preset[0], runner.config().cases);
    }
}

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn nobody_waits_for_ever(machine in machine(knobs()), events in prop::collection::vec(event(), 1..120)) {
        let mut w = make(&machine);
        for event in &events {
            apply(&mut w, event);
            // In the middle of things too.
            audit(&mut w);
            if machine.knobs.order == Some(knob::ORDER_SBCO) {
                audit_all_loans(&mut w);
            }
        }
        w.run(14_000 * MS);
        // A vCPU is overdue after ten times starve_ns, 1 s, another task after 10 s. Then it waits for those who are longer overdue: at
        // worst everybody else, on one pCPU, each for a slice, which ends at a tick; and once more for those who are queued meanwhile.
        // Order credit has turns of 30 ms whatever the knob.
        let own_ns = if machine.knobs.order == Some(knob::ORDER_CREDIT) { 30 * MS } else { MS };
        let slice_ns = machine.knobs.slice_ns.unwrap_or(0).max(own_ns) + 2 * w.config.tick_ns;
        let others_ns = 2 * (w.tasks.len() as u64 + 1) * slice_ns;
        for (index, task) in w.tasks.iter().enumerate() {
            let bound_ns = if task.vcpu.is_some() { 1_000 * MS } else { 10_000 * MS } + others_ns;
            let waits_ns = if task.queue.is_some() { w.now_ns - task.waits_since_ns } else { 0 };
            let longest = task.wait_max_ns.max(waits_ns);
            prop_assert!(longest <= bound_ns, "task {} waited for {} ms, bound {}", index, longest / MS, bound_ns / MS);
        }
    }
}

/// With order sbco alone, in small turns, so that debts are often open when something happens; a low alpha makes many.
fn sbco_machine() -> impl Strategy<Value = Machine> {
    let knobs = (1..5u64, 1..65_536u32, any::<bool>()).prop_map(|(slice_ms, alpha, spin)| Knobs {
        order: Some(knob::ORDER_SBCO),
        boost: Some(if spin { 31 } else { 0 }),
        slice_ns: Some(slice_ms * MS),
        sbco_alpha: Some(alpha),
        ..Knobs::default()
    });
    let vms = prop::collection::vec(2..5usize, 2..6);
    (2..6usize, knobs, any::<bool>(), vms).prop_map(|(cpus, knobs, preempt_rcu, vms)| Machine {
        cpus,
        shape: Shape::OneCache,
        knobs,
        preempt_rcu,
        sched_switch: true,
        vms,
        tasks: Vec::new(),
    })
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn what_siblings_lend_is_received(machine in sbco_machine(), events in prop::collection::vec(event(), 1..120)) {
        let mut w = make(&machine);
        for event in &events {
            apply(&mut w, event);
            audit(&mut w);
            if machine.knobs.order == Some(knob::ORDER_SBCO) {
                audit_all_loans(&mut w);
            }
            assert_work_conserving(&mut w);
        }
        books_agree(&mut w);
        audit(&mut w);
    }
}

/// A VM is gone before its helper thread; sets change in their turn and a member yields; one that goes to sleep is to be moved.
#[test]
fn histories_that_failed_once() {
    use Event::*;
    let gone = vec![Vm(2), Online(0), Thread(0), Cgroup(10, 1), Thread(0), Exit(21)];
    let sets = vec![
        Run(3_984_000),
        Kthread(5),
        Run(1_000),
        Run(6_015_000),
        Run(1_000),
        Kthread(3),
        Run(6_040_000),
        Thread(0),
        Sets(0, 2),
        Kthread(2),
        Sets(2, 0),
        Yield(13),
    ];
    let moved = vec![
        Host(1),
        Vm(3),
        Affinity(8, 33),
        Run(4_000_000),
        Affinity(4, 193),
        Host(1),
        Thread(0),
        Host(1),
        Sleep(20),
        Run(1_000),
        Run(1_000),
    ];
    let three = vec![(9, 2_909, 500), (6, 3_376, 2_554), (752, 2_393, 0)];
    for (name, cpus, vms, tasks, events) in [
        ("cohort", 2, vec![], vec![], gone),
        ("partial", 5, vec![2, 4], three, sets),
        ("strict", 4, vec![], vec![(1, 100, 0)], moved),
    ] {
        let preset = PRESETS.iter().find(|preset| preset[0] == name).expect("a preset");
        let knobs = presets::knobs(preset);
        let machine = Machine {
            cpus,
            shape: Shape::OneCache,
            knobs,
            preempt_rcu: false,
            sched_switch: true,
            vms,
            tasks,
        };
        nothing_is_lost(&machine, &events);
    }
}
