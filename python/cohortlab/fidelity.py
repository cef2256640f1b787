# SPDX-License-Identifier: GPL-2.0-only
"""The simulator beside the lab: the same scenario, programs and policies, and by how much they differ."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohortlab.compare import INTERRUPTED, Plan
from cohortlab.errors import BadInput, one_line
from cohortlab.lab import kinds
from cohortlab.places import LATER, PlaceError
from cohortlab.policies import Policy, without_talk
from cohortlab.results import ALONE, Results, read_parquet
from cohortlab.scenario import TLB_MODES, Scenario, Turn
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.hardware import Hardware
from cohortlab.summary import Figure, Spread, complete, figures
from cohortlab.table import number
from cohortlab.tomlmodel import parse_toml

# The goal: as near as this.
GOAL = 0.15
# In place of a file that is not the user's own, and its SHA-256.
_PROJECTS = ("the project's own", "")


@dataclass(frozen=True)
class Fit:
    """One program under one policy in both places.

    Attributes:
        lab, sim: slowdowns over the rounds; None where that place has none, or has failed before all were complete.
        rounds: the lab's slowdowns, one for each round.
        alone_lab, alone_sim: the figure alone, in ``unit``, medians.
        why: why a figure is missing.
    """

    tlb: str
    program: str
    policy: str
    unit: str | None = None
    lab: Spread | None = None
    rounds: tuple[float, ...] = ()
    sim: Spread | None = None
    alone_lab: float | None = None
    alone_sim: float | None = None
    why: str = ""

    @property
    def error(self) -> float | None:
        """The simulator's slowdown relative to the lab's, less 1."""
        return self.sim.median / self.lab.median - 1 if self.sim and self.lab else None

    @property
    def is_in_range(self) -> bool:
        """Return whether the lab itself had rounds on both sides of the simulator's slowdown."""
        if self.lab is None or self.sim is None:
            return False
        return self.lab.min <= self.sim.median <= self.lab.max

    @property
    def lab_deviation(self) -> float | None:
        """How far the lab's rounds are from their own median, on average."""
        return mean(abs(slowdown / self.lab.median - 1) for slowdown in self.rounds) if self.lab else None

    @property
    def alone_error(self) -> float | None:
        return self.alone_sim / self.alone_lab - 1 if self.alone_sim and self.alone_lab else None

    def for_machines(self) -> dict[str, Any]:
        return {
            "tlb": self.tlb,
            "program": self.program,
            "policy": self.policy,
            "unit": self.unit,
            "lab_slowdown": self.lab.median if self.lab else None,
            "lab_slowdown_min": self.lab.min if self.lab else None,
            "lab_slowdown_max": self.lab.max if self.lab else None,
            "lab_deviation": self.lab_deviation,
            "sim_slowdown": self.sim.median if self.sim else None,
            "error": self.error,
            "lab_alone": self.alone_lab,
            "sim_alone": self.alone_sim,
            "alone_error": self.alone_error,
            "reason": self.why or None,
        }


def read_lab(path: Path) -> Results:
    """Return what the lab measured, or raise BadInput."""
    try:
        return read_parquet(path)
    except OSError as error:
        raise BadInput(f"--lab: {path}: cannot be read: {error.strerror or error}") from None
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise BadInput(f"--lab: {path}: is not a measurements.parquet of `cohortlab compare`") from None


def compare(
    scenario: Scenario,
    lab_file: Path,
    *,
    rounds: int,
    kernel: str | None = None,
    hardware: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Fit]:
    """Simulate what is in ``lab_file`` and return both, in the order of the file.

    ``say`` is told in a line what ought to be known of the files. A program that failed under a policy, in either
    place, lacks rounds: it is not compared, and its ``Fit`` says why.

    Raises:
        BadInput: the file is none of a lab, or not of this scenario, or the hardware is another emulator's.
        PlaceError: a simulated run did not come to its end.
    """
    lab = read_lab(lab_file)
    if any(place.get("place") == "simulator" for place in lab.places.values()):
        raise BadInput(f"--lab: {lab_file}: was simulated: must be measured, by `cohortlab compare --on lab`")
    if lab.scenario != scenario.name:
        raise BadInput(f'--lab: {lab_file}: is of scenario "{lab.scenario}", not "{scenario.name}"')
    try:
        chosen = scenario.only(lab.programs)
    except BadInput as error:
        raise BadInput(f"--lab: {lab_file}: {error}") from None
    if set(lab.programs) != set(chosen.labels):
        has = ", ".join(lab.programs)
        raise BadInput(f"--lab: {lab_file}: has {has}: must be programs of {scenario.path}, or the same in all its VMs")
    _check_machines(lab, lab_file, scenario)
    _check_files(lab, lab_file, chosen)
    _check_emulator(lab, lab_file, say)
    _check_hardware(lab, lab_file, hardwares.of(scenario, hardware), say)
    measured = complete(lab, figures(lab, chosen))
    if not measured:
        wrong = next((f"every program failed: {why}" for why in lab.failed.values()), "has no complete round")
        raise BadInput(one_line(f"--lab: {lab_file}: {wrong}"))
    parts = chosen.only(tuple(dict.fromkeys(figure.program for figure in measured)))
    simulated = _simulate(parts, lab, rounds, kernel or kernel_of(lab), hardware)
    if simulated.stopped == INTERRUPTED:
        raise KeyboardInterrupt
    if simulated.stopped and not simulated.failed:
        raise PlaceError(f"{scenario.path}: {simulated.stopped}")
    found = {_what(figure, parts): figure for figure in complete(simulated, figures(simulated, parts))}
    failed = {
        (tlb, policy, parts.vm_of(label), parts.turn_of(label)): f"simulated: {why}"
        for (tlb, policy, label), why in simulated.failed.items()
    }
    fits = {
        (tlb, program, policy): Fit(tlb, program, policy, why=f"in the lab: {why}")
        for (tlb, policy, program), why in lab.failed.items()
    }
    for figure in measured:
        what = _what(figure, chosen)
        why = failed.get(what) or simulated.stopped or "not measured"
        fits[figure.tlb, figure.program, figure.policy] = _fit(figure, found.get(what), why)
    in_order = itertools.product(lab.tlb_modes, lab.programs, lab.policies)
    return [fits[at] for at in in_order if at in fits]


def _check_machines(lab: Results, lab_file: Path, scenario: Scenario) -> None:
    """Raise BadInput if the lab's host or VMs were others than the scenario's, whose name is the same."""
    was = _machines(parse_toml(lab.scenario_text, lab_file))
    now = _machines(parse_toml(scenario.text, scenario.path))
    for field in was | now:
        if was.get(field) != now.get(field):
            raise BadInput(f"--lab: {lab_file}: its scenario had another {field}: must be that of {scenario.path}")


def _check_files(lab: Results, lab_file: Path, scenario: Scenario) -> None:
    """Raise BadInput if a program or a load that ran in the lab was another file than what has its name here."""
    if lab.files is None:
        return
    here = scenario.own_files()
    for name in lab.files | here:
        was, now = lab.files.get(name, _PROJECTS), here.get(name, _PROJECTS)
        if was[1] != now[1]:
            both = [f"{file} ({sha256[:12]})" if sha256 else file for file, sha256 in (was, now)]
            raise BadInput(f'--lab: {lab_file}: "{name}" was {both[0]}: must be the same as {both[1]}')


def _check_emulator(lab: Results, lab_file: Path, say: Callable[[str], None]) -> None:
    """Raise BadInput if not all rounds are of one emulator; ``say`` it if that is not known."""
    named = {tlb: kinds.of_place(lab.places.get(tlb, {})) for tlb in dict.fromkeys(row.tlb for row in lab.rows)}
    by_name: dict[str, list[str]] = {}
    for tlb, names in named.items():
        for name in names:
            by_name.setdefault(name, []).append(tlb)
    if len(by_name) > 1:
        found = " and ".join(f'"{name}" with flushes by {", ".join(modes)}' for name, modes in by_name.items())
        raise BadInput(one_line(f"--lab: {lab_file}: emulator: is {found}: must be the same in all rounds"))
    if not all(named.values()):
        say(f"{lab_file}: not every round's emulator is named: whether they are of one is not known")


def _check_hardware(lab: Results, lab_file: Path, hardware: Hardware, say: Callable[[str], None]) -> None:
    """Raise BadInput if the simulated host is another emulator's than the lab's; ``say`` it if that is not known."""
    places = (lab.places.get(tlb, {}) for tlb in dict.fromkeys(row.tlb for row in lab.rows))
    found = list(dict.fromkeys(kind for place in places for kind in kinds.emulated(place)))
    if not found:
        return
    measured = f"{', '.join(found)}, which measured {lab_file}"
    if not hardware.emulators:
        say(f"{hardware.path}: emulators: is missing: whether it is of {measured}, is not known")
    elif not set(found) <= set(hardware.emulators):
        wrong = f"is of {', '.join(hardware.emulators)}"
        raise BadInput(one_line(f"--hardware: {hardware.path}: emulators: {wrong}: must be of {measured}"))


def _machines(data: dict[str, Any]) -> dict[str, Any]:
    """Return what a scenario's file says of host and VMs, by field; their programs are compared by their labels."""
    vms = [{field: value for field, value in vm.items() if field != "programs"} for vm in data.get("vm", [])]
    return {"host": data.get("host"), "guest": data.get("guest", {})} | {f"vm[{at}]": vm for at, vm in enumerate(vms)}


def _what(figure: Figure, scenario: Scenario) -> tuple[str, str, str | None, Turn | None]:
    """Return what a figure is of. Its label is another where fewer turns are measured, its turn is not."""
    return figure.tlb, figure.policy, figure.vm, scenario.turn_of(figure.program)


def _fit(lab: Figure, sim: Figure | None, why: str) -> Fit:
    return Fit(
        tlb=lab.tlb,
        program=lab.program,
        policy=lab.policy,
        unit=lab.unit,
        lab=lab.slowdown,
        rounds=lab.slowdowns,
        sim=sim.slowdown if sim else None,
        alone_lab=lab.alone.median,
        alone_sim=sim.alone.median if sim else None,
        why="" if sim else why,
    )


def kernel_of(lab: Results) -> str | None:
    """Return the lab's kernel as a version that the simulator understands, if it says."""
    return _version(next((place.get("kernel", "") for place in lab.places.values()), ""))


def _version(release: str) -> str | None:
    found = re.search(r"\d+\.\d+(\.\d+)?", release)
    return found[0] if found else None


def _as_in_the_lab(scenario: Scenario, place: Mapping[str, str]) -> Scenario:
    """Return the scenario with a place's pause filter, and its guests' kernel if that was another than the host's."""
    if version := _version(place.get("guests' kernel", "")):
        scenario = scenario.with_guest_kernel(version)
    if place.get("ple") == "off":
        return scenario.with_ple(None)
    window = window_us(place)
    return scenario if window is None else scenario.with_ple(window)


def window_us(place: Mapping[str, str]) -> int | None:
    """Return how long a vCPU may spin in a place, or None if that is not known; the median of what it said in turn."""
    said = [int(part) for part in place.get("ple_window_us", "").split(LATER) if part.isdecimal()]
    return max(1, round(median(said))) if said else None


def _modes(scenario: Scenario, lab: Results) -> dict[str, Scenario]:
    """Return the scenario in each of the lab's TLB modes, with what the lab's machines had in that mode.

    Without ``--tlb`` each VM had its own there, and the results are called by that of the VM with programs.
    """
    own = scenario.program_vm.tlb
    if lab.tlb_modes == (own,) and not re.search(r" --tlb[ =]", lab.command):
        modes: dict[str, Scenario] = {own: scenario}
    else:
        modes = {tlb: scenario.with_tlb(tlb) for tlb in TLB_MODES if tlb in lab.tlb_modes}
    return {tlb: _as_in_the_lab(chosen, lab.places.get(tlb, {})) for tlb, chosen in modes.items()}


def _simulate(scenario: Scenario, lab: Results, rounds: int, kernel: str | None, hardware: str | None) -> Results:
    from cohortlab.sim.compared import simulate

    arguments = {row.policy: (row.scheduler, without_talk(row.policy_args)) for row in lab.rows if row.policy != ALONE}
    policies = tuple(Policy(label, *arguments[label]) for label in lab.policies if label in arguments)
    plan = Plan(policies=policies, rounds=rounds, modes=_modes(scenario, lab), kernel=kernel, warm_up=False)
    return simulate(plan, "cohortlab fidelity", hardware)


def show(console: Console, fits: Sequence[Fit]) -> None:
    """Print the table, and how many are as near as they should be."""
    table = Table(title="Simulator and lab: slowdown", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("program", "TLB by", "policy"):
        table.add_column(heading, no_wrap=True)
    for heading in ("simulator", "lab [min–max]", "error", "alone: simulator", "lab", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for fit in fits:
        if fit.lab is None or fit.alone_lab is None:
            table.add_row(fit.program, fit.tlb, fit.policy, *("–",) * 6)
            continue
        lab = f"{fit.lab.median:.2f} [{fit.lab.min:.2f}–{fit.lab.max:.2f}]"
        alone = f"{number(fit.alone_lab)} {fit.unit}"
        if fit.sim is None or fit.alone_sim is None:
            table.add_row(fit.program, fit.tlb, fit.policy, "–", lab, "–", "–", alone, "–")
            continue
        error = Text(f"{fit.error:+.0%}", style="" if _is_near(fit) else "red")
        cells = (f"{number(fit.alone_sim)} {fit.unit}", alone, f"{fit.alone_error:+.0%}")
        table.add_row(fit.program, fit.tlb, fit.policy, f"{fit.sim.median:.2f}", Text(lab), error, *cells)
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)
    errors = [abs(fit.error) for fit in fits if fit.error is not None]
    for fit in fits:
        if fit.why:
            console.print(f"{fit.program} under {fit.policy}: {fit.why}", markup=False, highlight=False, soft_wrap=True)
    if errors:
        deviations = [fit.lab_deviation for fit in fits if fit.error is not None and fit.lab_deviation is not None]
        near = sum(error <= GOAL for error in errors)
        between = sum(fit.is_in_range for fit in fits)
        console.print(
            f"{near} of {len(errors)} within {GOAL:.0%}, {between} between two rounds of the lab; "
            f"mean of the errors without sign: {mean(errors):.0%}. The lab's rounds are "
            f"{mean(deviations):.0%} from their own median on average.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _is_near(fit: Fit) -> bool:
    return fit.error is not None and abs(fit.error) <= GOAL
