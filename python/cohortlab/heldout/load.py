# SPDX-License-Identifier: GPL-2.0-only
"""Which programs, shapes and policies are held out, and the lab's rounds, as their files say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Strict

from cohortlab import scenario as scenarios
from cohortlab import shipped
from cohortlab.errors import BadInput
from cohortlab.lab import kinds
from cohortlab.places import PlaceError
from cohortlab.policies import ALL, Policy, parse_policies
from cohortlab.scenario import TLB_RULE, Scenario, Tlb
from cohortlab.scenario_check import fetch
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.hardware import Hardware
from cohortlab.sim.policy import host_class, version_of
from cohortlab.tomlmodel import Location, Model, parse, read_toml, refuse, shown

SHIPPED = shipped.folder("fidelity") / "lab.toml"

Class = Literal["parameters", "looked-at", "held-out"]
CLASS_RULE = '"parameters", "looked-at" or "held-out"'
WHY_RULE = "a text: why it is of that class"
# A mean and its uncertainty need as many.
ROUNDS_MIN = 2
# Figures, not their logarithms: a round of nothing is none.
Figure = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rounds = Annotated[tuple[Figure, ...], Strict(False)]
ROUNDS_RULE = f"a list of {ROUNDS_MIN} or more numbers above 0"


class ProgramTable(Model):
    """What was known of a program while it was modelled."""

    name: str = Field(min_length=1, description="the name of a program")
    kind: Class = Field(alias="class", description=CLASS_RULE)
    why: str = Field(min_length=1, description=WHY_RULE)


class ShapeTable(Model):
    """A scenario in one TLB mode."""

    # Files are looked for beside the split, from whatever folder the command is given.
    scenario: str = Field(min_length=1, description="the name of a scenario that comes with cohortlab, or a file")
    tlb: Tlb = Field("ipi", description=TLB_RULE)
    kind: Class = Field(alias="class", description=CLASS_RULE)
    why: str = Field(min_length=1, description=WHY_RULE)


class PolicyTable(Model):
    """A policy, as `cohortlab compare` takes it."""

    label: str = Field(min_length=1, description="a policy, as --policies has it")
    args: str = Field("", description="its arguments, as --policy-args has them")
    kind: Class = Field(alias="class", description=CLASS_RULE)
    why: str = Field(min_length=1, description=WHY_RULE)


class RoundsTable(Model):
    """A file with rounds of the lab."""

    file: str = Field(min_length=1, description="the name of a file beside this one")
    kind: Literal["looked-at", "held-out"] = Field(alias="class", description='"looked-at" or "held-out"')
    why: str = Field(min_length=1, description=WHY_RULE)


class File(Model):
    """The split."""

    title: str = Field(min_length=1, description="a text")
    hardware: str = Field("lab", min_length=1, description="a name in hardware/, or a file")
    seeds: int = Field(100, ge=ROUNDS_MIN, le=10_000, description=f"an integer from {ROUNDS_MIN} to 10000")
    program: Annotated[tuple[ProgramTable, ...], Strict(False)] = Field(
        min_length=1, description="one or more [[program]] tables"
    )
    shape: Annotated[tuple[ShapeTable, ...], Strict(False)] = Field(
        min_length=1, description="one or more [[shape]] tables"
    )
    policy: Annotated[tuple[PolicyTable, ...], Strict(False)] = Field(
        min_length=1, description="one or more [[policy]] tables"
    )
    rounds: Annotated[tuple[RoundsTable, ...], Strict(False)] = Field(
        min_length=1, description="one or more [[rounds]] tables"
    )


class Measured(Model):
    """The rounds of one program: its figure in each, alone and under each policy."""

    program: str = Field(min_length=1, description="the name of a program")
    rate: bool = Field(False, description="true (more is better) or false")
    alone: Rounds = Field(min_length=ROUNDS_MIN, description=ROUNDS_RULE)
    under: dict[str, Annotated[Rounds, Field(min_length=ROUNDS_MIN)]] = Field(
        min_length=1, description=f"a table of policies' labels, each with {ROUNDS_RULE}"
    )


class RoundsFile(Model):
    """What one run of the lab measured."""

    about: str = Field(min_length=1, description="a text: the command, the machine, which rounds are kept")
    scenario: str = Field(min_length=1, description="a scenario that a [[shape]] names")
    tlb: Tlb = Field("ipi", description=TLB_RULE)
    kernel: str = Field(pattern=r"^\d+\.\d+(\.\d+)?$", description='a version of Linux, as "7.3.4"')
    ple_window_us: int = Field(ge=1, le=10_000, description="an integer from 1 to 10000")
    # Files of older versions name it in ``about`` alone, if at all.
    emulator: str | None = Field(None, min_length=1, description="its name, as the lab's results have it")
    measured: Annotated[tuple[Measured, ...], Strict(False)] = Field(
        min_length=1, description="one or more [[measured]] tables"
    )

    @property
    def emulators(self) -> tuple[str, ...]:
        """What measured, as ``emulator`` or else ``about`` names it; empty if neither does."""
        return kinds.of_place({"emulator": self.emulator}) if self.emulator else kinds.named_in(self.about)


@dataclass(frozen=True)
class Group:
    """What is simulated at once: a rounds file's programs in its shape.

    Attributes:
        scenario: with the lab's TLB mode, pause filter and programs.
    """

    shape: ShapeTable
    table: RoundsTable
    file: RoundsFile
    scenario: Scenario
    policies: tuple[Policy, ...]


@dataclass(frozen=True)
class Split:
    """A checked file.

    Attributes:
        hardware: a name in hardware/, or the path of a file.
    """

    path: Path
    file: File
    groups: tuple[Group, ...]
    hardware: str

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The files that do not say which emulator their rounds are of."""
        return tuple(group.table.file for group in self.groups if not group.file.emulators)

    def program(self, name: str) -> ProgramTable:
        return next(table for table in self.file.program if table.name == name)

    def policy(self, label: str) -> PolicyTable:
        return next(table for table in self.file.policy if table.label == label)


def load(path: Path) -> Split:
    """Return the split in ``path`` with the rounds that it names, or raise BadInput."""
    file = parse(File, read_toml(path), path)
    _unique(path, "program", "name", [table.name for table in file.program])
    _unique(path, "policy", "label", [table.label for table in file.policy])
    _unique(path, "shape", "scenario", [(table.scenario, table.tlb) for table in file.shape])
    _unique(path, "rounds", "file", [table.file for table in file.rounds])
    hardware = str(path.parent / file.hardware) if file.hardware.endswith(".toml") else file.hardware
    try:
        simulated = hardwares.load(hardware)
    except BadInput:
        if file.hardware.endswith(".toml"):
            raise
        wrong = f"{shown(file.hardware)} does not exist"
        refuse(path, ("hardware",), wrong, f"one of {', '.join(hardwares.names())}, or a .toml file")
    policies = {}
    for at, table in enumerate(file.policy):
        if table.label in (ALL, "") or table.label != table.label.strip() or "," in table.label:
            refuse(path, ("policy", at, "label"), f"{shown(table.label)} is not allowed", "one policy, as eevdf@smp")
        try:
            arguments = [f"{table.label}={table.args}"] if table.args else []
            (policies[table.label],) = parse_policies(table.label, arguments)
        except (BadInput, ValueError) as error:
            raise BadInput(f"{path}: policy[{at}]{_field_of(error)}") from None
    groups: list[Group] = []
    for at, rounds in enumerate(file.rounds):
        if Path(rounds.file).is_absolute() or ".." in Path(rounds.file).parts:
            refuse(path, ("rounds", at, "file"), f"{shown(rounds.file)} is not allowed", "a file beside this one")
        group = _group(path, file, rounds, policies)
        first = next((other for other in groups if other.shape == group.shape), group)
        for field in ("kernel", "ple_window_us"):
            was, value = getattr(first.file, field), getattr(group.file, field)
            if value != was:
                wrong = f"{shown(value)} is not allowed"
                refuse(path.parent / rounds.file, (field,), wrong, f"{shown(was)}, as in {first.table.file}")
        _has_same_emulator(path.parent / rounds.file, group, groups)
        _has_hardwares_emulator(path, file, group, simulated)
        _has_own_name(path, file, group, groups)
        groups.append(group)
    return Split(path, file, tuple(groups), hardware)


def _unique(path: Path, table: str, field: str, values: Sequence[object]) -> None:
    for at, value in enumerate(values):
        if value in values[:at]:
            text = value if isinstance(value, str) else " with flushes by ".join(map(str, value))  # type: ignore[call-overload]
            refuse(path, (table, at, field), f"{shown(text)} is named twice", "named once")


def _has_same_emulator(path: Path, group: Group, others: Sequence[Group]) -> None:
    """Check that all rounds are of one emulator: one hardware is simulated for them, and their errors have one mean."""
    field = "emulator" if group.file.emulator else "about"
    mine = group.file.emulators
    if len(mine) > 1:
        refuse(path, (field,), f"names {' and '.join(map(shown, mine))}", "of one emulator")
    first = next((other for other in others if other.file.emulators), group)
    if mine and mine != first.file.emulators:
        as_there = f"{shown(first.file.emulators[0])}, as in {first.table.file}"
        refuse(path, (field,), f"{shown(mine[0])} is not allowed", as_there)


def _has_hardwares_emulator(path: Path, file: File, group: Group, simulated: Hardware) -> None:
    """Check that the simulated host is not another emulator's than the rounds: what things cost differs by it."""
    for kind in map(kinds.kind_of, group.file.emulators):
        if kind is not None and simulated.emulators and kind not in simulated.emulators:
            wrong = f"{shown(file.hardware)} is of {', '.join(simulated.emulators)}"
            refuse(path, ("hardware",), wrong, f"of {kind}, as {group.table.file}")


def _has_own_name(path: Path, file: File, group: Group, others: Sequence[Group]) -> None:
    """Check that no other shape's scenario is called as this one's: cells and reports know a shape by that."""
    for other in others:
        called = group.scenario.name, group.shape.tlb
        if other.shape != group.shape and (other.scenario.name, other.shape.tlb) == called:
            where = ("shape", file.shape.index(group.shape), "scenario")
            wrong = f"{shown(group.shape.scenario)} is called {shown(group.scenario.name)}"
            refuse(path, where, wrong, f"called otherwise than {shown(other.shape.scenario)}")


def _scenario_file(split: Path, at: int, name: str) -> Path:
    """Return the file of a shape's scenario: one that comes with cohortlab, or one beside the split."""
    if name in scenarios.names():
        return scenarios.SHIPPED / f"{name}.toml"
    if "/" not in name and not name.endswith(".toml"):
        allowed = f"one of {', '.join(scenarios.names())}, or a .toml file"
        refuse(split, ("shape", at, "scenario"), f"{shown(name)} does not exist", allowed)
    return split.parent / name


def _group(split: Path, file: File, table: RoundsTable, policies: dict[str, Policy]) -> Group:
    path = split.parent / table.file
    rounds = parse(RoundsFile, read_toml(path), path)
    shape = next((s for s in file.shape if (s.scenario, s.tlb) == (rounds.scenario, rounds.tlb)), None)
    if shape is None:
        known = ", ".join(f"{s.scenario} with flushes by {s.tlb}" for s in file.shape)
        wrong = f"{shown(rounds.scenario)} with flushes by {rounds.tlb} has no [[shape]] in {split}"
        refuse(path, ("scenario",), wrong, f"one of {known}")
    programs = [measured.program for measured in rounds.measured]
    _unique(path, "measured", "program", programs)
    for at, measured in enumerate(rounds.measured):
        _known(path, ("measured", at, "program"), measured.program, [p.name for p in file.program], split)
        for label in measured.under:
            _known(path, ("measured", at, "under", label), label, list(policies), split)
    at_shape = file.shape.index(shape)
    scenario = scenarios.load(_scenario_file(split, at_shape, shape.scenario))
    if (measured_vms := len(scenario.program_vms)) != 1:
        wrong = f"{shown(shape.scenario)} has programs in {measured_vms} VMs"
        refuse(split, ("shape", at_shape, "scenario"), wrong, "a scenario with programs in one VM")
    try:
        chosen = scenario.with_programs(tuple(programs), lambda name: fetch(scenario.path, name))
    except BadInput as error:
        raise BadInput(f"{path}: measured: {error}") from None
    for at, measured in enumerate(rounds.measured):
        _check_rate(path, at, measured, is_rate=chosen.workloads[measured.program].is_rate)
    used = dict.fromkeys(label for measured in rounds.measured for label in measured.under)
    try:
        version_of(rounds.kernel)
    except PlaceError as error:
        raise BadInput(f"{path}: kernel: {error}") from None
    for at, named in enumerate(file.policy):
        policy = policies[named.label]
        try:
            if named.label in used:
                host_class(policy.name, policy.args, rounds.kernel)
        except PlaceError as error:
            raise BadInput(f"{split}: policy[{at}].args: {error}") from None
    return Group(
        shape,
        table,
        rounds,
        _in_mode(chosen, rounds.tlb).with_ple(rounds.ple_window_us),
        tuple(policy for label, policy in policies.items() if label in used),
    )


def _check_rate(path: Path, at: int, measured: Measured, *, is_rate: bool) -> None:
    """Check that a program's figure is what its workload makes of it: slowdowns would be upside down."""
    if measured.rate != is_rate:
        is_given = "rate" in measured.model_fields_set
        wrong = f"{shown(measured.rate)} is not allowed" if is_given else "is missing"
        refuse(path, ("measured", at, "rate"), wrong, f"{shown(is_rate)}, as in the workload {measured.program}")


def _in_mode(scenario: Scenario, tlb: Tlb) -> Scenario:
    """Return the scenario in a TLB mode; in its own, as `cohortlab compare` without ``--tlb``, each VM keeps its."""
    return scenario if scenario.program_vm.tlb == tlb else scenario.with_tlb(tlb)


def _field_of(error: Exception) -> str:
    """Return an error about a policy's label or arguments, which names options, with the file's field."""
    text = str(error)
    of_args = text.removeprefix("--policy-args: ")
    return f".args: {of_args}" if of_args != text else f": {text}"


def _known(path: Path, where: Location, name: str, known: Sequence[str], split: Path) -> None:
    if name not in known:
        refuse(path, where, f"{shown(name)} is not in {split}", f"one of {', '.join(known)}")
