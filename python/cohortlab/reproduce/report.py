# SPDX-License-Identifier: GPL-2.0-only
"""Outcomes as one page of Markdown and one of HTML, with the same words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2

from cohortlab.reproduce.outcome import Figure, Finding, Outcome, score
from cohortlab.results import write_atomically
from cohortlab.table import digits

UNEXPLAINED = "not explained yet"
# Figures that ours is not compared with.
_GIVEN = {"parameter": "given", "expected": "expected, not measured", "derived": "follows from others"}


def number(value: float | None) -> str:
    """Return a figure with three digits."""
    return "–" if value is None else digits(value)


def verdict(figure: Figure) -> str:
    """Return in a word or two how near a figure is."""
    if figure.ours is None:
        return figure.missing
    if figure.table.kind in _GIVEN:
        return _GIVEN[figure.table.kind]
    if figure.is_other_way:
        return "other direction"
    said = "near" if figure.is_near else "misses"
    if not figure.is_scored:
        said = f"another scheduler, {said}"
    if figure.interval is None:
        return said
    low, high = map(number, figure.interval)
    return f"{said}, 95 %: {low} to {high}"


def published(figure: Figure) -> str:
    """Return the paper's figure; with the word for a bound, or both ends of a range."""
    table = figure.table
    ends = " to ".join(number(end) for end in (table.paper, table.up_to) if end is not None)
    return " ".join(filter(None, (table.bound, ends)))


def holds(finding: Finding) -> str:
    return {True: "holds", False: "does not hold", None: finding.missing}[finding.holds]


def why(one: Figure | Finding) -> str:
    """Return what explains a miss; nothing where there is none."""
    is_fine = one.holds is True if isinstance(one, Finding) else one.is_near or not one.is_scored
    return "" if is_fine else one.table.why or UNEXPLAINED


def failures(outcome: Outcome) -> list[str]:
    """Return which runs failed, and why."""
    return [f"failed: {run}: {error}" for run, error in outcome.measured.errors.items()]


def write(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write report.md and report.html into ``folder``, each all or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "report.md", markdown(outcomes).encode())
    write_atomically(folder / "report.html", html(outcomes).encode())


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the report as Markdown."""
    lines = ["# The papers' figures beside ours", "", f"{score(outcomes)}.", ""]
    for outcome in outcomes:
        file = outcome.experiment.file
        lines += [f"## {outcome.experiment.label}: {file.title}", ""]
        lines += [
            f"{file.source}. {outcome.rounds} seeds. Parameters: {file.parameters}",
            "",
            f"{score([outcome])}.",
            "",
        ]
        if failed := failures(outcome):
            lines += [*(f"- {text}" for text in failed), ""]
        if outcome.figures:
            lines += ["| figure | where | paper | ours | ratio | |", "|---|---|---|---|---|---|"]
            for figure in outcome.figures:
                table = figure.table
                said = "; ".join(filter(None, (verdict(figure), why(figure))))
                cells = (_named(table.name, table.unit), table.place, published(figure), number(figure.ours))
                lines.append(f"| {' | '.join(cells)} | {number(figure.ratio)} | {said} |")
            lines.append("")
        if outcome.own:
            lines += ["| ours alone | ours | goal |", "|---|---|---|"]
            for own in outcome.own:
                name = _named(own.table.name, own.table.unit)
                lines.append(
                    f"| {name} | {number(own.ours) if not own.missing else own.missing} | {number(own.table.goal)} |"
                )
            lines.append("")
        for finding in outcome.findings:
            lines.append(f"- **{holds(finding)}**: {finding.table.says} ({finding.table.place}).")
            if reason := why(finding):
                lines.append(f"  {reason}")
            if finding.numbers:
                lines.append(f"  <details><summary>numbers</summary>{finding.numbers}</details>")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def html(outcomes: Sequence[Outcome]) -> str:
    """Return the report as HTML that needs nothing beside it."""
    from cohortlab.reproduce import draw

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cohortlab.reproduce", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(
        number=number, published=published, verdict=verdict, holds=holds, why=why, score=score, named=_named
    )
    environment.globals["failures"] = failures
    shown = [(outcome, draw.pictures(outcome)) for outcome in outcomes]
    return environment.get_template("report.html.j2").render(shown=shown, outcomes=outcomes)


def _named(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name
