# SPDX-License-Identifier: GPL-2.0-only
"""The default policy, simulated on the shapes that it was chosen for: no program loses much beyond fairness.

worst is the most slowdown ÷ ideal of a program; beside it, what it is without a part of the policy.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    ("scenario", "ple", "worst"),
    [
        ("smp-2x2", "off", 1.2),  # turns together: 1.49 without
        ("smp-2x4", "100", 1.75),  # boosts: 40 without
        ("up-beside-smp", "100", 2.1),  # boosts that move: 152 without
        ("two-on-8", "off", 1.15),  # turns together, on more pCPUs: 1.80 without
    ],
)
def test_no_program_loses_much(cohortlab: Callable[..., object], scenario: str, ple: str, worst: float) -> None:
    ran = cohortlab(
        *("compare", scenario, "--on", "sim", "--ple", ple, "--programs", "tlb-flush,hackbench,pbzip2"),
        *("--policies", "cohort", "--rounds", "5", "--json"),
    )
    over = {found["program"]: found["over_ideal"] for found in json.loads(ran.out)}  # type: ignore[attr-defined]
    assert max(over.values()) < worst, over
