# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab tune``."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.table import Table

from cohortlab import scenario as scenarios
from cohortlab.errors import EXIT_FAILED, BadInput
from cohortlab.options import Name
from cohortlab.places import PlaceError
from cohortlab.table import stdout

if TYPE_CHECKING:
    from cohortlab.scenario import Scenario
    from cohortlab.sweep.tune import Score, Setting


@click.command()
@click.argument("training", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--held-out", multiple=True, required=True, type=click.Path(path_type=Path), help="A scenario to judge by; repeat."
)
@click.option("--policy", default="cohort", show_default=True, help="The policy whose knobs are searched.")
@click.option(
    "--knob", "knobs", multiple=True, required=True, metavar="KNOB=VALUES", help="slice-us=4000,8000; may be repeated."
)
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each program.")
@click.option("--hardware", type=Name(), help="The simulated host. Default: the scenarios', or lab.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else, on standard output.")
def tune(
    training: tuple[Path, ...],
    held_out: tuple[Path, ...],
    policy: str,
    knobs: tuple[str, ...],
    seeds: int,
    hardware: str | None,
    as_json: bool,
) -> None:
    """Search for the best values of a policy's knobs on TRAINING scenarios, and judge them on others.

    Exit code: 0, whether or not something better than the defaults was found; 1 a program failed under the defaults or
    under what was found; 2 wrong input.
    """
    from cohortlab.sweep.tune import DEFAULT, Search, arguments, score

    chosen, judges = _loaded(training, hardware), _loaded(held_out, hardware)
    both = {scenario.path.resolve() for scenario in chosen} & {scenario.path.resolve() for scenario in judges}
    if both:
        raise BadInput(f"--held-out: {min(both)}: is a training scenario as well: must be another")

    def tell(setting: Setting, scored: Score) -> None:
        figure = f"{scored.over_ideal:.3f}" if scored.error is None else f"failed: {scored.error}"
        print(f"{_said(arguments(setting))}: {figure}", file=sys.stderr)

    search = Search(policy, _knobs(knobs), chosen, seeds, hardware, tell, judges)
    search.check()
    best = search.best()
    judged = score(policy, [DEFAULT, best] if best else [DEFAULT], judges, seeds, hardware)
    rows = [
        ("training", "defaults", search.scores[()]),
        ("training", "tuned", search.scores[arguments(best)]),
        ("held out", "defaults", judged[0]),
        ("held out", "tuned", judged[-1]),
    ]
    if as_json:
        print(json.dumps(_for_machines(policy, best, rows, search.tried), indent=2))
    else:
        _show(policy, arguments(best), rows)
    # Where nothing is better than the defaults, these stand in both rows.
    failed = dict.fromkeys((where, scored.error) for where, _, scored in rows if scored.error is not None)
    for where, error in failed:
        click.echo(f"failed: {where}: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(EXIT_FAILED)


def _loaded(paths: tuple[Path, ...], hardware: str | None) -> list[Scenario]:
    """Return scenarios, or raise BadInput for one that cannot be simulated: after the search it is too late."""
    from cohortlab.sim import hardware as hardwares
    from cohortlab.sim.model import Run, check
    from cohortlab.sim.policy import KERNEL_DEFAULT

    found = [scenarios.load(path) for path in paths]
    files = [scenario.path.resolve() for scenario in found]
    for at, scenario in enumerate(found):
        if files[at] in files[:at]:
            raise BadInput(f"{scenario.path}: is named twice: must be once, or its programs would count twice")
        check(scenario)
        kernel, host = scenario.defaults.kernel or KERNEL_DEFAULT, hardwares.of(scenario, hardware)
        try:
            Run(scenario, dict(scenario.turns[0]), kernel=kernel, hardware=host).as_dict()
        except PlaceError as error:
            raise BadInput(f"{scenario.path}: defaults.kernel: {error}") from None
    return found


def _knobs(texts: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        knob, equals, values = text.strip().removeprefix("--").partition("=")
        words = [word.strip() for word in values.split(",")]
        if not equals or not knob or not all(words):
            raise BadInput(f'--knob: "{text}" is not allowed: must be KNOB=VALUES, as in "slice-us=4000,8000"')
        if knob in found:
            raise BadInput(f'--knob: "{knob}" is named twice')
        found[knob] = words
    return found


def _said(args: tuple[str, ...]) -> str:
    return shlex.join(args) or "the defaults"


def _for_machines(policy: str, best: Setting, rows: list[tuple[str, str, Score]], tried: int) -> dict[str, Any]:
    found: dict[str, Any] = {"policy": policy, "best": dict(best), "tried": tried}
    for where, what, scored in rows:
        key = f"{where.replace(' ', '_')}_{what}"
        # JSON has no infinite numbers.
        over_ideal = scored.over_ideal if scored.error is None else None
        found[key] = {"over_ideal": over_ideal, "worst_of_due": scored.worst_of_due, "error": scored.error}
    return found


def _show(policy: str, args: tuple[str, ...], rows: list[tuple[str, str, Score]]) -> None:
    console = stdout()
    console.print(f"best: {policy} {_said(args)}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("scenarios")
    table.add_column("knobs")
    table.add_column("÷ ideal", justify="right")
    table.add_column("least of due", justify="right")
    for where, what, scored in rows:
        of_due = "–" if scored.worst_of_due is None else f"{scored.worst_of_due:.2f}"
        table.add_row(where, what, f"{scored.over_ideal:.3f}" if scored.error is None else "failed", of_due)
    console.print(table)
