# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab sweep``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from cohortlab.errors import EXIT_FAILED, EXIT_INTERRUPTED, BadInput

if TYPE_CHECKING:
    from cohortlab.sweep.chunks import Known, Store
    from cohortlab.sweep.plan import Plan

# Enough for a chunk's overhead to be little, few enough for every worker to have one.
CHUNK = 16
_TENTHS = 10


class Meter(Protocol):
    """Told how many points are done."""

    def __call__(self, done: int) -> None: ...


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--axis", "axes", multiple=True, metavar="FIELD=VALUES", help="A field, and values with commas, or A..B.")
@click.option("--axes", "axes_file", type=click.Path(path_type=Path), help="A TOML file with a table [axes] of them.")
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts; the last one to end makes the file.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Threads of this process. Default: its CPUs.")
@click.option("--dask", metavar="tcp://HOST:PORT|slurm:JOBS", help="Dask's workers in place of threads.")
@click.option("--chunk", type=click.IntRange(1, 10_000), default=CHUNK, show_default=True, help="Runs kept together.")
@click.option(
    "--known",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Another sweep's file: runs that it has are not simulated again. May be repeated.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the results.")
def sweep(
    scenario: Path,
    axes: tuple[str, ...],
    axes_file: Path | None,
    shard: str | None,
    workers: int | None,
    dask: str | None,
    chunk: int,
    known: tuple[Path, ...],
    out: Path | None,
) -> None:
    """Simulate every combination of values of some fields, into one Parquet file.

    FIELD is seed, policy, program, alone, kernel, hardware, or a field of a file: scenario.vm.NAME.weight,
    hardware.kvm.ple.mode, workload.NAME.timeout_s, model.NAME.thread.NAME.count, policy.slice-us.

    The same command again goes on where it was stopped. Exit code: 0 all runs gave figures; 1 something failed;
    2 wrong input; 130 interrupted.
    """
    from cohortlab.sweep import cluster, plan
    from cohortlab.sweep.axes import of_options
    from cohortlab.sweep.chunks import Store, read_known

    part = _shard(shard)
    if dask is not None:
        if workers is not None:
            raise BadInput("--workers: is not allowed with --dask: its workers are started elsewhere")
        cluster.check(dask)
    planned = plan.make(scenario, of_options(axes, axes_file))
    rows = read_known(known)
    store = Store(out or Path("results") / f"sweep-{planned.key}", planned, chunk)
    store.open()
    try:
        _fill(store, planned, part, dask, workers or len(os.sched_getaffinity(0)), rows)
    except KeyboardInterrupt:
        print("cohortlab: interrupted: the same command goes on from here", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    left = len(store.missing())
    if left:
        print(f"results: {left} chunks are other shards': the last one to end makes {store.file}", file=sys.stderr)
        failed = store.failures_of(*part)
    else:
        print(f"results: {store.finish()}", file=sys.stderr)
        failed = store.failures()
    if failed:
        print(f"cohortlab: {failed} of {planned.points} runs failed: see the column error", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_FAILED)


def _fill(store: Store, plan: Plan, part: tuple[int, int], dask: str | None, workers: int, known: Known) -> None:
    """Simulate what is missing of this shard."""
    from cohortlab.sweep import cluster, local

    mine = [chunk for chunk in store.missing() if chunk % part[1] == part[0] - 1]
    if dask:
        done = cluster.run(plan, mine, store.size, dask, known)
    else:
        done = local.run(plan, mine, store.size, workers, known)
    with _meter(sum(store.points_of(chunk) for chunk in mine)) as tell:
        for chunk, simulated in done:
            store.keep(chunk, simulated)
            tell(store.points_of(chunk))


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
    if not found or int(found[1]) > int(found[2]):
        raise BadInput(f'--shard: "{text}" is not allowed: must be I/N, as in 2/8, with I from 1 to N')
    return int(found[1]), int(found[2])


@contextmanager
def _meter(total: int) -> Iterator[Meter]:
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        with RichProgress(*columns, console=console) as bar:
            task = bar.add_task("", total=total)
            yield lambda done: bar.update(task, advance=done)
    else:
        yield _Lines(total)


class _Rate(ProgressColumn):
    """Runs per second, which is not known before two chunks have ended."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} runs/s")


class _Lines:
    """A line for each tenth."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.began = time.monotonic()

    def __call__(self, done: int) -> None:
        before, self.done = self.done * _TENTHS // self.total, self.done + done
        now = self.done * _TENTHS // self.total
        if now > before:
            rate = self.done / max(time.monotonic() - self.began, 1e-9)
            left_s = (self.total - self.done) / rate
            told = f"{self.done} of {self.total} runs, {rate:.1f} runs/s, {left_s:.0f} s left"
            print(f"[{now * 100 // _TENTHS:3} %] {told}", file=sys.stderr)
