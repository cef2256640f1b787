// SPDX-License-Identifier: GPL-2.0-only
//! cpu.max, as in the kernel: usage, nesting, bursts, statistics; and that nobody else suffers.

use cohort_sim::host::{Bandwidth, NO_QUOTA};

use crate::common::*;
use crate::spec::{Config, Spec};
use crate::world::{TaskId, World};

const SECOND: u64 = 1_000 * MS;

/// A cgroup with a VM of busy vCPUs.
pub fn vm_in(w: &mut World, parent: usize, vcpus: usize) -> (usize, Vec<TaskId>) {
    let (cgroup, vm) = (w.new_cgroup(parent, 100), w.new_vm(vcpus));
    (cgroup, (0..vcpus).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect())
}

pub fn gets(w: &mut World, ns: u64, tasks: &[TaskId]) -> f64 {
    shares(w, ns, tasks).iter().sum()
}

/// Periods that ended, and how many of them throttled, of the only cgroup that has a quota.
fn periods(w: &mut World) -> (u64, u64) {
    let all = (1..32).map(|slot| w.peek_entity(slot));
    all.fold((0, 0), |sum, entity| (sum.0 + entity.nr_periods, sum.1 + entity.nr_throttled))
}

#[test]
fn a_vm_at_half_a_pcpu_gets_half_a_pcpu() {
    for vcpus in [1, 2, 4] {
        let mut w = world(2);
        let (cgroup, vm) = vm_in(&mut w, 0, vcpus);
        w.set_quota(cgroup, 100_000, 50_000, 0);
        w.run(SECOND);
        let share = gets(&mut w, 10 * SECOND, &vm);
        assert_near(share, 0.5, 0.01);
        // As in cpu.stat: a period is throttled if its end finds it so. 11 s have 110 periods.
        let (all, throttled) = periods(&mut w);
        assert!((109..=110).contains(&all) && throttled + 2 >= all, "{throttled} of {all} periods");
    }
}

#[test]
fn what_a_throttled_vm_leaves_goes_to_others() {
    let mut w = world(2);
    let (cgroup, limited) = vm_in(&mut w, 0, 2);
    let (_, free) = vm_in(&mut w, 0, 2);
    w.set_quota(cgroup, 100_000, 60_000, 0);
    w.run(SECOND);
    let all = [limited.clone(), free.clone()].concat();
    let shares = shares(&mut w, 10 * SECOND, &all);
    assert_near(shares[0] + shares[1], 0.6, 0.012);
    assert_near(shares[2] + shares[3], 1.4, 0.012);
    // Nobody of the free VM waits for a period's end.
    let longest = free.iter().map(|id| w.task(*id).wait_max_ns / MS).max().unwrap();
    assert!(longest <= 120, "one waited for {longest} ms");
}

#[test]
fn the_tightest_of_nested_quotas_counts() {
    let mut w = world(4);
    let outer = w.new_cgroup(0, 100);
    w.set_quota(outer, 100_000, 100_000, 0);
    let (tight, a) = vm_in(&mut w, outer, 2);
    w.set_quota(tight, 50_000, 15_000, 0);
    // One vCPU, so that what is above both lasts into the second period of the tight one.
    let (_, b) = vm_in(&mut w, outer, 1);
    w.run(SECOND);
    let shares = shares(&mut w, 10 * SECOND, &[a, b].concat());
    assert_near(shares[0] + shares[1], 0.3, 0.006);
    assert_near(shares[2], 0.7, 0.014);
}

#[test]
fn a_burst_is_what_was_left_before_and_no_more() {
    let mut w = world(1);
    let cgroup = w.new_cgroup(0, 100);
    let task = w.spawn(Spec::on_demand(10 * SECOND).cgroup(cgroup));
    w.set_quota(cgroup, 100_000, 20_000, 20_000);
    w.run(SECOND);
    w.sleep(task);
    w.run(2 * SECOND);
    w.wake(task);
    // What it may have used by the end of a period: the burst once, and the quota of each that has begun.
    let used = used_in(&mut w, SECOND, &[task])[0];
    assert!((212 * MS..=220 * MS + 20 * MS + 8 * MS).contains(&used), "it got {} ms", used / MS);
    w.run(SECOND);
    assert_near(gets(&mut w, 10 * SECOND, &[task]), 0.2, 0.004);
}

#[test]
fn a_quota_changed_or_removed_while_throttled_counts_at_once() {
    let mut w = world(1);
    let (cgroup, vm) = vm_in(&mut w, 0, 1);
    w.set_quota(cgroup, 1_000_000, 1_000, 0);
    w.run(100 * MS);
    assert!(!w.is_running(vm[0]));
    w.set_quota(cgroup, 100_000, 30_000, 0);
    w.run(5 * MS);
    assert!(w.is_running(vm[0]), "it has a new quota, and waits");
    w.run(SECOND);
    assert_near(gets(&mut w, 10 * SECOND, &vm), 0.3, 0.006);
    until_it_waits(&mut w, vm[0]);
    w.set_quota(cgroup, 100_000, NO_QUOTA, 0);
    w.run(5 * MS);
    assert!(w.is_running(vm[0]), "it has no quota, and waits");
    assert_near(gets(&mut w, SECOND, &vm), 1.0, 0.001);
}

#[test]
fn a_budget_that_no_timer_could_be_started_for_is_filled_when_one_can() {
    let mut w = World::new(Config { no_timers_until_ns: 300 * MS, ..Config::cpus(1) });
    let (cgroup, vm) = vm_in(&mut w, 0, 1);
    w.set_quota(cgroup, 100_000, 30_000, 0);
    w.spawn(Spec::busy());
    w.run(200 * MS);
    until_it_waits(&mut w, vm[0]);
    w.run(SECOND);
    assert_near(gets(&mut w, 10 * SECOND, &vm), 0.3, 0.006);
}

#[test]
fn a_tiny_quota_for_many_starves_nobody_to_the_watchdog() {
    let mut w = world(2);
    let cgroup = w.new_cgroup(0, 100);
    let many: Vec<_> = (0..20).map(|_| w.spawn(Spec::busy().cgroup(cgroup))).collect();
    let (_, vm) = vm_in(&mut w, 0, 2);
    w.set_quota(cgroup, 100_000, 1_000, 0);
    w.run(60 * SECOND);
    audit(&mut w);
    let longest = many.iter().map(|id| w.task(*id).wait_max_ns / MS).max().unwrap();
    assert!(longest <= 20_000, "one waited for {longest} ms");
    let share = gets(&mut w, 10 * SECOND, &vm);
    assert!(share >= 1.96, "the VM beside it gets {share:.3}");
}

#[test]
fn quotas_hold_where_clocks_differ_and_pcpus_go() {
    let skew_ns = vec![0, 3 * MS as i64, -3 * MS as i64];
    let mut w = World::new(Config { skew_ns, ..Config::cpus(3) });
    let (cgroup, vm) = vm_in(&mut w, 0, 3);
    vm_in(&mut w, 0, 3);
    w.set_quota(cgroup, 100_000, 50_000, 0);
    w.run(SECOND);
    w.cpu_offline(2);
    w.run(300 * MS);
    w.cpu_online(2);
    w.run(SECOND);
    assert_near(gets(&mut w, 10 * SECOND, &vm), 0.5, 0.01);
}

/// A VM of that many busy vCPUs on two pCPUs: what it gets of a quota, and what its statistics say, for 10 s.
fn with_quota(period_us: u64, percent: u64, vcpus: usize, beside: bool) {
    let about = format!("{percent} % of {period_us} us, {vcpus} vCPUs, beside another VM: {beside}");
    let mut w = world(2);
    let (cgroup, vm) = vm_in(&mut w, 0, vcpus);
    if beside {
        vm_in(&mut w, 0, 2);
    }
    w.set_quota(cgroup, period_us, period_us * percent / 100, 0);
    w.run(SECOND);
    let before = periods(&mut w);
    let share = gets(&mut w, 10 * SECOND, &vm);
    let after = periods(&mut w);
    let (quota, wants) = (percent as f64 / 100.0, if beside { 1.0 } else { vcpus as f64 });
    let due = quota.min(wants);
    assert!((share - due).abs() <= 0.02 * due, "{about}: {share:.4} of {due:.2} pCPUs");
    let wanted = 10_000_000 / period_us;
    let (all, throttled) = (after.0 - before.0, after.1 - before.1);
    assert!(all.abs_diff(wanted) <= 1, "{about}: {all} of {wanted} periods");
    // Each period's end finds it throttled, or none does.
    if quota < wants {
        assert!(throttled + wanted / 50 + 1 >= all, "{about}: {throttled} of {all} throttled");
    } else {
        assert!(throttled <= wanted / 50, "{about}: {throttled} of {all} throttled");
    }
}

#[test]
fn periods_shorter_than_a_tick_have_their_quotas() {
    // The kernel ticks every 4 ms here.
    for period_us in [1_000, 2_000, 4_000, 10_000] {
        for percent in [10, 30, 50, 150] {
            for vcpus in [1, 2] {
                with_quota(period_us, percent, vcpus, false);
                with_quota(period_us, percent, vcpus, true);
            }
        }
    }
}

#[test]
fn who_has_used_it_up_stops_then_and_not_at_the_tick() {
    for beside in [false, true] {
        let mut w = world(2);
        let (cgroup, vm) = vm_in(&mut w, 0, 1);
        if beside {
            vm_in(&mut w, 0, 2);
        }
        w.set_quota(cgroup, 10_000, 1_500, 0);
        w.run(SECOND);
        let (mut stretch_us, mut longest_us) = (0, 0);
        for _ in 0..20_000 {
            w.run(MS / 20);
            stretch_us = if w.is_running(vm[0]) { stretch_us + 50 } else { 0 };
            longest_us = longest_us.max(stretch_us);
        }
        assert!((1_400..=1_600).contains(&longest_us), "it runs for {longest_us} us at a time");
    }
}

#[test]
fn those_that_run_divide_what_is_left() {
    let mut w = world(4);
    let (cgroup, vm) = vm_in(&mut w, 0, 4);
    w.set_quota(cgroup, 50_000, 8_000, 0);
    w.run(SECOND);
    let used = |w: &World| vm.iter().map(|id| w.task(*id).used_ns).sum::<u64>();
    let mut most = 0;
    for _ in 0..100 {
        let before = used(&w);
        w.run(50 * MS);
        most = most.max(used(&w) - before);
    }
    // If each thought that all of it is for itself they would use 16 ms until the next tick.
    assert!((8 * MS..13 * MS).contains(&most), "{} us of a period", most / 1_000);
}

#[test]
fn a_group_that_never_uses_it_up_is_never_throttled() {
    let mut w = world(2);
    let cgroup = w.new_cgroup(0, 100);
    w.spawn(Spec::cycle(10 * MS, 90 * MS).cgroup(cgroup));
    w.set_quota(cgroup, 100_000, 50_000, 0);
    w.run(5 * SECOND);
    let (all, throttled) = periods(&mut w);
    assert!(all >= 45 && throttled == 0, "{throttled} of {all} periods");
}

#[test]
fn a_quota_that_was_there_before_the_scheduler_holds() {
    let mut w = world(2);
    let cgroup =
        w.new_limited_cgroup(0, 100, Bandwidth { period_us: 100_000, quota_us: 30_000, burst_us: 0 });
    let vm = w.new_vm(2);
    let vcpus: Vec<_> = (0..2).map(|id| w.spawn(Spec::busy().vcpu(vm, id).cgroup(cgroup))).collect();
    w.run(SECOND);
    assert_near(gets(&mut w, 10 * SECOND, &vcpus), 0.3, 0.006);
}

#[test]
fn who_takes_a_cgroups_place_inherits_no_statistics() {
    let mut w = world(1);
    let cgroup = w.new_cgroup(0, 100);
    let task = w.spawn(Spec::busy().cgroup(cgroup));
    w.set_quota(cgroup, 100_000, 30_000, 0);
    w.run(SECOND);
    assert!(periods(&mut w).1 >= 8);
    w.exit(task);
    w.run(200 * MS);
    assert!(w.remove_cgroup(cgroup));
    w.new_limited_cgroup(0, 100, Bandwidth { period_us: 100_000, quota_us: 30_000, burst_us: 0 });
    w.run(200 * MS);
    assert_eq!(periods(&mut w), (0, 0));
}

#[test]
fn an_idle_cgroup_gets_what_others_leave() {
    let mut w = world(1);
    let idle = w.new_cgroup(0, 10_000);
    w.set_cgroup_idle(idle, true);
    let background = w.spawn(Spec::busy().cgroup(idle));
    let cgroup = w.new_cgroup(0, 100);
    let task = w.spawn(Spec::busy().cgroup(cgroup));
    w.run(SECOND);
    // The kernel's 3 of 1024, here 1 of 100.
    let before = shares(&mut w, 20 * SECOND, &[background, task]);
    assert_near(before[0], 0.01, 0.005);
    w.set_cgroup_idle(idle, false);
    // Its last turn as an idle one has put it far ahead.
    w.run(5 * SECOND);
    let after = shares(&mut w, 5 * SECOND, &[background, task]);
    assert_near(after[0], 100.0 / 101.0, 0.01);
}

#[test]
fn a_cgroup_that_was_idle_before_the_scheduler_is() {
    let mut w = world(1);
    let (idle, cgroup) = (w.new_idle_cgroup(0, 10_000), w.new_cgroup(0, 100));
    let background = w.spawn(Spec::busy().cgroup(idle));
    w.spawn(Spec::busy().cgroup(cgroup));
    w.run(SECOND);
    assert_near(gets(&mut w, 20 * SECOND, &[background]), 0.01, 0.005);
}

#[test]
fn a_quota_goes_with_its_cgroup() {
    let mut w = world(1);
    let stays = w.new_cgroup(0, 100);
    w.set_quota(stays, 100_000, 30_000, 0);
    for _ in 0..3 {
        let goes = w.new_cgroup(0, 100);
        w.set_quota(goes, 100_000, 30_000, 0);
        assert_eq!(w.quotas(), 2);
        assert!(w.remove_cgroup(goes));
        assert_eq!(w.quotas(), 1);
    }
    w.set_quota(stays, 100_000, NO_QUOTA, 0);
    assert_eq!(w.quotas(), 0);
}

#[test]
fn quotas_hold_beyond_the_first_64_pcpus() {
    let mut w = world(70);
    for cpu in [0, 63, 64, 69] {
        let (cgroup, vm) = (w.new_cgroup(0, 100), w.new_vm(1));
        let vcpu = w.spawn(Spec::busy().vcpu(vm, 0).cgroup(cgroup).on(&[cpu]));
        w.set_quota(cgroup, 100_000, 30_000, 0);
        w.run(300 * MS);
        assert_near(gets(&mut w, 2 * SECOND, &[vcpu]), 0.3, 0.015);
    }
}

#[test]
fn a_crowd_that_was_put_aside_does_not_hide_who_waits_there() {
    let mut w = world(1);
    let (cgroup, vm) = (w.new_cgroup(0, 100), w.new_vm(1));
    let vcpu = w.spawn(Spec::busy().vcpu(vm, 0));
    // More than a choice looks at.
    (0..60).for_each(|_| {
        w.spawn(Spec::busy().cgroup(cgroup));
    });
    w.set_quota(cgroup, 1_000_000, 300_000, 0);
    w.run(10 * SECOND);
    assert_near(gets(&mut w, 5 * SECOND, &[vcpu]), 0.7, 0.03);
    // They take turns for as long as the crowd may run.
    let longest_ms = w.task(vcpu).wait_max_ns / MS;
    assert!(longest_ms <= 100, "it waited for {longest_ms} ms");
}

#[test]
fn a_quota_holds_for_a_cgroup_for_which_there_is_no_number() {
    let mut w = world(1);
    let limited = w.new_cgroup(0, 100);
    w.set_quota(limited, 100_000, 30_000, 0);
    // As many as there are numbers for.
    (0..8_192).for_each(|_| {
        w.new_cgroup(0, 100);
    });
    let child = w.new_cgroup(limited, 100);
    let task = w.spawn(Spec::busy().cgroup(child));
    w.run(SECOND);
    assert_near(gets(&mut w, 2 * SECOND, &[task]), 0.3, 0.01);
}

#[test]
fn a_new_cgroup_ends_nobodys_turn() {
    let mut w = world(1);
    let (cgroup, _) = vm_in(&mut w, 0, 1);
    // Somebody is aside there.
    w.set_quota(cgroup, 1_000_000, 1_000, 0);
    (0..2).for_each(|_| {
        w.spawn(Spec::busy());
    });
    w.run(SECOND + 100 * MS);
    let mut switches = |makes: bool| {
        let before = w.stats().switches;
        for _ in 0..400 {
            if makes {
                w.new_cgroup(0, 100);
            }
            w.run(2 * MS);
        }
        w.stats().switches - before
    };
    let (without, with) = (switches(false), switches(true));
    assert!(with <= without + 2, "{with} switches, {without} without new cgroups");
}
