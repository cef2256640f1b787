# SPDX-License-Identifier: GPL-2.0-only
"""From raw measurements to the figures that are reported; docs/metrics.md defines each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import Any

from cohortlab import why
from cohortlab.ideal import due, ideal_slowdown
from cohortlab.results import ALONE, Results, Row, as_seconds
from cohortlab.scenario import Scenario, Turn

# A program whose runs beside loads are no farther than this from those alone runs for a fixed time.
_SAME_TIME = 0.1


@dataclass(frozen=True)
class Spread:
    """Median and range of a figure over the rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        values = list(values)
        return cls(median(values), min(values), max(values))

    def as_seconds(self, *, rate: bool) -> Spread:
        """Return the spread of figures as that of their seconds (see ``results.as_seconds``)."""
        low, high = sorted(as_seconds(value, rate=rate) for value in (self.min, self.max))
        return Spread(as_seconds(self.median, rate=rate), low, high)

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.min:.3g}–{self.max:.3g}]"


@dataclass(frozen=True)
class Neighbour:
    """A VM that loaded the host: its share of the pCPUs' capacity and what it was due, both 0..1."""

    share: float
    due: float


@dataclass(frozen=True)
class Figure:
    """One program under one policy.

    Attributes:
        program: its label: with its VM where several have programs.
        vm: where it runs; the neighbours are all others.
        value, alone: the program's own figure with load and alone, in ``unit``.
        seconds: the same as seconds: of a run, or of one unit of work where the figure is a rate.
        demand: pCPUs that the program's VM used alone.
        slowdowns: of each round, against the median alone.
        neighbours: by VM name, medians over the rounds.
        shares, dues: of all neighbours together, in each round.
        busy: part of the pCPUs' capacity that all VMs together used.
        left: part of it that the host's own work left to the VMs.
        guest_per_s: the guest's counters per second of its own time, medians over the rounds.
        host_per_s: the host's counters per second of the window, likewise.
        why: what each VM's vCPUs' time went to (cohortlab.why), likewise; alone_why, of the program's VM alone.
    """

    tlb: str
    policy: str
    program: str
    vm: str
    unit: str
    rate: bool
    value: Spread
    alone: Spread
    seconds: Spread
    alone_s: Spread
    demand: float
    ideal_slowdown: float
    slowdowns: tuple[float, ...]
    neighbours: dict[str, Neighbour]
    shares: tuple[float, ...]
    dues: tuple[float, ...]
    busy: float
    left: float
    guest_per_s: dict[str, float]
    alone_guest_per_s: dict[str, float]
    host_per_s: dict[str, float]
    why: dict[str, dict[str, float]] = field(default_factory=dict)
    alone_why: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        return len(self.slowdowns)

    @property
    def slowdown(self) -> Spread:
        return Spread.of(self.slowdowns)

    @property
    def over_ideal(self) -> float:
        return self.slowdown.median / self.ideal_slowdown

    @property
    def neighbour_share(self) -> float:
        """The neighbours' share of the pCPUs' capacity, together; the median over the rounds."""
        return median(self.shares)

    @property
    def neighbour_due(self) -> float:
        """What they were due, together; the median over the rounds."""
        return median(self.dues)

    @property
    def of_dues(self) -> tuple[float, ...]:
        """Measured over due in each round; empty when nothing is due."""
        return tuple(share / due for share, due in zip(self.shares, self.dues, strict=True) if due > 0)

    @property
    def neighbour_of_due(self) -> float | None:
        """Measured over due; below 1 the program gained by starving its neighbours. None when nothing is due."""
        return median(self.of_dues) if self.of_dues else None


def figures(results: Results, scenario: Scenario) -> list[Figure]:
    """Return one figure for each TLB mode, program and policy with a complete round, in the order asked for."""
    found = []
    for tlb in results.tlb_modes:
        rows: dict[tuple[str, str], list[Row]] = {}
        for label, row in _labelled([row for row in results.rows if row.tlb == tlb], scenario):
            rows.setdefault((label, row.policy), []).append(row)
        for program in results.programs:
            alone, turn = rows.get((program, ALONE)), scenario.turn_of(program)
            if not alone or turn is None:
                continue
            demands = {
                vm: median(row.used(vm) for row in rows.get((scenario.label(turn, vm), ALONE), alone)) for vm, _ in turn
            }
            by_policy = [loaded for policy in results.policies if (loaded := rows.get((program, policy)))]
            timed = _is_timed(alone, [row for loaded in by_policy for row in loaded])
            found += [_figure(program, alone, loaded, demands, scenario, timed=timed) for loaded in by_policy]
    return found


def _is_timed(alone: Sequence[Row], loaded: Sequence[Row]) -> bool:
    """Return whether a program runs for a fixed time and is judged by what it does in it; the same for all policies."""
    if not loaded or not alone[0].rate:
        return False
    alone_s, loaded_s = median(row.wall_s for row in alone), median(row.wall_s for row in loaded)
    return abs(loaded_s - alone_s) <= _SAME_TIME * alone_s


def _labelled(rows: Iterable[Row], scenario: Scenario) -> Iterator[tuple[str, Row]]:
    """Return rows with their programs' labels; those of no turn are left out.

    A row does not say its turn, and a program may run in several. But a turn's rows of a round follow each other.
    """
    rounds: list[list[Row]] = []
    for row in rows:
        # Those alone may be missing, and of one policy all rows have the same order.
        begins = not rounds or row.order == 0 or row.order < rounds[-1][-1].order
        if begins or _turn_of([*rounds[-1], row], scenario) is None:
            rounds.append([])
        rounds[-1].append(row)
    for together in rounds:
        turn = _turn_of(together, scenario)
        if turn is not None:
            yield from ((scenario.label(turn, row.vm), row) for row in together)


def _turn_of(rows: Iterable[Row], scenario: Scenario) -> Turn | None:
    """Return the turn in which all these programs run."""
    tasks = {(row.vm, row.program) for row in rows}
    return next((turn for turn in scenario.turns if tasks.issubset(turn)), None)


def _figure(
    label: str,
    alone: Sequence[Row],
    loaded: Sequence[Row],
    demands: Mapping[str, float],
    scenario: Scenario,
    *,
    timed: bool,
) -> Figure:
    first = loaded[0]
    value, value_alone = Spread.of(row.value for row in loaded), Spread.of(row.value for row in alone)
    alone_s = value_alone.as_seconds(rate=first.rate)
    run_s = median(row.wall_s for row in alone)
    names = [vm.name for vm in scenario.vms if vm.name != first.vm]
    start_s = next(vm.start_s for vm in scenario.vms if vm.name == first.vm)
    pcpus = scenario.host.pcpus
    dues = [due(scenario, demands, row.left(pcpus), (start_s, start_s + row.window_s)) for row in loaded]
    return Figure(
        tlb=first.tlb,
        policy=first.policy,
        program=label,
        vm=first.vm,
        unit=first.unit,
        rate=first.rate,
        value=value,
        alone=value_alone,
        seconds=value.as_seconds(rate=first.rate),
        alone_s=alone_s,
        demand=demands[first.vm],
        ideal_slowdown=ideal_slowdown(scenario, demands, first.vm, run_s, timed=timed),
        slowdowns=tuple(row.seconds / alone_s.median for row in loaded),
        neighbours={
            name: Neighbour(median(row.used(name) / pcpus for row in loaded), median(share[name] for share in dues))
            for name in names
        },
        shares=tuple(sum(row.used(name) for name in names) / pcpus for row in loaded),
        dues=tuple(sum(share[name] for name in names) for share in dues),
        busy=median(row.busy(pcpus) for row in loaded),
        left=median(row.left(pcpus) for row in loaded),
        guest_per_s=_per_second(loaded),
        alone_guest_per_s=_per_second(alone),
        host_per_s=_host_per_second(loaded),
        why=why.over_rounds(row.why for row in loaded),
        alone_why=why.over_rounds({first.vm: row.why[first.vm]} for row in alone if first.vm in row.why),
    )


def _per_second(rows: Sequence[Row]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row.guest})
    return {name: median(row.guest.get(name, 0.0) / row.wall_s for row in rows) for name in names}


def _host_per_second(rows: Sequence[Row]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row.host})
    return {name: median(row.host.get(name, 0.0) / row.window_s for row in rows) for name in names}


def complete(results: Results, found: Iterable[Figure]) -> list[Figure]:
    """Return the figures but for those of programs that failed under their policy: of these, rounds are missing."""
    return [figure for figure in found if (figure.tlb, figure.policy, figure.program) not in results.failed]


def means_over_ideal(found: Sequence[Figure]) -> tuple[dict[str, float], list[str]]:
    """Return each policy's geometric mean of slowdown ÷ ideal, and the programs it is over: those that all have."""
    by_policy: dict[str, dict[str, float]] = {}
    for figure in found:
        by_policy.setdefault(figure.policy, {})[figure.program] = figure.over_ideal
    programs = list(dict.fromkeys(figure.program for figure in found))
    shared = [name for name in programs if all(name in values for values in by_policy.values())]
    if not shared:
        return {}, []
    return {policy: geometric_mean(values[name] for name in shared) for policy, values in by_policy.items()}, shared


def for_machines(results: Results, found: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return the ``--json`` output: one object per TLB mode, program and policy, also for those that failed."""
    by_key = {(figure.tlb, figure.program, figure.policy): figure for figure in found}
    objects = []
    for tlb in results.tlb_modes:
        for program in results.programs:
            for policy in results.policies:
                figure = by_key.get((tlb, program, policy))
                about = _object(figure) if figure else dict.fromkeys(_NO_FIGURE) | {"rounds": 0}
                names = {"policy": policy, "program": program, "scenario": results.scenario, "tlb": tlb}
                objects.append(names | about | {"error": results.failed.get((tlb, policy, program))})
    return objects


_NO_FIGURE = ("median_s", "min_s", "max_s", "slowdown", "over_ideal", "neighbour_share")


def _object(figure: Figure) -> dict[str, Any]:
    return {
        "vm": figure.vm,
        "median_s": figure.seconds.median,
        "min_s": figure.seconds.min,
        "max_s": figure.seconds.max,
        "slowdown": figure.slowdown.median,
        "over_ideal": figure.over_ideal,
        "neighbour_share": figure.neighbour_share,
        "neighbour_due": figure.neighbour_due,
        "neighbour_of_due": figure.neighbour_of_due,
        "neighbours": {n: {"share": v.share, "due": v.due} for n, v in figure.neighbours.items()},
        "median": figure.value.median,
        "min": figure.value.min,
        "max": figure.value.max,
        "unit": figure.unit,
        "metric": "rate" if figure.rate else "elapsed",
        "alone_median": figure.alone.median,
        "alone_min": figure.alone.min,
        "alone_max": figure.alone.max,
        "alone_median_s": figure.alone_s.median,
        "demand_pcpus": figure.demand,
        "ideal_slowdown": figure.ideal_slowdown,
        "slowdown_min": figure.slowdown.min,
        "slowdown_max": figure.slowdown.max,
        "host_busy": figure.busy,
        "host_left": figure.left,
        "guest_per_s": figure.guest_per_s,
        "alone_guest_per_s": figure.alone_guest_per_s,
        "host_per_s": figure.host_per_s,
        "why": figure.why,
        "alone_why": figure.alone_why,
        "rounds": figure.rounds,
    }
