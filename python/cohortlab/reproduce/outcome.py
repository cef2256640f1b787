# SPDX-License-Identifier: GPL-2.0-only
"""What came of an experiment: each published figure beside ours, each finding with whether it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohortlab.recorded.uncertainty import student
from cohortlab.reproduce.formula import Formula
from cohortlab.reproduce.load import VALUES, Experiment, FigureTable, File, FindingTable, OwnTable
from cohortlab.reproduce.runs import TOTAL, Measured

NO_NUMBER = "is not a number"
# So many hits must be expected, by the paper's figure, for an interval to say something.
_HITS_MIN = 5


@dataclass(frozen=True)
class Figure:
    """A published figure and ours; ``missing`` says why there is none."""

    table: FigureTable
    ours: float | None
    missing: str = ""
    # Ours is a part of what was counted: how many hits of how many, in each seed.
    counts: tuple[tuple[float, float], ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of what is counted, in the figure's unit."""
        found = over_seeds(self.counts) if self.ours is not None else None
        scale = 100 if self.table.unit.startswith("%") else 1
        return found and (found[0] * scale, found[1] * scale)

    @property
    def published(self) -> float:
        """The paper's figure; of a range, what is nearest to ours."""
        low, high = self.table.paper, self.table.up_to
        return low if high is None or self.ours is None else min(max(self.ours, low), high)

    @property
    def ratio(self) -> float | None:
        """Ours over the paper's."""
        return None if self.ours is None or not self.published else self.ours / self.published

    @property
    def is_scored(self) -> bool:
        """Whether it says something about the model: what this was given does not."""
        return self.table.kind == "predicted"

    @property
    def is_other_way(self) -> bool:
        """Whether the paper has a gain where we have a loss or nothing, or the reverse. Such a figure has no unit."""
        paper = self.published
        return not self.table.unit and self.ours is not None and paper != 1 and (self.ours - 1) * (paper - 1) <= 0

    @property
    def _is_enough(self) -> bool:
        """Whether so many counts would have shown the paper's part: an interval of few contains anything."""
        scale = 100 if self.table.unit.startswith("%") else 1
        return math.fsum(trials for _, trials in self.counts) * self.table.paper / scale >= _HITS_MIN

    @property
    def is_near(self) -> bool:
        ratio, within = self.ratio, self.table.within
        if ratio is None or self.is_other_way:
            return False
        if self.interval and self._is_enough and self.interval[0] <= self.table.paper <= self.interval[1]:
            return True
        return (ratio >= 1 / within or self.table.bound == "at most") and (
            ratio <= within or self.table.bound == "at least"
        )


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


def over_seeds(counts: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the 95 % interval of a part, from 0 to 1, of which each seed has seen (hits, trials).

    The events of one run are not independent, as where guests and host tick in step; runs of different seeds are. So it
    says by how much seeds differ: the ratio estimator for clusters, with Student's t. None: they do not, as where none
    has a hit, or there is only one.
    """
    trials = math.fsum(of for _, of in counts)
    if len(counts) < 2 or trials <= 0:
        return None
    part = math.fsum(hits for hits, _ in counts) / trials
    off = math.fsum((hits - part * of) ** 2 for hits, of in counts)
    half = student(len(counts) - 1) * math.sqrt(off * len(counts) / (len(counts) - 1)) / trials
    return (max(part - half, 0.0), min(part + half, 1.0)) if half > 0 else None


@dataclass(frozen=True)
class _Known:
    """Figures by name, those of ``[values]`` among them; of a value that is not there, why."""

    figures: Mapping[str, float]
    missing: Mapping[str, str]
    errors: Mapping[str, str]
    # What the figures were made of, seed by seed.
    seeds: Mapping[str, Sequence[float]]

    def why_not(self, name: str) -> str:
        """Say why a figure is not there."""
        failed = [error for key, error in self.errors.items() if name.startswith(f"{key}.")]
        return self.missing.get(name) or (failed[0] if failed else f"there is no figure {name}")

    def number(self, text: str) -> tuple[float | None, str]:
        """Return what a formula gives, or why that is no number."""
        try:
            value = float(Formula(text).value(self.figures))
        except KeyError as error:
            return None, self.why_not(str(error.args[0]))
        return (value, "") if math.isfinite(value) else (None, NO_NUMBER)

    def by_seed(self, text: str) -> list[float]:
        """Return what a formula gives of each seed alone, a sum being that seed's part; nothing if it is not known."""
        formula = Formula(text)
        parts = [self.seeds.get(name.removesuffix(TOTAL), ()) for name in formula.names]
        # Of a run that has no such figure, the others would be taken for other seeds'.
        if len({len(part) for part in parts}) != 1:
            return []
        found = [float(formula.value(dict(zip(formula.names, row, strict=True)))) for row in zip(*parts, strict=True)]
        return found if all(map(math.isfinite, found)) else []


def of(experiment: Experiment, measured: Measured, rounds: int) -> Outcome:
    """Judge what was measured."""
    file = experiment.file
    known = _known(file, measured)
    return Outcome(
        experiment,
        tuple(_figure(table, known) for table in file.figure),
        tuple(_finding(table, known) for table in file.finding),
        tuple(Own(table, *known.number(table.ours)) for table in file.own),
        measured,
        rounds,
    )


def _known(file: File, measured: Measured) -> _Known:
    figures, missing = dict(measured.figures), dict[str, str]()
    known = _Known(figures, missing, measured.errors, measured.seeds)
    for name, text in file.values.items():
        value, why_not = known.number(text)
        if value is None:
            missing[f"{VALUES}.{name}"] = why_not
        else:
            figures[f"{VALUES}.{name}"] = value
    return known


def _figure(table: FigureTable, known: _Known) -> Figure:
    ours, missing = known.number(table.ours)
    hits, trials = (known.by_seed(text) for text in table.counts or ("0", "0"))
    return Figure(table, ours, missing, tuple(zip(hits, trials, strict=True)) if len(hits) == len(trials) else ())


def _finding(table: FindingTable, known: _Known) -> Finding:
    formula = Formula(table.check)
    try:
        found = formula.value(known.figures)
    except KeyError as error:
        return Finding(table, None, "", known.why_not(str(error.args[0])))
    if math.isnan(found):
        return Finding(table, None, "", NO_NUMBER)
    numbers = ", ".join(f"{name} {_digits(known.figures[name])}" for name in formula.names)
    return Finding(table, bool(found), numbers)


def _digits(value: float) -> str:
    """Return up to four significant digits, and all before the point: a reader compares, and does not add exponents."""
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"


def score(outcomes: Sequence[Outcome]) -> str:
    """Return one line for all of them."""
    scored = sum(len(outcome.scored) for outcome in outcomes)
    near = sum(outcome.near for outcome in outcomes)
    findings = sum(len(outcome.findings) for outcome in outcomes)
    held = sum(outcome.held for outcome in outcomes)
    return f"{near} of {scored} predicted figures within their factor, {held} of {findings} findings hold"
