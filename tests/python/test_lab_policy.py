# SPDX-License-Identifier: GPL-2.0-only
"""What the lab tells the kernel's own scheduler, with a host that is two files."""

import json
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cohortlab.lab.policy import PolicyRun, applying, undoing
from cohortlab.lab.real import RealPlace
from cohortlab.places import PlaceCrashed, PlaceError
from cohortlab.policies import KernelSettings

MODES = ("up", "smp", "concur", "max", "tasks")


class Host:
    """Runs shell commands on two files, as the kernel has them; without modes it is a kernel before 7.3."""

    def __init__(self, mode: str | None = "concur") -> None:
        self.mode = mode
        self.slice_ns = "1400001"

    def check(self, sh: str) -> str:
        said = ""
        for command in re.split("; | && ", sh):
            if written := re.fullmatch(r"echo (\S+) >/sys/kernel/debug/sched/(\w+)", command):
                value, file = written.groups()
                if file == "cgroup_mode":
                    self.mode = value
                else:
                    self.slice_ns = value
            elif "base_slice_ns" in command:
                said += f"{self.slice_ns}\n"
            elif command != "true":
                said += " ".join(f"({mode})" if mode == self.mode else mode for mode in MODES if self.mode) + "\n"
        return said


def test_what_was_there_comes_back() -> None:
    host: Any = Host()
    settings = KernelSettings("smp", 16_000)
    undo = undoing(host, settings)
    assert (host.mode, host.slice_ns) == ("concur", "1400001"), "nothing has changed yet"
    host.check(applying(settings))
    assert (host.mode, host.slice_ns) == ("smp", "16000000")
    host.check(undo)
    assert (host.mode, host.slice_ns) == ("concur", "1400001"), "to the nanosecond"


def test_what_is_not_asked_for_stays() -> None:
    host: Any = Host()
    settings = KernelSettings(base_slice_us=3_000)
    undo = undoing(host, settings)
    host.check(applying(settings))
    host.mode = "max"
    assert host.slice_ns == "3000000"
    host.check(undo)
    assert (host.mode, host.slice_ns) == ("max", "1400001")
    assert applying(KernelSettings()) == undoing(host, KernelSettings()) == "true"


def test_an_older_kernel_refuses_and_nothing_has_changed() -> None:
    host: Any = Host(mode=None)
    with pytest.raises(PlaceError, match='this kernel has no "smp"'):
        undoing(host, KernelSettings("smp", 16_000))
    host.slice_ns = ""
    with pytest.raises(PlaceError, match="mount debugfs"):
        undoing(host, KernelSettings(base_slice_us=16_000))


@pytest.mark.parametrize("settings", [KernelSettings(latency_us=20_000), KernelSettings(min_granularity_us=4_000)])
def test_a_real_cfs_is_not_told(settings: KernelSettings) -> None:
    host: Any = Host()
    with pytest.raises(PlaceError, match="only a simulated CFS can be told that"):
        undoing(host, settings)


def test_the_vms_of_a_real_host_have_cgroups() -> None:
    host: Any = Host()
    with pytest.raises(PlaceError, match="the VMs of a real host have a cgroup each"):
        undoing(host, KernelSettings(vm_cgroups=False))


def test_a_real_kernel_boosts_as_it_does() -> None:
    host: Any = Host()
    with pytest.raises(PlaceError, match="a real kernel boosts as it does"):
        undoing(host, KernelSettings(boosts=frozenset({"unfair"})))


class Printed:
    """A job that has printed so many bytes of all that it prints; the agent replaces what is no UTF-8."""

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self.printed = 0
        self.read_bytes = 0

    def output(self, stream: str, offset: int = 0) -> tuple[str, int]:
        assert offset >= 0
        new = self.whole[offset : self.printed]
        self.read_bytes += len(new)
        return new.decode(errors="replace"), offset + len(new)


def test_a_line_that_is_cut_anywhere_is_read_whole_and_once() -> None:
    lines = [json.dumps({"vm": "käse €", "total": {"boosts": number}}, ensure_ascii=False) for number in (1, 2, 3)]
    whole = "".join(f"{line}\n" for line in lines).encode()
    for cut in range(len(whole) + 1):
        job: Any = Printed(whole)
        run = PolicyRun("cohort", job, job)
        job.printed = cut
        complete = whole[:cut].count(b"\n")
        assert run.latest() == ({"boosts": complete} if complete else {})
        assert (run._offset, job.read_bytes) == (cut, cut)
        job.printed = len(whole)
        assert run.latest() == {"boosts": 3}
        assert (run._offset, job.read_bytes) == (len(whole), len(whole))


@pytest.mark.parametrize(("loads", "counts"), [(("3\n", "3\n"), True), (("", ""), True), (("3\n", "4\n"), False)])
def test_what_is_measured_while_another_scheduler_comes_is_void(loads: tuple[str, str], counts: bool) -> None:
    told = iter(loads)
    place: Any = SimpleNamespace(host=SimpleNamespace(check=lambda _: next(told)), _crash_if_lost=nullcontext)
    refused = pytest.raises(PlaceCrashed, match="a sched_ext scheduler was loaded")
    with nullcontext() if counts else refused, RealPlace._nobody_else_comes(place):
        pass


@pytest.mark.parametrize(
    ("failure", "done"),
    [
        (None, ["stop", "settle"]),
        (PlaceError("it ended by itself"), ["kill", "settle"]),
        # Nothing is measured after it.
        (KeyboardInterrupt(), ["kill"]),
        (PlaceCrashed("the host is lost"), []),
    ],
)
def test_the_next_policy_waits_until_this_one_is_cleared_away(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException | None, done: list[str]
) -> None:
    log: list[str] = []
    policy = SimpleNamespace(stop=lambda: log.append("stop"), kill=lambda: log.append("kill"))
    monkeypatch.setattr(PolicyRun, "start", lambda *_: policy)
    place: Any = SimpleNamespace(
        host=None,
        folder_there="",
        cohort_there="cohort",
        _needs_cohort=lambda: None,
        _crash_if_lost=nullcontext,
        _nobody_else_comes=nullcontext,
        _settle=lambda: log.append("settle"),
        _collect_complaints=lambda: None,
    )
    ends = pytest.raises(type(failure)) if failure else nullcontext()
    with ends, RealPlace._under_cohort(place, "cohort", ()):
        if failure:
            raise failure
    assert log == done
