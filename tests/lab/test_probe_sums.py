# SPDX-License-Identifier: GPL-2.0-only
"""The probe's sums of what quotas, wake-ups and polling take, beside what was provoked and what the kernel adds up."""

from __future__ import annotations

import itertools
import re
import shlex
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from ground import LOOP, SUMMED_KERNELS, Cgroups
from probe import EXACT, Probe, close_to, grown, woken
from provoked import TRUTH, put

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cohortlab.lab.agent import Job
    from conftest import Bench

# Within 2 % asks for a machine that does little else, so these are not among what `make test` runs.
pytestmark = [pytest.mark.lab, pytest.mark.long, SUMMED_KERNELS]

MS = 1_000_000
# On one vCPU, from which its guest cannot move it.
LOOPS = f"taskset -c {{}} sh -c {shlex.quote(LOOP)}"
# A quota of half a pCPU, and how much of a period two vCPUs that want all they can get are then without one.
QUOTA_US, PERIOD_US = 50_000, 100_000
WITHOUT = 2 - QUOTA_US / PERIOD_US
# KVM polls longer than a guest's timer here is away.
POLL_NS = 20 * MS
TIMER_US = 3_000
# A vCPU's timer that wakes it so often, for so long.
WAKES_US, WAKES_S = 10_000, 8
# Threads on the host that compute for so long of each so long a period, for some ticks or for a part of one.
RHYTHMS_US = {0: (3_000, 8_000), 1: (9_500, 16_000)}
# An agent knows its jobs by name.
_numbers = itertools.count()


def timer(us: int, seconds: float) -> str:
    """Return a guest's command that wakes its vCPU 1 so often."""
    return f"cyclictest --quiet --threads=1 --affinity=1 --priority=80 --interval={us} --duration={seconds:g}"


@contextmanager
def in_guest(bench: Bench, *commands: str) -> Iterator[None]:
    """Run shell commands in a VM's guest, in the block."""
    machine = bench.place.guests["work"].machine
    jobs: list[Job] = [machine.spawn(f"sums-{next(_numbers)}", f"exec {command}") for command in commands]
    try:
        yield
    finally:
        for job in jobs:
            job.signal(signal.SIGKILL)
            job.wait(bench.patience_s(60))


def test_who_has_used_up_its_quota_is_throttled_for_the_rest_of_each_period(bench: Bench) -> None:
    with Cgroups(bench) as ground, Probe(bench) as probe, in_guest(bench, *(LOOPS.format(vcpu) for vcpu in (0, 1))):
        # A pCPU for each vCPU: neither waits for the other, and the kernel adds up what each pCPU is without.
        ground.pin("work", ground.everywhere)
        probe.pin("work", 0, 1)
        ground.set("work", "cpu.max", f"{QUOTA_US} {PERIOD_US}")
        stat = f"{ground.folder('work')}/cpu.stat"

        def kernel_ns() -> int:
            lines = dict(line.split() for line in bench.host.read(stat).splitlines())
            return 1000 * int(lines["throttled_usec"])

        time.sleep(1)
        before, start, kernel_before = probe.vm("work"), probe.last["clock_ns"], kernel_ns()
        time.sleep(20)
        after, end, kernel_after = probe.vm("work"), probe.last["clock_ns"], kernel_ns()
        window_ns = end - start
        throttled, kernel = after["throttled_ns"] - before["throttled_ns"], kernel_after - kernel_before
        ran, ready = grown(before, after, "run_ns"), grown(before, after, "ready_ns")
        print(
            f"of {window_ns} ns: throttled {throttled}, kernel {kernel}, quota {WITHOUT * window_ns:.0f};"
            f" ran {ran}, ready {ready}"
        )
        assert throttled == close_to(kernel)
        assert throttled == close_to(WITHOUT * window_ns)
        # It is ready meanwhile, and waits for nothing else.
        assert ready == close_to(throttled)


def test_wake_ups_and_their_waits_are_those_that_the_kernel_times(bench: Bench) -> None:
    """A timer wakes vCPU 1; vCPU 0 computes, and so waits after preemptions alone."""
    wakes = timer(WAKES_US, 600)
    with Cgroups(bench) as ground, Probe(bench) as probe, in_guest(bench, LOOPS.format(0), wakes):
        ground.busy("pv")
        before, kernel_before = probe.stopped("work")
        with woken(bench, [vcpu["tid"] for vcpu in before["vcpus"]]) as sums:
            probe.goes_on("work")
            time.sleep(WAKES_S)
            after, kernel_after = probe.stopped("work")
        probe.goes_on("work")
        count, waited_ns = sums
        got = {name: grown(before, after, name) for name in ("wakeups", "wait_wakeup_ns", "ready_ns")}
        slept = sum(
            says[vcpu]["switches"] * sign - says[vcpu]["preemptions"] * sign
            for says, sign in ((kernel_after, 1), (kernel_before, -1))
            for vcpu in says
        )
        print(f"probe {got}; kernel: {count} woken and waited for {waited_ns} ns, {slept} slept")
        assert got["wakeups"] == close_to(count, 2)
        # Who sleeps is woken, and the timer ends most of it.
        assert got["wakeups"] == close_to(slept, 2)
        assert got["wait_wakeup_ns"] == close_to(waited_ns)
        assert count > 0.5 * WAKES_S * 1e6 / WAKES_US
        # Most of its waiting is another kind: what is added up is not all of it.
        assert got["wait_wakeup_ns"] < (1 - EXACT) * got["ready_ns"]


def test_polling_before_halts_is_what_kvm_has_polled(bench: Bench) -> None:
    guest = bench.place.guests["work"]
    knob = "/sys/module/kvm/parameters/halt_poll_ns"
    with Cgroups(bench) as ground, Probe(bench) as probe:
        ground.callback(bench.host.check, f"echo {bench.host.read(knob).strip()} >{knob}")
        bench.host.check(f"echo {POLL_NS} >{knob}")

        def kernel_ns() -> int:
            files = (f"/sys/kernel/debug/kvm/{guest.pid()}-*/halt_poll_{how}_ns" for how in ("success", "fail"))
            return sum(map(int, bench.host.check(f"cat {' '.join(files)}").split()))

        before, kernel_before = probe.vm("work"), kernel_ns()
        guest.machine.check(timer(TIMER_US, 8), 120)
        # What was polled is known when the vCPU halts in the end.
        time.sleep(2)
        after, kernel_after = probe.vm("work"), kernel_ns()
        got, says = grown(before, after, "halt_polled_ns"), kernel_after - kernel_before
        print(f"polled: probe {got} ns, KVM {says} ns")
        assert got == close_to(says)
        assert got > 500 * MS


def test_idle_time_is_what_those_who_run_leave(bench: Bench) -> None:
    def ran_ns() -> int:
        """What all tasks but the idle ones have run: the seventh number of a pCPU's line."""
        lines = (line.split() for line in bench.host.read("/proc/schedstat").splitlines())
        return sum(int(words[7]) for words in lines if re.fullmatch(r"cpu\d+", words[0]))

    put(bench.host)
    with Cgroups(bench) as ground, Probe(bench) as probe:
        for name in bench.place.guests:
            ground.callback(probe.goes_on, name)
            probe.stopped(name)
        for pcpu, (run_us, period_us) in RHYTHMS_US.items():
            command = f"exec taskset -c {pcpu} {TRUTH} rhythm {run_us} {period_us}"
            ground.callback(bench.host.spawn(f"sums-{next(_numbers)}", command).signal, signal.SIGKILL)
        time.sleep(1)
        before, ran_before = probe.sample(), ran_ns()
        time.sleep(20)
        after, ran_after = probe.sample(), ran_ns()
        window_ns = bench.place.pcpus * (after["clock_ns"] - before["clock_ns"])
        idle, ran = after["idle_ns"] - before["idle_ns"], ran_after - ran_before
        print(f"of {window_ns} ns: idle {idle}, ran {ran}")
        assert 0.3 * window_ns < ran < 0.8 * window_ns
        # Both are of clocks read in the middle of a switch, one a little earlier than the other.
        assert idle + ran == close_to(window_ns)
