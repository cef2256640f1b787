# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab sweep``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from cohortlab.errors import EXIT_FAILED, EXIT_INTERRUPTED, BadInput

if TYPE_CHECKING:
    from cohortlab.sweep.chunks import Known, Store, Tell
    from cohortlab.sweep.plan import Plan

# Enough for a chunk's overhead to be little, few enough for every worker to have one.
CHUNK = 16
_TENTHS = 10
# Of what takes less than this, but for the runs, nothing is shown.
_PATIENCE_S = 5.0
# Where there is no bar, a line at least so often.
_TELL_S = 60.0


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
    given = of_options(axes, axes_file)
    with _meter(plan.tries(given), "values", "trying: ", _PATIENCE_S) as tell:
        planned = plan.make(scenario, given, tell)
    rows = read_known(known)
    store = Store(out or Path("results") / f"sweep-{planned.key}", planned, chunk)
    store.open()
    try:
        _fill(store, planned, part, dask, workers or len(os.sched_getaffinity(0)), rows)
    except KeyboardInterrupt:
        print("cohortlab: interrupted: the same command goes on from here", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    left = len(store.missing(_reading))
    if left:
        print(f"results: {left} chunks are other shards': the last one to end makes {store.file}", file=sys.stderr)
        failed = store.failures_of(*part)
    else:
        print(f"results: {store.finish(_reading)}", file=sys.stderr)
        failed = store.failures()
    if failed:
        print(f"cohortlab: {failed} of {planned.points} runs failed: see the column error", file=sys.stderr)
        raise click.exceptions.Exit(EXIT_FAILED)


def _fill(store: Store, plan: Plan, part: tuple[int, int], dask: str | None, workers: int, known: Known) -> None:
    """Simulate what is missing of this shard."""
    from cohortlab.sweep import cluster, local

    mine = [chunk for chunk in store.missing(_reading) if chunk % part[1] == part[0] - 1]
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


def _reading(total: int) -> AbstractContextManager[Tell]:
    """Show how many of the chunks' files are read: of a million points that takes minutes."""
    return _meter(total, "chunks", "reading: ", _PATIENCE_S)


@contextmanager
def _meter(total: int, what: str = "runs", doing: str = "", after_s: float = 0.0) -> Iterator[Tell]:
    """Show how far it is; what is over before ``after_s`` seconds have passed is not shown at all."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(total, what, doing, after_s)
        return
    columns: list[str | ProgressColumn] = [BarColumn(), MofNCompleteColumn(), _Rate(what), TimeRemainingColumn()]
    if doing:
        columns.insert(0, doing)
    bar = RichProgress(*columns, console=console, transient=bool(doing))
    task = bar.add_task("", total=total)
    begins = time.monotonic() + after_s

    def tell(done: int) -> None:
        if time.monotonic() >= begins:
            bar.start()
        bar.update(task, advance=done)

    if not after_s:
        bar.start()
    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()


class _Rate(ProgressColumn):
    """Runs, or whatever is counted, per second, which is not known before two of them have ended."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} {self.what}/s")


class _Lines:
    """A line for each tenth, and one now and then while there is none."""

    def __init__(self, total: int, what: str, doing: str, after_s: float) -> None:
        self.total = total
        self.what = what
        self.doing = doing
        self.done = 0
        self.began = time.monotonic()
        self.begins = self.began + after_s
        self.told = self.began

    def __call__(self, done: int) -> None:
        before, self.done = self.done * _TENTHS // self.total, self.done + done
        now = time.monotonic()
        is_due = self.done * _TENTHS // self.total > before or now - self.told >= _TELL_S
        if now < self.begins or not is_due:
            return
        self.told = now
        rate = self.done / max(now - self.began, 1e-9)
        left_s = (self.total - self.done) / rate
        told = f"{self.done} of {self.total} {self.what}, {rate:.1f} {self.what}/s, {left_s:.0f} s left"
        print(f"[{self.done * 100 // self.total:3} %] {self.doing}{told}", file=sys.stderr)
