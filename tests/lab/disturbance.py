# SPDX-License-Identifier: GPL-2.0-only
"""For which part of a time this machine was elsewhere: what was measured meanwhile is not the lab's doing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cohortlab.lab.place import LabPlace

# The column of /proc/stat with the time in which this machine, itself a VM, had no CPU.
_STEAL = 8


class Disturbance:
    """Begins when it is made."""

    def __init__(self, place: LabPlace) -> None:
        self._own = place.emulator.clock()
        self._begin, self._stolen_s = time.monotonic(), _stolen_s()

    def part(self) -> float:
        """Return the part of the time since then for which the lab's emulator was kept waiting for a CPU."""
        took_s = time.monotonic() - self._begin
        waited = 1 - self._own() / took_s
        stolen = (_stolen_s() - self._stolen_s) / took_s / (os.cpu_count() or 1)
        return max(0.0, waited) + max(0.0, stolen)


def _stolen_s() -> float:
    ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[_STEAL]
    return int(ticks) / os.sysconf("SC_CLK_TCK")
