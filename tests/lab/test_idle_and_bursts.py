# SPDX-License-Identifier: GPL-2.0-only
"""Two more knobs of cgroups: `cpu.idle`, who has only what others leave; `cpu.max.burst`, what is left of a quota."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, LOOP, Cgroups, Ground, policies

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long]

# Of an idle cgroup among others of the default weight, in their hundredths: the kernel's 3 of 1024, which to Cohort is
# the least that a weight can be.
IDLE_WEIGHT = {"eevdf": 100 * 3 / 1024, "cohort": 1}
IDLE_WINDOW_S = 10
# Who computes for ON_S wants more than its quota in a period, and less than that and as much again of periods before;
# while it sleeps there is time for both to come back.
QUOTA_US, PERIOD_US, ON_S, OFF_S = 300_000, 1_000_000, 0.5, 2.25
ROUNDS = 8
# With a burst it has 0.5 s a round of 2.75 s. Without, 0.3 s of 3 s or more: what ends it is in the same cgroup, and
# waits for the next period as well. Only its first round may have more, if a period ends meanwhile.
MORE_MIN = 1.2


# On the newest kernel alone: older ones than 6.19 tell a sched_ext scheduler nothing of it.
@policies
@pytest.mark.parametrize("told", ["before", "meanwhile"])
def test_an_idle_cgroup_has_what_others_leave(bench: Bench, policy: str, told: str) -> None:
    with Cgroups(bench) as outside:
        idle = f"{outside.group('batch')}/cpu.idle"
        if told == "before":
            bench.host.check(f"echo 1 >{idle}")
        with Ground(bench, policy) as ground:
            # First: a VM of others has begun before the crowd comes.
            ground.busy("work", "pv")
            if told == "meanwhile":
                bench.host.check(f"echo 1 >{idle}")
            ground.loops("batch", 2)
            got = ground.got("work", "pv", "batch", window_s=IDLE_WINDOW_S, settle_s=3)
            ground.divided(got, {"work": 100, "pv": 100, "batch": IDLE_WEIGHT[policy]}, 2)
            assert got["batch"] > 0, "it starves"
            assert got["batch"] < min(got["work"], got["pv"]) / 10, got
            # It is one of three again.
            bench.host.check(f"echo 0 >{idle}")
            got = ground.got("work", "pv", "batch", settle_s=3)
            ground.divided(got, {"work": 1, "pv": 1, "batch": 1}, 2)


@KERNELS
@policies
def test_what_is_left_of_a_quota_can_be_used_in_a_burst(bench: Bench, policy: str) -> None:
    computes = f"while :; do timeout {ON_S} sh -c {shlex.quote(LOOP)}; sleep {OFF_S}; done"
    with Ground(bench, policy) as ground:
        # A pCPU each: nothing but its quota keeps anybody waiting.
        for pcpu, (name, burst_us) in enumerate((("saves", QUOTA_US), ("forgets", 0))):
            folder = ground.group(name, max=f"{QUOTA_US} {PERIOD_US}")
            ground.host.check(f"echo {burst_us} >{folder}/cpu.max.burst")
            ground.run_in(name, f"exec taskset -c {pcpu} sh -c {shlex.quote(computes)}")
        before = {name: ground.counts(name)["nr_throttled"] for name in ("saves", "forgets")}
        got = ground.got("saves", "forgets", window_s=ROUNDS * (ON_S + OFF_S))
        throttled = {name: ground.counts(name)["nr_throttled"] - count for name, count in before.items()}
    print(f"{policy}: throttled in so many periods: {throttled}")
    assert got["saves"] > MORE_MIN * got["forgets"], got
    assert throttled["saves"] < throttled["forgets"], throttled
