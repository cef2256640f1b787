# SPDX-License-Identifier: GPL-2.0-only
"""Figures of the papers that the simulator does not count: they are computed from a run's timeline.

- Stacking as a thread sees it that looks at all run queues now and then (SBCO, section II-B). The simulator's own
  figure, ``stacked_ns``, counts each stacked vCPU; who looks counts looks. A part of all looks at random instants is a
  part of the time.
- Lag as a thread sees it that adds up every VM's CPU time every so many seconds (SBCO, section V-B4).
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from cohortlab.sim.model import NS_PER_S
from cohortlab.sim.result import TIMELINE_KINDS, Result

# stacked_any: of the time, some VM's siblings were stacked somewhere; stacked_queues: of the time of all queues,
# siblings were stacked in it. lag_5s_ns: how much more CPU time the first VM got than the last between two looks 5 s
# apart, on average; lag_5s_rsd: the standard deviation of that over its mean; lag_since_ns: what the first has had more
# than the last since the first look, on average over looks every second.
_FIGURES = re.compile(r"host\.(stacked_any|stacked_queues|lag_\d+s_(ns|rsd)|lag_since_ns)(\.total|\.rsd)?")
LOOKS_S = (1, 5, 10, 30, 60, 120)
# A thread that sleeps so long between two looks comes a little later each time. Without that all looks would be at the
# same instant of the VMs' turns, where these divide a second.
_LATE_NS = 3_701_003
_RUN, _WAIT = (TIMELINE_KINDS.index(kind) for kind in ("run", "wait"))

_Times = npt.NDArray[np.int64]


def is_traced(name: str) -> bool:
    """Whether a figure, without its run, is one of these."""
    return _FIGURES.fullmatch(name) is not None


def figures(result: Result) -> dict[str, float]:
    """Return all of them by name; the whole run counts."""
    table = result.timeline
    kind, lane, who = (table[name].to_numpy() for name in ("kind", "lane", "who"))
    start, end = (table[name].to_numpy().astype(np.int64) for name in ("start_ns", "end_ns"))
    vm_of = np.array([-1 if task["vcpu"] is None else task["vm"] for task in result.tasks])
    known = np.isin(kind, (_RUN, _WAIT))
    known[known] = vm_of[who[known]] >= 0
    kind, lane, start, end, vm = kind[known], lane[known], start[known], end[known], vm_of[who[known]]
    runs = kind == _RUN
    found = _stacking(vm, lane, start, end)
    length_ns = max(result.end_ns, 1)
    shares = {
        "host.stacked_any": found[0] / length_ns,
        "host.stacked_queues": found[1] / length_ns / result.run.scenario.host.pcpus,
    }
    return shares | _lags(vm[runs], start[runs], end[runs], result.end_ns)


def _stacking(vm: _Times, lane: _Times, start: _Times, end: _Times) -> tuple[int, int]:
    """Return for how long siblings were stacked in any queue, and in each, added up; ns."""
    anywhere = []
    in_queues_ns = 0
    for queue in np.unique(lane):
        here = []
        for number in np.unique(vm):
            chosen = (lane == queue) & (vm == number)
            here.append(times_of_two(start[chosen], end[chosen]))
        anywhere += here
        in_queues_ns += length_ns(here)
    return length_ns(anywhere), in_queues_ns


def times_of_two(start: _Times, end: _Times) -> tuple[_Times, _Times]:
    """Return when intervals begin and end in which two or more of the given ones are open."""
    at = np.concatenate([start, end])
    change = np.concatenate([np.ones_like(start), -np.ones_like(end)])
    # Who leaves at an instant is gone when another comes.
    order = np.lexsort((change, at))
    at, open_now = at[order], np.cumsum(change[order])
    two = open_now[:-1] >= 2
    return at[:-1][two], at[1:][two]


def length_ns(intervals: list[tuple[_Times, _Times]]) -> int:
    """Return how long at least one of these intervals was open."""
    start = np.concatenate([begin for begin, _ in intervals] or [np.array([], np.int64)])
    end = np.concatenate([finish for _, finish in intervals] or [np.array([], np.int64)])
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[0], end[:-1]])
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def _lags(vm: _Times, start: _Times, end: _Times, end_ns: int) -> dict[str, float]:
    found: dict[str, float] = {}
    numbers = np.unique(vm)
    for period_s in LOOKS_S:
        looks = np.arange(NS_PER_S, end_ns + 1, period_s * NS_PER_S + _LATE_NS)
        if len(looks) < 2 or len(numbers) < 2:
            continue
        used = np.array([used_ns(start[vm == number], end[vm == number], looks) for number in numbers])
        lag = _spread(np.diff(used))
        found[f"host.lag_{period_s}s_ns"] = float(lag.mean())
        found[f"host.lag_{period_s}s_rsd"] = float(lag.std() / lag.mean()) if lag.mean() else 0.0
        found.setdefault("host.lag_since_ns", float(_spread(used[:, 1:] - used[:, :1]).mean()))
    return found


def _spread(of_vms: _Times) -> _Times:
    """Return what the first VM has more than the last, for each look."""
    spread: _Times = of_vms.max(axis=0) - of_vms.min(axis=0)
    return spread


def used_ns(start: _Times, end: _Times, looks: _Times) -> _Times:
    """Return how much of these intervals, which may overlap, lies before each look."""
    begun, over = np.sort(start), np.sort(end)
    # Each interval before a look counts up to it: the looks less the beginnings, less the same of the ends.
    sums = [np.concatenate([[0], np.cumsum(times)]) for times in (begun, over)]
    at = [np.searchsorted(times, looks) for times in (begun, over)]
    counted: _Times = (at[0] * looks - sums[0][at[0]]) - (at[1] * looks - sums[1][at[1]])
    return counted
