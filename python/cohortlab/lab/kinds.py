# SPDX-License-Identifier: GPL-2.0-only
"""The kinds of emulator: what each costs, in the words of all who tell it, and how results name them.

docs/lab-measurements.md has the figures (Cost of an exit; Soak), docs/lab.md the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from cohortlab.places import LATER

Kind = Literal["patched", "cured", "stock", "own"]

_EXITS = (
    "a VM exit costs eight to nine times as much as with the patched one, the TLB is forgotten at every exit, "
    "and every PAUSE of a guest exits"
)
_DEATHS = "a host of two CPUs may die within minutes, often while it boots"

# What the lab loses with each but the first.
COSTS: Mapping[Kind, str] = {"patched": "", "own": "", "cured": _EXITS, "stock": f"{_DEATHS}; {_EXITS}"}
# ... without the first, as long as nobody has tried the cure.
UNPATCHED = f"Debian's QEMU, cured: {_EXITS}; stock, if it cannot be cured: {_DEATHS}, besides"

_KINDS: tuple[Kind, ...] = get_args(Kind)
# As Qemu.name and the place "host" write it.
_NAME = re.compile(rf"QEMU \d[\w.+~-]*(?: ({'|'.join(_KINDS)})\b)?(?: \(\w+\))?")


def named_in(text: str) -> tuple[str, ...]:
    """Return the emulators that a text names, each once."""
    return tuple(dict.fromkeys(found[0] for found in _NAME.finditer(text)))


def of_place(place: Mapping[str, str]) -> tuple[str, ...]:
    """Return the emulators that a result's place names, each once; several if it had another after a crash."""
    names = place.get("emulator", "").split(LATER)
    return tuple(dict.fromkeys(name for name in names if name not in ("", "unknown")))


def kind_of(name: str) -> Kind | None:
    """Return the kind that an emulator's name says; None if it says none, as that of a host's own QEMU."""
    found = _NAME.fullmatch(name)
    return next((kind for kind in _KINDS if found and kind == found[1]), None)


def emulated(place: Mapping[str, str]) -> tuple[Kind, ...]:
    """Return the kinds of emulator that a result's place had; none where the processor is real."""
    if "tcg" not in place.get("accelerator", ""):
        return ()
    kinds = {kind_of(name) for name in of_place(place)}
    return tuple(kind for kind in _KINDS if kind in kinds)


def cost(place: Mapping[str, str]) -> str:
    """Return what a result's emulator costs; empty for the best, and where the processor is real."""
    return "; ".join(COSTS[kind] for kind in emulated(place) if COSTS[kind])
