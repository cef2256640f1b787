# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab emulator``: build the lab's emulator, and say which one the lab uses."""

from __future__ import annotations

import sys

import click

from cohortlab.lab import image, qemu, qemu_build
from cohortlab.places import PlaceError
from cohortlab.progress import Steps


@click.command()
@click.option("--or-else", is_flag=True, help="If it cannot be built, say so and end well: Debian's own serves, cured.")
def emulator(or_else: bool) -> None:
    """Build the lab's emulator, once, which takes some minutes; say which one the lab uses."""
    say = Steps(sys.stderr)
    try:
        qemu_build.build(say)
    except PlaceError as error:
        if not or_else:
            raise
        print(error)
    say("the lab's image (built once)", None)
    chosen = qemu.choose(image.image(), "tcg")
    print(chosen.remark or f"the lab's emulator is {chosen.name}")
