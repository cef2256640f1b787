# SPDX-License-Identifier: GPL-2.0-only
"""The default policy, simulated on the shapes that it was chosen for: no program loses much beyond fairness."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

# ÷ ideal. Without one of its parts, each of these shapes has a program at 1.17 to 4.
WORST = 1.15


@pytest.mark.parametrize(
    ("scenario", "ple"),
    [
        ("smp-2x2", "off"),  # turns together
        ("smp-2x4", "100"),  # boosts of whom KVM does not name
        ("up-beside-smp", "100"),  # boosts that move to the spinner's pCPU
        ("two-on-8", "off"),  # turns together, on more pCPUs
    ],
)
def test_no_program_loses_much(cohortlab: Callable[..., object], scenario: str, ple: str) -> None:
    ran = cohortlab(
        *("compare", scenario, "--on", "sim", "--ple", ple, "--programs", "tlb-flush,hackbench,pbzip2"),
        *("--policies", "cohort", "--rounds", "1", "--json"),
    )
    over = {found["program"]: found["over_ideal"] for found in json.loads(ran.out)}  # type: ignore[attr-defined]
    assert max(over.values()) < WORST, over
