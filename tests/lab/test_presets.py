# SPDX-License-Identifier: GPL-2.0-only
"""Every preset: the verifiers of the newest and of the oldest kernel take it, it schedules, equal VMs get the same.

So it is with what the default has on some hosts only, and with a guard that lets pCPUs idle.
"""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import pytest
from ground import DIVIDING_KERNELS, KERNELS, OLDEST_KERNEL, Cgroups, Ground
from provoked import TRUTH, put

from cohortlab.lab.command import PAYLOAD
from cohortlab.policies import PRESETS

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long]

# These say of themselves that they keep no shares.
WITHOUT_SHARES = ("procco", "cpuco")
VMS = ("work", "pv", "hyper")
FILE = f"{PAYLOAD}/test.sets"
PCPUS = 2
# Programs that are loaded, and instructions of theirs that the verifier looks at, each as often as it does: most of the
# time until `cohort` schedules goes into that.
PROGRAMS_MIN, CHECKED_MAX = 20, 300_000
# So often is a sibling to be called that has no pCPU; and after so long it has lost it.
CALLS, STILL_US = 20, 2000
# Each vCPU runs one end of a pipe, and sleeps for a moment whenever it has caught up with the other one.
PIPE = "exec timeout 120 sh -c 'taskset 1 yes | taskset 2 cat >/dev/null'"
# So often is a pCPU to be kept, and how far what it idles and the VM uses may be from the VM's due.
KEPT = 200
KEPT_SLACK = (0.05, 0.03)


@DIVIDING_KERNELS
@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_loaded_and_divides(bench: Bench, preset: str) -> None:
    with Ground(bench, preset) as ground:
        ground.busy(*VMS)
        got = ground.got(*VMS)
        if preset in WITHOUT_SHARES:
            ground.used(got, PCPUS)
        else:
            ground.divided(got, dict.fromkeys(VMS, 1), PCPUS)


@OLDEST_KERNEL
def test_each_is_loaded_by_the_oldest_kernel_and_goes_on(bench: Bench) -> None:
    with Cgroups(bench) as ground, bench.silence():
        ground.busy(*VMS)
        bench.host.write(FILE, "*: all\n")
        no_presets = [("partial", "--gang", "partial-held", "--sets", FILE)]
        for policy, *args in [*((preset,) for preset in PRESETS), *no_presets]:
            with bench.cohort("--policy", policy, *args) as daemon:
                time.sleep(1)
                assert daemon.wait(0) is None, f"{policy} {args}: {daemon.output('stderr')[0]}"
                assert bench.state() == "enabled", policy


@KERNELS
def test_the_verifier_has_little_to_check(bench: Bench) -> None:
    with bench.cohort("--policy", "cohort", "-vv") as daemon:
        checked = [int(count) for count in re.findall(r"processed (\d+) insns", daemon.output("stderr")[0])]
    assert len(checked) >= PROGRAMS_MIN
    assert sum(checked) <= CHECKED_MAX


@KERNELS
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
        assert job.wait(bench.patience_s(60)) == 0
        assert _count(ground, "boost_granted") > 0
        ground.divided(got, dict.fromkeys(VMS, 1), PCPUS)


@KERNELS
@pytest.mark.parametrize("preset", ["cohort", "balance"])
def test_who_sleeps_for_a_moment_keeps_its_pcpu_and_pays(bench: Bench, preset: str) -> None:
    with Ground(bench, preset, "--guard", "halted", "--guard-keep-us", "1000") as ground:
        ground.busy("pv", "hyper")
        job = bench.place.guests["work"].machine.spawn("pipe", PIPE)
        try:
            bench.until(lambda: _count(ground, "kept_in_time") >= KEPT, f"pCPUs were kept {KEPT} times", 60)
            got = ground.got(*VMS)
        finally:
            job.signal(signal.SIGTERM)
            job.wait(bench.patience_s(60))
        got["work"] += ground.idle
        ground.about(got, dict.fromkeys(VMS, sum(got.values()) / len(VMS)), KEPT_SLACK)


def _count(ground: Ground, name: str) -> int:
    return int(ground.statistics().get("total", {}).get(name, 0))
