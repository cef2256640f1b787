# SPDX-License-Identifier: GPL-2.0-only
"""What tests/lab/test_side_by_side.py compares the lab with: the simulator's figures beside what must come of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from side_by_side import Rule, simulated, table, turns_ms

from cohortlab import scenario as scenarios

SAME = Path(__file__).parents[1] / "lab" / "same"
# The simulated host has work of its own, as the lab's has.
NEAR = 0.01


def near(wanted: dict[str, float]) -> object:
    return pytest.approx(wanted, abs=NEAR)


def of(name: str, rule: Rule, folder: Path) -> dict[str, dict[str, float]]:
    return simulated(scenarios.load(SAME / f"{name}.toml"), rule, folder / "simulated.rec")


def some(figures: dict[str, float], *names: str) -> dict[str, float]:
    return {name: figures[name] for name in names}


def test_four_take_turns(tmp_path: Path) -> None:
    found = of("turns", Rule(turn_ms=12), tmp_path)
    work, user, kernel = (found[name] for name in ("work", "user", "kernel"))
    # A quarter of pCPU 0 each; the sibling of the first has pCPU 1 and is there all the while that the first waits.
    wanted = {"ran": 0.625, "ready": 0.375, "co-stop": 0.375, "stacked": 0, "halted": 0, "skew": 0.75}
    assert some(work, *wanted) == near(wanted)
    wanted = {"ran": 0.25, "ready": 0.75, "co-stop": 0, "stacked": 0, "in kernel": 0, "switches": 1000 / 48}
    # A turn of three of the guest's ticks may end in one's handler more often than by chance.
    apart = {"in kernel": pytest.approx(0, abs=0.02), "switches": pytest.approx(1000 / 48, rel=0.02)}
    assert some(user, *wanted) == near(wanted | apart)
    wanted = {"ran": 0.25, "ready": 0.75, "co-stop": 0.25, "stacked": 0.5, "in kernel": 1, "skew": 0}
    assert some(kernel, *wanted) == near(wanted)
    # For one turn of four the first is three turns from its own.
    assert work["far"] == pytest.approx(0.25, abs=0.02)
    assert user["turn p50, ms"] == pytest.approx(12)


def test_who_sleeps_for_half_of_the_time_is_halted_then(tmp_path: Path) -> None:
    found = of("sleeping", Rule(), tmp_path)
    assert found["half"]["ran"] + found["half"]["ready"] == pytest.approx(0.5, abs=0.02)
    assert found["half"]["halted"] == pytest.approx(0.5, abs=0.02)
    assert found["idle"]["halted"] > 0.99
    assert found["work"]["halted"] == 0


def test_a_limit_makes_a_lag(tmp_path: Path) -> None:
    found = of("capped", Rule("cohort"), tmp_path)
    wanted = {"ran": 0.2, "ready": 0.8, "halted": 0, "lag": 0.6}
    assert some(found["pair"], *wanted) == near(wanted)


def test_turns_end_where_the_vcpu_loses_its_pcpu_or_sleeps() -> None:
    events = [
        {"kind": kind, "vcpu": vcpu, "time_ns": ms * 1_000_000}
        for kind, vcpu, ms in (
            ("preempted", 0, 1),
            ("run", 0, 2),
            ("run", 1, 3),
            ("preempted", 0, 6),
            ("woken", 0, 7),
            ("halted", 1, 8),
            ("run", 0, 9),
        )
    ]
    assert turns_ms(events) == [4, 5]


def test_the_table_has_what_only_one_side_knows() -> None:
    text = table({"simulated": {"a": {"ran": 0.5}}, "lab": {"a": {"ran": 0.25, "lag": 0.1}}})
    assert text.splitlines()[2:] == ["| a | ran | 0.5 | 0.25 |", "| a | lag | – | 0.1 |"]
