# SPDX-License-Identifier: GPL-2.0-only
"""A sweep as a whole: all that its points need, so that it can go to any worker, and what each point is."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohortlab import models, workloads
from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.policies import read_sets, sets_file
from cohortlab.scenario import Fetch, Found, Scenario
from cohortlab.scenario_check import fetch
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.hardware import Hardware
from cohortlab.sim.identity import digest, simulator
from cohortlab.sim.identity import name as name_of
from cohortlab.sim.model import Run, guests_kernel
from cohortlab.sim.policy import KERNEL_DEFAULT
from cohortlab.sim.result import Result, Traces
from cohortlab.sweep.axes import Axis, check_fields, put
from cohortlab.tomlmodel import read_toml, shown

POINTS_MAX = 10_000_000
DEFAULT_POLICY = "cohort"
# What a scenario is made of.
OF_SCENARIO = ("scenario", "workload", "model")
# Of a workload, what only the lab reads.
_OF_THE_LAB = {"command", "setup", "packages", "files"}
# Scenarios and hardware that a process remembers, by the plan's key and their values.
MADE_MAX = 256
_built: dict[tuple[str, str], Hardware] = {}
_made: dict[tuple[str, str], tuple[Scenario, dict[str, dict[str, Any]]]] = {}


@dataclass
class Library:
    """Everything that was read from files, by name: workers may have none of them."""

    workloads: dict[str, tuple[dict[str, Any] | None, workloads.Workload, Path]] = field(default_factory=dict)
    # As the simulator takes them; and as their authors wrote them, with their files.
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    model_files: dict[str, tuple[dict[str, Any], Path]] = field(default_factory=dict)
    hardware: dict[str, tuple[dict[str, Any], Path]] = field(default_factory=dict)
    # What files of --sets say.
    sets: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        values: of the axes, in their order.
        described: the run as the simulator takes it.
        name: of the run and its figures: see cohortlab.sim.identity.
    """

    number: int
    values: tuple[Any, ...]
    run: Run
    described: dict[str, Any]
    name: str


@dataclass(frozen=True)
class Plan:
    """A scenario, and which fields take which values. The last axis changes fastest."""

    scenario: dict[str, Any]
    path: Path
    axes: tuple[Axis, ...]
    library: Library
    simulator: str

    @property
    def points(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    @functools.cached_property
    def key(self) -> str:
        """16 hexadecimal digits for the whole sweep."""
        library = self.library
        about = [
            self.scenario,
            [[axis.field, list(axis.values)] for axis in self.axes],
            {
                name: workload.model_dump(mode="json", exclude=_OF_THE_LAB)
                for name, (_, workload, _) in library.workloads.items()
            },
            library.models,
            {name: data for name, (data, _) in library.model_files.items()},
            {name: data for name, (data, _) in library.hardware.items()},
            *([library.sets] if library.sets else []),
            self.simulator,
        ]
        return digest(about)

    def values(self, number: int) -> tuple[Any, ...]:
        """Return the values of a point, by its number from 0."""
        found: list[Any] = []
        for axis in reversed(self.axes):
            number, at = divmod(number, len(axis.values))
            found.append(axis.values[at])
        return tuple(reversed(found))

    def point(self, number: int) -> Point:
        """Return a point by its number from 0.

        Raises:
            BadInput, PlaceError: its values do not go together.
        """
        values = self.values(number)
        run = self.run(values)
        described = run.as_dict()
        return Point(number, values, run, described, name_of(run, json.dumps(described, sort_keys=True)))

    def run(self, values: tuple[Any, ...]) -> Run:
        """Return the run of a point with these values."""
        given = {axis.field: value for axis, value in zip(self.axes, values, strict=True)}
        changes = [(axis, value) for axis, value in zip(self.axes, values, strict=True) if axis.path]
        scenario, programs = self._scenario_of([change for change in changes if change[0].root in OF_SCENARIO])
        if "program" in given:
            scenario, turn = _chosen(scenario, given["program"], self._found)
        else:
            turn = scenario.turns[0]
        if given.get("alone"):
            # A program that is none of the scenario's is in every VM that has any: then the first VM's.
            wanted = [task for task in turn if scenario.label(turn, task[0]) == given.get("program")]
            running = dict(wanted or turn[:1])
        else:
            running = dict(turn) | {vm.name: vm.load for vm in scenario.neighbours if vm.load is not None}
        name, *args = _words(given.get("policy", DEFAULT_POLICY))
        for axis, value in changes:
            if axis.root == "policy":
                args += [f"--{axis.path}", str(value)]
        return Run(
            scenario,
            running,
            name,
            tuple(args),
            given.get("seed", 1),
            given.get("kernel", scenario.defaults.kernel or KERNEL_DEFAULT),
            self._hardware_of(given.get("hardware", ""), [(a, v) for a, v in changes if a.root == "hardware"]),
            programs,
            self.library.sets,
        )

    def _scenario_of(self, changes: list[tuple[Axis, Any]]) -> tuple[Scenario, dict[str, dict[str, Any]]]:
        """Return the scenario with these changes, and its models. Most points of a chunk have the same."""
        key = (self.key, repr([value for _, value in changes]))
        found = _made.get(key)
        if found is None:
            if len(_made) >= MADE_MAX:
                _made.clear()
            found = _made[key] = self._scenario(changes)
        return found

    def _scenario(self, changes: list[tuple[Axis, Any]]) -> tuple[Scenario, dict[str, dict[str, Any]]]:
        data = copy.deepcopy(self.scenario)
        programs = self.library.models
        changed: dict[str, dict[str, Any]] = {}
        for axis, value in changes:
            with_name, _, path = axis.path.partition(".")
            if axis.root == "scenario":
                _put(data, axis, axis.path, value)
            elif axis.root == "workload":
                known = self.library.workloads.get(with_name)
                if known is None or known[0] is None:
                    raise BadInput(f"{axis.field}: no VM runs a workload of this name that has a file")
                changed.setdefault(with_name, copy.deepcopy(known[0]))
                _put(changed[with_name], axis, path, value)
            elif axis.root == "model":
                if with_name not in programs or with_name not in self.library.model_files:
                    raise BadInput(f"{axis.field}: no VM runs a program of this name that has a model's file")
                if programs.get(with_name) is self.library.models.get(with_name):
                    own = copy.deepcopy(self.library.model_files[with_name][0])
                    programs = programs | {with_name: {"program": own}}
                _put(programs[with_name]["program"], axis, path, value)

        def found(name: str) -> Found:
            if name not in changed:
                return self._found(name)
            return workloads.of_data(changed[name], self.library.workloads[name][2]), self._model_file(name)

        return scenarios.of_data(data, self.path, fetch=found), programs

    def _found(self, name: str) -> Found:
        """Return a workload of the library."""
        if name not in self.library.workloads:
            raise BadInput(f"{shown(name)} is not allowed: must be one of {', '.join(sorted(self.library.workloads))}")
        return self.library.workloads[name][1], self._model_file(name)

    def _model_file(self, name: str) -> Path:
        """Return where a model is from; it is not read any more."""
        return self.library.model_files.get(name, ({}, Path(name)))[1]

    def _hardware_of(self, name: str, changes: list[tuple[Axis, Any]]) -> Hardware:
        """Return the hardware of that name with these changes. Most points of a chunk have the same."""
        key = (self.key, repr([name, *(value for _, value in changes)]))
        found = _built.get(key)
        if found is None:
            if len(_built) >= MADE_MAX:
                _built.clear()
            found = _built[key] = self._hardware(name, changes)
        return found

    def _hardware(self, name: str, changes: list[tuple[Axis, Any]]) -> Hardware:
        data, path = self.library.hardware[name]
        if changes:
            data = copy.deepcopy(data)
            for axis, value in changes:
                _put(data, axis, axis.path, value)
        return hardwares.of_data(data, path)


def tries(axes: tuple[Axis, ...]) -> int:
    """Return how many values ``make`` tries: of seeds one, since none is better than another."""
    return sum(1 if axis.field == "seed" else len(axis.values) for axis in axes)


def make(path: Path, axes: tuple[Axis, ...], tell: Callable[[int], None] = lambda done: None) -> Plan:
    """Return the plan of a sweep of the scenario in ``path``: every file is read, every value tried once.

    ``tell`` is told of each value: a million of them take minutes.

    Raises:
        BadInput: something is wrong with a file or a value.
    """
    path = scenarios.find(path)
    data = read_toml(path)
    library = Library()
    plan = Plan(data, path, axes, library, simulator())
    if plan.points > POINTS_MAX:
        raise BadInput(f"--axis: {plan.points} points: must be {POINTS_MAX} or fewer")
    _read(plan)
    files: dict[str, Any] = {
        "scenario": data,
        "workload": {name: of_file for name, (of_file, _, _) in library.workloads.items()},
        "model": {name: of_file for name, (of_file, _) in library.model_files.items()},
        "hardware": next(iter(library.hardware.values()))[0],
    }
    check_fields(axes, files)
    for at, axis in enumerate(axes):
        for value in axis.values:
            try:
                _first_good(plan, axes, at, value)
            except BadInput as error:
                raise BadInput(f"{axis.field} = {shown(value)}: {error}") from None
            tell(1)
            if axis.field == "seed":
                break
    if not axes:
        _begin(plan.run(()))
    return plan


def _first_good(plan: Plan, axes: tuple[Axis, ...], at: int, value: Any) -> None:
    """Raise BadInput for a value that is wrong with the first of each other axis, and with each other value of one."""
    values = [axis.values[0] for axis in axes]
    values[at] = value
    with_others = (
        (other, another)
        for other, axis in enumerate(axes)
        if other != at and axis.field != "seed"
        for another in axis.values[1:]
    )
    try:
        _begin(plan.run(tuple(values)))
        return
    except BadInput as error:
        wrong = error
    for other, another in with_others:
        with contextlib.suppress(BadInput):
            _begin(plan.run(tuple(another if index == other else one for index, one in enumerate(values))))
            return
    raise wrong


def _begin(run: Run) -> None:
    """Raise BadInput for a run that the simulator refuses."""
    try:
        described = run.as_dict()
    except PlaceError as error:
        raise BadInput(str(error)) from None
    # After its first event it ends, which is an error too, but not of the values.
    with contextlib.suppress(PlaceError):
        Result.of_dict(run, described | {"events_max": 1}, Traces(figures=False))


def _read(plan: Plan) -> None:
    """Read every file that a point may need into the library."""
    library = plan.library

    def found(name: str) -> Found:
        workload, model = fetch(plan.path, name)
        if model is None:
            raise BadInput(f'there is no model of "{name}"')
        file = workloads.file_of(name, plan.path)
        library.workloads[name] = (None if file is None else read_toml(file), workload, file or model)
        library.models[name] = models.described(model)
        if model.suffix == ".toml":
            library.model_files[name] = (read_toml(model), model)
        return workload, model

    base = scenarios.of_data(plan.scenario, plan.path, fetch=found)
    for axis in plan.axes:
        if axis.field == "scenario.guest.kernel" and (files := [value for value in axis.values if _is_file(value)]):
            raise BadInput(f"--axis: {axis.field}: {shown(files[0])} is not allowed: must be a version, as in 6.12")
    if _is_file(base.guest.kernel):
        # Only its release matters: workers need not have the file, and another one makes another sweep.
        plan.scenario["guest"]["kernel"] = guests_kernel(base, KERNEL_DEFAULT)
    for axis in plan.axes:
        if axis.root == "scenario" and axis.path.startswith("defaults") and axis.path != "defaults.kernel":
            raise BadInput(f"--axis: {axis.field}: changes nothing in a sweep: must be hardware or policy instead")
        if axis.field == "scenario.defaults.kernel" and any(other.field == "kernel" for other in plan.axes):
            raise BadInput(f"--axis: {axis.field}: changes nothing beside the axis kernel: must be left out")
        for value in axis.values:
            if axis.root == "scenario" and isinstance(value, str | list):
                _read_scenarios(plan, axis, value, found)
            elif axis.field == "program" and value not in base.labels:
                try:
                    found(value)
                except BadInput as error:
                    raise BadInput(f"--axis: program: {error}") from None
        for file in _sets_files(axis):
            try:
                library.sets[file] = read_sets(file)
            except PlaceError as error:
                raise BadInput(f"--axis: {axis.field}: {error}") from None
    # In their order: which of two wrong ones is told must not change from run to run, as a set's order does.
    for name in next((axis.values for axis in plan.axes if axis.field == "hardware"), ("",)):
        hardware = hardwares.of(base, name or None)
        library.hardware[name] = (read_toml(hardware.path), hardware.path)


def _read_scenarios(plan: Plan, axis: Axis, value: Any, found: Fetch) -> None:
    """Read what a scenario with this value needs; with one of another axis where it is wrong by itself."""
    others = [other for other in plan.axes if other.root == "scenario" and other is not axis]
    wrong = None
    for more in ((), *(((other, another),) for other in others for another in other.values)):
        data = copy.deepcopy(plan.scenario)
        for changed, to in ((axis, value), *more):
            _put(data, changed, changed.path, to)
        try:
            scenarios.of_data(data, plan.path, fetch=found)
            return
        except BadInput as error:
            wrong = wrong or error
    assert wrong is not None, "once it was tried"
    raise wrong


def _is_file(kernel: Any) -> bool:
    return isinstance(kernel, str) and "/" in kernel


def _sets_files(axis: Axis) -> list[str]:
    """Return the files of ``--sets`` that an axis names."""
    if axis.field == "policy.sets":
        return [str(value) for value in axis.values]
    if axis.field != "policy":
        return []
    return [file for value in axis.values if (file := sets_file(_words(value)[1:])) is not None]


def _chosen(scenario: Scenario, program: str, found: Fetch) -> tuple[Scenario, scenarios.Turn]:
    """Return the scenario's turn with a program, which may be none of its own; then all its VMs run that."""
    turn = scenario.turn_of(program)
    if turn is None:
        scenario = scenario.with_programs((program,), found)
        turn = scenario.turns[0]
    return scenario, turn


def _put(data: dict[str, Any], axis: Axis, path: str, value: Any) -> None:
    try:
        put(data, path, value)
    except BadInput as error:
        raise BadInput(f"{axis.field}: {error}") from None


def _words(policy: str) -> list[str]:
    try:
        words = shlex.split(policy)
    except ValueError as error:
        raise BadInput(f"policy: {shown(policy)} is not allowed: {str(error).lower()}") from None
    if not words:
        raise BadInput(f"policy: {shown(policy)} is not allowed: must be a policy, and its arguments if it has any")
    return words
