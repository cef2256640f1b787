# SPDX-License-Identifier: GPL-2.0-only
"""Loads of real guests, and when they begin, with guests that are this machine, or that only remember."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohortlab import scenario
from cohortlab.lab import programs, real
from cohortlab.lab.programs import Programs
from cohortlab.places import PlaceError
from cohortlab.scenario import Scenario
from cohortlab.workloads import WorkloadError

Write = Callable[..., Path]


class ShellJob:
    """What a guest's agent does with a command (lab/agent/src): this machine's shell, a process group of its own."""

    def __init__(self, line: str) -> None:
        self.process = subprocess.Popen(["/bin/sh", "-c", line], process_group=0, stderr=subprocess.PIPE, text=True)

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        return None

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def output(self, stream: str) -> tuple[str, int]:
        assert self.process.stderr is not None
        return self.process.stderr.read(), 0

    def left(self) -> list[str]:
        """Return its processes that have not ended."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = stat.read_text()
                state, _, group = text.rpartition(")")[2].split()[:3]
                if int(group) == self.process.pid and state not in "ZX":
                    found.append(text)
        return found


class Shell:
    """Guests that are this machine."""

    def __init__(self) -> None:
        self.machine = self
        self.jobs: list[ShellJob] = []

    def spawn(self, name: str, line: str) -> ShellJob:
        self.jobs.append(ShellJob(line))
        return self.jobs[-1]


def with_command(folder: Path, name: str, line: str) -> None:
    file = folder / "workloads" / f"{name}.toml"
    file.write_text(re.sub('command = ".*"', lambda _: f"command = {json.dumps(line)}", file.read_text()))


def programs_of(loaded: Scenario, guests: Any) -> Programs:
    return Programs(loaded, guests)


@pytest.mark.parametrize(
    "line",
    [
        "sleep 1000",
        "while :; do sleep 0.05; done",
        "NAME=value sleep 1000",
        "cd / && sleep 1000",
        "sleep 0.01; sleep 1000",
        "sleep 1000 & sleep 1000",
    ],
)
def test_an_endless_load_is_any_command_line_and_ends_as_a_whole(
    write_scenario: Write, tmp_path: Path, line: str
) -> None:
    with_command(tmp_path, "burn", line)
    guest = Shell()
    with programs_of(scenario.load(write_scenario()), {"hog": guest}).load("hog", "burn"):
        assert guest.jobs[0].left()
    deadline = time.monotonic() + 60
    while guest.jobs[0].left():
        assert time.monotonic() < deadline, guest.jobs[0].left()
        time.sleep(0.01)


def test_a_load_that_is_wrong_says_why(write_scenario: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "LOAD_SETTLE_S", 60)
    with_command(tmp_path, "burn", "echo no such thing >&2; exit 3")
    load = programs_of(scenario.load(write_scenario()), {"hog": Shell()}).load("hog", "burn")
    with pytest.raises(PlaceError, match=r"^burn ended with 3 in hog: no such thing$"), load:
        pass


def test_a_program_runs_over_and_over_whatever_its_line_ends_in(write_scenario: Write, tmp_path: Path) -> None:
    once = tmp_path / "once"
    line = f"test ! -e {once} && touch {once} || {{ echo no room >&2; false; }} & wait $!  # fails the second time"
    with_command(tmp_path, "spin", line)
    guest = Shell()
    again = programs_of(scenario.load(write_scenario()), {"work": guest}).again("work", "spin")
    # Who ran beside it had the host for itself from then on.
    with pytest.raises(WorkloadError, match=r"^spin in work, begun anew, ended with 1: no room$"), again:
        assert guest.jobs[0].wait(60) == 1
    assert once.exists()


def test_a_program_that_exits_begins_anew_all_the_same(write_scenario: Write, tmp_path: Path) -> None:
    times = tmp_path / "times"
    with_command(tmp_path, "spin", f"echo once >>{times}; sleep 0.01; exit 0")
    guest = Shell()
    with programs_of(scenario.load(write_scenario()), {"work": guest}).again("work", "spin"):
        deadline = time.monotonic() + 60
        while not times.exists() or times.read_text().count("once") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert guest.jobs[0].process.poll() == -9


def test_what_fails_beside_is_not_told_in_the_place_of_what_went_wrong(write_scenario: Write, tmp_path: Path) -> None:
    with_command(tmp_path, "spin", "exit 3")
    guest = Shell()
    again = programs_of(scenario.load(write_scenario()), {"work": guest}).again("work", "spin")

    def goes_wrong() -> None:
        assert guest.jobs[0].wait(60) == 3
        raise PlaceError("the policy ended")

    with pytest.raises(PlaceError, match="the policy ended"), again:
        goes_wrong()


LATE = """
name = "late"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 2
memory_mb = 256
programs = ["spin"]
start_s = 0.3
[[vm]]
name = "hog"
count = 2
vcpus = 2
memory_mb = 256
load = "burn"
start_s = 0.1
"""


class Told:
    """Guests, and their jobs, that only remember what they are asked."""

    def __init__(self, log: list[Any], ends: int | None = None) -> None:
        self.machine = self
        self._log = log
        self._ends = ends

    def spawn(self, name: str, line: str) -> Told:
        self._log.append(line)
        return self

    def wait(self, timeout_s: float) -> int | None:
        self._log.append(("wait", timeout_s))
        return self._ends

    def signal(self, number: int) -> None:
        self._log.append(("signal", number))

    def output(self, stream: str) -> tuple[str, int]:
        return "no memory\n", 0


class Place(real.RealPlace):
    """A place with such guests."""

    def __init__(self, loaded: Scenario, log: list[Any], ends: int | None = None) -> None:
        super().__init__(loaded, probe=False, progress=lambda *_: None)
        self._log = log
        self._programs = programs_of(loaded, {vm.name: Told(log, ends) for vm in loaded.vms})

    @property
    def host(self) -> Any:
        return None

    def _boot(self) -> None:
        pass

    _close = _check = _needs_cohort = _there = _boot

    def _last_words(self) -> str:
        return ""

    def _measure(self, vm: str, workload: str) -> Any:
        self._log.append(("measure", vm))


def test_late_loads_and_a_late_program_come_when_they_should(
    write_scenario: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []
    monkeypatch.setattr(real, "time", SimpleNamespace(sleep=lambda seconds: log.append(("sleep", seconds))))
    place = Place(scenario.load(write_scenario(LATE)), log)
    with ExitStack() as loads:
        for vm in ("hog-1", "hog-2"):
            loads.enter_context(place.background(vm, "burn"))
        assert log == []
        place.measure("work", "spin")
        # Nobody waits for a load to settle: all would be late by that.
        assert log == ["sleep 0.1; burn", "sleep 0.1; burn", ("sleep", 0.3), ("measure", "work")]
    log.clear()
    place.measure("work", "spin")
    assert log == [("measure", "work")], "alone it is later than nobody"


def test_a_late_load_that_ended_is_told_afterwards(write_scenario: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    monkeypatch.setattr(real, "time", SimpleNamespace(sleep=lambda _: None))
    place = Place(scenario.load(write_scenario(LATE)), log, ends=1)
    said = r"^burn in hog-1 ended by itself with 1: no memory$"
    with pytest.raises(PlaceError, match=said), place.background("hog-1", "burn"):
        place.measure("work", "spin")
    assert ("measure", "work") in log


def test_vms_of_one_rhythm_sleep_at_the_same_time(tmp_path: Path) -> None:
    """Whenever each was started: one waits for as long as the other needs to be asleep when it begins."""
    files = [tmp_path / name for name in ("first", "second")]
    jobs = []
    try:
        for file in files:
            file.write_text("0\n")
            jobs.append(ShellJob(programs.rhythm(str(file), 0, 0.4, 0.4)))
            time.sleep(0.4)
        time.sleep(0.8)
        seen = []
        until = time.monotonic() + 2.4
        while time.monotonic() < until:
            seen.append([file.read_text().strip() for file in files])
            time.sleep(0.01)
    finally:
        for job in jobs:
            job.signal(9)
            job.wait(10)
    # A file is empty for a moment while it is written.
    looks = [look for look in seen if "" not in look]
    apart = sum(first != second for first, second in looks)
    assert {first for first, _ in looks} == {"0", "1"}
    assert apart < len(looks) / 2, f"apart at {apart} of {len(looks)} looks"
