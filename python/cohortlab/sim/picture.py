# SPDX-License-Identifier: GPL-2.0-only
"""One simulated run as a timeline: who had which pCPU, who waited, who spun and flushed TLBs meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cohortlab.plots import COLOURS, FAINT, INK
from cohortlab.sim.result import TIMELINE_KINDS, Result

OTHER = "#9aa3ad"  # the host's own tasks, and VMs' threads that are no vCPUs
WAITING = "#e3e6ea"
SPINNING = "#b00020"
SHOOTDOWN = "#1a1a1a"
NS_PER_MS = 1_000_000
# Directed yields of one vCPU that are drawn at most.
YIELDS_MAX = 150
_GRANTED = 1 << 31


@dataclass(frozen=True)
class Window:
    """The part of a run to be drawn."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class _Lane:
    """A vCPU's lane, and the number of its thread."""

    vm: str
    vcpu: int
    task: int


class _Rows:
    """The timeline's rows of one kind within a window, as arrays."""

    def __init__(self, table: pa.Table, kind: str, window: Window) -> None:
        number = TIMELINE_KINDS.index(kind)
        starts, ends = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
        chosen = (table["kind"].to_numpy() == number) & (ends >= window.start_ns) & (starts <= window.end_ns)
        self.lane = table["lane"].to_numpy()[chosen]
        self.who = table["who"].to_numpy()[chosen]
        self.start_ms = np.maximum(starts[chosen], window.start_ns) / NS_PER_MS
        self.length_ms = np.minimum(ends[chosen], window.end_ns) / NS_PER_MS - self.start_ms

    def spans(self, chosen: np.ndarray) -> list[tuple[float, float]]:
        return list(zip(self.start_ms[chosen], self.length_ms[chosen], strict=True))


def busiest(result: Result, length_ns: int) -> Window:
    """Return the window of this length with the most spinning; the middle of the run where nobody spins."""
    end_ns = max(int(result.end_ns), 1)
    length_ns = min(length_ns, end_ns)
    table = result.timeline
    spins = table["kind"].to_numpy() == TIMELINE_KINDS.index("spin")
    if not spins.any():
        start_ns = (end_ns - length_ns) // 2
        return Window(start_ns, start_ns + length_ns)
    starts, ends = table["start_ns"].to_numpy()[spins], table["end_ns"].to_numpy()[spins]
    # A spin counts where it begins, and no more than a window's worth.
    bins = np.bincount((starts // length_ns).astype(np.int64), np.minimum(ends - starts, length_ns))
    start_ns = min(int(bins.argmax()) * length_ns, end_ns - length_ns)
    return Window(start_ns, start_ns + length_ns)


def draw(result: Result, window: Window, title: str, path: Path) -> None:
    """Write the picture; the ending of ``path`` says in which format."""
    scenario = result.run.scenario
    lanes = [_Lane(vm.name, vcpu, result.task_of(vm.name, vcpu)) for vm in scenario.vms for vcpu in range(vm.vcpus)]
    count = scenario.host.pcpus + len(lanes)
    with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "svg.hashsalt": title}):
        figure = Figure(figsize=(13, min(60.0, 1.6 + 0.34 * count)), layout="constrained")
        hosts, guests = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [scenario.host.pcpus + 0.5, len(lanes) + 0.5]}
        )
        colours = _colours(result)
        _draw_pcpus(hosts, result, window, colours)
        _draw_vcpus(guests, result, window, colours, lanes)
        for axes in (hosts, guests):
            _dress(axes)
        guests.set_xlim(window.start_ns / NS_PER_MS, window.end_ns / NS_PER_MS)
        guests.set_xlabel("ms of simulated time")
        figure.suptitle(title, color=INK, x=0.01, ha="left")
        _legend(figure, result, colours)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _colours(result: Result) -> list[tuple[float, float, float]]:
    """Return each task's colour: a hue for each VM, a shade for each of its vCPUs."""
    colours = []
    for task in result.tasks:
        if task["vcpu"] is None:
            colours.append(to_rgb(OTHER))
            continue
        base = np.array(to_rgb(COLOURS[(task["vm"] + 1) % len(COLOURS)]))
        lightness = 0.55 * (task["vcpu"] % 4) / 4
        red, green, blue = base + (1 - base) * lightness
        colours.append((float(red), float(green), float(blue)))
    return colours


def _draw_pcpus(axes: Axes, result: Result, window: Window, colours: Sequence[tuple[float, float, float]]) -> None:
    runs = _Rows(result.timeline, "run", window)
    for cpu in range(result.run.scenario.host.pcpus):
        chosen = runs.lane == cpu
        faces = [colours[task] for task in runs.who[chosen]]
        axes.broken_barh(runs.spans(chosen), (cpu - 0.4, 0.8), facecolors=faces, linewidth=0)
    pcpus = result.run.scenario.host.pcpus
    axes.set_yticks(range(pcpus), [f"pCPU {cpu}" for cpu in range(pcpus)])
    axes.set_ylim(pcpus - 0.45, -0.55)


def _draw_vcpus(
    axes: Axes,
    result: Result,
    window: Window,
    colours: Sequence[tuple[float, float, float]],
    lanes: Sequence[_Lane],
) -> None:
    rows = {kind: _Rows(result.timeline, kind, window) for kind in TIMELINE_KINDS}
    for place, lane in enumerate(lanes):
        task = lane.task
        # What spins while it waits burns nothing: the wait is drawn over it.
        for kind, colour, low, height in (
            ("run", colours[task], -0.4, 0.8),
            ("spin", SPINNING, -0.14, 0.28),
            ("wait", WAITING, -0.4, 0.8),
        ):
            of_kind = rows[kind]
            spans = of_kind.spans(of_kind.who == task)
            axes.broken_barh(spans, (place + low, height), facecolors=colour, linewidth=0)
        flushes = rows["shootdown"]
        spans = flushes.spans(flushes.who == task)
        axes.broken_barh(spans, (place + 0.26, 0.14), facecolors=SHOOTDOWN, linewidth=0)
        exits = rows["ple"].start_ms[rows["ple"].who == task]
        axes.plot(exits, [place - 0.3] * len(exits), linestyle="", marker=".", markersize=3, color=SPINNING)
    _draw_yields(axes, rows["yield"], lanes, (window.end_ns - window.start_ns) / NS_PER_MS / YIELDS_MAX)
    axes.set_yticks(range(len(lanes)), [f"{lane.vm} vCPU {lane.vcpu}" for lane in lanes])
    axes.set_ylim(len(lanes) - 0.45, -0.55)


def _draw_yields(axes: Axes, yields: _Rows, lanes: Sequence[_Lane], apart_ms: float) -> None:
    """Draw a line from who yielded to whom, for directed yields that were granted; of a storm, one here and there."""
    places = {lane.task: place for place, lane in enumerate(lanes)}
    granted = (yields.lane & _GRANTED) != 0
    last: dict[int, float] = {}
    for at_ms, who, target in zip(
        yields.start_ms[granted], yields.who[granted], yields.lane[granted] & (_GRANTED - 1), strict=True
    ):
        if int(who) in places and int(target) in places and at_ms - last.get(int(who), -apart_ms) >= apart_ms:
            last[int(who)] = at_ms
            axes.plot([at_ms, at_ms], [places[int(who)], places[int(target)]], color=INK, linewidth=0.6)


def _dress(axes: Axes) -> None:
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, result: Result, colours: Sequence[tuple[float, float, float]]) -> None:
    patches: list[Artist] = []
    for vm in result.run.scenario.vms:
        patches.append(Patch(color=colours[result.task_of(vm.name, 0)], label=f"{vm.name} runs"))
    patches.append(Patch(color=WAITING, label="waits for a pCPU"))
    patches.append(Patch(color=SPINNING, label="spins (dots: PAUSE exits)"))
    patches.append(Patch(color=SHOOTDOWN, label="waits for a TLB flush"))
    patches.append(Line2D([], [], color=INK, linewidth=0.8, label="yields to a sibling"))
    figure.legend(handles=patches, loc="outside lower left", ncols=8, frameon=False)
