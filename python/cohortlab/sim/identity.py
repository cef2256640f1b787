# SPDX-License-Identifier: GPL-2.0-only
"""What a simulated run came from, as a name: who has a result of that name need not simulate again."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from cohortlab.native import native
from cohortlab.sim.model import Run

_DIGITS = 16
# Modules and folders of them that have a say in what is simulated, and in what a figure is.
_DECIDES = (
    "models.py",
    "policies.py",
    "scenario.py",
    "scenario_check.py",
    "workloads.py",
    "sim",
    "sweep/axes.py",
    "sweep/chunks.py",
    "sweep/plan.py",
)


@functools.cache
def simulator() -> str:
    """Return which simulator this is: its version, and all that it was built of, the scheduler included.

    What a scenario, a kernel's version or a policy comes to, and what a figure is, Python decides: it counts too.
    """
    module = native()
    package = resources.files("cohortlab")
    parts = [package / name for name in _DECIDES]
    ours = [part for at in parts for part in (at.iterdir() if at.is_dir() else [at]) if part.name.endswith(".py")]
    texts = sorted(hashlib.sha256(part.read_bytes()).hexdigest() for part in ours)
    return f"{module.__version__}-{digest([module.DECIDES, [list(source) for source in module.sources()], texts])}"


def name(run: Run, described: str) -> str:
    """Return 16 hexadecimal digits for all that a run and its programs' figures depend on.

    Args:
        described: the run as the simulator reads it, in JSON with sorted keys.
    """
    scenario = run.scenario
    programs = [
        (vm.name, scenario.workloads[run.running[vm.name]]) for vm in scenario.program_vms if vm.name in run.running
    ]
    figures = [[vm, workload.is_rate, workload.unit, workload.timeout_s] for vm, workload in programs]
    return digest([described, figures, simulator()])


def digest(about: Any) -> str:
    """Return 16 hexadecimal digits for what JSON can say."""
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
