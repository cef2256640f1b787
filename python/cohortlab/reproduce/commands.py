# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab reproduce``."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cohortlab.errors import EXIT_FAILED, BadInput
from cohortlab.folders import folder_for
from cohortlab.reproduce import load
from cohortlab.table import stdout


@click.command()
@click.argument("wanted", metavar="PAPER[:EXPERIMENT]|all", required=False)
@click.option("--list", "listed", is_flag=True, help="Print the papers' experiments, and nothing else.")
@click.option("--rounds", type=click.IntRange(1, 100), help="Seeds. Default: the experiment's.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Threads of this process. Default: its CPUs.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the report.")
def reproduce(wanted: str | None, listed: bool, rounds: int | None, workers: int | None, out: Path | None) -> None:
    """Simulate what a paper measured, and show its figures beside ours.

    Prints paper, ours and their ratio, and in words which finding holds; writes report.html and report.md.

    Exit code: 0 all was simulated, 1 a run failed, 2 wrong input.
    """
    if listed:
        for label in load.labels():
            click.echo(f"{label:24} {load.find(label)[0].file.title}")
        return
    if wanted is None:
        raise BadInput(f"PAPER is missing: must be one of {', '.join([load.ALL, *load.labels()])}")
    experiments = load.find(wanted)
    folder = folder_for(out, "reproduce")

    # Only now: they take as long to load as a run takes, and wrong input should not have to wait for it.
    from cohortlab.reproduce import outcome, report, runs

    jobs = {experiment.label: runs.jobs(experiment, rounds) for experiment in experiments}
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    outcomes = []
    console = stdout()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        meter = bar.add_task("simulating", total=sum(map(len, jobs.values())))
        lock = threading.Lock()

        def done() -> None:
            with lock:
                bar.advance(meter)

        for experiment in experiments:
            measured = runs.run(jobs[experiment.label], count, done)
            outcomes.append(outcome.of(experiment, measured, rounds or experiment.file.rounds))
    # First: nobody may be listening any more.
    report.write(outcomes, folder)
    for found in outcomes:
        _show(console, found)
    console.print(f"{outcome.score(outcomes)}.")
    click.echo(f"written: {folder / 'report.html'}, {folder / 'report.md'}", err=True)
    errors = [text for found in outcomes for text in report.failures(found)]
    for text in errors:
        click.echo(text, err=True)
    if errors:
        raise click.exceptions.Exit(EXIT_FAILED)


def _show(console: Console, found: object) -> None:
    from cohortlab.reproduce import report
    from cohortlab.reproduce.outcome import Outcome

    assert isinstance(found, Outcome)
    table = Table(title=f"{found.experiment.label}: {found.experiment.file.title}", title_justify="left")
    for name in ("figure", "where"):
        table.add_column(name)
    for name in ("paper", "ours", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("")
    for figure in found.figures:
        numbers = [report.published(figure), report.number(figure.ours), report.number(figure.ratio)]
        name = f"{figure.table.name}, {figure.table.unit}" if figure.table.unit else figure.table.name
        table.add_row(name, figure.table.place, *numbers, report.verdict(figure))
    for own in found.own:
        numbers = ["", own.missing or report.number(own.ours), ""]
        goal = "" if own.table.goal is None else f"goal {report.number(own.table.goal)}"
        table.add_row(own.table.name, "", *numbers, goal)
    console.print(table)
    for finding in found.findings:
        console.print(f"{report.holds(finding)}: {finding.table.says} ({finding.table.place})", highlight=False)
        if reason := report.why(finding):
            console.print(f"    {reason}", highlight=False)
    console.print()
