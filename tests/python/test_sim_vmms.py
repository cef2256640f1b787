# SPDX-License-Identifier: GPL-2.0-only
"""Threads of VMMs that a hardware file asks for: in which VMs they run, when, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.policies import KERNEL
from cohortlab.sim import hardware
from cohortlab.sim.model import SETTLE_NS, Run

ASKED = '[[task]]\nname = "asked"\nvmm = "loads"\nbefore_ns = 40_000_000\nrun_ns = 600_000\n'
TOLD = '[[task]]\nname = "told"\nvmm = "programs"\nbefore_ns = 0\nrun_ns = 900_000\nrandom = true\n'


def tasks(path: Path, text: str, *, alone: bool = False) -> list[dict[str, Any]]:
    """Return the host's tasks while "user-spin" runs in 2x2 on this hardware."""
    path.write_text(text)
    of = scenarios.load(scenarios.SHIPPED / "smp-2x2.toml")
    running = {"work": "user-spin"} | ({} if alone else {"hog": "cpu-hog"})
    run = Run(of, running, KERNEL, seed=1, hardware=hardware.load(str(path)))
    made: list[dict[str, Any]] = run.as_dict()["tasks"]
    return made


def test_each_runs_once_in_the_vms_that_it_is_for(tmp_path: Path) -> None:
    asked, told = tasks(tmp_path / "h.toml", ASKED + TOLD)
    assert (asked["name"], asked["vm"], asked["start_ns"]) == ("hog/asked", "hog", SETTLE_NS - 40_000_000)
    assert (told["name"], told["vm"], told["start_ns"]) == ("work/told", "work", SETTLE_NS)
    assert asked["once"] is told["once"] is True
    assert not {"vmm", "before_ns"} & set(asked)


def test_without_a_load_nobody_asks_one(tmp_path: Path) -> None:
    assert [task["name"] for task in tasks(tmp_path / "h.toml", ASKED + TOLD, alone=True)] == ["work/told"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ASKED.replace("before_ns = 40_000_000\n", ""), "task[0]: one of vmm and before_ns is missing: must be both"),
        (ASKED.replace("run_ns = 600_000\n", ""), "task[0].run_ns: is missing: must be given with vmm"),
        (ASKED + "sleep_ns = 5\n", "task[0].sleep_ns: is not allowed with vmm: must be left out"),
        (ASKED + "cpus = [1]\n", "task[0].cpus: is not allowed with vmm: must be left out"),
        (ASKED.replace('"loads"', '"all"'), 'task[0].vmm: "all" is not allowed: must be "loads" or "programs"'),
        (
            ASKED.replace("40_000_000", "2_000_000_000"),
            "task[0].before_ns: 2000000000 is not allowed: must be an integer",
        ),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        tasks(tmp_path / "h.toml", text)
