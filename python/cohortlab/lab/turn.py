# SPDX-License-Identifier: GPL-2.0-only
"""One lab at a time: two on one machine would take each other's CPUs, and both would measure that."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from cohortlab.places import ProgressFn

# Locked by who has the turn, for itself alone; and by all that share one, together. Each says who it is in its own.
_ALONE = "turn"
_SHARED = "shared-turn"
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

    The turn lasts until every process that inherited the descriptor has ended. With ``share``, do not wait: whoever
    takes a turn alone after that waits for this one as well.

    Raises:
        OSError: the folder ``runs`` cannot be written to.
    """
    descriptor = _opened(runs / (_SHARED if share else _ALONE))
    tell = time.monotonic()
    try:
        if share:
            _join(descriptor)
            return descriptor
        while who := _in_the_way(descriptor, runs):
            if time.monotonic() >= tell:
                progress(f"waiting for another lab on this machine to end, or to be ended ({who})", None)
                tell += _TELL_S
            time.sleep(_LOOK_S)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_free(runs: Path) -> bool:
    """Return whether no lab of this cache runs just now."""
    for name in (_ALONE, _SHARED):
        try:
            descriptor = os.open(runs / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # not there; why it cannot be looked at, whoever takes the turn is told
            continue
        try:
            if not _is_ours(descriptor):
                return False
        finally:
            os.close(descriptor)
    return True


def announce(descriptor: int, who: str) -> None:
    """Write who has the turn, or was the last to share one, for those who wait."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, who.encode(), 0)


def _opened(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _join(sharers: int) -> None:
    """Take the lock of those who share, together with all others of them."""
    if _is_ours(sharers):
        # The one who is named there has ended.
        os.ftruncate(sharers, 0)
    # Waits for a moment at most: nobody else keeps this lock for itself alone.
    fcntl.flock(sharers, fcntl.LOCK_SH)


def _in_the_way(alone: int, runs: Path) -> str | None:
    """Take the turn, if nobody has it; return who has to end before it is ours alone, or None: it is."""
    if not _is_ours(alone):
        return _holder(alone)
    # Until it is said who has it, nobody shall be told, and end, the one before.
    os.ftruncate(alone, 0)
    # Not kept: who comes to share this turn does not wait for its end. Who shares an earlier one is waited for, and
    # meanwhile nobody else takes this one.
    sharers = _opened(runs / _SHARED)
    try:
        return None if _is_ours(sharers) else f"of those that share, the last to come was {_holder(sharers)}"
    finally:
        os.close(sharers)


def _is_ours(descriptor: int) -> bool:
    """Take the lock for us alone, if nobody has it; return whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 300, 0).decode(errors="replace") or "unknown"
