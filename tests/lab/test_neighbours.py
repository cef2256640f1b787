# SPDX-License-Identifier: GPL-2.0-only
"""What else runs on the host: real-time tasks, users who try everything, VMs and cgroups that come and go."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, NOBODY, Cgroups, Ground, policies

from cohortlab.lab import guest as guests

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long, KERNELS]

REALTIME_S = 5
# Much more than any turn, much less than the real-time task runs. The kernel's own scheduler moves the others away from
# it only by and by.
WAIT_MAX_S = {"eevdf": 2.0, "cohort": 0.5}
# Whatever a user may do to the scheduler: start and end, sleep and wake, move, yield, change class and priority.
STRESSORS = {
    "cpu": 8,
    "fork": 4,
    "affinity": 4,
    "yield": 4,
    "switch": 4,
    "futex": 2,
    "timer": 2,
    "pthread": 2,
    "nice": 2,
    "schedpolicy": 2,
    "sleep": 2,
    "wait": 2,
}
# The kernel's own scheduler is there to see that this runs at all: on 6.18 as little as 0.005 pCPUs are left to a VM.
STRESS_S = {"eevdf": 10, "cohort": 60}
# An hour by COHORT_LAB_CHURN_S=3600.
CHURN_S = float(os.environ.get("COHORT_LAB_CHURN_S", "30"))
# Wide, but whoever is to end must get as far as that.
WEIGHTS = (20, 2_000)
# The daemon prints every second, and a thread that has ended is noticed a little later.
COUNT_S = 20


@policies
def test_vcpus_do_not_wait_for_a_real_time_task(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.busy("work", "pv")
        with ground.waits_s(REALTIME_S + 5, "work", "pv") as waits:
            time.sleep(1)
            ground.group("realtime")
            # It leaves nothing of its pCPU but what the kernel keeps back, if it does; and takes a moment to begin.
            ground.loops("realtime", 1, "chrt --fifo 50 taskset --cpu-list 0")
            got = ground.got("work", "pv", "realtime", settle_s=1, window_s=REALTIME_S, tries=1)
            ground.host.check(f"echo 1 >{ground.folder('realtime')}/cgroup.kill")
        assert got["realtime"] > 0.9, got
        if policy == "eevdf":
            assert min(got["work"], got["pv"]) > 0.4, got
        else:
            left = got["work"] + got["pv"]
            assert left > 0.9 - ground.away, got
            ground.about(got, {"work": left / 2, "pv": left / 2})
        assert max(waits.values()) * (1 - ground.away) < WAIT_MAX_S[policy], (waits, ground.away)


@policies
def test_an_unprivileged_user_takes_no_more_than_its_share(bench: Bench, policy: str) -> None:
    with Ground(bench, policy) as ground:
        ground.group("user", weight=100)
        options = " ".join(f"--{name} {count}" for name, count in STRESSORS.items())
        # It ends with its cgroup; until then the VMs have begun, however slow that is beside it.
        command = f"cd /tmp && exec {NOBODY} stress-ng --quiet --timeout {STRESS_S[policy] + 300} {options}"
        stress = ground.run_in("user", command)
        ground.busy("work", "pv")
        got = ground.got("work", "pv", "user", window_s=STRESS_S[policy], settle_s=3, tries=1)
        assert stress.wait(0) is None, stress.output("stderr")[0]
        if policy == "eevdf":
            assert got["user"] > 0.3, got  # the stressors do run
        else:
            ground.divided(got, {"work": 1, "pv": 1, "user": 1}, 2)


@policies
def test_vms_and_cgroups_come_and_go(bench: Bench, policy: str) -> None:
    dice = random.Random(1)
    with Ground(bench, policy) as ground:
        ground.busy("work", "pv")
        if policy == "eevdf":
            churn(bench, dice, min(CHURN_S, STRESS_S["eevdf"]))
            return
        vms = {guest.pid(): guest.config.vcpus for guest in bench.place.guests.values()}
        # One that idles is known when it next runs.
        bench.until(
            lambda: "vms" in ground.statistics() and counted(ground) == vms, f"the daemon counts {vms}", COUNT_S
        )
        before = taken(ground)
        churn(bench, dice, CHURN_S)
        bench.until(lambda: counted(ground) == vms, f"the daemon counts those that live, {vms}", COUNT_S)
        # Nothing that came and went is left in a table, and shares are as if nothing had been.
        bench.until(lambda: taken(ground) == before, f"as many entries are taken as before, {before}", COUNT_S)
        got = ground.got("work", "pv")
        ground.divided(got, {"work": 1, "pv": 1}, 2)


def taken(ground: Ground) -> dict[str, int]:
    """Return how many entries of the scheduler's tables are taken."""
    return dict(ground.statistics()["taken"])


def counted(ground: Ground) -> dict[int, int]:
    """Return how many vCPUs the daemon knows of each VM, by its process."""
    return {vm["tgid"]: vm["vcpus"] for vm in ground.statistics()["vms"]}


def churn(bench: Bench, dice: random.Random, seconds: float) -> None:
    """Start and end VMs and cgroups with tasks, and change weights and quotas, all at random."""
    end = time.monotonic() + seconds
    round_number = 0
    while time.monotonic() < end:
        round_number += 1
        with Cgroups(bench) as inner:
            if round_number % 2:
                # Its cgroup is made with it, and stays.
                inner.callback(inner.remove, f"{guests.SLICE}/passer-by.scope")
                victim = bench.extra_guest("passer-by", vcpus=dice.randint(1, 3))
                inner.callback(victim.job.wait, bench.patience_s(30))
                inner.callback(victim.kill)
            names = [f"churn/{number}" for number in range(dice.randint(1, 4))]
            for name in names:
                inner.group(name, weight=dice.randint(*WEIGHTS))
                inner.loops(name, dice.randint(1, 3))
            for _ in range(dice.randint(1, 6)):
                name = dice.choice([*names, "work", "pv", "hyper"])
                inner.set(name, "cpu.weight", dice.randint(*WEIGHTS))
                inner.set(name, "cpu.max", dice.choice(["max 100000", "20000 100000", "5000 10000", "150000 100000"]))
                time.sleep(dice.random())
