# SPDX-License-Identifier: GPL-2.0-only
"""What came of an experiment: each published figure beside ours, each finding with whether it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cohortlab.reproduce.formula import Formula
from cohortlab.reproduce.load import Experiment, FigureTable, FindingTable, OwnTable
from cohortlab.reproduce.runs import Measured


@dataclass(frozen=True)
class Figure:
    """A published figure and ours; ``missing`` says why there is none."""

    table: FigureTable
    ours: float | None
    missing: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        return None if self.ours is None or not self.table.paper else self.ours / self.table.paper

    @property
    def is_scored(self) -> bool:
        """Whether it says something about the model: what this was given does not."""
        return self.table.kind == "predicted"

    @property
    def is_other_way(self) -> bool:
        """Whether the paper has a gain where we have a loss or nothing, or the reverse. Such a figure has no unit."""
        paper = self.table.paper
        return not self.table.unit and self.ours is not None and paper != 1 and (self.ours - 1) * (paper - 1) <= 0

    @property
    def is_near(self) -> bool:
        ratio = self.ratio
        return ratio is not None and 1 / self.table.within <= ratio <= self.table.within and not self.is_other_way


@dataclass(frozen=True)
class Finding:
    """What the paper found, and whether we do; ``numbers`` are what was compared."""

    table: FindingTable
    holds: bool | None
    numbers: str
    missing: str = ""


@dataclass(frozen=True)
class Own:
    """A figure that only we have."""

    table: OwnTable
    ours: float | None
    missing: str = ""


@dataclass(frozen=True)
class Outcome:
    """All of an experiment."""

    experiment: Experiment
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    own: tuple[Own, ...]
    measured: Measured
    rounds: int

    @property
    def scored(self) -> tuple[Figure, ...]:
        return tuple(figure for figure in self.figures if figure.is_scored)

    @property
    def near(self) -> int:
        return sum(figure.is_near for figure in self.scored)

    @property
    def held(self) -> int:
        return sum(finding.holds is True for finding in self.findings)


def of(experiment: Experiment, measured: Measured, rounds: int) -> Outcome:
    """Judge what was measured."""
    file = experiment.file
    return Outcome(
        experiment,
        tuple(Figure(table, *_number(table.ours, measured)) for table in file.figure),
        tuple(_finding(table, measured) for table in file.finding),
        tuple(Own(table, *_number(table.ours, measured)) for table in file.own),
        measured,
        rounds,
    )


def _number(text: str, measured: Measured) -> tuple[float | None, str]:
    try:
        value = float(Formula(text).value(measured.figures))
    except KeyError as error:
        return None, _missing(str(error.args[0]), measured)
    return (value, "") if math.isfinite(value) else (None, "is not a number")


def _finding(table: FindingTable, measured: Measured) -> Finding:
    formula = Formula(table.check)
    try:
        holds = bool(formula.value(measured.figures))
    except KeyError as error:
        return Finding(table, None, "", _missing(str(error.args[0]), measured))
    numbers = ", ".join(f"{name} {measured.figures[name]:.4g}" for name in formula.names)
    return Finding(table, holds, numbers)


def _missing(name: str, measured: Measured) -> str:
    """Say why a figure is not there."""
    failed = [error for key, error in measured.errors.items() if name.startswith(f"{key}.")]
    return failed[0] if failed else f"there is no figure {name}"


def score(outcomes: Sequence[Outcome]) -> str:
    """Return one line for all of them."""
    scored = sum(len(outcome.scored) for outcome in outcomes)
    near = sum(outcome.near for outcome in outcomes)
    findings = sum(len(outcome.findings) for outcome in outcomes)
    held = sum(outcome.held for outcome in outcomes)
    return f"{near} of {scored} predicted figures within their factor, {held} of {findings} findings hold"
