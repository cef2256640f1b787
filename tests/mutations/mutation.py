# SPDX-License-Identifier: GPL-2.0-only
"""What a mistake is that the tests must find, and which files do what a choice of a policy is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One line of the scheduler, changed for the worse.

    Attributes:
        of: the choice of a policy that it is about, as in ``boost unfair``, where the file does not say so (OWN_FILES).
        hangs: all that tests see of it is that one of them does not end, which is known.
    """

    about: str
    file: str
    right: str
    wrong: str
    of: str = ""
    hangs: bool = False


# The files that do what one choice of a policy is.
OWN_FILES = {
    "placement balance": ("placement.h",),
    "order vm": ("order_vm.h", "vm_rank.h", "tree.h"),
    "order task": ("order_task.h",),
    "order sbco": ("order_sbco.h", "flat.h"),
    "order credit": ("order_credit.h",),
    "order sedf": ("order_sedf.h",),
    "gang aligned": ("gang_aligned.h",),
    "gang partial": ("gang_partial.h", "set_turn.h", "sets.h"),
    "gang partial-auto": ("traffic.h", "shared_pages.h"),
    "gang partial-held": ("gang_partial_held.h",),
    "gang strict": ("gang_strict.h", "strict_seats.h"),
    "gang relaxed": ("gang_relaxed.h",),
    "gang procco": ("gang_procco.h",),
    "gang cpuco": ("gang_cpuco.h",),
    "spin boost": ("spin_boost.h",),
    "spin prefer": ("spin_prefer.h",),
    "spin yield": ("spin_yield.h",),
    "guard kernel-mode": ("guard_kernel_mode.h", "grace.h"),
    "guard halted": ("guard_halted.h", "keep.h"),
}
