# SPDX-License-Identifier: GPL-2.0-only
"""What the simulated host is made of: files ``hardware/NAME.toml`` with the simulator's own parameters.

A scenario does not say what things cost on a host; a hardware file does, in the tables ``[machine]`` (sockets, costs),
``[kvm]`` and ``[guest]``, and what else runs there, in ``[[task]]``. The simulator checks them; what a file does not
say has the simulator's default. A file that is of an emulated processor names the kinds of emulator in ``emulators``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, Strict

from cohortlab import shipped
from cohortlab.errors import BadInput
from cohortlab.lab.kinds import Kind
from cohortlab.scenario import Scenario
from cohortlab.tomlmodel import Location, Model, parse, read_toml, refuse, shown

SHIPPED = shipped.folder("hardware")
DEFAULT = "lab"
_TABLES = ("machine", "kvm", "guest")
# The kinds of what cohortlab.sim.model computes with, in [kvm] and [kvm.ple]. The rest is the simulator's to check.
_TABLE, _WHOLE = (dict, "a table"), (int, "a whole number")
_KVM: dict[str, tuple[type, str]] = {"ple": _TABLE, "wells": _TABLE, "tsc_mhz": _WHOLE}
_PLE: dict[str, tuple[type, str]] = {"pause_cycles": _WHOLE}
_S_NS = 1_000_000_000
_HOUR_NS = 3600 * _S_NS


class HostTask(Model):
    """A thread of the host: it runs and sleeps in turn, or never sleeps if neither is given.

    With ``vmm`` it is a thread of the VMM of each VM with a load, or with a program. It runs once, ``before_ns`` before
    the VM's program begins, and in a VM with a load before programs without a ``start_s`` do.
    """

    name: str = Field(min_length=1, description="a text")
    nice: int = Field(0, ge=-20, le=19, description="an integer from -20 to 19")
    cpus: Annotated[tuple[int, ...], Strict(False)] = Field((), description="a list of pCPU numbers")
    per_pcpu: bool = Field(False, description="true or false: one on each pCPU")
    run_ns: int | None = Field(None, ge=1, le=_HOUR_NS, description="an integer from 1 to an hour")
    sleep_ns: int | None = Field(None, ge=1, le=_HOUR_NS, description="an integer from 1 to an hour")
    random: bool = Field(False, description="true or false: run_ns and sleep_ns are means of exponential distributions")
    vmm: Literal["loads", "programs"] | None = Field(None, description='"loads" or "programs"')
    before_ns: int | None = Field(None, ge=0, le=_S_NS, description="an integer from 0 to a second")


class _About(Model):
    task: Annotated[tuple[HostTask, ...], Strict(False)] = Field((), description="[[task]] tables")
    emulators: Annotated[tuple[Kind, ...], Strict(False)] = Field(
        (), description=f"a list of {', '.join(get_args(Kind))}"
    )


@dataclass(frozen=True)
class Hardware:
    """Parameters that differ from the simulator's defaults; ``path`` is named in errors.

    Attributes:
        emulators: the kinds of emulator whose processor it is; none where that is real, or not said.
    """

    name: str
    path: Path
    machine: dict[str, Any] = field(default_factory=dict)
    kvm: dict[str, Any] = field(default_factory=dict)
    guest: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[HostTask, ...] = ()
    emulators: tuple[Kind, ...] = ()


def of(scenario: Scenario, name: str | None = None) -> Hardware:
    """Return the hardware that ``--hardware`` names; without, the scenario's, where a file lies beside the scenario."""
    own = scenario.defaults.hardware
    if name is not None or own is None:
        return load(DEFAULT if name is None else name)
    if own.endswith(".toml"):
        return load(str(scenario.path.parent / own))
    if own not in names():
        wrong, allowed = f"{shown(own)} does not exist", f"one of {', '.join(names())}, or a .toml file"
        refuse(scenario.path, ("defaults", "hardware"), wrong, allowed)
    return load(own)


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
    return of_data(read_toml(path), path)


def of_data(data: Mapping[str, Any], path: Path) -> Hardware:
    """Return the hardware that a file's data describe, or raise BadInput; ``path`` is named in it."""
    data = {key: value for key, value in data.items() if key != "description"}
    about = parse(_About, {name: data.pop(name, []) for name in _About.model_fields}, path)
    tasks = about.task
    for index, task in enumerate(tasks):
        if (task.vmm is None) != (task.before_ns is None):
            refuse(path, ("task", index), "one of vmm and before_ns is missing", "both or none")
        if task.vmm:
            if task.run_ns is None:
                refuse(path, ("task", index, "run_ns"), "is missing", "given with vmm")
            for name in ("cpus", "per_pcpu", "sleep_ns"):
                if getattr(task, name):
                    refuse(path, ("task", index, name), "is not allowed with vmm", "left out")
            continue
        if (task.run_ns is None) != (task.sleep_ns is None):
            refuse(path, ("task", index), "one of run_ns and sleep_ns is missing", "both or none")
        if task.per_pcpu and task.cpus:
            refuse(path, ("task", index, "cpus"), "is not allowed with per_pcpu", "left out")
    for key, value in data.items():
        if key not in _TABLES:
            known = f"description, {', '.join(_TABLES)}, {', '.join(_About.model_fields)}"
            raise BadInput(f"{path}: {key}: is not a known field: known are {known}")
        if not isinstance(value, dict):
            raise BadInput(f"{path}: {key}: must be a table")
        try:
            json.dumps(value)
        except TypeError:
            raise BadInput(f"{path}: {key}: has a date or a time: must be numbers, texts, lists and tables") from None
    kvm = data.get("kvm", {})
    _check_kinds(path, ("kvm",), kvm, _KVM)
    _check_kinds(path, ("kvm", "ple"), kvm.get("ple", {}), _PLE)
    tables = {key: data.get(key, {}) for key in _TABLES}
    return Hardware(path.stem, path, **tables, tasks=tasks, emulators=about.emulators)


def _check_kinds(path: Path, place: Location, table: Mapping[str, Any], kinds: Mapping[str, tuple[type, str]]) -> None:
    for key, (kind, allowed) in kinds.items():
        if key in table and type(table[key]) is not kind:
            refuse(path, (*place, key), f"{shown(table[key])} is not allowed", allowed)
