# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab held-out``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cohortlab.heldout.load import ROUNDS_MIN, SHIPPED, load


@click.command("held-out")
@click.argument("split", type=click.Path(path_type=Path), default=SHIPPED)
@click.option("--seeds", type=click.IntRange(ROUNDS_MIN, 10_000), help="Simulated runs of each. Default: the file's.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else, on standard output.")
def held_out(split: Path, seeds: int | None, as_json: bool) -> None:
    """Simulate what the lab has measured, and say how far off it is where nobody looked before.

    SPLIT is a file that says which programs, shapes and policies gave parameters, were looked at, or are held out, and
    which rounds of the lab there are; the one that comes with cohortlab if it is not given.
    """
    found = load(split)
    # Only now: it takes long to load, and wrong input should not have to wait for it.
    from cohortlab.heldout.predict import predict
    from cohortlab.heldout.show import for_machines, lines

    if found.unnamed:
        click.echo(f"{', '.join(found.unnamed)}: name no emulator: whether it is the others' is not known", err=True)
    count = seeds or found.file.seeds
    cells, alone = predict(found, count, lambda text: click.echo(text, err=True))
    if as_json:
        print(json.dumps(for_machines(cells, alone, count), indent=2))
        return
    for line in lines(cells, alone, count):
        print(line)
