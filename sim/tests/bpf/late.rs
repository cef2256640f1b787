// SPDX-License-Identifier: GPL-2.0-only
//! Who comes into a queue when nothing else makes its pCPU look: a turn is over that nobody waited for the end of; or it comes from another pCPU, and nobody
//! holds the lock of the one whose queue it is, which may choose or fall idle just then.

use crate::common::*;
use crate::spec::{Config, Spec};
use crate::world::World;

#[test]
fn who_comes_when_a_turn_is_over_and_no_tick_has_said_so_is_looked_at() {
    // Nobody waits for the runner of pCPU 1: its turn ends at a tick, which is far away.
    let mut w = World::new(Config { tick_ns: 1_000 * MS, ..Config::cpus(2) });
    let runs = w.spawn(Spec::busy().on(&[1]));
    w.run(5 * MS);
    let comes = w.spawn(Spec::busy());
    for _ in 0..2 {
        w.spawn(Spec::busy().on(&[0]));
    }
    // Two others wait there when it has had its turn.
    while w.is_running(comes) && w.task(comes).cpu == 0 {
        w.run(MS / 10);
    }
    assert!(w.task(runs).used_ns > 20 * MS, "test: that turn is to be over");
    w.settle();
    assert!(w.is_running(comes), "it waits for a tick");
    audit(&mut w);
}

#[test]
fn who_comes_on_its_own_pcpu_when_a_turn_is_over_waits_for_no_tick() {
    let mut w = World::new(Config { tick_ns: 1_000 * MS, ..Config::cpus(1) });
    // It sleeps with 100 ms had, and comes back when another has had 35, and so more than a turn.
    let comes = w.spawn(Spec::cycle(100 * MS, 40 * MS));
    w.run(105 * MS);
    let runs = w.spawn(Spec::busy());
    w.run(45 * MS);
    assert!(w.is_running(runs), "test: the other one is to have the pCPU");
    w.run(150 * MS);
    assert!(w.task(comes).used_ns > 110 * MS, "it waits for a tick, though its turn has come");
    audit(&mut w);
}

#[test]
fn who_is_inserted_only_when_the_pcpu_has_fallen_idle_is_found_when_the_turn_would_have_ended() {
    let mut w = world(2);
    let runs = w.spawn(Spec::busy().on(&[1]));
    w.spawn(Spec::busy().on(&[0]));
    w.run(MS / 10);
    let comes = w.spawn(Spec::busy().on(&[1]));
    w.run(MS);
    // The kernel has yet to put it there. Nobody looks into the other queue meanwhile.
    w.comes_late(1, 0);
    w.unmark(0);
    w.sleep(runs);
    w.settle();
    assert!(w.cpus[1].idles(), "test: it is to look in vain");
    w.comes_late(0, 1);
    w.run(20 * MS);
    assert!(w.is_running(comes), "it waits beside an idle pCPU");
    audit(&mut w);
}
