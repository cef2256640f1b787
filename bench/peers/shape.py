# SPDX-License-Identifier: GPL-2.0-only
"""The shape that every simulator is asked to run, and how a figure is printed.

8 CPUs, 32 CPU-bound tasks pinned 4 to a CPU, first in first out, each slice drawn evenly from 1000 to 4000 us by a
generator for each CPU. A decision is one pick of the next task with its switch; everybody must make the same ones.
"""

import json
import statistics
import time
from collections.abc import Callable

CPUS, TASKS, RUNS = 8, 32, 5


class Lcg:
    """The generator of slices."""

    def __init__(self, seed: int) -> None:
        """Begin with a CPU's number."""
        self.state = (seed * 2654435761 + 12345) & 0xFFFFFFFF

    def slice_us(self) -> int:
        """Draw a slice."""
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return 1000 + (self.state >> 16) % 3001


def expected(sim_s: int) -> int:
    """Count the slices that begin before the end: the truth."""
    count = 0
    for cpu in range(CPUS):
        lcg, at_us = Lcg(cpu), 0
        while at_us < sim_s * 1_000_000:
            at_us += lcg.slice_us()
            count += 1
    return count


def measure(name: str, run: Callable[[int], int], sim_s: int) -> None:
    """Print the median rate and its range; complain of decisions that are not the expected ones."""
    rates = []
    for _ in range(RUNS):
        start_s = time.perf_counter()
        decisions = run(sim_s)
        rates.append(decisions / (time.perf_counter() - start_s))
        if abs(decisions - expected(sim_s)) > CPUS:
            message = f"{name}: {decisions} decisions, expected {expected(sim_s)}"
            raise SystemExit(message)
    report(name, rates, "decisions/s")


def report(name: str, samples: list[float], unit: str) -> None:
    """Print a figure, as `cohort-bench` does."""
    digits = None if min(samples) >= 100 else 3
    median, least, most = (round(value, digits) for value in (statistics.median(samples), min(samples), max(samples)))
    print(json.dumps({"name": name, "value": median, "unit": unit, "min": least, "max": most}), flush=True)
