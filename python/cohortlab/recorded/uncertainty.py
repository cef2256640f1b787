# SPDX-License-Identifier: GPL-2.0-only
"""How uncertain a predicted gain is: by the simulated runs, which differ, and by the model, which was wrong before."""

from __future__ import annotations

import functools
import math
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).with_name("measured.toml")
# Student's t for 95 %, by degrees of freedom; of more, by the first terms of Fisher's expansion.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
# Expected, at least, at most.
Range = tuple[float, float, float]


def student(degrees: int) -> float:
    """Return how many standard deviations to either side hold 95 %."""
    if degrees <= len(_T):
        return _T[degrees - 1]
    z, n = 1.959964, degrees
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n * n)


@dataclass(frozen=True)
class Model:
    """What the model was wrong by: true gains less predicted ones, as logarithms."""

    errors: tuple[float, ...]

    @property
    def half(self) -> float:
        """Half of the range of 95 %, and no less than the worst that was seen.

        No bias is taken off: the errors of the lab and of replays have opposite signs.
        """
        spread = student(len(self.errors)) * math.sqrt(statistics.fmean(error * error for error in self.errors))
        return max(spread, *map(abs, self.errors))

    @property
    def factor(self) -> float:
        """The greatest factor by which a gain was wrong, either way."""
        return math.exp(max(map(abs, self.errors)))


@functools.cache
def model() -> Model:
    """Return what was measured of the model that comes with this package."""
    tables = tomllib.loads(MEASURED.read_text(encoding="utf-8"))["measured"]
    rows = [row for table in tables for row in table["slowdowns"].values()]
    return Model(tuple(math.log(was / after) - math.log(replayed / then) for was, replayed, after, then in rows))


@dataclass(frozen=True)
class Gain:
    """How much faster a VM's work is than under the kernel's scheduler: a mean of log ratios, and half its ranges.

    Attributes:
        runs: half of the range of 95 % over the simulated runs.
        model: the same over what the model was wrong by.
    """

    log: float
    runs: float
    model: float

    @classmethod
    def of(cls, logs: Sequence[float]) -> Gain:
        """``logs``: of one run each."""
        runs = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(statistics.fmean(logs), runs, model().half)

    @property
    def percent(self) -> Range:
        """Time saved, with 95 % confidence; the model may be wrong."""
        return self._within(math.hypot(self.runs, self.model))

    @property
    def percent_of_runs(self) -> Range:
        """Time saved, with 95 % confidence if the model were right."""
        return self._within(self.runs)

    def _within(self, half: float) -> Range:
        expected, low, high = (100 * (1 - math.exp(-log)) for log in (self.log, self.log - half, self.log + half))
        return expected, low, high


def saved(percent: Range) -> str:
    """Return the ends of a range in words."""
    _, low, high = percent
    ends = [(abs(end), "less" if round(end) >= 0 else "more") for end in (low, high)]
    (low, how), (high, other) = ends
    return f"{low:.0f} to {high:.0f} % {how}" if how == other else f"{low:.0f} % {how} to {high:.0f} % {other}"
