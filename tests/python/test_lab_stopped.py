# SPDX-License-Identifier: GPL-2.0-only
"""A lab whose user has pressed Ctrl-Z, and later said fg, is not dead: it was not heard, and what it said is there."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.python.silent import silent_port

from cohortlab.lab import agent, control, emulator, evidence, patience, policy, probe
from cohortlab.lab.agent import Connection
from cohortlab.lab.emulator import Emulator
from cohortlab.lab.patience import Deadline, OwnTime
from cohortlab.lab.policy import PolicyRun
from cohortlab.lab.probe import ProbeRun
from cohortlab.places import PlaceCrashed, PlaceError

HOUR_S = 3600.0


class Clock:
    """Time passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of who waits for answers."""
    made = Clock()
    for module in (agent, control, emulator, patience, policy, probe):
        shown = SimpleNamespace(monotonic=made, sleep=time.sleep)
        monkeypatch.setattr(module, "time", shown, raising=False)
    monkeypatch.setattr(agent, "_LOOK_S", 0.01)
    return made


def test_an_answer_that_came_while_we_were_stopped_is_read(clock: Clock) -> None:
    ours, theirs = socket.socketpair()

    def stopped_once() -> None:
        if clock.now == 0:
            asked = json.loads(theirs.recv(1 << 16))
            clock.now += HOUR_S
            theirs.sendall(f"{json.dumps({'id': asked['id'], 'ok': {'time_ns': 7}})}\n".encode())

    # More than the answer may take, and less than this process was stopped.
    connection = Connection(ours, stopped_once)
    assert connection.call({"ping": {}}, timeout_s=60).value == {"time_ns": 7}
    assert clock.now == HOUR_S
    connection.close()
    theirs.close()


@pytest.mark.parametrize("stop_s", [0.0, HOUR_S])
def test_an_answer_that_never_comes_is_waited_for_as_long_as_it_may_take(clock: Clock, stop_s: float) -> None:
    ours, theirs = socket.socketpair()

    def looks() -> None:
        clock.now += 1 if clock.now else 1 + stop_s

    connection = Connection(ours, looks)
    with pytest.raises(TimeoutError, match="no answer within 60 s to"):
        connection.call({"ping": {}}, timeout_s=60)
    assert 60 < clock.now - stop_s < 65
    connection.close()
    theirs.close()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A lab behind whose port nobody answers, and whom nobody asks by himself."""
    monkeypatch.setattr(evidence, "take", lambda *_: None)
    with silent_port(tmp_path):
        made = Emulator(tmp_path, None)
        yield made
        made.close()


def test_a_lab_that_was_asked_before_we_were_stopped_is_not_dead(clock: Clock, lab: Emulator) -> None:
    clock.now = lab._asked = 1.0
    clock.now += 0.5
    lab.check()
    clock.now += HOUR_S
    lab.check()
    # From now on it is heard again; if it does not answer it hangs.
    going_on = clock.now

    def waits() -> None:
        while clock.now < going_on + HOUR_S:
            clock.now += 0.5
            lab.check()

    with pytest.raises(PlaceCrashed, match=r"the lab's host does not answer for 12[01] s"):
        waits()
    assert clock.now - going_on < emulator._SILENCE_S + 5


def test_a_lab_that_has_answered_is_not_asked_anew_by_a_stop(clock: Clock, lab: Emulator) -> None:
    clock.now, lab._asked, lab.connection.last_heard = 2.0, 1.0, 1.5
    lab.check()
    clock.now += HOUR_S
    lab.check()
    assert (lab._asked, lab._silence_s()) == (1.0, 0.0)


def test_a_boot_is_not_late_for_the_time_in_which_we_were_stopped() -> None:
    clock = Clock()
    own = OwnTime(None, clock)
    clock.now += 5
    assert own() == 5
    clock.now += HOUR_S
    assert own() < 30, "no boot is given up before"
    clock.now += 5
    assert own() < 35


@pytest.mark.parametrize(("stop_s", "looks"), [(1.0, 60), (patience.STOOD_S + 1.0, 61), (HOUR_S, 61)])
def test_a_time_is_up_later_by_a_stop_and_no_more(clock: Clock, stop_s: float, looks: int) -> None:
    deadline, is_over = Deadline(60), []
    for passes_s in [1.0] * 20 + [stop_s] + [1.0] * 60:
        clock.now += passes_s
        is_over.append(deadline.is_over())
    assert is_over == [False] * looks + [True] * (81 - looks)


def test_answers_that_are_slow_each_time_are_no_stop(clock: Clock) -> None:
    deadline, looks = Deadline(60), 0
    while not deadline.is_over():
        clock.now += 11
        looks += 1
    # A minute, and what is pardoned.
    assert looks == 6 + 8


class Slow:
    """A host, and what is started there: when it is asked for the first time, this process is stopped for an hour.

    It is ready at once after that, if ``comes``, and otherwise never.
    """

    def __init__(self, clock: Clock, ready: str, *, comes: bool) -> None:
        self._clock = clock
        self._ready = ready
        self._comes = comes
        self._looks = 0

    def spawn(self, name: str, line: str) -> Slow:
        return self

    def wait(self, timeout_s: float) -> int | None:
        self._clock.now += HOUR_S if self._looks == 0 else 1
        self._looks += 1
        return None

    def output(self, stream: str) -> tuple[str, int]:
        # What was read before the stop is not there yet.
        return (self._ready if self._comes and self._looks > 1 else ""), 0

    def check(self, sh: str) -> str:
        return "enabled" if self._comes and self._looks > 1 else "disabled"

    def signal(self, number: int) -> None:
        pass


def test_what_starts_while_we_are_stopped_is_not_late(clock: Clock) -> None:
    host: Any = Slow(clock, policy._READY, comes=True)
    assert PolicyRun.start(host, "cohort", ()).name == "cohort"
    assert clock.now < HOUR_S + 10
    host = Slow(clock, probe._READY, comes=True)
    assert ProbeRun.start(host, "/run").socket == "/run/probe.sock"
    assert clock.now < 2 * HOUR_S + 20


def test_what_does_not_start_is_given_up_all_the_same(clock: Clock) -> None:
    host: Any = Slow(clock, policy._READY, comes=False)
    with pytest.raises(PlaceError, match=f"did not start in {policy._START_TIMEOUT_S} s"):
        PolicyRun.start(host, "cohort", ())
    assert policy._START_TIMEOUT_S < clock.now - HOUR_S < policy._START_TIMEOUT_S + 10
    began = clock.now
    host = Slow(clock, probe._READY, comes=False)
    with pytest.raises(PlaceError, match=f"did not start in {probe._START_TIMEOUT_S} s"):
        ProbeRun.start(host, "/run")
    assert probe._START_TIMEOUT_S < clock.now - began - HOUR_S < probe._START_TIMEOUT_S + 10


class Active:
    """Somebody who is asked every second, and always says the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asked = 0

    async def __call__(self, *_: object) -> dict[str, str]:
        self._clock.now += 1
        self.asked += 1
        return {"status": "active"}


def test_a_state_that_is_saved_while_we_are_stopped_is_waited_for(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = iter(("active", "active", "completed"))

    async def execute(query: str, arguments: object) -> dict[str, str]:
        clock.now += HOUR_S if clock.now == 0 else 1
        return {"status": next(statuses)}

    monkeypatch.setattr(control, "_LOOK_S", 0)
    qmp: Any = SimpleNamespace(execute=execute)
    asyncio.run(control._until(qmp, "query-migrate", ("completed",)))
    assert clock.now == HOUR_S + 2
    # One that never is, is given up.
    active = Active(clock)
    monkeypatch.setattr(control, "_ask", active)
    with pytest.raises(PlaceCrashed, match=f"query-migrate says active for {control._PATIENCE_S} s instead of"):
        asyncio.run(control._until(qmp, "query-migrate", ("completed",)))
    assert active.asked < control._PATIENCE_S + 5
