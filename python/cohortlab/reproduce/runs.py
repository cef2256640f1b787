# SPDX-License-Identifier: GPL-2.0-only
"""The runs that an experiment needs, simulated by threads of this process, and their figures by name.

A figure is called ``RUN.VALUES.FIGURE``: the [[run]] table, the values of its ``each`` in their order, and what was
measured. The same for any number of workers: a run depends on its seed alone, and a figure is the median over seeds.
``RUN.VALUES.FIGURE.total`` is the sum over seeds, for what is counted, and ``….rsd`` the relative standard deviation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import fsum, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

from cohortlab.errors import BadInput, one_line
from cohortlab.places import PlaceError
from cohortlab.reproduce import traced
from cohortlab.reproduce.load import Experiment, RunTable
from cohortlab.sim.result import DISTRIBUTIONS, SPINS, Result, Traces
from cohortlab.sweep import plan as plans
from cohortlab.sweep.axes import FILES, PLAIN, Axis
from cohortlab.sweep.plan import Plan
from cohortlab.workloads import WorkloadError

# What the kernel's own scheduler is called; the scenario says which kernel.
KERNEL = "eevdf"
_QUANTILES = ("mean", "p50", "p90", "p99", "max")
# Exits of the chains in each class of ple_chain_lengths.
_CHAINS = ("1", "2", "3_4", "5_8", "9_16", "17_32", "33_64", "over_64")
# What the name of a sum over seeds ends in.
TOTAL = ".total"
RSD = ".rsd"
# 25 bytes each.
_ROWS_MAX = 8_000_000


@dataclass(frozen=True)
class Job:
    """One run: where its figures go, which is its plan's point, whether figures of its timeline are needed."""

    key: str
    plan: Plan
    point: int
    seed: int
    vm: str | None
    is_traced: bool


@dataclass
class Measured:
    """What came of an experiment's runs."""

    figures: dict[str, float] = field(default_factory=dict)
    # Upper ends of buckets in us and how many values each holds, of the first seed: by run and distribution.
    histograms: dict[tuple[str, str], list[tuple[float, int]]] = field(default_factory=dict)
    # What the figures were made of: each one of every seed, in the order of the seeds.
    seeds: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def jobs(experiment: Experiment, rounds: int | None = None) -> list[Job]:
    """Return all runs of an experiment, or raise BadInput: every file is read, every value tried."""
    made = []
    for index, table in enumerate(experiment.file.run):
        where = f"{experiment.path}: run[{index}]"
        try:
            made += _of_table(experiment, table, rounds or experiment.file.rounds)
        except BadInput as error:
            raise BadInput(f"{where}: {str(error).removeprefix('--axis: ')}") from None
    return made


def _of_table(experiment: Experiment, table: RunTable, rounds: int) -> list[Job]:
    given = {"policy": [KERNEL]} | {name: [value] for name, value in table.set.items()} | table.each
    for name, values in given.items():
        root = name.partition(".")[0]
        if name == "seed" or (name not in PLAIN and root not in FILES):
            allowed = [field for field in PLAIN if field != "seed"] + [f"{root}.…" for root in FILES]
            raise BadInput(f"{name}: is not a field: must be one of {', '.join(allowed)}")
        if not values:
            raise BadInput(f"{name}: is not allowed: must have a value or more")
    folder = experiment.path.parent / "scenarios"
    named = experiment.file.policies
    called = {_located(arguments, folder): name for name, arguments in named.items()}
    given["policy"] = [named.get(value, value) if isinstance(value, str) else value for value in given["policy"]]
    axes = tuple(Axis(name, tuple(_located(value, folder) for value in values)) for name, values in given.items())
    axes = (*axes, Axis("seed", tuple(range(1, rounds + 1))))
    plan = plans.make(folder / f"{table.scenario}.toml", axes)
    fields = [axis.field for axis in axes]
    varied = [fields.index(name) for name in table.each]
    made = []
    for point in range(plan.points):
        values = plan.values(point)
        chosen = [values[at] if fields[at] != "policy" else called.get(values[at], values[at]) for at in varied]
        key = ".".join([table.name, *(_word(value, folder) for value in chosen)])
        figures = [name.removeprefix(f"{key}.") for name in experiment.names if name.startswith(f"{key}.")]
        is_traced = any(map(traced.is_traced, figures))
        made.append(Job(key, plan, point, values[-1], table.vm, is_traced))
    return made


def _located(value: Any, folder: Path) -> Any:
    """Return a policy's arguments with the file of ``--sets`` where it is: beside the scenarios."""
    if not isinstance(value, str):
        return value
    return re.sub(r"--sets (\S+)", lambda found: f"--sets {shlex.quote(str(folder / found[1]))}", value)


def _word(value: Any, folder: Path) -> str:
    """Return a value as a part of a name: a policy without its arguments' spaces."""
    text = str(value).replace(shlex.quote(f"{folder}/"), "").replace(f"{folder}/", "")
    return "_".join(text.replace("--", "").replace(".", "_").split())


def run(wanted: Iterable[Job], workers: int, done: Callable[[], None]) -> Measured:
    """Simulate; ``done`` is told of each run."""
    wanted = list(wanted)
    measured = Measured()
    seen: dict[str, list[float]] = {}

    def simulate(job: Job) -> tuple[dict[str, float], dict[str, list[tuple[float, int]]], str]:
        try:
            return (*_figures(job), "")
        except (BadInput, PlaceError, WorkloadError) as error:
            return {}, {}, one_line(str(error))
        finally:
            done()

    with ThreadPoolExecutor(workers, thread_name_prefix="reproduce") as pool:
        try:
            for job, (figures, histograms, error) in zip(wanted, pool.map(simulate, wanted), strict=True):
                if error:
                    measured.errors.setdefault(job.key, error)
                for name, value in figures.items():
                    seen.setdefault(f"{job.key}.{name}", []).append(value)
                if job.seed == 1:
                    measured.histograms |= {(job.key, what): buckets for what, buckets in histograms.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    failed = tuple(f"{key}." for key in measured.errors)
    measured.seeds = {name: values for name, values in seen.items() if not name.startswith(failed)}
    measured.figures = {name: median(values) for name, values in measured.seeds.items()}
    measured.figures |= {f"{name}{TOTAL}": fsum(values) for name, values in measured.seeds.items()}
    varied = {name: values for name, values in measured.seeds.items() if len(values) > 1 and fmean(values)}
    measured.figures |= {f"{name}{RSD}": _rsd(values) for name, values in varied.items()}
    return measured


def _rsd(values: list[float]) -> float:
    """Return the relative standard deviation of two or more values."""
    middle = fmean(values)
    return sqrt(fsum((value - middle) ** 2 for value in values) / (len(values) - 1)) / middle


def _figures(job: Job) -> tuple[dict[str, float], dict[str, list[tuple[float, int]]]]:
    """Return a run's figures by name, and its histograms."""
    about_run = job.plan.point(job.point).run
    result = Result.of(about_run, Traces(timeline_rows_max=_ROWS_MAX if job.is_traced else 0))
    names = [vm.name for vm in about_run.scenario.vms]
    programs = [vm.name for vm in about_run.scenario.program_vms if vm.name in about_run.running]
    chosen = job.vm or programs[0]
    if chosen not in names:
        raise BadInput(f"vm: there is none called {chosen}: must be one of {', '.join(names)}")
    figures: dict[str, float] = {}
    for name in programs:
        measurement = result.measurement(name)
        about = {"value": measurement.value, "time": measurement.wall_s, "cpu_s": measurement.cpu_s[name]}
        figures |= {f"{name}.{what}": value for what, value in about.items()}
        if name == chosen:
            figures |= about | {"idle_s": measurement.host["idle_s"], "window_s": measurement.window_s}
    host = result.about["figures"]["host"]
    if job.is_traced:
        if result.is_truncated:
            raise BadInput(f"the timeline has more than {_ROWS_MAX} rows: what is computed from it is not known")
        figures |= traced.figures(result)
    figures |= {f"host.{name}": float(value) for name, value in host.items() if isinstance(value, int | float)}
    for vm in result.about["figures"]["vms"]:
        # A VM by its name, the chosen one without.
        figures |= _of_vm(vm, f"{vm['name']}.")
        if vm["name"] == chosen:
            figures |= _of_vm(vm, "")
            buckets = {what: vm[what]["buckets"] for what in DISTRIBUTIONS}
    return figures, {what: [(up_to / 1000, count) for up_to, count in found] for what, found in buckets.items()}


def _of_vm(vm: dict[str, Any], prefix: str) -> dict[str, float]:
    found = {name: float(value) for name, value in vm.items() if isinstance(value, int | float)}
    if lengths := vm.get("ple_chain_lengths"):
        found |= {f"ple_chains_{of}": float(count) for of, count in zip(_CHAINS, lengths, strict=True)}
    for what in DISTRIBUTIONS:
        found[f"{what}.count"] = float(vm[what]["count"])
        # Of nothing there is no mean, and no longest.
        for quantile in _QUANTILES if vm[what]["count"] else ():
            found[f"{what}.{quantile}_us"] = vm[what][f"{quantile}_ns"] / 1000
    for why in SPINS:
        spun_ns = vm["spins"].get(why, {}).get("sum_ns", 0)
        found[f"spin.{why}"] = spun_ns / vm["run_ns"] if vm["run_ns"] else 0.0
    return {f"{prefix}{name}": value for name, value in found.items()}
