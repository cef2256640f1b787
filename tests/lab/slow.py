# SPDX-License-Identifier: GPL-2.0-only
"""How long a test may wait: as many boots of the lab's host as where the limit was set, of what one takes here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cohortlab.lab.emulator import Emulator

# How often a condition is looked at.
LOOK_S = 0.2
# What limits in seconds are of: a machine on which the host alone boots in so long. A faster one has no less.
BOOT_S = 5.0


def patience_s(emulator: Emulator, limit_s: float) -> float:
    """Return what a limit, of a machine that boots in ``BOOT_S``, is on this one."""
    return limit_s * max(1.0, (emulator.boot_s or BOOT_S) / BOOT_S)


def until(emulator: Emulator, condition: Callable[[], bool], what: str, limit_s: float) -> None:
    """Wait until ``condition`` holds, for so long at most; time passes only as fast as the emulator gets its CPUs."""
    clock, limit_s = emulator.clock(), patience_s(emulator, limit_s)
    while not condition():
        assert clock() < limit_s, f"not within {limit_s:g} s: {what}"
        time.sleep(LOOK_S)
