# SPDX-License-Identifier: GPL-2.0-only
"""Pictures of an experiment, as SVG: the paper's figures beside ours, and distributions."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.figure import Figure as Canvas

from cohortlab.plots import COLOURS, FAINT, INK, colour_of, drawn_with, line_of
from cohortlab.reproduce.load import CdfTable
from cohortlab.reproduce.outcome import Figure, Outcome, Own
from cohortlab.reproduce.runs import Measured

# Wider than this, bars of one picture are drawn on a logarithmic axis.
_LINEAR_MAX = 20


def pictures(outcome: Outcome) -> list[tuple[str, str]]:
    """Return title and SVG of each picture of an experiment."""
    named = [figure.table.group for figure in outcome.figures] + [own.table.group for own in outcome.own]
    groups = dict.fromkeys(group for group in named if group)
    made = []
    with drawn_with({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "svg.hashsalt": "cohortlab"}):
        for group in groups:
            figures = [figure for figure in outcome.figures if figure.table.group == group]
            own = [own for own in outcome.own if own.table.group == group]
            made.append((group, _bars(figures, own)))
        for table in outcome.experiment.file.cdf:
            made.append((table.title, _cdf(table, outcome.measured)))
    return made


def _bars(figures: Sequence[Figure], own: Sequence[Own]) -> str:
    """Draw two bars for each figure, the paper's and ours; one where only we have any."""
    names = [figure.table.name for figure in figures] + [one.table.name for one in own]
    canvas = Canvas(figsize=(7.5, 0.9 + 0.42 * len(names)), layout="constrained")
    axes = canvas.add_subplot()
    ours = [figure.ours for figure in figures] + [one.ours for one in own]
    paper = [figure.published for figure in figures]
    if figures:
        axes.barh([at - 0.19 for at in range(len(paper))], paper, 0.36, color=COLOURS[0], label="paper")
    axes.barh(
        [at + 0.19 for at in range(len(ours))], [value or 0 for value in ours], 0.36, color=COLOURS[1], label="ours"
    )
    positive = [value for value in (*paper, *ours) if value is not None and value > 0]
    if positive and max(positive) > _LINEAR_MAX * min(positive):
        axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    units = {figure.table.unit for figure in figures} | {one.table.unit for one in own}
    axes.set_xlabel(", ".join(sorted(units - {""})))
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return _svg(canvas)


def _cdf(table: CdfTable, measured: Measured) -> str:
    canvas = Canvas(figsize=(7.5, 3.4), layout="constrained")
    axes = canvas.add_subplot()
    for number, (label, key) in enumerate(table.of.items()):
        buckets = measured.histograms.get((key, table.what), [])
        total = sum(count for _, count in buckets)
        if not total:
            continue
        xs, ys, below = [], [], 0
        for up_to_us, count in buckets:
            below += count
            xs.append(up_to_us)
            ys.append(below / total)
        axes.step(xs, ys, where="post", color=colour_of(number), linestyle=line_of(number), label=label)
    axes.set_xscale("log")
    axes.set_xlabel("µs")
    axes.set_ylim(0, 1.01)
    axes.grid(color=FAINT, linewidth=0.6)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right")
    return _svg(canvas)


def _svg(canvas: Canvas) -> str:
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
