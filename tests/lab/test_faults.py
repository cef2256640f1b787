# SPDX-License-Identifier: GPL-2.0-only
"""Harm done to the scheduler, its VMs and its host: guests finish their work, nothing stalls, kernels stay silent."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cohortlab.lab import evidence

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long]

CPU = "/sys/devices/system/cpu/cpu1/online"


def test_a_host_that_hangs_leaves_evidence(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    lab = bench.place.emulator
    found = evidence.take(lab.folder, lab.console_text())
    assert found is not None
    assert found.parent == tmp_path / "lost"
    # Twice, of both processors.
    assert all(
        found.read_text().count(asked) == 2 for asked in ("CPU#0", "CPU#1", "state for CPU 0", "state for CPU 1")
    )
    assert lab.console_text().splitlines()[0] in found.read_text()
    assert evidence.take(tmp_path, "") is None


def test_kill_9(bench: Bench) -> None:
    with bench.nobody_is_hurt(), bench.cohort() as cohort:
        cohort.signal(signal.SIGKILL)
        bench.until(lambda: bench.state() == "disabled", "the kernel schedules again")


def test_sigstop_for_a_minute(bench: Bench) -> None:
    with bench.cohort() as cohort, bench.nobody_is_hurt():
        cohort.signal(signal.SIGSTOP)
        time.sleep(60)
        assert bench.state() == "enabled"
        cohort.signal(signal.SIGCONT)
        assert cohort.wait(1) is None


def test_a_guest_killed_while_it_spins(bench: Bench) -> None:
    with bench.nobody_is_hurt(), bench.cohort():
        victim = bench.extra_guest("victim", vcpus=2)
        victim.wait_until_up()
        victim.machine.spawn("work", "stress-ng --quiet --tlb-shootdown 2 --mmapfork 2")
        time.sleep(5)
        victim.kill()
        assert victim.job.wait(bench.patience_s(30)) == -signal.SIGKILL


def test_twenty_guests_come_and_go(bench: Bench) -> None:
    with bench.nobody_is_hurt(), bench.cohort():
        for number in range(20):
            guest = bench.extra_guest(f"guest-{number}", vcpus=2)
            time.sleep(number % 4)
            guest.kill()
            assert guest.job.wait(bench.patience_s(30)) == -signal.SIGKILL


def test_a_cpu_goes_and_comes_back(bench: Bench) -> None:
    with bench.cohort() as cohort, bench.nobody_is_hurt():
        bench.host.check(f"echo 0 >{CPU}")
        try:
            time.sleep(5)
            assert bench.host.check("nproc").strip() == "1"
        finally:
            bench.host.check(f"echo 1 >{CPU}")
        time.sleep(5)
        bench.until(lambda: bench.state() == "enabled", "Cohort schedules on all CPUs again")
        assert cohort.wait(0) is None


def test_real_time_tasks_that_take_turns_beside_tasks_that_end(bench: Bench) -> None:
    """Linux 7.3 ejects who asks 257 times that a queue be emptied in which an exiting task stays."""
    with bench.nobody_is_hurt(), bench.cohort(), ExitStack() as stack:
        for name, sh in (
            ("turns", "exec chrt --fifo 1 taskset -c 0 hackbench -g 1 -f 2 -l 100000000"),
            ("ends", "while :; do taskset -c 0 true; done"),
        ):
            job = bench.host.spawn(name, sh)
            stack.callback(job.signal, signal.SIGKILL)
        for _ in range(20):
            time.sleep(1)
            assert bench.state() == "enabled", bench.host.run("dmesg | tail -5").stdout


def test_a_second_cohort_is_refused(bench: Bench) -> None:
    with bench.cohort() as first, bench.nobody_is_hurt():
        second = bench.host.run("cohort run")
        assert second.rc == 2
        assert second.stderr.count("\n") == 1, second.stderr
        assert first.wait(0) is None
        assert bench.state() == "enabled"
