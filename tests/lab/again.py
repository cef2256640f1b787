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
# A test that fails is void if others on this machine kept its lab waiting for so much of the time; and so is a window
# of measurement, whatever came out.
DISTURBED = 0.1
# One test in so many of a session may fail once, if it passes the next time, and so many at least: they measure on a
# machine whose noise nobody bounds, and the more measure, the more meet it. Each is told of, and counted. One that
# fails twice, or one more, fails the session.
TESTS_PER_CHANCE, CHANCES_MIN = 50, 2
# So many may lose a machine once whose kernel blames what ran in it, however many tests there are: noise kills no
# kernel.
DEATHS = 2

# So many tests of a session may lose a machine to a crash that nothing explains: the goal is none in fifty boots. A
# scheduler that hangs its host now and then is not to pass as an emulator that crashes.
LOSSES = 2
# What a kernel says on its console before it dies of something that runs in it.
DIED = re.compile(
    r"BUG:|Oops|[Ll]ockup|detected stalls|runnable task stall|sched_ext: .*error|blocked for more than|Kernel panic"
)

# One test in so many of a session, and so many at least, may be void, ATTEMPTS - 1 times each, since this machine kept
# its lab waiting. Of one that is busier still no test says anything.
TESTS_PER_VOID, VOIDS_MIN = 4, 4

T = TypeVar("T")

# Why tests were run again and labs booted again.
repeated: list[str] = []
# How many of this session may fail once.
chances = CHANCES_MIN
# How many of it may be void since this machine is busy, and those that were.
voids = VOIDS_MIN
_void: set[str] = set()
# The tests that have failed once, and those whose host has died once.
_failed: set[str] = set()
_died: set[str] = set()
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


def set_chances(tests: int) -> None:
    """Let as many fail once, and be void, as may in a session of so many tests of the lab."""
    global chances, voids
    chances = max(CHANCES_MIN, tests // TESTS_PER_CHANCE)
    voids = max(VOIDS_MIN, tests // TESTS_PER_VOID)


def second_chance(test: str) -> bool:
    """Return whether a test that has failed may try once more."""
    return _may_once(test, _failed, chances)


def _may_once(test: str, those: set[str], most: int) -> bool:
    if test in _failed | _died or len(those) >= most:
        return False
    those.add(test)
    return True


def may_be_void(test: str) -> bool:
    """Return whether a test that this machine has disturbed is void and no failure."""
    if test not in _void and len(_void) >= voids:
        say(f"{test} is not repeated: {voids} tests were void already, this machine is too busy: leave it alone")
        return False
    _void.add(test)
    return True


def spent() -> str:
    """Return how much was used of what may be repeated."""
    return (
        f"{len(_failed)} tests failed once, {chances} may; {len(_died)} killed their host once, {DEATHS} may; "
        f"{len(_lost)} lost a machine, {LOSSES} may; {len(_void)} were void since this machine was busy, {voids} may be"
    )


def may_be_lost(test: str, console: str) -> bool:
    """Return whether a test that has lost a machine is void and no failure.

    Args:
        console: what the host's kernel has said since the test began.
    """
    if DIED.search(console):
        return _may_once(test, _died, DEATHS)
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
