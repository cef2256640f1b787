# SPDX-License-Identifier: GPL-2.0-only
"""A little work in all guests at once, to see whether a lab that came up holds."""

from __future__ import annotations

from collections.abc import Sequence

from cohortlab.lab.emulator import Emulator
from cohortlab.lab.guest import Guest
from cohortlab.places import PlaceCrashed

# Locks, wake-ups and TLB flushes for a moment.
_WORK = "hackbench -g 1 -l 200 -f 5 && stress-ng --quiet --tlb-shootdown 1 --tlb-shootdown-ops 50"
_TIMEOUT_S = 300


def do(emulator: Emulator, guests: Sequence[Guest]) -> None:
    """Work in all guests; raise PlaceCrashed if one does not get done, or if the host's kernel complains."""
    jobs = [guest.machine.spawn("work", _WORK) for guest in guests]
    for job in jobs:
        rc = job.wait(_TIMEOUT_S)
        if rc != 0:
            how = "did not end" if rc is None else f"ended with {rc}"
            raise PlaceCrashed(f"{job.machine.name}: its work {how}; {emulator.last_words()}")
    complaints = emulator.new_complaints(last=True)
    if complaints:
        raise PlaceCrashed(f"the host's kernel complains: {complaints[0]}")
