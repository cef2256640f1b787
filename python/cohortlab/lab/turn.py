# SPDX-License-Identifier: GPL-2.0-only
"""One lab at a time: two on one machine would take each other's CPUs, and both would measure that."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from cohortlab.places import ProgressFn

_LOOK_S = 0.5
# How often who waits is told so.
_TELL_S = 600


class Turn:
    """The turn of labs that follow one another, such as boots after a crash: nobody comes in between."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def take(self, runs: Path, progress: ProgressFn, *, share: bool = False) -> int:
        """Return a file descriptor as ``take`` does, at once if the turn is ours already."""
        if self._descriptor is None:
            self._descriptor = take(runs, progress, share=share)
        return os.dup(self._descriptor)

    def end(self) -> None:
        """Let others have their turn, when all that inherited a descriptor have ended as well."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def take(runs: Path, progress: ProgressFn, *, share: bool = False) -> int:
    """Wait until no lab of this cache runs, however long, then return a file descriptor that says that one does.

    The turn lasts until every process that inherited the descriptor has ended. With ``share``, do not wait.
    """
    descriptor = os.open(runs / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    tell = time.monotonic()
    try:
        while not _is_ours(descriptor) and not share:
            if time.monotonic() >= tell:
                progress(
                    f"waiting for another lab on this machine to end, or to be ended ({_holder(descriptor)})", None
                )
                tell += _TELL_S
            time.sleep(_LOOK_S)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def announce(descriptor: int, who: str) -> None:
    """Write who has the turn, for those who wait. One that shares another's has none."""
    if _is_ours(descriptor):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, who.encode(), 0)


def _is_ours(descriptor: int) -> bool:
    """Take the lock, if nobody has it; return whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 300, 0).decode(errors="replace") or "unknown"
