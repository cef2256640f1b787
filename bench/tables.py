# SPDX-License-Identifier: GPL-2.0-only
"""What comparisons measured, as the Markdown tables of docs/measurements.md.

    build/venv/bin/python bench/tables.py [--short | --beside | --by-policy] [--goal G] [--settled] FOLDER...

FOLDER is what `cohortlab compare --out FOLDER` wrote. With --short, the tables have nothing but slowdown ÷ ideal; with
--beside there is one such table, of all folders and TLB modes beside each other. With --by-policy it is one table: a
row for each policy, a column for each folder and TLB mode, the geometric mean of slowdown ÷ ideal over the programs
that all have and, in brackets, the worst. With --goal, what `cohort` has above G of the ideal is bold, and neighbours
that are more than 2 % from their due. With --settled, rounds alone in which the program's VM waited for a pCPU for more
than a tenth of its vCPUs' time are left out, if it has no more vCPUs than there are pCPUs: the host's kernel was still
clearing away the scheduler before, which `cohortlab compare` did not always wait for.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import NoReturn

from cohortlab import scenario as scenarios
from cohortlab.fidelity import window_us
from cohortlab.results import ALONE, Results, Row, read_parquet
from cohortlab.scenario import Scenario
from cohortlab.summary import Figure, Spread, complete, figures, means_over_ideal
from cohortlab.table import number
from cohortlab.workloads import Workload

# What the tables call them; bench/campaign.toml has what the labels stand for.
NAMES = {
    "eevdf": "EEVDF",
    "eevdf@smp": "EEVDF, `smp`",
    "eevdf@long": "EEVDF, `smp`, 16 ms",
    "cohort": "Cohort",
    "cohort@s4": "slices of 4 ms",
    "cohort@s8": "slices of 8 ms",
    "cohort@s32": "slices of 32 ms",
    "cohort@b200": "boosts of 0.2 ms",
    "cohort@b1000": "boosts of 1 ms",
    "cohort@b2000": "boosts of 2 ms",
    "cohort@stay": "without `migrate`",
    "cohort@without": "without `ipi`",
    "cohort@unfair": "with `unfair`",
    "cohort@ipi": "with `ipi`",
    "cohort@boosts": "all boosts, no turns",
    "cohort@halted": "`--guard halted`",
}
# Whose misses are bold.
OURS = "cohort"


# Of the vCPUs' time alone.
_READY_MAX = 0.1
_NEIGHBOUR_OFF_MAX = 0.02


@dataclass(frozen=True)
class Column:
    """What a folder has of one TLB mode."""

    results: Results
    tlb: str
    found: Sequence[Figure]

    @property
    def place(self) -> Mapping[str, str]:
        return self.results.places.get(self.tlb, {})

    def about(self) -> tuple[str, str, str]:
        """Return scenario, pause filter and TLB mode, in words."""
        chosen = chosen_window_us(self.results, self.place)
        return f"`{Path(self.results.scenario).stem}`", f"{chosen} µs" if chosen else "no filter", f"`{self.tlb}`"


def main(folders: Sequence[str], *, form: str = "full", goal: float | None = None, settled: bool = False) -> None:
    if not folders:
        refuse("FOLDER is missing: what `cohortlab compare --out FOLDER` wrote")
    columns = []
    for folder in folders:
        results, found = _read(folder, settled=settled)
        columns += [Column(results, tlb, [f for f in found if f.tlb == tlb]) for tlb in results.tlb_modes]
    if form == "by-policy":
        _print_by_policy(columns)
    elif form == "beside":
        _print_beside(columns, goal)
    else:
        for column in columns:
            _print(column, goal, short=form == "short")


def measurements(folder: str) -> Path:
    """Return the file of a comparison's figures, which is there."""
    file = Path(folder) / "measurements.parquet"
    if not file.is_file():
        refuse(f"{file}: there is no such file; FOLDER is what `cohortlab compare --out FOLDER` wrote")
    return file


def refuse(wrong: str) -> NoReturn:
    print(wrong, file=sys.stderr)
    sys.exit(2)


def _read(folder: str, *, settled: bool) -> tuple[Results, list[Figure]]:
    results = read_parquet(measurements(folder))
    if settled:
        results.rows = without_disturbed(results.rows, results.pcpus)
    return results, figures(results, _scenario(results))


def _scenario(results: Results) -> Scenario:
    """Return what was compared. Of a workload figures need its name alone: its file is where the scenario was."""

    def named(name: str) -> tuple[Workload, None]:
        return Workload(name=name, title=name), None

    text = results.scenario_text
    scenario = scenarios.of_data(tomllib.loads(text), Path(results.scenario), text, named)
    # Of `--programs`, others than the scenario's may have been measured. Some labels begin with a VM.
    others = {name: named(name)[0] for name in (label.rpartition(":")[2] for label in results.programs)}
    return dataclasses.replace(scenario, workloads=others | dict(scenario.workloads)).only(results.programs)


def without_disturbed(rows: Sequence[Row], pcpus: int) -> list[Row]:
    """Return the rows without those alone that --settled leaves out; where a program has no other, with them."""

    def disturbed(row: Row) -> bool:
        seen = row.why.get(row.vm, {})
        vcpus = seen.get("vcpus", 0.0)
        whole_ns = seen.get("window_ns", 0.0) * vcpus
        return row.policy == ALONE and vcpus <= pcpus and seen.get("ready_ns", 0.0) > _READY_MAX * whole_ns

    def what(row: Row) -> tuple[str, str, str]:
        return row.tlb, row.vm, row.program

    kept = {what(row) for row in rows if row.policy == ALONE and not disturbed(row)}
    return [row for row in rows if not disturbed(row) or what(row) not in kept]


def chosen_window_us(results: Results, place: Mapping[str, str]) -> int | None:
    """Return the pause filter's window: that which was chosen; None if there is none, or if it is not known.

    Each boot measures a little more or less than that, and a shape has one window for all its runs.
    """
    measured = window_us(place)
    if measured is None:
        return None
    # The last option counts, and more than what the scenario says.
    options: list[str] = re.findall(r" --ple[ =](\d+)", results.command)
    guest = tomllib.loads(results.scenario_text).get("guest", {})
    chosen = int(options[-1]) if options else guest.get("ple_window_us")
    # Where nobody chose one: hardware's 100 us.
    return chosen or round(measured, -1) or measured


def _print_by_policy(columns: Sequence[Column]) -> None:
    whole = [complete(column.results, column.found) for column in columns]
    heads = [
        f"`{Path(column.results.scenario).stem}`" + (f", {column.tlb}" if len(column.results.tlb_modes) > 1 else "")
        for column in columns
    ]
    print(f"\n| policy | {' | '.join(heads)} |")
    print("|---|" + "---|" * len(columns))
    for policy in dict.fromkeys(policy for column in columns for policy in column.results.policies):
        cells = []
        for found in whole:
            # Over the same programs for all: who failed on the worst of them would look best.
            means, programs = means_over_ideal(found)
            over = [f.over_ideal for f in found if f.policy == policy and f.program in programs]
            cells.append(f"{means[policy]:.2f} ({max(over):.2f})" if policy in means else "–")
        # A preset has its own name here, and what a label stands for is said.
        name = NAMES.get(policy, f"`{policy}`") if "@" in policy else f"`{policy}`"
        print(f"| {name} | {' | '.join(cells)} |")


def _print_beside(columns: Sequence[Column], goal: float | None) -> None:
    """Print one table with slowdown ÷ ideal; a column's head says what not all have in common."""
    about = [column.about() for column in columns]
    differ = [part for part in range(3) if len({words[part] for words in about}) > 1]
    titles = [", ".join(words[part] for part in differ) for words in about]
    shown = [(column, policy) for column in columns for policy in column.results.policies]
    heads = [
        f"{title}: {NAMES.get(policy, policy)}" if title else NAMES.get(policy, policy)
        for column, title in zip(columns, titles, strict=True)
        for policy in column.results.policies
    ]
    print(f"\n| program | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for program in dict.fromkeys(figure.program for column in columns for figure in column.found):
        cells = []
        for column, policy in shown:
            has = [f for f in column.found if (f.program, f.policy) == (program, policy)]
            cells.append(_over(has[0], goal) if has else "–")
        print(f"| {program} | {' | '.join(cells)} |")
    means = [means_over_ideal(complete(column.results, column.found))[0] for column in columns]
    last = [
        f"{of[policy]:.2f}" if policy in of else "–"
        for of, column in zip(means, columns, strict=True)
        for policy in column.results.policies
    ]
    print(f"| geometric mean | {' | '.join(last)} |")
    for column, title in zip(columns, titles, strict=True):
        _print_below(column, f"{title}: " if title else "")


def _print(column: Column, goal: float | None, *, short: bool) -> None:
    results, found = column.results, column.found
    said = ", ".join(f"{key} {column.place[key]}" for key in ("kernel", "emulator", "ple") if key in column.place)
    print(
        f"\n`{results.command}`: flush by {column.tlb}, {results.rounds} rounds, {len(results.crashes)} void; {said}\n"
    )
    shown = ["÷ ideal"] if short else ["", "÷ ideal", "neighbour"]
    names = [NAMES.get(policy, policy) for policy in results.policies]
    heads = [", ".join(filter(None, (name, what))) for name in names for what in shown]
    print(f"| program | {'' if short else 'alone | '}ideal slowdown | {' | '.join(heads)} |")
    print("|---|" + "---|" * (len(heads) + (1 if short else 2)))
    for program in dict.fromkeys(figure.program for figure in found):
        cells = {figure.policy: figure for figure in found if figure.program == program}
        first = next(iter(cells.values()))
        line = [f"{program}, {first.unit}"] + ([] if short else [_spread(first.alone)])
        line.append(f"{first.ideal_slowdown:.2f}")
        for policy in results.policies:
            line += _cells(cells[policy], goal, short=short) if policy in cells else ["–"] * len(shown)
        print(f"| {' | '.join(line)} |")
    means, _ = means_over_ideal(complete(results, found))
    blank = [] if short else [""]
    last = [word for p in results.policies for word in [*blank, f"{means[p]:.2f}" if p in means else "–", *blank]]
    print(f"| geometric mean | {'' if short else ' | '}| {' | '.join(last)} |")
    _print_below(column, "")


def _print_below(column: Column, title: str) -> None:
    """Print how far rounds were from their own median, and what the last policy is slower at."""
    results, found = column.results, column.found
    off = {
        policy: mean(abs(v / median(f.slowdowns) - 1) for f in found if f.policy == policy for v in f.slowdowns)
        for policy in means_over_ideal(complete(results, found))[0]
    }
    print(f"\n{title}Rounds from their own median: " + ", ".join(f"{NAMES.get(p, p)} {off[p]:.0%}" for p in off))
    ours = OURS if OURS in results.policies else results.policies[-1]
    if slower := _slower_than_others(found, ours):
        print(f"\n{title}{NAMES.get(ours, ours)} is slower than another: {'; '.join(slower)}")


def _slower_than_others(found: Sequence[Figure], ours: str) -> list[str]:
    """Say for which programs ``ours`` has more of the ideal slowdown than another policy, as the table rounds it."""
    lines = []
    for figure in found:
        if figure.policy != ours:
            continue
        others = [
            f"{NAMES.get(other.policy, other.policy)} {other.over_ideal:.2f}"
            for other in found
            if other.program == figure.program and round(other.over_ideal, 2) < round(figure.over_ideal, 2)
        ]
        if others:
            lines.append(f"{figure.program} {figure.over_ideal:.2f} ({', '.join(others)})")
    return lines


def _spread(values: Spread) -> str:
    return f"{number(values.median)} [{number(values.min)}–{number(values.max)}]"


def _cells(figure: Figure, goal: float | None, *, short: bool) -> list[str]:
    if short:
        return [_over(figure, goal)]
    due = figure.neighbour_of_due
    neighbour = "–" if due is None else f"{due:.2f}"
    if due is not None and goal and figure.policy == OURS and abs(round(due, 2) - 1) > _NEIGHBOUR_OFF_MAX + 1e-9:
        neighbour = f"**{neighbour}**"
    return [_spread(figure.value), _over(figure, goal), neighbour]


def _over(figure: Figure, goal: float | None) -> str:
    over = f"{figure.over_ideal:.2f}"
    return f"**{over}**" if goal and figure.policy == OURS and float(over) > goal else over


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def _asked() -> argparse.Namespace:
    words = _Words(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    forms = words.add_mutually_exclusive_group()
    for form in ("short", "beside", "by-policy"):
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, default="full")
    words.add_argument("--goal", type=float)
    words.add_argument("--settled", action="store_true")
    words.add_argument("folders", metavar="FOLDER", nargs="*")
    return words.parse_args()


if __name__ == "__main__":
    asked = _asked()
    main(asked.folders, form=asked.form, goal=asked.goal, settled=asked.settled)
