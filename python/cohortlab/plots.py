# SPDX-License-Identifier: GPL-2.0-only
"""The report's pictures, as SVG: every round a dot, so that nothing hides behind a median."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from cohortlab.summary import Figure

# Okabe and Ito's colours: told apart by colour-blind readers too. The kernel's own scheduler comes first: grey-blue.
COLOURS = ("#56708a", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#0072b2")
# Whoever comes after the last colour begins anew with the first, and has another kind of dots, or of line.
MARKERS = ("o", "^", "s", "D", "v", "P")
LINES = ("solid", "dashed", "dotted", "dashdot")
# Where a logarithmic axis is labelled.
TICKS = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 25, 35, 50, 75, 100, 200, 400)
# A neighbour this near its due has it, as far as can be measured.
TOLERATED = 0.02
INK = "#22272e"
FAINT = "#d5dae0"


@contextmanager
def drawn_with(settings: dict[Any, Any]) -> Iterator[None]:
    """Draw with these settings, and for the rest as matplotlib comes: not as a user's matplotlibrc says.

    That may want LaTeX, which is not everywhere and takes a program's name for a formula, or white on black.
    """
    with style.context("default"), mpl.rc_context(settings):
        yield


def over_ideal(found: Sequence[Figure], programs: Sequence[str], policies: Sequence[str]) -> str:
    """Draw slowdown ÷ ideal for each program and policy."""

    def dots(figure: Figure) -> list[float]:
        return [slowdown / figure.ideal_slowdown for slowdown in figure.slowdowns]

    canvas, axes = _canvas(programs)
    values = _dots(axes, found, programs, policies, dots)
    _reference(axes, "ideal")
    axes.set_ylabel("slowdown ÷ ideal")
    if max(values) > 4 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(TICKS))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=min(0.9, min(values) * 0.95), top=max(1.1, max(values) * 1.05))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return _svg(canvas)


def neighbour_of_due(found: Sequence[Figure], programs: Sequence[str], policies: Sequence[str]) -> str:
    """Draw the neighbours' measured share of the host over the share they are due."""

    canvas, axes = _canvas(programs)
    values = _dots(axes, found, programs, policies, lambda figure: figure.of_dues) or [1.0]
    axes.axhspan(1 - TOLERATED, 1 + TOLERATED, color=FAINT, alpha=0.5, linewidth=0, zorder=0)
    _reference(axes, "due")
    axes.set_ylabel("neighbours' share ÷ due")
    axes.set_ylim(min(0.94, min(values) - 0.01), max(1.06, max(values) + 0.01))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return _svg(canvas)


def colour_of(number: int) -> str:
    """Return the colour of the policy, or the line, with this number, from 0."""
    return COLOURS[number % len(COLOURS)]


def marker_of(number: int) -> str:
    """Return the shape of its dots."""
    return MARKERS[number // len(COLOURS) % len(MARKERS)]


def line_of(number: int) -> str:
    """Return the style of its line."""
    return LINES[number // len(COLOURS) % len(LINES)]


def _reference(axes: Axes, name: str) -> None:
    """Draw a line at 1, the value to hold the dots against."""
    axes.axhline(1, color=INK, linewidth=1, zorder=1)
    beside = ("axes fraction", "data")  # right of the axes, at 1
    axes.annotate(name, (1, 1), xycoords=beside, xytext=(4, 0), textcoords="offset points", va="center")


def _canvas(programs: Sequence[str]) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(max(6.0, 1.5 * len(programs) + 1.2), 3.6), layout="constrained")
    axes = canvas.add_subplot()
    axes.set_xticks(range(len(programs)), programs)
    axes.set_xlim(-0.55, len(programs) - 0.45)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    return canvas, axes


def _dots(
    axes: Axes,
    found: Sequence[Figure],
    programs: Sequence[str],
    policies: Sequence[str],
    values_of: Callable[[Figure], Sequence[float]],
) -> list[float]:
    """Draw a dot for every round and a bar at the median; return all values."""
    shown: list[float] = []
    lane = 0.8 / len(policies)
    for number, policy in enumerate(policies):
        colour, marker = colour_of(number), marker_of(number)
        across: list[float] = []
        up: list[float] = []
        middles: list[float] = []
        medians: list[float] = []
        for figure in (figure for figure in found if figure.policy == policy):
            middle = programs.index(figure.program) - 0.4 + lane * (number + 0.5)
            values = values_of(figure)
            if not values:
                continue
            # Rounds side by side in their order: a drift over the rounds shows as a slope.
            step = 0.6 * lane / max(1, len(values) - 1)
            xs = [middle + step * (i - (len(values) - 1) / 2) for i in range(len(values))]
            across += xs
            up += values
            middles.append(middle)
            medians.append(median(values))
        # All of a policy at once: each call costs as much as a hundred dots.
        if across:
            axes.scatter(
                across, up, s=22, color=colour, marker=marker, alpha=0.75, linewidths=0, zorder=3, label=policy
            )
            starts, ends = ([middle + side * 0.42 * lane for middle in middles] for side in (-1, 1))
            axes.hlines(medians, starts, ends, color=colour, linewidth=2.2, zorder=2)
        shown += up
    _legend(axes)
    return shown


def _legend(axes: Axes) -> None:
    names = axes.get_legend_handles_labels()[1]
    figure = axes.get_figure(root=True)
    if not names or figure is None:
        return
    # As many beside each other as fit; the rows of it come on top of the picture.
    columns = min(8, max(1, int(figure.get_figwidth() / (0.5 + 0.085 * max(map(len, names))))))
    figure.set_figheight(3.4 + 0.2 * -(-len(names) // columns))
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        borderaxespad=0.2,
        handletextpad=0.4,
    )


def _svg(canvas: Canvas) -> str:
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
