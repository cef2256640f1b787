# SPDX-License-Identifier: GPL-2.0-only
"""What is done once more in the lab, and why: boots that a crash ended, and tests that are void or have failed once.

Apart from conftest.py, of which a test that imports it gets a copy: what it counts there nobody prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from cohortlab.lab.place import LabPlace
from cohortlab.places import PlaceCrashed

# The emulator crashes now and then with two levels of guests.
ATTEMPTS = 4
# A test that fails is void if others on this machine kept its lab waiting for so much of the time.
DISTURBED = 0.1
# ... and a window is, whatever came out, if anybody kept it waiting for so much. The emulator's own threads do that for
# 11 to 19 % of a time in which both its pCPUs are busy, on a machine of two CPUs that does nothing else.
WINDOW_DISTURBED = 0.25
# So many tests of a session may fail once, if they pass the next time: over two hundred measure on a machine whose
# noise nobody bounds. Each is told of, and counted. One that fails twice, or one more, fails the session.
SECOND_CHANCES = 2

# So many tests of a session may lose a machine to a crash that nothing explains: the goal is none in fifty boots. A
# scheduler that hangs its host now and then is not to pass as an emulator that crashes.
LOSSES = 2
# What a kernel says on its console before it dies of something that runs in it.
DIED = re.compile(
    r"BUG:|Oops|[Ll]ockup|detected stalls|runnable task stall|sched_ext: .*error|blocked for more than|Kernel panic"
)

T = TypeVar("T")

# Why tests were run again and labs booted again.
repeated: list[str] = []
# The tests that have failed once.
_failed: set[str] = set()
# The tests that have lost a machine.
_lost: list[str] = []


class Elsewhere(AssertionError):
    """This machine kept the lab waiting while something was measured: void, whatever came out."""


def repeat(why: str) -> None:
    """Count one time more."""
    say(why)
    repeated.append(why)


def say(text: str, fraction: float | None = None) -> None:
    print(f"lab: {text}", flush=True)


def second_chance(test: str) -> bool:
    """Return whether a test that has failed may try once more."""
    if test in _failed or len(_failed) >= SECOND_CHANCES:
        return False
    _failed.add(test)
    return True


def may_be_lost(test: str, console: str) -> bool:
    """Return whether a test that has lost a machine is void and no failure.

    Args:
        console: what the host's kernel has said since the test began.
    """
    if DIED.search(console):
        return second_chance(test)
    _lost.append(test)
    return len(_lost) <= LOSSES


def until_up(boot: Callable[[], T], what: str = "booting") -> T:
    """Return what ``boot`` does; a lab that crashes meanwhile is booted once more, and that is counted."""
    for _ in range(1, ATTEMPTS):
        try:
            return boot()
        except PlaceCrashed as crash:
            repeat(f"crashed while {what}: {crash}")
    return boot()


def booted(stack: ExitStack, make: Callable[[], LabPlace]) -> LabPlace:
    """Enter a lab."""
    return until_up(lambda: stack.enter_context(make()))
