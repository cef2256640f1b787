# SPDX-License-Identifier: GPL-2.0-only
"""Simulated runs as timelines: who had which pCPU, who waited, who spun and flushed TLBs meanwhile."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from cohortlab.plots import COLOURS, FAINT, INK, drawn_with
from cohortlab.results import write_atomically
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


@dataclass(frozen=True)
class _Panel:
    """One run in the picture."""

    result: Result
    lanes: Sequence[_Lane]
    colours: Sequence[tuple[float, float, float]]

    @classmethod
    def of(cls, result: Result) -> _Panel:
        vms = result.run.scenario.vms
        lanes = [_Lane(vm.name, vcpu, result.task_of(vm.name, vcpu)) for vm in vms for vcpu in range(vm.vcpus)]
        return cls(result, lanes, _colours(result))

    @property
    def pcpus(self) -> int:
        return self.result.run.scenario.host.pcpus


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


def busiest(results: Sequence[Result], length_ns: int) -> Window:
    """Return the window of this length with the most spinning in all runs together, while none of them has ended.

    Where nobody spins it is the middle.
    """
    end_ns = shared_ns(results)
    length_ns = min(length_ns, end_ns)
    begun: list[np.ndarray] = []
    spun_ns: list[np.ndarray] = []
    for result in results:
        table = result.timeline
        starts, ends = table["start_ns"].to_numpy().astype(np.int64), table["end_ns"].to_numpy().astype(np.int64)
        spins = (table["kind"].to_numpy() == TIMELINE_KINDS.index("spin")) & (starts < end_ns)
        # A spin counts where it begins, and no more than a window's worth.
        begun.append(starts[spins] // length_ns)
        spun_ns.append(np.minimum(ends[spins] - starts[spins], length_ns))
    # Only those windows in which a spin begins: a long run has billions of short ones.
    windows, of_spin = np.unique(np.concatenate(begun), return_inverse=True)
    sums_ns = np.bincount(of_spin, np.concatenate(spun_ns))
    start_ns = int(windows[sums_ns.argmax()]) * length_ns if sums_ns.any() else (end_ns - length_ns) // 2
    start_ns = min(start_ns, end_ns - length_ns)
    return Window(start_ns, start_ns + length_ns)


def shared_ns(results: Sequence[Result]) -> int:
    """Return when the first of the runs ends: until then there is something of each to be drawn."""
    return max(min(int(result.end_ns) for result in results), 1)


def draw(results: Sequence[Result], window: Window, titles: Sequence[str], path: Path) -> None:
    """Write the picture, one run below the other on one time axis; the ending of ``path`` says in which format."""
    panels = [_Panel.of(result) for result in results]
    heights = [height for panel in panels for height in (panel.pcpus + 0.5, len(panel.lanes) + 0.5)]
    rows = sum(panel.pcpus + len(panel.lanes) for panel in panels)
    with drawn_with(
        {
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
            "svg.hashsalt": titles[0],
            # A program may be called $x$.json.
            "text.parse_math": False,
        }
    ):
        figure = Figure(figsize=(13, min(60.0, 0.9 + 0.7 * len(panels) + 0.34 * rows)), layout="constrained")
        every = list(figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights}))
        for number, (panel, title) in enumerate(zip(panels, titles, strict=True)):
            hosts, guests = every[2 * number : 2 * number + 2]
            _draw_pcpus(hosts, panel, window)
            _draw_vcpus(guests, panel, window)
            hosts.set_title(title, color=INK, loc="left", fontsize=11)
        for axes in every:
            _dress(axes)
        every[-1].set_xlim(window.start_ns / NS_PER_MS, window.end_ns / NS_PER_MS)
        every[-1].set_xlabel("ms of simulated time")
        _legend(figure, panels[0])
        drawn = io.BytesIO()
        as_svg = path.suffix == ".svg"
        figure.savefig(drawn, format=path.suffix.lstrip("."), dpi=150, metadata={"Date": None} if as_svg else None)
    write_atomically(path, drawn.getvalue())


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


def _draw_pcpus(axes: Axes, panel: _Panel, window: Window) -> None:
    runs = _Rows(panel.result.timeline, "run", window)
    for cpu in range(panel.pcpus):
        chosen = runs.lane == cpu
        faces = [panel.colours[task] for task in runs.who[chosen]]
        axes.broken_barh(runs.spans(chosen), (cpu - 0.4, 0.8), facecolors=faces, linewidth=0)
    axes.set_yticks(range(panel.pcpus), [f"pCPU {cpu}" for cpu in range(panel.pcpus)])
    axes.set_ylim(panel.pcpus - 0.45, -0.55)


def _draw_vcpus(axes: Axes, panel: _Panel, window: Window) -> None:
    rows = {kind: _Rows(panel.result.timeline, kind, window) for kind in TIMELINE_KINDS}
    lanes = panel.lanes
    for place, lane in enumerate(lanes):
        task = lane.task
        # What spins while it waits burns nothing: the wait is drawn over it.
        for kind, colour, low, height in (
            ("run", panel.colours[task], -0.4, 0.8),
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


def _legend(figure: Figure, panel: _Panel) -> None:
    patches: list[Artist] = []
    for lane in (lane for lane in panel.lanes if lane.vcpu == 0):
        patches.append(Patch(color=panel.colours[lane.task], label=f"{lane.vm} runs"))
    patches.append(Patch(color=WAITING, label="waits for a pCPU"))
    patches.append(Patch(color=SPINNING, label="spins (dots: PAUSE exits)"))
    patches.append(Patch(color=SHOOTDOWN, label="waits for a TLB flush"))
    patches.append(Line2D([], [], color=INK, linewidth=0.8, label="yields to a sibling"))
    figure.legend(handles=patches, loc="outside lower left", ncols=8, frameon=False)
