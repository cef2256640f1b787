# SPDX-License-Identifier: GPL-2.0-only
"""One lab at a time: two on one machine would take each other's CPUs, and both would measure that."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from cohortlab.places import PlaceFailed, ProgressFn

_WAIT_S_MAX = 3600
_LOOK_S = 0.5


def take(runs: Path, progress: ProgressFn, *, share: bool = False) -> int:
    """Wait until no lab of this cache runs, then return a file descriptor that says that one does.

    The turn lasts until every process that inherited the descriptor has ended. With ``share``, do not wait.
    """
    descriptor = os.open(runs / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    begin = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if share:
                return descriptor
        else:
            return descriptor
        if not told:
            progress(f"waiting for another lab on this machine to end ({_holder(descriptor)})", None)
            told = True
        if time.monotonic() - begin > _WAIT_S_MAX:
            os.close(descriptor)
            raise PlaceFailed(f"another lab runs on this machine since {_WAIT_S_MAX} s: end it, or set COHORT_CACHE")
        time.sleep(_LOOK_S)


def announce(descriptor: int, who: str) -> None:
    """Write who has the turn, for those who wait."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, who.encode(), 0)


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 300, 0).decode(errors="replace") or "unknown"
