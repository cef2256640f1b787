# SPDX-License-Identifier: GPL-2.0-only
"""For which part of a time this machine was elsewhere: what was measured meanwhile is not the lab's doing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohortlab.lab.place import LabPlace
    from conftest import BareHost

# The columns of /proc/stat with the time in which this machine's CPUs worked, and in which it, itself a VM, had none.
_BUSY = (1, 2, 3, 6, 7)
_STEAL = (8,)


class Disturbance:
    """Begins when it is made."""

    def __init__(self, place: LabPlace | BareHost) -> None:
        self._emulator = place.emulator.clock()
        self._begin = time.monotonic()
        self._busy_s, self._stolen_s = _spent_s(_BUSY), _spent_s(_STEAL)

    def part(self) -> float:
        """Return the part of the time since then for which the lab's emulator was kept waiting for a CPU."""
        waited, _, stolen = self._parts()
        return waited + stolen

    def by_others(self) -> float:
        """Return the part for which others than its own threads can have kept it waiting: no longer than they ran."""
        waited, others, stolen = self._parts()
        return min(waited, others) + stolen

    def _parts(self) -> tuple[float, float, float]:
        took_s = time.monotonic() - self._begin
        waited = 1 - self._emulator() / took_s
        others = (_spent_s(_BUSY) - self._busy_s - self._emulator.ran_s) / took_s
        stolen = (_spent_s(_STEAL) - self._stolen_s) / took_s / (os.cpu_count() or 1)
        return max(0.0, waited), max(0.0, others), max(0.0, stolen)


def _spent_s(columns: tuple[int, ...]) -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(int(fields[column]) for column in columns) / os.sysconf("SC_CLK_TCK")
