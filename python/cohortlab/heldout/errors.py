# SPDX-License-Identifier: GPL-2.0-only
"""The arithmetic: how far simulated slowdowns are from the lab's, and whether policies come in the same order.

Slowdowns are ratios, so means are geometric, and differences are those of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev

from cohortlab.heldout.load import Class

# The goals: mean error, the largest error of a cell, the part of orders that are right.
MEAN_MAX = 0.12
CELL_MAX = 0.30
ORDER_MIN = 0.95
# Two policies of the lab are a tie if they are no farther apart than this, or than two standard errors.
TIE = 0.05
TIE_ERRORS = 2.0
# The simulator's range that nine of ten rounds of the lab should be in.
RANGE = (0.05, 0.95)


@dataclass(frozen=True)
class Cell:
    """One program under one policy in one shape.

    Attributes:
        held_out: which of "program", "shape" and "policy" nobody looked at; of a class other than "held-out": none.
        lab, sim: slowdowns: of each round, of each seed.
    """

    shape: str
    program: str
    policy: str
    kind: Class
    held_out: tuple[str, ...]
    lab: tuple[float, ...]
    sim: tuple[float, ...]

    @property
    def lab_mean(self) -> float:
        return _mean(self.lab)

    @property
    def sim_mean(self) -> float:
        return _mean(self.sim)

    @property
    def error(self) -> float:
        """The simulator's mean over the lab's, less 1."""
        return self.sim_mean / self.lab_mean - 1

    @property
    def lab_error(self) -> float:
        """The standard error of the lab's mean, relative: what even a perfect simulator would be off by."""
        return math.expm1(_standard_error(self.lab))

    @property
    def distance(self) -> float:
        """How far the two distributions are apart: Wasserstein's distance of the logarithms, as a ratio less 1."""
        return math.expm1(wasserstein([math.log(v) for v in self.lab], [math.log(v) for v in self.sim]))

    @property
    def inside(self) -> int:
        """How many of the lab's rounds are in the simulator's range."""
        low, high = (quantile(self.sim, part) for part in RANGE)
        return sum(low <= slowdown <= high for slowdown in self.lab)


@dataclass(frozen=True)
class Pair:
    """Two policies on one program in one shape, the lab's better one first."""

    better: str
    worse: str
    lab: float
    sim: float
    is_tie: bool

    @property
    def is_right(self) -> bool:
        """Return whether the simulator has them in the lab's order."""
        return self.sim > 1


@dataclass(frozen=True)
class Order:
    """The policies on one program in one shape, in pairs."""

    shape: str
    program: str
    is_held_out: bool
    pairs: tuple[Pair, ...]

    @property
    def decided(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if not pair.is_tie)

    @property
    def is_right(self) -> bool:
        return all(pair.is_right for pair in self.decided)


def orders(cells: Sequence[Cell]) -> list[Order]:
    """Return the order of the policies wherever the lab has several."""
    together: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        together.setdefault((cell.shape, cell.program), []).append(cell)
    return [
        Order(
            shape,
            program,
            # One that was looked at says something about the others' order.
            all(cell.kind == "held-out" for cell in several),
            tuple(_pair(a, b) for a, b in combinations(several, 2)),
        )
        for (shape, program), several in together.items()
        if len(several) > 1
    ]


def _pair(a: Cell, b: Cell) -> Pair:
    better, worse = (a, b) if a.lab_mean <= b.lab_mean else (b, a)
    lab = worse.lab_mean / better.lab_mean
    error = math.hypot(_standard_error(a.lab), _standard_error(b.lab))
    is_tie = math.log(lab) <= max(math.log1p(TIE), TIE_ERRORS * error)
    return Pair(better.policy, worse.policy, lab, worse.sim_mean / better.sim_mean, is_tie)


def _mean(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


def _standard_error(values: Sequence[float]) -> float:
    return stdev(math.log(value) for value in values) / math.sqrt(len(values))


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest of ``values`` that at least ``part`` of them do not exceed."""
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)]


def wasserstein(a: Sequence[float], b: Sequence[float]) -> float:
    """Return by how much the one distribution must be moved to become the other, on average."""
    left, right = sorted(a), sorted(b)
    # In units of 1 / (len(a) * len(b)), in which every step of both is a whole number.
    total = len(left) * len(right)
    at = i = j = 0
    moved = 0.0
    while at < total:
        ends = (i + 1) * len(right), (j + 1) * len(left)
        end = min(ends)
        moved += (end - at) * abs(left[i] - right[j])
        i += ends[0] == end
        j += ends[1] == end
        at = end
    return moved / total
