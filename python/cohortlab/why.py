# SPDX-License-Identifier: GPL-2.0-only
"""Why a VM is slow: what its vCPUs' time went to, in the same words wherever that was counted; docs/metrics.md.

A place counts from a program's start to its end (``Measurement.why``), by the names of `cohort top`'s counters; the
simulator counts the same. What a place cannot count is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# One VM's counters between a program's start and end, with window_ns and vcpus.
Counters = Mapping[str, float]
# One VM's figures, by their names in --json.
Why = Mapping[str, float]

_NS_PER_S = 1e9
# Less of its vCPUs' time than this is nothing to speak of; so many pause-loop exits per second and vCPU are spinning; a
# cause must make up this part of the ready time to be named. As in `cohort top`.
_QUIET = 0.01
_SPINNING_PER_S = 100.0
_PART = 0.3


@dataclass(frozen=True)
class Column:
    """A figure: ``field`` is its name in --json, ``counter`` what it is computed from.

    Attributes:
        rate: per second of the window, not a share of the vCPUs' time.
        always: shown also where it is 0 everywhere.
        more: for a page, not for a terminal.
    """

    field: str
    heading: str
    counter: str
    meaning: str
    rate: bool = False
    always: bool = False
    more: bool = False


COLUMNS = (
    Column("run", "ran", "run_ns", "had a pCPU", always=True),
    Column(
        "spin",
        "spun",
        "spin_ns",
        "of that, spun: for a lock, an answer, a flush, at a barrier, in user mode",
        more=True,
    ),
    Column("ready", "ready", "ready_ns", "could run and had no pCPU", always=True),
    Column("costop", "co-stop", "costop_ns", "of that, while a sibling ran", always=True),
    Column("wait_kernel", "kernel", "wait_kernel_ns", "of that, preempted in the guest's kernel", always=True),
    Column("wait_wakeup", "woken", "wait_wakeup_ns", "of that, after a wake-up", more=True),
    Column("throttled", "throttled", "throttled_ns", "kept from running by cpu.max; ready meanwhile"),
    Column("stacked", "stacked", "stacked_ns", "ran or waited on a pCPU where a sibling did"),
    Column(
        "ipi_wait",
        "IPIs",
        "ipi_wait_ns",
        "how long interrupts from siblings waited for a preempted vCPU, summed",
        always=True,
    ),
    Column("halted", "halted", "halted_ns", "halted by the guest", always=True),
    Column("blocked", "blocked", "blocked_ns", "asleep in the VMM, or waiting for a page", more=True),
    Column("ple_per_s", "PLE/s", "ple", "pause-loop exits", rate=True),
    Column(
        "yields_granted_per_s", "yields/s", "yields_granted", "directed yields that were granted", rate=True, more=True
    ),
    Column(
        "preemptions_kernel_per_s",
        "preempted/s",
        "preemptions_kernel",
        "preemptions in the guest's kernel",
        rate=True,
        more=True,
    ),
    Column("switches_per_s", "switches/s", "switches", "a vCPU was put on a pCPU", rate=True, more=True),
)
TITLE = "Why: per cent of the vCPUs' time; counts per second"
MOSTLY = "lost most to"
# A share below this is shown as 0.0 %.
_SHOWN = 0.0005


def of(counters: Counters) -> dict[str, float]:
    """Return the figures of one VM in one run."""
    window_s = counters["window_ns"] / _NS_PER_S
    whole_ns = counters["window_ns"] * counters["vcpus"]
    if whole_ns <= 0:
        return {}
    found = {}
    for column in COLUMNS:
        if column.counter in counters:
            value = counters[column.counter]
            found[column.field] = value / window_s if column.rate else value / whole_ns
    return found | {"vcpus": counters["vcpus"]}


def over_rounds(rounds: Iterable[Mapping[str, Counters]]) -> dict[str, dict[str, float]]:
    """Return the medians over the rounds of each VM's figures."""
    by_vm: dict[str, list[dict[str, float]]] = {}
    for counted in rounds:
        for vm, counters in counted.items():
            by_vm.setdefault(vm, []).append(of(counters))
    return {
        vm: {name: median(figures[name] for figures in found if name in figures) for name in _names(found)}
        for vm, found in by_vm.items()
    }


def _names(found: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for figures in found for name in figures))


def columns_of(shown: Sequence[Why], *, more: bool) -> list[Column]:
    """Return the columns that say something about one of ``shown`` at least; with ``more``, those for a page, too."""

    def says(column: Column) -> bool:
        known = [why[column.field] for why in shown if column.field in why]
        least = 0.5 if column.rate else _SHOWN
        return bool(known) and (column.always or max(known) >= least)

    return [column for column in COLUMNS if (more or not column.more) and says(column)]


def text_of(why: Why, column: Column) -> str:
    """Return a figure as it is shown: a share in per cent, a rate as it is."""
    if column.field not in why:
        return "–"
    value = why[column.field]
    return f"{value:,.0f}" if column.rate else f"{100 * value:.1f}"


def mostly(why: Why) -> str:
    """Return to what the VM lost most; the order and the limits are those of `cohort top`."""
    ready, run = why.get("ready", 0.0), why.get("run", 0.0)
    spins = why.get("ple_per_s", 0.0) / max(1.0, why.get("vcpus", 1.0)) >= _SPINNING_PER_S
    if run + ready == 0:
        return "idle"
    if ready < _QUIET:
        return "spinning" if spins else "nothing"
    throttled, stacked = why.get("throttled", 0.0), why.get("stacked", 0.0)
    if throttled >= max(_QUIET, _PART * ready):
        return "its limit"
    if stacked / (run + ready) >= 0.2 and stacked >= 0.5 * ready:
        return "stacking"
    then = ", spinning" if spins else ""
    if why.get("wait_kernel", 0.0) >= _PART * ready:
        return f"its kernel{then}"
    if why.get("costop", 0.0) >= _PART * ready:
        return f"co-stop{then}"
    if why.get("wait_wakeup", 0.0) >= 0.5 * ready:
        return f"waking up{then}"
    return f"busy pCPUs{then}"


def growth(
    before: Mapping[str, Counters], after: Mapping[str, Counters], window_ns: float
) -> dict[str, dict[str, float]]:
    """Return by how much each VM's counters grew in a window; a VM that is not in both is left out."""
    grown = {}
    for vm, counters in after.items():
        if vm in before:
            grown[vm] = {name: float(value - before[vm].get(name, 0)) for name, value in counters.items()}
            grown[vm] |= {"vcpus": float(counters["vcpus"]), "window_ns": float(window_ns)}
    return grown
