# SPDX-License-Identifier: GPL-2.0-only
"""Programs that run at the same time in real guests, under a policy that says only now and then what it counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.python.test_lab_loads import Place, programs_of

from cohortlab import scenario
from cohortlab.lab import policy
from cohortlab.lab.agent import Answer, Sample
from cohortlab.lab.policy import PolicyRun

Write = Callable[..., Path]
# Nobody waits so long, but for what never comes.
PATIENCE_S = 10
VM = """
[[vm]]
name = "{name}"
vcpus = 1
memory_mb = 256
programs = ["spin"]
"""
TOGETHER = "name = 'together'\n[host]\npcpus = 2\n" + "".join(VM.format(name=name) for name in "abc")


class Guest:
    """A guest whose program ends when ``ends`` is set; ``is_again`` is set when it is begun anew."""

    def __init__(self, name: str, ends: threading.Event) -> None:
        self.cpu_stat = f"{name}/cpu.stat"
        self.channel = self.machine = self
        self.ends = ends
        self.ended = threading.Event()
        self.is_again = threading.Event()
        self.waited_in_vain = False

    def call_sampled(self, op: Any, files: Sequence[str], host_files: Sequence[str], timeout_s: float) -> Any:
        self.waited_in_vain = not self.ends.wait(PATIENCE_S)
        self.ended.set()
        before, after = (Sample(time_ns, dict.fromkeys(host_files, "usage_usec 0")) for time_ns in (0, 10**9))
        ended = {"rc": 0, "stdout": "", "stderr": "", "wall_ns": 10**9, "timed_out": False}
        return Answer(ended, before, after), Answer({}, before, after)

    def spawn(self, name: str, line: str) -> Guest:
        self.is_again.set()
        return self

    def wait(self, timeout_s: float) -> int | None:
        return None

    def signal(self, number: int) -> None:
        pass


class Daemon:
    """Has said once what it counted, and goes on when ``talks`` is set: a line each time it is asked."""

    def __init__(self, talks: threading.Event) -> None:
        self.talks = talks
        self.lines = [json.dumps({"total": {"boosts": 1}})]

    def wait(self, timeout_s: float) -> int | None:
        return None

    def output(self, stream: str, offset: int = 0) -> tuple[str, int]:
        if self.talks.is_set():
            self.lines.append(json.dumps({"total": {"boosts": 1 + len(self.lines)}}))
        text = "".join(f"{line}\n" for line in self.lines)
        return text[offset:], len(text)


def test_no_neighbour_is_idle_while_a_policy_is_asked_what_it_counted(
    write_scenario: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "STATS_PERIOD_S", 2 * PATIENCE_S)
    at_once = threading.Event()
    at_once.set()
    # The second ends when the first has begun anew, the third when the second has; then the policy says more.
    first = Guest("a", at_once)
    second = Guest("b", first.is_again)
    third = Guest("c", second.is_again)
    guests: Any = {"a": first, "b": second, "c": third}
    daemon: Any = Daemon(third.ended)
    place = Place(scenario.load(write_scenario(TOGETHER)), [])
    place._guests, place._programs = guests, programs_of(place.scenario, guests)
    place._policy = PolicyRun("cohort", daemon, daemon)
    found = place.measure_together(dict.fromkeys(guests, "spin"))
    assert [name for name, guest in guests.items() if guest.waited_in_vain] == []
    assert list(found) == ["a", "b", "c"]
    assert all(one.value == one.wall_s == 1 and one.stats["boosts"] >= 1 for one in found.values())
    assert not third.is_again.is_set(), "all had ended"
