# SPDX-License-Identifier: GPL-2.0-only
"""The report: held-out error first."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from cohortlab.heldout.errors import CELL_MAX, MEAN_MAX, ORDER_MIN, RANGE, TIE, TIE_ERRORS, Cell, Order, orders
from cohortlab.heldout.load import Class
from cohortlab.heldout.predict import Alone
from cohortlab.table import digits

CLASSES: tuple[tuple[Class, str], ...] = (
    ("held-out", "held out"),
    ("looked-at", "looked at while modelling"),
    ("parameters", "parameters from"),
)


def lines(cells: Sequence[Cell], alone: Sequence[Alone], seeds: int) -> list[str]:
    """Return the report as Markdown."""
    found = orders(cells)
    by_class = [(name, [cell for cell in cells if cell.kind == kind]) for kind, name in CLASSES]
    held_out = by_class[0][1]
    said = _goals(held_out, [order for order in found if order.is_held_out])
    columns = ("cells", "n", "mean error", "the lab's own", "distance", "rounds in range", f"above {CELL_MAX:.0%}")
    said += ["", f"| {' | '.join(columns)} |"]
    said.append("|---|---|---|---|---|---|---|")
    for name, several in by_class:
        said.append(_summary(name, several))
        if several is held_out:
            for side in ("program", "shape", "policy"):
                said.append(_summary(f"… by {side}", [cell for cell in several if side in cell.held_out]))
    said += ["", _legend(seeds), ""]
    said += [*_order_lines(found), ""]
    for name, several in by_class:
        if several:
            said += [f"{name.capitalize()}:", "", *_table(several), ""]
    said += ["Alone, seconds (of a unit of work where the figure is a rate):", "", *_alone(alone)]
    return said


def _goals(cells: Sequence[Cell], found: Sequence[Order]) -> list[str]:
    if not cells:
        return ["Nothing is held out."]
    above = [cell for cell in cells if abs(cell.error) > CELL_MAX]
    right, wanted = sum(order.is_right for order in found), ORDER_MIN * len(found)
    return [
        f"Held out: mean error {_mean_error(cells):.1%} over {len(cells)} cells (goal {MEAN_MAX:.0%}: "
        f"{_met(_mean_error(cells) <= MEAN_MAX)}); {len(above)} above {CELL_MAX:.0%} (goal 0: {_met(not above)}); "
        f"policies in the lab's order in {right} of {len(found)} (goal {ORDER_MIN:.0%}: {_met(right >= wanted)}).",
        *(
            f"- above {CELL_MAX:.0%}: {cell.shape}, {cell.program} under {cell.policy}: {cell.sim_mean:.2f}, in the "
            f"lab {cell.lab_mean:.2f}: {cell.error:+.0%}"
            for cell in above
        ),
    ]


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _mean_error(cells: Sequence[Cell]) -> float:
    return fmean(abs(cell.error) for cell in cells)


def _summary(name: str, cells: Sequence[Cell]) -> str:
    if not cells:
        return f"| {name} | 0 | – | – | – | – | – |"
    rounds = sum(len(cell.lab) for cell in cells)
    return (
        f"| {name} | {len(cells)} | {_mean_error(cells):.1%} | {fmean(cell.lab_error for cell in cells):.1%} | "
        f"{fmean(cell.distance for cell in cells):.1%} | {sum(cell.inside for cell in cells)} of {rounds} | "
        f"{sum(abs(cell.error) > CELL_MAX for cell in cells)} |"
    )


def _legend(seeds: int) -> str:
    low, high = RANGE
    return (
        f"Slowdowns of {seeds} seeds beside all rounds of the lab that are kept. Error: the geometric mean of the "
        "simulator's over that of the lab's, less 1; means of it are without sign. The lab's own: the standard error "
        "of its mean. Distance: Wasserstein's, of the logarithms. Range: the simulator's, from "
        f"{low:.0%} to {high:.0%} of its seeds."
    )


def _order_lines(found: Sequence[Order]) -> list[str]:
    decided = [pair for order in found for pair in order.decided]
    ties = sum(pair.is_tie for order in found for pair in order.pairs)
    said = [
        f"Order of policies: all right in {sum(order.is_right for order in found)} of {len(found)} programs and "
        f"shapes; {sum(pair.is_right for pair in decided)} of {len(decided)} pairs. {ties} other pairs are ties in the "
        f"lab, within {TIE:.0%} or {TIE_ERRORS:g} standard errors of their difference; any order of them is right.",
    ]
    for order in found:
        for pair in order.decided:
            if not pair.is_right:
                said.append(
                    f"- {order.shape}, {order.program}: {pair.worse} takes {pair.lab:.2f} times as long as "
                    f"{pair.better} in the lab, {pair.sim:.2f} times simulated"
                )
    return said


def _table(cells: Sequence[Cell]) -> list[str]:
    said = [
        "| shape | program | policy | simulator | lab | rounds | error | distance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        error = f"{cell.error:+.0%}"
        if abs(cell.error) > CELL_MAX:
            error = f"**{error}**"
        low, high = (f"{part:.2f}" for part in (min(cell.lab), max(cell.lab)))
        said.append(
            f"| {cell.shape} | {cell.program} | {cell.policy} | {cell.sim_mean:.2f} | {cell.lab_mean:.2f} "
            f"[{low}–{high}] | {len(cell.lab)} | {error} | {cell.distance:.0%} |"
        )
    return said


def _alone(alone: Sequence[Alone]) -> list[str]:
    said = ["| shape | program | simulator | lab | error |", "|---|---|---|---|---|"]
    for one in alone:
        sim_s, lab_s = digits(one.sim_s), digits(one.lab_s)
        said.append(f"| {one.shape} | {one.program} | {sim_s} | {lab_s} | {one.error:+.0%} |")
    return said


def for_machines(cells: Sequence[Cell], alone: Sequence[Alone], seeds: int) -> dict[str, Any]:
    """Return the ``--json`` output."""
    return {
        "seeds": seeds,
        "cells": [
            {
                "shape": cell.shape,
                "program": cell.program,
                "policy": cell.policy,
                "class": cell.kind,
                "held_out": list(cell.held_out),
                "lab_slowdown": cell.lab_mean,
                "sim_slowdown": cell.sim_mean,
                "error": cell.error,
                "lab_error": cell.lab_error,
                "distance": cell.distance,
                "lab_rounds": list(cell.lab),
                "lab_rounds_in_range": cell.inside,
            }
            for cell in cells
        ],
        "orders": [
            {
                "shape": order.shape,
                "program": order.program,
                "held_out": order.is_held_out,
                "right": order.is_right,
                "pairs": [
                    {"better": p.better, "worse": p.worse, "lab": p.lab, "sim": p.sim, "tie": p.is_tie}
                    for p in order.pairs
                ],
            }
            for order in orders(cells)
        ],
        "alone": [
            {"shape": one.shape, "program": one.program, "lab_s": one.lab_s, "sim_s": one.sim_s, "error": one.error}
            for one in alone
        ],
    }
