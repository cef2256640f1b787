# SPDX-License-Identifier: GPL-2.0-only
"""Who gets how much of the host: weights at every level, quotas, partitions, crowds; VMs beside host cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, QUOTA_SLACK, Ground, policies

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, KERNELS]
long = pytest.mark.long

QUOTA_WINDOW_S = 10


@policies
def test_weights_divide_what_the_parent_has(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.group("a", weight=100)
        ground.group("a/1", weight=10_000)
        ground.group("a/2", weight=1_000)
        ground.group("b", weight=100)
        for name in ("a/1", "a/2", "b"):
            ground.loops(name, 2)
        got = ground.got("a", "a/1", "a/2", "b")
        ground.divided(got, {"a": 1, "b": 1}, 2)
        ground.divided(got, {"a/1": 10, "a/2": 1}, got["a"])


@long
@policies
def test_weights_of_vms_divide_what_the_parent_has(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.group("tenant", weight=100)
        for vm, name, weight in (("work", "tenant/1", 10_000), ("pv", "tenant/2", 1_000)):
            ground.group(name, weight=weight)
            ground.move(vm, name)
        ground.busy("work", "pv", "hyper")
        got = ground.got("tenant", "tenant/1", "tenant/2", "hyper")
        ground.divided(got, {"tenant": 1, "hyper": 1}, 2)
        ground.divided(got, {"tenant/1": 10, "tenant/2": 1}, got["tenant"])


@long
@policies
def test_a_quota_is_a_limit_and_can_be_used_up(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        # What is not used in a period is lost: these two go before the third.
        ground.group("batch", max="30000 100000", weight=500)
        ground.loops("batch", 4)
        ground.set("work", "cpu.max", "50000 100000")
        ground.set("work", "cpu.weight", 500)
        ground.busy("work", "pv")
        before = {name: ground.counts(name) for name in ("work", "batch")}
        got = ground.got("work", "batch", "pv", window_s=QUOTA_WINDOW_S)
        ground.about(got, {"work": 0.5, "batch": 0.3}, QUOTA_SLACK)
        ground.used(got, 2)  # what they may not use is the third's
        for name in ("work", "batch"):
            after = ground.counts(name)
            for count in ("nr_periods", "nr_throttled"):
                assert after[count] - before[name][count] >= 0.9 * QUOTA_WINDOW_S / 0.1, (name, count, after)


@long
@pytest.mark.parametrize("policy", ["cohort"])
def test_a_quota_holds_in_periods_shorter_than_a_tick(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.group("batch", max="1500 2000", weight=500)
        ground.loops("batch", 4)
        # The kernel takes no quota below 1 ms.
        ground.set("work", "cpu.max", "1000 2000")
        ground.set("work", "cpu.weight", 500)
        ground.busy("work", "pv")
        got = ground.got("work", "batch", "pv", window_s=QUOTA_WINDOW_S)
        ground.about(got, {"work": 0.5, "batch": 0.75}, QUOTA_SLACK)


@long
@policies
def test_a_crowd_in_one_cgroup_counts_as_one(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.group("crowd", weight=100)
        ground.loops("crowd", 100)
        ground.busy("work", "pv")
        got = ground.got("work", "pv", "crowd", settle_s=3)
        ground.divided(got, {"work": 1, "pv": 1, "crowd": 1}, 2)


@long
@policies
def test_thousands_of_switches_are_charged(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.group("talkers", weight=100)
        ground.run_in("talkers", "exec stress-ng --quiet --cpu 2 --switch 4")
        ground.busy("work", "pv")
        got = ground.got("work", "pv", "talkers", settle_s=3)
        if policy == "eevdf":
            ground.used(got, 2)  # 6.18 may leave a VM a twentieth of a pCPU
        else:
            ground.divided(got, {"work": 1, "pv": 1, "talkers": 1}, 2)


@long
@policies
@pytest.mark.parametrize("how", ["affinity", "cpuset"])
def test_weights_hold_within_a_partition(bench: Bench, policy: str, how: str) -> None:
    with Ground(bench, policy) as ground:
        ground.set("work", "cpu.weight", 900)
        for vm, pcpu in (("work", "0"), ("pv", "0"), ("hyper", "1")):
            if how == "affinity":
                ground.pin(vm, pcpu)
            else:
                ground.cpuset(vm, pcpu)
        ground.busy("work", "pv", "hyper")
        got = ground.got("work", "pv", "hyper")
        ground.divided(got, {"work": 900, "pv": 100}, 1)
        ground.divided(got, {"hyper": 1}, 1)
