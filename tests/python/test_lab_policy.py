# SPDX-License-Identifier: GPL-2.0-only
"""What the lab tells the kernel's own scheduler, with a host that is two files."""

import re
from typing import Any

import pytest

from cohortlab.lab.policy import change
from cohortlab.places import PlaceError
from cohortlab.policies import KernelSettings

MODES = ("up", "smp", "concur", "max", "tasks")


class Host:
    """Reads and writes its two files as the kernel does; without modes it is a kernel before 7.3."""

    def __init__(self, mode: str | None = "concur") -> None:
        self.mode = mode
        self.slice_ns = 1_400_000

    def check(self, sh: str) -> str:
        if written := re.fullmatch(r"echo (\S+) >/sys/kernel/debug/sched/(\w+)", sh):
            value, file = written.groups()
            if file == "cgroup_mode":
                self.mode = value
            else:
                self.slice_ns = int(value)
            return ""
        if "base_slice_ns" in sh:
            return f"{self.slice_ns}\n"
        return " ".join(f"({mode})" if mode == self.mode else mode for mode in MODES) + " \n" if self.mode else ""


def test_what_was_there_comes_back() -> None:
    host: Any = Host()
    default = change(host, KernelSettings("smp", 16_000))
    assert (host.mode, host.slice_ns) == ("smp", 16_000_000)
    assert default == KernelSettings("concur", 1_400)
    change(host, default)
    assert (host.mode, host.slice_ns) == ("concur", 1_400_000)


def test_what_is_not_asked_for_stays() -> None:
    host: Any = Host()
    assert change(host, KernelSettings()) == KernelSettings()
    assert change(host, KernelSettings(base_slice_us=3_000)) == KernelSettings(base_slice_us=1_400)
    assert (host.mode, host.slice_ns) == ("concur", 3_000_000)


def test_an_older_kernel_refuses_and_nothing_has_changed() -> None:
    host: Any = Host(mode=None)
    with pytest.raises(PlaceError, match='this kernel has no "smp"'):
        change(host, KernelSettings("smp", 16_000))
    assert host.slice_ns == 1_400_000
