# SPDX-License-Identifier: GPL-2.0-only
"""Every preset, on the newest and on the oldest kernel: its verifier takes it, it schedules, equal VMs get the same.

So it is with what the default has on some hosts only.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, Ground
from provoked import TRUTH, put

from cohortlab.policies import PRESETS

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long, KERNELS]

# These say of themselves that they keep no shares.
WITHOUT_SHARES = ("procco", "cpuco")
VMS = ("work", "pv", "hyper")
PCPUS = 2
# So often is a sibling to be called that has no pCPU; and after so long it has lost it.
CALLS, STILL_US = 20, 2000


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_loaded_and_divides(bench: Bench, preset: str) -> None:
    with Ground(bench, preset) as ground:
        ground.busy(*VMS)
        got = ground.got(*VMS)
        if preset in WITHOUT_SHARES:
            ground.used(got, PCPUS)
        else:
            ground.divided(got, dict.fromkeys(VMS, 1), PCPUS)


def test_a_sibling_that_is_called_while_it_waits_is_boosted(bench: Bench) -> None:
    guest = bench.place.guests["work"].machine
    put(guest)
    with Ground(bench, "cohort", "--boost", "candidate,any-mode,migrate,ipi") as ground:
        ground.busy("pv", "hyper")
        job = guest.spawn("calls", f"exec {TRUTH} calls ipi {STILL_US}")
        try:
            bench.until(lambda: _count(ground, "boost_called") >= CALLS, f"it was called {CALLS} times", 60)
            got = ground.got(*VMS)
        finally:
            job.signal(signal.SIGTERM)
        assert job.wait(60) == 0
        assert _count(ground, "boost_granted") > 0
        ground.divided(got, dict.fromkeys(VMS, 1), PCPUS)


def _count(ground: Ground, name: str) -> int:
    return int(ground.statistics().get("total", {}).get(name, 0))
