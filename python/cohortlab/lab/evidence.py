# SPDX-License-Identifier: GPL-2.0-only
"""What a host that hangs leaves behind, for whoever looks for the cause: its processors as the emulator sees them."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from cohortlab.lab import cache, control
from cohortlab.places import PlaceCrashed, PlaceError
from cohortlab.results import write_atomically

# Where each processor is, and whether its timer is armed and its interrupts are open; twice, to see what moves.
_QUESTIONS = ("info status", "info cpus", "info registers -a", "info pic")
_APART_S = 0.5
_KEPT = 10


def take(folder: Path, console: str) -> Path | None:
    """Write the state of the emulator that runs in ``folder`` into a file of the cache; None if it does not answer, or
    there is no room."""
    try:
        answers = _answers(folder)
        time.sleep(_APART_S)
        answers += _answers(folder)
        lost = cache.root() / "lost"
        lost.mkdir(exist_ok=True)
        for old in sorted(lost.glob("*.txt"))[: 1 - _KEPT]:
            old.unlink(missing_ok=True)
        file = lost / f"{datetime.now():%Y%m%d-%H%M%S-%f}.txt"
        write_atomically(file, "\n".join([*answers, "console:", console]).encode())
    except (PlaceCrashed, PlaceError, OSError):
        # That the host hangs is what has to be told, also where nothing can be written.
        return None
    return file


def _answers(folder: Path) -> list[str]:
    answers = control.monitor(folder, _QUESTIONS)
    pcpus = "".join(answers).count("CPU #")
    return answers + control.monitor(folder, [f"info lapic {number}" for number in range(pcpus)])
