# SPDX-License-Identifier: GPL-2.0-only
"""``cohortlab emulator``: build the lab's emulator, and say which one the lab uses."""

from __future__ import annotations

import sys

import click

from cohortlab import kvm
from cohortlab.lab import image, kernels, qemu, qemu_build, vmlinux
from cohortlab.places import PlaceError
from cohortlab.progress import Steps


@click.command()
@click.option("--or-else", is_flag=True, help="If it cannot be built, say so and end well: Debian's own serves, cured.")
def emulator(or_else: bool) -> None:
    """Build the lab's emulator, once, which takes some minutes; say which one the lab uses."""
    say = Steps(sys.stderr)
    why_not = ""
    if or_else and kvm.probe().nested:
        say("not needed: the lab runs under KVM", None)
    else:
        try:
            qemu_build.build(say)
        except (PlaceError, OSError) as error:
            if not or_else:
                raise
            why_not = str(error)
            say(why_not, None)
    say("the lab's image and kernel (fetched once)", None)
    root = image.image()
    vmlinux.bootable(kernels.kernel(None).vmlinuz)
    chosen = qemu.choose(root, "tcg")
    why_not = why_not or chosen.why_not
    print(f"the lab's emulator is {chosen.name}" + (f", since {why_not}" if why_not else ""))
