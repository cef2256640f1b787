# SPDX-License-Identifier: GPL-2.0-only
"""Simulates what the lab has measured, with many seeds, and puts both together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cohortlab import compare as comparison
from cohortlab.compare import Plan
from cohortlab.heldout.errors import Cell
from cohortlab.heldout.load import Class, Group, Split
from cohortlab.places import PlaceError
from cohortlab.results import ALONE, as_seconds
from cohortlab.scenario import Scenario
from cohortlab.sim.compared import simulate
from cohortlab.summary import Spread

# Shape, program, policy.
_Run = tuple[str, str, str]


@dataclass(frozen=True)
class Alone:
    """A program's figure alone in a shape, in seconds of a run or of a unit of its work: medians."""

    shape: str
    program: str
    lab_s: float
    sim_s: float

    @property
    def error(self) -> float:
        return self.sim_s / self.lab_s - 1


def predict(split: Split, seeds: int, say: Callable[[str], None]) -> tuple[list[Cell], list[Alone]]:
    """Return every cell of ``split``, in its order, and what the programs take alone.

    A lab's slowdowns are over its own median alone: the machine is not the same in each run of it.

    Raises:
        PlaceError: a run did not come to its end.
    """
    simulated: dict[_Run, list[float]] = {}
    cells: dict[_Run, Cell] = {}
    alone: dict[tuple[str, str], tuple[list[float], list[float], bool]] = {}
    for group in split.groups:
        shape = shape_of(group)
        wanted = {(shape, m.program, p) for m in group.file.measured for p in (ALONE, *m.under)}
        if not wanted <= simulated.keys():
            say(f"{shape}: {len(wanted) * seeds} runs")
            simulated |= _simulate(group, split.hardware, seeds)
        for measured in group.file.measured:
            rate, sim_alone = measured.rate, simulated[shape, measured.program, ALONE]
            alone.setdefault((shape, measured.program), ([], sim_alone, rate))[0].extend(measured.alone)
            for policy in group.policies:
                if policy.label not in measured.under:
                    continue
                run = (shape, measured.program, policy.label)
                kind, held_out = classify(split, group, measured.program, policy.label)
                lab = _slowdowns(measured.under[policy.label], measured.alone, rate=rate)
                cell = Cell(*run, kind, held_out, lab, _slowdowns(simulated[run], sim_alone, rate=rate))
                cells[run] = _joined(cells[run], cell) if run in cells else cell
    takes = [Alone(*at, _median_s(lab, rate=rate), _median_s(sim, rate=rate)) for at, (lab, sim, rate) in alone.items()]
    return list(cells.values()), takes


def _joined(cell: Cell, more: Cell) -> Cell:
    """Return a cell with the rounds of two runs of the lab; it is held out only if both are."""
    known = more if cell.kind == "held-out" else cell
    return replace(known, lab=cell.lab + more.lab)


def shape_of(group: Group) -> str:
    """Return what a shape is called: its scenario, and its TLB mode if that is not the usual one."""
    return group.scenario.name if group.shape.tlb == "ipi" else f"{group.scenario.name}, {group.shape.tlb}"


def classify(split: Split, group: Group, program: str, policy: str) -> tuple[Class, tuple[str, ...]]:
    """Return a cell's class, and which of its sides are held out.

    It is held out if one of its sides is, so that nobody can have looked at it, and if its rounds were not looked at.
    """
    sides: dict[str, Class] = {
        "program": split.program(program).kind,
        "shape": group.shape.kind,
        "policy": split.policy(policy).kind,
    }
    held_out = tuple(side for side, kind in sides.items() if kind == "held-out")
    if held_out and group.table.kind == "held-out":
        return "held-out", held_out
    return ("parameters" if "parameters" in sides.values() else "looked-at"), ()


def _slowdowns(values: Iterable[float], alone: Iterable[float], *, rate: bool) -> tuple[float, ...]:
    """Return each figure with load against the median alone."""
    alone_s = _median_s(alone, rate=rate)
    return tuple(as_seconds(value, rate=rate) / alone_s for value in values)


def _median_s(values: Iterable[float], *, rate: bool) -> float:
    return Spread.of(values).as_seconds(rate=rate).median


def _simulate(group: Group, hardware: str, seeds: int) -> dict[_Run, list[float]]:
    """Return the figure of each seed."""
    scenario = group.scenario
    modes: dict[str, Scenario] = {group.shape.tlb: scenario}
    plan = Plan(policies=group.policies, rounds=seeds, modes=modes, kernel=group.file.kernel, warm_up=False)
    results = simulate(plan, "cohortlab held-out", hardware)
    if results.stopped == comparison.INTERRUPTED:
        raise KeyboardInterrupt
    if results.stopped:
        raise PlaceError(results.stopped)
    for (_, policy, program), why in results.failed.items():
        raise PlaceError(f"{scenario.name}: {program} under {policy}: {why}")
    found: dict[_Run, list[float]] = {}
    for row in results.rows:
        found.setdefault((shape_of(group), row.program, row.policy), []).append(row.value)
    return found
