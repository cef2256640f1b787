// SPDX-License-Identifier: GPL-2.0-only
//! Mutex, condition, barrier, pipe.

use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::workload::rt_app::from_rt_app;
use cohort_sim::workload::{Step, Workload};

use crate::common::*;

fn run(vcpus: u32, text: &str) -> Sim {
    let cpus: Vec<u32> = (0..vcpus).collect();
    build(&MachineConfig::ideal(vcpus), turns_of_a_ms(), &[vm(vcpus, text)], &[], 1)
        .pin(&cpus)
        .until(100 * MS)
}

#[test]
fn a_mutex_is_held_by_one_and_its_waiters_sleep() {
    let text = "
        [[thread]]
        name = 't'
        count = 3
        steps = [{ compute = '10us' }, { mutex = { name = 'm', steps = [{ compute = '100us' }] } }, { done = 'x' }]";
    let s = run(3, text);
    assert_eq!(done(&s), [110 * US, 210 * US, 310 * US]);
    let halts = s.list(|what| matches!(what, What::Halt { .. }).then_some(()));
    assert_eq!(halts[0].0, 10 * US, "the waiters' vCPUs are idle");
    assert_eq!(s.list(|what| matches!(what, What::SpinStart { .. }).then_some(())), []);
}

#[test]
fn a_condition_counts_its_signals() {
    let text = "
        [[thread]]
        name = 'giver'
        times = 3
        steps = [{ compute = '100us' }, { signal = 'c' }]
        [[thread]]
        name = 'taker'
        times = 3
        steps = [{ wait = 'c' }, { compute = '10us' }, { done = 'x' }]";
    assert_eq!(done(&run(2, text)), [110 * US, 210 * US, 310 * US]);
    // Signals that come first are not lost.
    let text = text.replace(
        "times = 3\n        steps = [{ wait",
        "times = 3\n        steps = [{ sleep = '1ms' }, { wait",
    );
    assert_eq!(done(&run(2, &text)), [1_010 * US, 2_020 * US, 3_030 * US]);
}

#[test]
fn a_broadcast_wakes_all() {
    let text = "
        [[thread]]
        name = 'waiter'
        count = 3
        steps = [{ wait = 'c' }, { done = 'x' }]
        [[thread]]
        name = 'caller'
        steps = [{ compute = '50us' }, { broadcast = 'c' }]";
    assert_eq!(done(&run(4, text)), [50 * US; 3]);
}

#[test]
fn a_broadcast_is_for_those_who_wait_then_and_for_no_later_wait_of_theirs() {
    let text = "
        [[thread]]
        name = 'waiter'
        count = 3
        times = 2
        steps = [{ wait = 'c' }, { done = 'x' }]
        [[thread]]
        name = 'caller'
        times = 2
        steps = [{ compute = '50us' }, { broadcast = 'c' }]";
    assert_eq!(done(&run(4, text)), [50 * US, 50 * US, 50 * US, 100 * US, 100 * US, 100 * US]);
    // Who has seen that it must wait, and is on the way to sleep, is not forgotten: the system call takes longer than the broadcast.
    let text = "
        [[thread]]
        name = 'waiter'
        steps = [{ compute = '45us' }, { wait = 'c' }, { done = 'x' }]
        [[thread]]
        name = 'caller'
        steps = [{ compute = '50us' }, { broadcast = 'c' }]";
    let mut slow = vm(2, text);
    slow.guest.costs.syscall_ns = 10 * US;
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[slow], &[], 1).pin(&[0, 1]).until(MS);
    // 10 us to user mode, 45, 10 into the kernel and 10 out of it.
    assert_eq!(done(&s), [75 * US]);
}

/// rt-app's `sync` signals, and waits for another's signal.
#[test]
fn two_tasks_of_rt_app_that_sync_take_turns() {
    let task = r#"{ "lock": "m", "sync": { "ref": "c", "mutex": "m" }, "unlock": "m", "run": 100 }"#;
    let json = format!(r#"{{ "tasks": {{ "a": {task}, "b": {task} }} }}"#);
    let mut program = from_rt_app("turns.json", &json).unwrap();
    for thread in &mut program.threads {
        thread.steps.push(Step::Done(thread.name.clone()));
    }
    let mut config = vm(2, "[[thread]]\nname = 't'\nsteps = [{ compute = '1us' }]");
    config.workload = Some(Workload::Program(program));
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(2 * MS);
    let turns = s.list(|what| match what {
        What::Progress { kind, .. } => Some(*kind),
        _ => None,
    });
    let first = turns[0].1;
    let turn = |at: u16| (u64::from(at + 1) * 100 * US, (first + at) % 2);
    assert_eq!(turns, (0..20).map(turn).collect::<Vec<_>>());
}

fn at_barrier(spin: &str) -> Sim {
    let text = format!(
        "[[thread]]
         name = 'fast'
         count = 2
         times = 2
         steps = [{{ compute = '10us' }}, {{ barrier = {{ name = 'b', spin = {spin} }} }}, {{ done = 'x' }}]
         [[thread]]
         name = 'slow'
         times = 2
         steps = [{{ compute = '100us' }}, {{ barrier = {{ name = 'b', spin = {spin} }} }}, {{ done = 'x' }}]"
    );
    run(3, &text)
}

#[test]
fn a_barrier_opens_when_the_last_one_comes() {
    for spin in ["0", "'20us'", "'forever'"] {
        assert_eq!(
            done(&at_barrier(spin)),
            [100 * US, 100 * US, 100 * US, 200 * US, 200 * US, 200 * US],
            "{spin}"
        );
    }
    let spun = |spin| {
        let s = at_barrier(spin);
        s.list(|what| match what {
            What::SpinEnd { spun_ns, .. } => Some(*spun_ns),
            _ => None,
        })
    };
    assert_eq!(spun("0"), []);
    assert_eq!(spun("'20us'")[0], (30 * US, 20 * US));
    assert_eq!(spun("'forever'")[0], (100 * US, 90 * US));
}

#[test]
fn who_opens_a_barrier_wakes_the_sleepers_under_their_queues_lock() {
    let text = "
        [[thread]]
        name = 'fast'
        steps = [{ compute = '10us' }, { barrier = { name = 'b' } }, { done = 'x' }]
        [[thread]]
        name = 'slow'
        steps = [{ compute = '100us' }, { barrier = { name = 'b' } }, { done = 'x' }]";
    let mut config = vm(2, text);
    config.guest.costs.futex_ns = 5 * US;
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(MS);
    // The barrier's lock comes after those of the run queues.
    assert_eq!(s.taken(2), [(10 * US, (0, 0)), (100 * US, (1, 0))]);
    assert_eq!(done(&s), [105 * US; 2]);
}

#[test]
fn who_gives_up_at_a_barrier_goes_on_alone() {
    let with = |slow: &str, spin: &str| {
        let text = format!(
            "barriers = {{ b = {{ gives_up = true }} }}
             [[thread]]
             name = 'fast'
             times = 2
             steps = [{{ compute = '10us' }}, {{ barrier = {{ name = 'b', spin = {spin} }} }}, {{ done = 'x' }}]
             [[thread]]
             name = 'slow'
             times = 2
             steps = [{{ compute = '{slow}' }}, {{ barrier = {{ name = 'b', spin = {spin} }} }}, {{ done = 'x' }}]"
        );
        done(&run(2, &text))
    };
    // They meet twice: fast has spun for 15 us each time.
    assert_eq!(with("25us", "'20us'"), [25 * US, 25 * US, 50 * US, 50 * US]);
    // Fast has gone on when slow comes, at 100 us, and leaves no arrival behind that would let slow through.
    assert_eq!(with("100us", "'20us'"), [30 * US, 60 * US, 120 * US, 240 * US]);
}

#[test]
fn a_pipe_holds_so_many_and_no_more() {
    // Sending takes no time: at 0 two messages are in the pipe; each that is taken, at 100, 200, ... us, makes room for one.
    let text = "
        pipes = { p = { capacity = 2 } }
        [[thread]]
        name = 'sender'
        times = 5
        steps = [{ send = 'p' }, { done = 'sent' }]
        [[thread]]
        name = 'receiver'
        times = 5
        steps = [{ compute = '100us' }, { recv = 'p' }]";
    assert_eq!(done(&run(2, text)), [0, 0, 100 * US, 200 * US, 300 * US]);
    // With a low-water mark of 0 the sender sleeps until all are gone.
    let low = text.replace("capacity = 2", "capacity = 2, low_water = 0");
    assert_eq!(done(&run(2, &low)), [0, 0, 200 * US, 200 * US, 400 * US]);
}

#[test]
fn a_request_wakes_the_vmms_thread_from_where_it_was_made() {
    let ended = |io: &str| {
        let text = format!("[[thread]]\nname = 't'\nsteps = [{{ io = {io} }}, {{ done = 'x' }}]");
        let mut machine = MachineConfig::ideal(2);
        machine.costs.ipi_ns = 2 * US;
        done(&build(&machine, turns_of_a_ms(), &[vm(1, &text)], &[], 1).pin(&[1]).until(MS))[0]
    };
    // Its pCPU idles, and is woken by an interrupt.
    let alone = ended("{ device = '100us' }");
    assert_eq!(ended("{ device = '100us', host = '10us' }"), alone + 12 * US);
}

#[test]
fn a_period_is_kept_whatever_its_work_takes() {
    let text = "
        [[thread]]
        name = 't'
        times = 4
        steps = [{ compute = { uniform = ['100us', '900us'] } }, { period = '1ms' }, { done = 'x' }]";
    assert_eq!(done(&run(1, text)), [MS, 2 * MS, 3 * MS, 4 * MS]);
    // Of a program that begins later from there on; and so are its units of work.
    let mut late = vm(1, text);
    late.start_ns = 10 * MS;
    let s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[late], &[], 1).pin(&[0]).until(20 * MS);
    assert_eq!(done(&s), [11 * MS, 12 * MS, 13 * MS, 14 * MS]);
    let took = s.list(|what| match what {
        What::Progress { took_ns, .. } => Some(*took_ns),
        _ => None,
    });
    assert_eq!(took.iter().map(|(_, took_ns)| *took_ns).collect::<Vec<_>>(), [MS; 4]);
}

/// Two tasks have eight rounds of 0.9 ms; the second is on a pCPU that a hog has in every other ms. When rounds and the program end, in us.
fn rounds(how: &str) -> (Vec<u64>, Option<u64>) {
    let text = format!(
        "[[thread]]
         name = 't'
         count = 2
         pin = true
         times = 8
         {how} = true
         steps = [{{ compute = '900us' }}, {{ done = 'x' }}]"
    );
    let s = build(&MachineConfig::ideal(2), turns_of_a_ms(), &[vm(2, &text)], &[hog(1)], 1).pin(&[0, 1]);
    let s = s.until(100 * MS);
    (done(&s).iter().map(|at| at / US).collect(), s.end_ns().map(|at| at / US))
}

#[test]
fn whoever_is_faster_does_more_of_the_rounds_that_are_shared() {
    // The first at 0.9, 1.8, ...; the second at 0.9, 2.8, 4.7, 6.6 ms. At 3.6 ms the first takes the last one that is left.
    assert_eq!(rounds("share"), (vec![900, 900, 1_800, 2_700, 2_800, 3_600, 4_500, 4_700], Some(4_700)));
    assert_eq!(rounds("divide"), (vec![900, 900, 1_800, 2_700, 2_800, 3_600, 4_700, 6_600], Some(6_600)));
}

#[test]
fn a_program_that_begins_anew_has_all_shared_rounds_again() {
    let text = "
        [[thread]]
        name = 't'
        count = 2
        times = 5
        share = true
        steps = [{ compute = '1ms' }, { done = 'x' }]";
    let config = cohort_sim::scenario::VmConfig { repeat: true, ..vm(2, text) };
    let s =
        build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(6_500 * US);
    let at_ms: Vec<u64> = done(&s).iter().map(|at| at / MS).collect();
    assert_eq!(at_ms, [1, 1, 2, 2, 3, 4, 4, 5, 5, 6]);
}

#[test]
fn a_call_waits_for_all_others_that_run_the_program() {
    let text = "
        [[thread]]
        name = 'caller'
        steps = [{ compute = '10us' }, { call = { same_space = true } }, { done = 'x' }]
        [[thread]]
        name = 'other'
        count = 2
        background = true
        steps = [{ compute = '1ms' }]";
    let mut machine = MachineConfig::ideal(3);
    machine.costs.ipi_ns = 1_000;
    let s = build(&machine, turns_of_a_ms(), &[vm(3, text)], &[], 1).pin(&[0, 1, 2]).until(MS);
    assert_eq!(done(&s), [11 * US]);
    assert_eq!(s.sim.bodies.vms[0].counters.taken[usize::from(cohort_sim::kvm::vector::CALL)], 2);
}

#[test]
fn a_program_that_does_nothing_for_ever_is_an_error() {
    let text = "[[thread]]\nname = 't'\ntimes = 'forever'\nsteps = [{ compute = '0ns' }]";
    let mut s = build(&MachineConfig::ideal(1), turns_of_a_ms(), &[vm(1, text)], &[], 1);
    let error = s.sim.run_until(MS).unwrap_err().to_string();
    assert!(error.contains("does nothing for ever"), "{error}");
}
