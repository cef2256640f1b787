# SPDX-License-Identifier: GPL-2.0-only
"""The result as tables for a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohortlab import why
from cohortlab.results import ALONE, Results
from cohortlab.summary import Figure, Spread, complete, means_over_ideal

# Columns of a terminal from which on the tables are set with more space; also the width where there is no terminal.
WIDE = 100
# ... for the widest table.
WHY_WIDE = 120

# A window this much longer than the run no longer tells what was used while the program ran.
LOOSE = 1.1

# The guest's counters of TLB shootdowns, as a place reports them, and how they are headed.
TLB_COUNTERS = {"tlb_shootdowns": "TLB IPIs/s"}

# The host's counters of migrations, likewise.
MIGRATIONS = {"migrations": "all/s", "migrations_llc": "cache/s", "migrations_node": "socket/s"}


def number(value: float) -> str:
    """Return a figure with three significant digits or, below 1, three behind the point; and no exponent.

    Of what would then be less than two digits, two: a program that takes 0.4 ms does not take 0.000 s.
    """
    magnitude = abs(value)
    if magnitude == 0:
        return "0"
    if magnitude >= 100:
        return f"{value:,.0f}"
    if magnitude >= 10:
        return f"{value:.1f}"
    if magnitude >= 1:
        return f"{value:.2f}"
    behind = 1 - math.floor(math.log10(magnitude)) if magnitude < 0.01 else 3
    return f"{value:.{behind}f}"


def digits(value: float) -> str:
    """Return a figure with up to three significant digits, and all before its point: however great, no exponent."""
    # 999.5 is 1000 already.
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def spread(values: Spread, unit: str) -> str:
    """Return "median [min–max] unit"."""
    return f"{number(values.median)} [{number(values.min)}–{number(values.max)}] {unit}"


def percent(share: float) -> str:
    return f"{share:.1%}"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def print_results(console: Console, results: Results, found: Sequence[Figure]) -> None:
    """Print one table per TLB mode and, where there are several modes, one that compares them."""
    narrow = console.width < WIDE
    for tlb in results.tlb_modes:
        mode = [figure for figure in found if figure.tlb == tlb]
        if mode:
            _print(console, _main_table(results, tlb, mode, narrow=narrow))
        if any(figure.why for figure in mode):
            _print(console, _why_table(results, mode, narrow=console.width < WHY_WIDE))
    flushing = [figure for figure in found if flushes_remotely(figure.program, found)]
    if len({figure.tlb for figure in flushing}) > 1:
        _print(console, _tlb_table(results, flushing, narrow=narrow))
    if any(figure.host_per_s.get("migrations_llc") for figure in found):
        _print(console, _migrations_table(results, found, narrow=narrow))
    for line in remarks(results, found):
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _print(console: Console, table: Table) -> None:
    """Print a table in full: a terminal that is too narrow may wrap its lines, but loses nothing."""
    needed = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.width = max(console.width, needed)
    console.print(table, "")


def stdout() -> Console:
    """Return standard output; rich would take a file for a terminal of 80 columns, and brackets in names for markup."""
    console = Console(markup=False, emoji=False)
    return console if console.is_terminal else Console(width=WIDE, markup=False, emoji=False)


def remarks(results: Results, found: Sequence[Figure]) -> list[str]:
    """Return what must be said beside the figures: crashes, missing rounds, policies that failed."""
    lines = []
    if results.crashes:
        void = sum(crash.round > 0 for crash in results.crashes)
        lines.append(f"Crashes of the host under test: {len(results.crashes)}. Void rounds, run again: {void}.")
    same: dict[tuple[str, str, str], list[str]] = {}
    for (tlb, label, program), reason in results.failed.items():
        same.setdefault((tlb, label, reason), []).append(program)
    for (tlb, label, reason), programs in same.items():
        lines.append(f"{label} failed (TLB flush by {tlb}; {', '.join(programs)}): {reason}")
    loose = sum(row.window_s > LOOSE * row.wall_s for row in results.rows)
    if loose:
        lines.append(
            f"In {loose} of {len(results.rows)} measurements, CPU use was sampled over more than {LOOSE} times the "
            "program's run: shares and demands of those are off."
        )
    if results.stopped:
        rounds = {(figure.tlb, figure.policy, figure.program): figure.rounds for figure in found}
        wanted = itertools.product(results.tlb_modes, results.policies, results.programs)
        fewest = min((rounds.get(key, 0) for key in wanted if key not in results.failed), default=0)
        lines.append(f"Not complete ({results.stopped}): {fewest} of {results.rounds} rounds.")
    return lines


def _main_table(results: Results, tlb: str, found: Sequence[Figure], *, narrow: bool) -> Table:
    whole = complete(results, found)
    rounds = max(figure.rounds for figure in found)
    title = f"{results.scenario}, TLB flush by {tlb}, {rounds} round{'s' if rounds > 1 else ''}: median [min–max]"
    table = _table(title, ("program", "policy"), ("figure", "slowdown", "÷ ideal", "neighbour", "of due"), narrow)
    for program in results.programs:
        group = [figure for figure in found if figure.program == program]
        if not group:
            continue
        ideal = f"ideal {group[0].ideal_slowdown:.2f}"
        table.add_row(program, ALONE, spread(group[0].alone, group[0].unit), ideal, "", "", "", style="dim")
        best = min((figure.over_ideal for figure in group if figure in whole), default=None)
        for figure in group:
            cells = _cells(figure, is_best=len(group) > 1 and figure.over_ideal == best)
            if figure not in whole and figure.rounds < results.rounds:
                cells[1] = f"{cells[1]} ({figure.rounds} of {results.rounds} rounds)"
            table.add_row("", *cells)
        table.add_section()
    means, over = means_over_ideal(whole)
    if len(over) > 1:
        heading = "geometric mean" if len(over) == len(results.programs) else f"mean of {len(over)}"
        for policy, mean in means.items():
            table.add_row(heading, policy, "", "", f"{mean:.2f}", "", "")
            heading = ""
    return table


def _cells(figure: Figure, *, is_best: bool) -> list[str | Text]:
    of_due = figure.neighbour_of_due
    # More than 2 % below its due: the neighbour paid for the figure.
    starved = of_due is not None and of_due < 0.98
    return [
        figure.policy,
        spread(figure.value, figure.unit),
        f"{figure.slowdown.median:.2f}",
        Text(f"{figure.over_ideal:.2f}", style="bold" if is_best else ""),
        f"{100 * figure.neighbour_share:.1f}/{percent(figure.neighbour_due)}",
        Text(ratio(of_due), style="red" if starved else ""),
    ]


def _why_table(results: Results, found: Sequence[Figure], *, narrow: bool) -> Table:
    shown = [figures for figure in found for counted in (figure.alone_why, figure.why) for figures in counted.values()]
    columns = why.columns_of(shown, more=False)
    headings = (*(column.heading for column in columns), why.MOSTLY)
    table = _table(why.TITLE, ("program", "policy", "VM"), headings, narrow)
    for program in results.programs:
        first = program
        for label, vm, figures in why_rows([figure for figure in found if figure.program == program]):
            cells = [why.text_of(figures, column) for column in columns]
            style = "dim" if label == ALONE else None
            table.add_row(first, label, vm, *cells, why.mostly(figures), style=style)
            first = ""
        table.add_section()
    return table


def why_rows(group: Sequence[Figure]) -> list[tuple[str, str, why.Why]]:
    """Return label, VM and figures of a program: alone, then under each policy, named in its first row only."""
    rows: list[tuple[str, str, why.Why]] = [
        (ALONE, vm, figures) for figure in group[:1] for vm, figures in figure.alone_why.items()
    ]
    for figure in group:
        label = figure.policy
        for vm, figures in figure.why.items():
            rows.append((label, vm, figures))
            label = ""
    return rows


def _tlb_table(results: Results, found: Sequence[Figure], *, narrow: bool) -> Table:
    headings = ("figure", "÷ ideal", *TLB_COUNTERS.values())
    table = _table("By TLB mode; TLB IPIs received in the guest", ("program", "TLB by", "policy"), headings, narrow)
    for program in results.programs:
        last = ""
        for figure in (figure for figure in found if figure.program == program):
            if figure.tlb != last:
                table.add_section()
                counts = [_counter(figure.alone_guest_per_s, name) for name in TLB_COUNTERS]
                alone = spread(figure.alone, figure.unit)
                table.add_row("" if last else program, figure.tlb, ALONE, alone, "", *counts, style="dim")
                last = figure.tlb
            table.add_row(
                "",
                "",
                figure.policy,
                spread(figure.value, figure.unit),
                f"{figure.over_ideal:.2f}",
                *(_counter(figure.guest_per_s, name) for name in TLB_COUNTERS),
            )
    return table


def _migrations_table(results: Results, found: Sequence[Figure], *, narrow: bool) -> Table:
    title = (
        "Migrations of the host's threads per second; of these to another last-level cache; of those to another socket"
    )
    table = _table(title, ("program", "TLB by", "policy"), tuple(MIGRATIONS.values()), narrow)
    for program in results.programs:
        first = program
        for figure in (figure for figure in found if figure.program == program):
            table.add_row(first, figure.tlb, figure.policy, *(_counter(figure.host_per_s, name) for name in MIGRATIONS))
            first = ""
        table.add_section()
    return table


def flushes_remotely(program: str, found: Sequence[Figure]) -> bool:
    """Return True if the program makes vCPUs flush each other's TLBs at all."""
    mine = [figure for figure in found if figure.program == program]
    return any(figure.guest_per_s.get(name, 0) >= 1 for figure in mine for name in TLB_COUNTERS)


def _table(title: str, left: Sequence[str], right: Sequence[str], narrow: bool) -> Table:
    table = Table(
        title=Text(title),  # not markup: "[min–max]" would be a tag
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0) if narrow else (0, 1),
        pad_edge=False,
        show_edge=False,
    )
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _counter(per_second: dict[str, float], name: str) -> str:
    return number(per_second[name]) if name in per_second else "–"
