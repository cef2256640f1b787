// SPDX-License-Identifier: GPL-2.0-only
//! From what vCPUs did to a program: one thread for each, which stays there.

use crate::time::{Ns, MS, US};
use crate::workload::dist::Dist;
use crate::workload::program::{BarrierSpec, Count, Metric, Spin, Thread, Times};
use crate::workload::{Program, Step};

use super::replay::{Item, Seen};

/// Fewer spins than that are chance.
const SPINS_MIN: u64 = 10;
/// Meeting more often than that changes nothing that could be seen.
const MEET_MIN_NS: Ns = 20 * US;
const LOCK: &str = "shared";
const BARRIER: &str = "all";
const NAME_MAX: usize = 48;

/// How the vCPUs meet, beside calls and wake-ups.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meets {
    No,
    /// Each takes a lock so often, for so long.
    Lock {
        every_ns: Ns,
        hold_ns: Ns,
    },
    /// All wait for each other, so many times.
    Barrier {
        times: u64,
    },
}

/// The program of one VM; `items` by vCPU. With `forever` it begins again at its end.
pub fn program(vm: &str, items: &[&[Item]], seen: &Seen, length_ns: Ns, forever: bool) -> Program {
    let meets = meets(items, seen);
    let threads = items.iter().enumerate().map(|(id, items)| {
        let mut steps = steps(id, items, meets);
        if forever {
            // Who was asleep at the end sleeps on; and nobody goes round without taking time.
            let told_ns: Ns = items
                .iter()
                .map(|item| if let Item::Work(ns) | Item::Sleep(ns) = item { *ns } else { 0 })
                .sum();
            if told_ns < MS {
                steps.push(Step::Sleep(Dist::fixed(length_ns.max(MS))));
            }
        }
        Thread {
            name: "vcpu".into(),
            count: Count::Fixed(1),
            process: false,
            background: forever,
            pin: false,
            vcpu: Some(id as u32),
            times: if forever { Times::Forever } else { Times::Fixed(1) },
            share: false,
            divide: false,
            first: Vec::new(),
            steps,
        }
    });
    let mut barriers = std::collections::BTreeMap::new();
    if let Meets::Barrier { .. } = meets {
        barriers.insert(
            BARRIER.to_string(),
            BarrierSpec { parties: None, pause: true, pause_every: None, gives_up: false },
        );
    }
    Program {
        name: vm.chars().take(NAME_MAX).collect(),
        title: format!("{vm} as recorded"),
        copies: 1,
        footprint_per_mille: 1000,
        metric: Metric::Elapsed,
        pipes: Default::default(),
        barriers,
        mutexes: Default::default(),
        threads: threads.collect(),
    }
}

fn meets(items: &[&[Item]], seen: &Seen) -> Meets {
    let spins = seen.spins_kernel + seen.spins_user;
    if spins < SPINS_MIN || seen.absences == 0 || items.len() < 2 {
        return Meets::No;
    }
    let until_ns = ((seen.until_spin_kernel_ns + seen.until_spin_user_ns) / spins).max(MEET_MIN_NS);
    let share = (spins as f64 / seen.absences as f64).min(1.0);
    let depends = items.iter().any(|items| items.iter().any(|item| matches!(item, Item::Wait(_))));
    if share > 0.5 && !depends {
        // On average half of the way to the next one was left.
        let most = items.iter().map(|items| work_ns(items)).max().unwrap_or(0);
        let times = most / (2 * until_ns);
        return if times == 0 { Meets::No } else { Meets::Barrier { times } };
    }
    // Beyond a half the lock would be what limits the program, and not who is away.
    Meets::Lock { every_ns: until_ns, hold_ns: (until_ns as f64 * share.min(0.5)) as Ns }
}

fn work_ns(items: &[Item]) -> Ns {
    items.iter().map(|item| if let Item::Work(ns) = item { *ns } else { 0 }).sum()
}

fn steps(id: usize, items: &[Item], meets: Meets) -> Vec<Step> {
    let mut steps = Vec::with_capacity(items.len());
    let all_ns = work_ns(items);
    // Work so far since the last meeting, and meetings so far.
    let (mut since_ns, mut met) = (0, 0);
    for item in items {
        match *item {
            Item::Work(ns) => match meets {
                Meets::No => steps.push(Step::Compute(Dist::fixed(ns))),
                Meets::Lock { every_ns, hold_ns } => {
                    since_ns = lock(&mut steps, ns, since_ns, every_ns, hold_ns);
                }
                Meets::Barrier { times } => {
                    barrier(&mut steps, ns, &mut since_ns, &mut met, (all_ns / times).max(1), times);
                }
            },
            Item::Sleep(ns) => steps.push(Step::Sleep(Dist::fixed(ns))),
            Item::Wait(sibling) => steps.push(Step::Wait(format!("{sibling} to {id}"))),
            Item::Wake(sibling) => steps.push(Step::Signal(format!("{id} to {sibling}"))),
            Item::Call => steps.push(Step::Call { same_space: true }),
        }
    }
    if let Meets::Barrier { times } = meets {
        // Everybody comes to each.
        repeat(&mut steps, times.saturating_sub(met), vec![meeting()]);
    }
    steps
}

fn meeting() -> Step {
    Step::Barrier { name: BARRIER.into(), spin: Spin::Forever }
}

fn repeat(steps: &mut Vec<Step>, times: u64, body: Vec<Step>) {
    match times {
        0 => {}
        1 => steps.extend(body),
        _ => steps.push(Step::Repeat { times: Times::Fixed(times), steps: body }),
    }
}

/// `ns` of work with a lock in it every so often. Return the work since the last one.
fn lock(steps: &mut Vec<Step>, ns: Ns, since_ns: Ns, every_ns: Ns, hold_ns: Ns) -> Ns {
    let taken = Step::Lock { name: LOCK.into(), hold: Dist::fixed(hold_ns), irqs_off: false };
    let work = |ns: Ns| Step::Compute(Dist::fixed(ns));
    let free_ns = every_ns - hold_ns.min(every_ns);
    let all_ns = since_ns + ns;
    let times = all_ns / every_ns;
    if times == 0 {
        steps.push(work(ns));
        return all_ns;
    }
    // The first one comes sooner, by what was worked before; what it holds is work as well.
    let first_ns = (every_ns - since_ns).min(ns);
    steps.push(work(first_ns.saturating_sub(hold_ns)));
    steps.push(taken.clone());
    repeat(steps, times - 1, vec![work(free_ns), taken]);
    let rest_ns = all_ns - times * every_ns;
    if rest_ns > 0 {
        steps.push(work(rest_ns));
    }
    rest_ns
}

fn barrier(steps: &mut Vec<Step>, ns: Ns, since_ns: &mut Ns, met: &mut u64, every_ns: Ns, times: u64) {
    let work = |ns: Ns| Step::Compute(Dist::fixed(ns));
    let all_ns = *since_ns + ns;
    let count = (all_ns / every_ns).min(times - *met);
    if count == 0 {
        steps.push(work(ns));
        *since_ns = all_ns;
        return;
    }
    steps.extend([work(every_ns.saturating_sub(*since_ns)), meeting()]);
    repeat(steps, count - 1, vec![work(every_ns), meeting()]);
    let rest_ns = all_ns - count * every_ns;
    if rest_ns > 0 {
        steps.push(work(rest_ns));
    }
    *since_ns = rest_ns;
    *met += count;
}
