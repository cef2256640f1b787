# SPDX-License-Identifier: GPL-2.0-only
"""What the simulated host is made of: files ``hardware/NAME.toml`` with the simulator's own parameters.

A scenario does not say what things cost on a host; a hardware file does, in the tables ``[machine]`` (sockets, costs),
``[kvm]`` and ``[guest]``, and what else runs there, in ``[[task]]``. The simulator checks them; what a file does not
say has the simulator's default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohortlab.errors import BadInput
from cohortlab.tomlmodel import read_toml

SHIPPED = Path(__file__).resolve().parents[3] / "hardware"
DEFAULT = "lab"
_TABLES = ("machine", "kvm", "guest")


@dataclass(frozen=True)
class Hardware:
    """Parameters that differ from the simulator's defaults; ``path`` is named in errors."""

    name: str
    path: Path
    machine: dict[str, Any] = field(default_factory=dict)
    kvm: dict[str, Any] = field(default_factory=dict)
    guest: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[dict[str, Any], ...] = ()


def names() -> list[str]:
    """Return the hardware that comes with this project."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(name: str) -> Hardware:
    """Return the hardware in ``hardware/NAME.toml`` or, if the name ends in ``.toml``, in that file."""
    if name.endswith(".toml"):
        path = Path(name)
    elif name in names():
        path = SHIPPED / f"{name}.toml"
    else:
        raise BadInput(f'--hardware: "{name}" does not exist: must be one of {", ".join(names())}, or a .toml file')
    data = read_toml(path)
    data.pop("description", None)
    tasks = data.pop("task", [])
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise BadInput(f"{path}: task: must be tables, [[task]]")
    for index, task in enumerate(tasks):
        if not isinstance(task.get("per_pcpu", False), bool):
            raise BadInput(f"{path}: task[{index}].per_pcpu: must be true or false")
    for key, value in data.items():
        if key not in _TABLES:
            raise BadInput(f"{path}: {key}: is not a known field: known are description, {', '.join(_TABLES)}, task")
        if not isinstance(value, dict):
            raise BadInput(f"{path}: {key}: must be a table")
    tables = {key: data.get(key, {}) for key in _TABLES}
    return Hardware(path.stem, path, **tables, tasks=tuple(tasks))
