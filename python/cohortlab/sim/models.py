# SPDX-License-Identifier: GPL-2.0-only
"""Models of workloads: those that come with the project, by name, and a scenario's own.

A scenario's own model is ``workloads/models/NAME.toml`` in its folder, or ``NAME.json`` for what a program has written.
It goes before the project's.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from cohortlab.errors import BadInput, one_line
from cohortlab.scenario import Scenario
from cohortlab.tomlmodel import read_toml


def workload(scenario: Scenario, name: str) -> dict[str, Any]:
    """Return the workload as the simulator reads it."""
    found = own(scenario, name)
    return {"model": name} if found is None else {"program": found}


def own(scenario: Scenario, name: str) -> dict[str, Any] | None:
    """Return the scenario's own model of ``name``, or None."""
    folder = scenario.path.resolve().parent / "workloads" / "models"
    for path in (folder / f"{name}.toml", folder / f"{name}.json"):
        try:
            changed_ns = path.stat().st_mtime_ns
        except OSError:
            continue
        return _read(path, changed_ns)
    return None


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int) -> dict[str, Any]:
    """Read a model once: one of a recording is long, and is asked for in each run."""
    if path.suffix == ".toml":
        return read_toml(path)
    try:
        model = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path}: is not valid JSON: {one_line(str(error))}") from None
    if not isinstance(model, dict):
        raise BadInput(f"{path}: must be a JSON object: a program")
    return model
