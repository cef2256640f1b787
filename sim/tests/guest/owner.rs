// SPDX-License-Identifier: GPL-2.0-only
//! Locks of the kernel that are spun for while their owner runs.

use cohort_sim::guest::Heeds;
use cohort_sim::machine::MachineConfig;
use cohort_sim::observe::What;
use cohort_sim::scenario::VmConfig;

use crate::common::*;

/// On ideal pCPUs with turns of 1 ms; a hog on one if asked for.
fn run(vcpus: u32, steal_time: bool, beside_hog: Option<u32>, program: &str) -> Sim {
    run_with(vcpus, beside_hog, program, |config| config.kvm.steal_time = steal_time)
}

fn run_with(vcpus: u32, beside_hog: Option<u32>, program: &str, change: impl Fn(&mut VmConfig)) -> Sim {
    let text = format!("mutexes = {{ m = {{ spins = true }} }}\n{program}");
    let mut config = vm(vcpus, &text);
    change(&mut config);
    let cpus: Vec<u32> = (0..vcpus).collect();
    let hogs: Vec<_> = beside_hog.map(hog).into_iter().collect();
    build(&MachineConfig::ideal(vcpus), turns_of_a_ms(), &[config], &hogs, 1).pin(&cpus).until(100 * MS)
}

fn spun(s: &Sim) -> Vec<(u64, u64)> {
    s.list(|what| match what {
        What::SpinEnd { spun_ns, .. } => Some(*spun_ns),
        _ => None,
    })
}

#[test]
fn waiters_spin_in_turn_while_the_owner_runs() {
    let text = "
        [[thread]]
        name = 't'
        count = 3
        steps = [{ compute = '10us' }, { mutex = { name = 'm', steps = [{ compute = '100us' }] } }, { done = 'x' }]";
    let s = run(3, true, None, text);
    assert_eq!(done(&s), [110 * US, 210 * US, 310 * US]);
    assert_eq!(spun(&s), [(110 * US, 100 * US), (210 * US, 200 * US)]);
    let halts = s.list(|what| matches!(what, What::Halt { .. }).then_some(()));
    assert_eq!(halts[0].0, 110 * US, "nobody's vCPU is idle before its task has ended");
}

/// One holds the lock while it does this, on vCPU 0; another, on vCPU 1, wants it after 10 us.
fn beside_owner(rounds: u32, holds: &str) -> String {
    format!(
        "[[thread]]
        name = 'owner'
        vcpu = 0
        times = {rounds}
        steps = [{{ mutex = {{ name = 'm', steps = [{holds}] }} }}]
        [[thread]]
        name = 'waiter'
        vcpu = 1
        steps = [{{ compute = '10us' }}, {{ mutex = {{ name = 'm', steps = [{{ compute = '1us' }}] }} }}, {{ done = 'x' }}]\n"
    )
}

#[test]
fn nobody_spins_for_an_owner_whose_vcpu_is_preempted() {
    // The owner has the pCPU for a millisecond, then the hog, then the owner until 2.5 ms.
    let text = beside_owner(1, "{ compute = '1500us' }");
    let knows = run(2, true, Some(0), &text);
    assert_eq!(spun(&knows), [(MS, 990 * US)]);
    assert_eq!(done(&knows), [2_501 * US]);
    // Who knows no steal time cannot see it.
    let knows_not = run(2, false, Some(0), &text);
    assert_eq!(spun(&knows_not), [(2_500 * US, 2_490 * US)]);
    assert_eq!(done(&knows_not), [2_501 * US]);
    // Nor can who is not told, nor does it matter to a kernel that does not ask.
    let untold = run_with(2, Some(0), &text, |config| config.kvm.tells_preempted = false);
    let asks_not = run_with(2, Some(0), &text, |config| config.guest.heeds_preempted = Heeds::Nothing);
    assert_eq!((spun(&untold), spun(&asks_not)), (spun(&knows_not), spun(&knows_not)));
    let asks = run_with(2, Some(0), &text, |config| config.guest.heeds_preempted = Heeds::Owners);
    assert_eq!(spun(&asks), spun(&knows));
}

#[test]
fn nobody_spins_behind_a_spinner_whose_vcpu_is_preempted() {
    let text = beside_owner(1, "{ compute = '2500us' }")
        + "[[thread]]
        name = 'second'
        vcpu = 2
        steps = [{ compute = '20us' }, { mutex = { name = 'm', steps = [{ compute = '1us' }] } }, { done = 'x' }]";
    // The first spinner's pCPU is the hog's from 1 to 2 ms.
    let s = run(3, true, Some(1), &text);
    assert_eq!(spun(&s), [(MS, 980 * US), (2_500 * US, 1_490 * US)]);
    assert_eq!(done(&s), [2_501 * US, 2_502 * US]);
}

#[test]
fn nobody_spins_for_an_owner_that_sleeps() {
    let text = beside_owner(1, "{ compute = '50us' }, { sleep = '1ms' }");
    let s = run(2, true, None, &text);
    assert_eq!(spun(&s), [(50 * US, 40 * US)]);
    assert_eq!(done(&s), [1_051 * US]);
}

#[test]
fn nobody_spins_whose_task_is_to_go() {
    // The owner never lets go; the waiter's vCPU has another task, which is to have its turn when the waiter's slice is over.
    let text = "
        [[thread]]
        name = 'owner'
        vcpu = 0
        steps = [{ mutex = { name = 'm', steps = [{ compute = '50ms' }] } }]
        [[thread]]
        name = 'waiter'
        vcpu = 1
        steps = [{ compute = '10us' }, { mutex = { name = 'm', steps = [{ compute = '1us' }] } }]
        [[thread]]
        name = 'other'
        vcpu = 1
        steps = [{ compute = '10ms' }, { done = 'x' }]";
    let text = format!("mutexes = {{ m = {{ spins = true }} }}\n{text}");
    let run = |lazy_preemption| {
        let mut config = vm(2, &text);
        config.guest.tick_ns = MS;
        config.guest.lazy_preemption = lazy_preemption;
        let s =
            build(&MachineConfig::ideal(2), turns_of_a_ms(), &[config], &[], 1).pin(&[0, 1]).until(100 * MS);
        let ended = done(&s)[0];
        assert!(ended < 20 * MS, "the other task waited for a spinner: it ended at {ended} ns");
        spun(&s)[0].1
    };
    assert_eq!(run(false), 3 * MS - 10 * US);
    // need_resched() does not see a lazy wish: it does when the next tick has made it an urgent one.
    assert_eq!(run(true), 4 * MS - 10 * US);
}

#[test]
fn a_sleeper_is_handed_the_lock_in_time() {
    // The owner takes the lock again the moment that it has let go, six times over: the sleeper, who must be woken first, is too late each time.
    let text = beside_owner(6, "{ sleep = '3ms' }");
    // Woken at 3 ms it has waited for less than 4 ms; at 6 ms for more; at 9 ms it is handed the lock.
    assert_eq!(done(&run(2, true, None, &text)), [9_001 * US]);
}
