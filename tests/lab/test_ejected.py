# SPDX-License-Identifier: GPL-2.0-only
"""The kernel ends the scheduler: what `cohort run` says, and that the host and its guests go on without it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from ground import LOOP, Cgroups
from provoked import real_time_without_limit

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long]

# The kernel's watchdog looks at tasks that have waited for 30 s every 15 s; the lab is slow.
_EJECTED_S = 120


def test_sysrq_s_gives_the_host_back(bench: Bench) -> None:
    with bench.nobody_is_hurt(), bench.cohort() as cohort:
        bench.host.check("echo S >/proc/sysrq-trigger")
        bench.until(lambda: bench.state() == "disabled", "the kernel schedules again")
        assert cohort.wait(bench.patience_s(30)) == 0
        said = cohort.output("stderr")[0]
        assert "ended by hand" in said, said


def test_one_that_is_put_out_says_why_and_the_host_goes_on(bench: Bench) -> None:
    """A real-time task that the kernel lets have a pCPU for itself: who may run only there waits for more than 30 s."""
    with bench.cohort() as cohort, Cgroups(bench) as ground:
        ground.group("pinned")
        ground.loops("pinned", 1, "taskset -c 1")
        real_time_without_limit(ground)
        ground.run_in("pinned", f"exec taskset -c 1 chrt -f 50 sh -c '{LOOP}'")
        rc = cohort.wait(bench.patience_s(_EJECTED_S))
        said = cohort.output("stderr")[0]
        assert rc == 1, f"cohort run: {rc}: {said}"
        assert "the kernel put the scheduler out" in said, said
        assert "stall" in said, said
        assert bench.state() == "disabled"
    # Neither its guests nor the next scheduler find anything left of that.
    with bench.nobody_is_hurt(), bench.cohort(name="again") as again:
        time.sleep(2)
        assert again.wait(0) is None
