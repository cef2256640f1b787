# SPDX-License-Identifier: GPL-2.0-only
"""One simulated run in words: a title, and a table of what happened to each VM."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cohortlab.places import PlaceError
from cohortlab.sim.result import Result
from cohortlab.table import number

_MS = 1e6


def title(result: Result, whose: str | None = None) -> str:
    """Return what ran, under what, and what came of it.

    Args:
        whose: the VM whose program it is about; the first that runs one if not given.
    """
    run = result.run
    running = (vm.name for vm in run.scenario.program_vms if vm.name in run.running)
    vm = whose or next(running, run.scenario.program_vm.name)
    program = run.running.get(vm, "nothing")
    loads = [name for other, name in run.running.items() if other != vm]
    beside = f" beside {', '.join(loads)}" if loads else " alone"
    args = f" {' '.join(run.args)}" if run.args else ""
    try:
        measured = result.measurement(vm)
        unit = run.scenario.workloads[program].unit
        figure = f": {number(measured.value)} {unit}"
    except (PlaceError, KeyError):
        figure = ": did not end"
    return f"{run.scenario.name}: {program}{beside}, {run.policy}{args}, seed {run.seed}{figure}"


def tell(console: Console, result: Result, whose: str | None = None) -> None:
    """Print the run's figures: a row for each, a column for each VM. ``whose``: as ``title`` has it."""
    vms = result.about["figures"]["vms"]
    console.print(Text(title(result, whose), style="bold"), soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("", no_wrap=True)
    for vm in vms:
        table.add_column(vm["name"], justify="right", no_wrap=True)
    end_ns = max(result.end_ns, 1)

    def row(name: str, *keys: str, scale: float = 1.0, only_if: str | None = None) -> None:
        values = []
        for vm in vms:
            value = vm
            for key in keys:
                value = value[key]
            values.append("–" if value is None else number(value / scale))
        if only_if is None or any(_at(vm, only_if) for vm in vms):
            table.add_row(name, *values)

    row("CPU, pCPUs", "cpu_ns", scale=end_ns)
    row("vCPUs running, pCPUs", "run_ns", scale=end_ns)
    row("ready (waiting), pCPUs", "ready_ns", scale=end_ns)
    row("co-stop, pCPUs", "costop_ns", scale=end_ns)
    row("stacked, pCPUs", "stacked_ns", scale=end_ns)
    row("skew, greatest, ms", "skew_max_ns", scale=_MS)
    row("behind its due, at most, ms", "lag_behind_ns", scale=_MS)
    row("ahead of its due, at most, ms", "lag_ahead_ns", scale=_MS)
    row("preemptions", "preemptions")
    row("preemptions in kernel mode", "preemptions_kernel")
    row("preemptions as lock holder", "preemptions_holder")
    row("spinning, pCPUs", "spin_ns", scale=end_ns)
    row("PAUSE exits", "ple")
    row("directed yields asked", "yields_asked")
    row("directed yields granted", "yields_granted")
    row("TLB shootdowns", "shootdown", "count")
    row("TLB shootdown, median, µs", "shootdown", "p50_ns", scale=1e3, only_if="shootdown")
    row("TLB shootdown, 99 %, µs", "shootdown", "p99_ns", scale=1e3, only_if="shootdown")
    row("lock wait, 99 %, µs", "lock_wait", "p99_ns", scale=1e3, only_if="lock_wait")
    row("wait after wake-up, 99 %, ms", "wait_after_wakeup", "p99_ns", scale=_MS)
    row("wait after preemption, 99 %, ms", "wait_after_preemption", "p99_ns", scale=_MS)
    console.print(table)
    host = result.about["figures"]["host"]
    console.print(
        f"host: {number(host['busy_ns'] / end_ns)} of {host['pcpus']} pCPUs busy, {host['switches']} switches, "
        f"{host['migrations']} migrations in {number(end_ns / 1e9)} s; fingerprint {result.fingerprint}",
        highlight=False,
        soft_wrap=True,
    )


def _at(vm: dict[str, dict[str, int]], name: str) -> int:
    return vm[name]["count"]
