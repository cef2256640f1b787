# SPDX-License-Identifier: GPL-2.0-only
"""A comparison as one HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from cohortlab import plots, why
from cohortlab.lab import kinds
from cohortlab.results import Results, write_atomically
from cohortlab.scenario import Scenario
from cohortlab.summary import Figure, complete, means_over_ideal
from cohortlab.table import TLB_COUNTERS, number, percent, ratio, remarks, spread, why_rows


@dataclass(frozen=True)
class _Mode:
    """What the page shows of one TLB mode."""

    tlb: str
    groups: Sequence[tuple[str, Sequence[Figure]]]
    # Of these no round is missing: alone they are compared.
    whole: Sequence[Figure]
    over_ideal: str
    neighbour_of_due: str
    means: tuple[dict[str, float], list[str]]
    place: dict[str, str]
    # Columns, and each program's rows: label, VM, cells and what it lost most to.
    why_columns: Sequence[why.Column]
    why_groups: Sequence[tuple[str, Sequence[tuple[str, str, Sequence[str], str]]]]


# What a page can show, by a file's ending.
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}


def write_html(
    results: Results, scenario: Scenario, found: Sequence[Figure], path: Path, picture: Path | None = None
) -> None:
    """Write the report of ``results`` to ``path``, all or nothing; ``picture`` becomes part of it."""
    write_atomically(path, render(results, scenario, found, picture).encode())


def render(results: Results, scenario: Scenario, found: Sequence[Figure], picture: Path | None = None) -> str:
    """Return the report as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cohortlab", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(number=number, percent=percent, ratio=ratio)
    environment.globals["spread"] = spread
    has_counters = any(name in figure.guest_per_s for figure in found for name in TLB_COUNTERS)
    return environment.get_template("report.html.j2").render(
        results=results,
        scenario=scenario,
        modes=[_mode(results, tlb, found) for tlb in results.tlb_modes if any(f.tlb == tlb for f in found)],
        counters=TLB_COUNTERS if has_counters else {},
        remarks=remarks(results, found),
        picture=_embedded(picture) if picture else None,
        measured=max(row.ended for row in results.rows),
    )


def _embedded(picture: Path) -> str:
    """Return the picture as an address that contains it."""
    return f"data:{PICTURES[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _mode(results: Results, tlb: str, every: Sequence[Figure]) -> _Mode:
    found = [figure for figure in every if figure.tlb == tlb]
    whole = complete(results, found)
    programs = [name for name in results.programs if any(figure.program == name for figure in found)]
    policies = [name for name in results.policies if any(figure.policy == name for figure in found)]
    # svg.fonttype "none" keeps text as text: small, selectable, in the page's own font. The salt keeps the
    # identifiers of two pictures in one page apart, and the same from run to run.
    with plots.drawn_with(
        {
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 10,
            "svg.hashsalt": f"cohortlab {tlb}",
            # A program may be called $x$.json.
            "text.parse_math": False,
        }
    ):
        return _Mode(
            tlb=tlb,
            groups=[(name, [f for f in found if f.program == name]) for name in programs],
            whole=whole,
            over_ideal=plots.over_ideal(found, programs, policies),
            neighbour_of_due=plots.neighbour_of_due(found, programs, policies),
            means=means_over_ideal(whole),
            place=_told(results.places.get(tlb, {})),
            **_why(found, programs),
        )


def _told(place: Mapping[str, str]) -> dict[str, str]:
    """Return what is said of a place: with its emulator's name, what that one costs."""
    cost = kinds.cost(place)
    return {**place, "emulator": f"{place['emulator']}: {cost}"} if cost else dict(place)


def _why(found: Sequence[Figure], programs: Sequence[str]) -> dict[str, Any]:
    rows = {name: why_rows([figure for figure in found if figure.program == name]) for name in programs}
    columns = why.columns_of([figures for group in rows.values() for _, _, figures in group], more=True)
    cells = {
        name: [
            (label, vm, [why.text_of(figures, column) for column in columns], why.mostly(figures))
            for label, vm, figures in group
        ]
        for name, group in rows.items()
    }
    return {"why_columns": columns, "why_groups": [(name, group) for name, group in cells.items() if group]}
