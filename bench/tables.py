# SPDX-License-Identifier: GPL-2.0-only
"""What comparisons measured, as the Markdown tables of docs/measurements.md.

    build/venv/bin/python bench/tables.py [--short | --by-policy] [--settled] FOLDER...

FOLDER is what `cohortlab compare --out FOLDER` wrote; with --short, the tables have nothing but slowdown ÷ ideal. With
--by-policy it is one table: a row for each policy, a column for each folder and TLB mode, the geometric mean of
slowdown ÷ ideal over the programs that all have and, in brackets, the worst. With --settled, rounds alone in which the
program's VM waited for a pCPU for more than a tenth of its vCPUs' time are left out, if it has no more vCPUs than there
are pCPUs: the host's kernel was still clearing away the scheduler before, which `cohortlab compare` did not always wait
for.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import NoReturn

from cohortlab import scenario as scenarios
from cohortlab.results import ALONE, Results, Row, read_parquet
from cohortlab.summary import Figure, Spread, complete, figures, means_over_ideal
from cohortlab.table import number

# What the tables call them.
NAMES = {
    "eevdf": "EEVDF",
    "eevdf@smp": "EEVDF, `smp`",
    "eevdf@long": "EEVDF, `smp`, 16 ms",
    "cohort": "Cohort",
}


# Of the vCPUs' time alone.
_READY_MAX = 0.1


def main(folders: Sequence[str], *, short: bool, by_policy: bool, settled: bool) -> None:
    if not folders:
        refuse("FOLDER is missing: what `cohortlab compare --out FOLDER` wrote")
    all_read = [_read(folder, settled=settled) for folder in folders]
    if by_policy:
        _print_by_policy(all_read)
        return
    for results, found in all_read:
        for tlb in results.tlb_modes:
            _print(results, [figure for figure in found if figure.tlb == tlb], tlb, short=short)


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
    text = results.scenario_text
    scenario = scenarios.of_data(tomllib.loads(text), Path(results.scenario), text)
    # Of `--programs`, others than the scenario's may have been measured.
    return results, figures(results, scenario.only(results.programs))


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


def _print_by_policy(all_read: Sequence[tuple[Results, Sequence[Figure]]]) -> None:
    columns = [
        (results, tlb, complete(results, [figure for figure in found if figure.tlb == tlb]))
        for results, found in all_read
        for tlb in results.tlb_modes
    ]
    heads = [
        f"`{Path(results.scenario).stem}`" + (f", {tlb}" if len(results.tlb_modes) > 1 else "")
        for results, tlb, _ in columns
    ]
    print(f"\n| policy | {' | '.join(heads)} |")
    print("|---|" + "---|" * len(columns))
    for policy in dict.fromkeys(policy for results, _ in all_read for policy in results.policies):
        cells = []
        for _, _, found in columns:
            # Over the same programs for all: who failed on the worst of them would look best.
            means, programs = means_over_ideal(found)
            over = [f.over_ideal for f in found if f.policy == policy and f.program in programs]
            cells.append(f"{means[policy]:.2f} ({max(over):.2f})" if policy in means else "–")
        print(f"| `{policy}` | {' | '.join(cells)} |")


def _print(results: Results, found: Sequence[Figure], tlb: str, *, short: bool) -> None:
    place = results.places.get(tlb, {})
    about = ", ".join(f"{key} {place[key]}" for key in ("kernel", "emulator", "ple") if key in place)
    print(f"\n`{results.command}`: flush by {tlb}, {results.rounds} rounds, {len(results.crashes)} void; {about}\n")
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
            line += _cells(cells[policy], short=short) if policy in cells else ["–"] * len(shown)
        print(f"| {' | '.join(line)} |")
    means, _ = means_over_ideal(complete(results, found))
    blank = [] if short else [""]
    last = [word for p in results.policies for word in [*blank, f"{means[p]:.2f}" if p in means else "–", *blank]]
    print(f"| geometric mean | {'' if short else ' | '}| {' | '.join(last)} |")
    off = {
        policy: mean(abs(v / median(f.slowdowns) - 1) for f in found if f.policy == policy for v in f.slowdowns)
        for policy in means
    }
    print("\nRounds from their own median: " + ", ".join(f"{NAMES.get(p, p)} {off[p]:.0%}" for p in off))
    if slower := _slower_than_others(found, results.policies[-1]):
        print(f"\n{NAMES.get(results.policies[-1], results.policies[-1])} is slower than another: {'; '.join(slower)}")


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


def _cells(figure: Figure, *, short: bool) -> list[str]:
    over = f"{figure.over_ideal:.2f}"
    if short:
        return [over]
    due = figure.neighbour_of_due
    return [_spread(figure.value), over, "–" if due is None else f"{due:.2f}"]


if __name__ == "__main__":
    flags = {"--short", "--by-policy", "--settled"}
    main(
        [a for a in sys.argv[1:] if a not in flags],
        short="--short" in sys.argv,
        by_policy="--by-policy" in sys.argv,
        settled="--settled" in sys.argv,
    )
