# SPDX-License-Identifier: GPL-2.0-only
"""One lab at a time: two on one machine would take each other's CPUs, and both would measure that."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from cohortlab.places import ProgressFn

# Locked by who has the turn, for itself alone; and by all that share one, together. Each says who it is in its own.
_ALONE = "turn"
_SHARED = "shared-turn"
# What was the file of those that share when a turn began: they share an earlier one.
_EARLIER = "earlier-turn-"
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

    The turn lasts until every process that inherited the descriptor has ended. With ``share``, do not wait: whoever has
    a turn alone after that waits for this one as well. Those that come to share while he waits for others are not
    waited for, or there might be one at any time: they share his turn.

    Raises:
        OSError: the folder ``runs`` cannot be written to.
    """
    if share:
        return _join(runs / _SHARED)
    descriptor = _opened(runs / _ALONE)
    tell = time.monotonic()
    is_ours = False
    try:
        while True:
            if not is_ours and (is_ours := _is_ours(descriptor)):
                # Until it is said who has it, nobody shall be told, and end, the one before.
                os.ftruncate(descriptor, 0)
                _set_aside(runs)
            who = _who_shares_an_earlier_one(runs) if is_ours else _holder(descriptor)
            if who is None:
                return descriptor
            if time.monotonic() >= tell:
                progress(f"waiting for another lab on this machine to end, or to be ended ({who})", None)
                tell += _TELL_S
            time.sleep(_LOOK_S)
    except BaseException:
        os.close(descriptor)
        raise


def is_free(runs: Path) -> bool:
    """Return whether no lab of this cache runs just now."""
    for file in (runs / _ALONE, runs / _SHARED, *runs.glob(f"{_EARLIER}*")):
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
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


def _join(file: Path) -> int:
    """Take the lock of those who share, together with all others of them; return its file's descriptor."""
    while True:
        sharers = _opened(file)
        try:
            if _is_ours(sharers):
                # The one who is named there has ended.
                os.ftruncate(sharers, 0)
            # Waits for a moment at most: nobody else keeps this lock for itself alone.
            fcntl.flock(sharers, fcntl.LOCK_SH)
            # Set aside meanwhile, it is removed soon, and nobody would wait for who has it.
            if _is_there(file, sharers):
                return sharers
        except BaseException:
            os.close(sharers)
            raise
        os.close(sharers)


def _is_there(file: Path, descriptor: int) -> bool:
    """Return whether what is open is still the file of that name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _set_aside(runs: Path) -> None:
    """Let those that come to share from now on, and share the turn that begins, have a file of their own."""
    with suppress(FileNotFoundError):
        (runs / _SHARED).rename(runs / f"{_EARLIER}{secrets.token_hex(8)}")


def _who_shares_an_earlier_one(runs: Path) -> str | None:
    """Return who has to end before a turn is ours alone; None: nobody. Asked by who has the turn, so by one at a time.

    Also those of a turn that nobody had in the end are waited for.
    """
    for file in sorted(runs.glob(f"{_EARLIER}*")):
        sharers = _opened(file)
        try:
            if not _is_ours(sharers):
                return f"of those that share, the last to come was {_holder(sharers)}"
            file.unlink()
        finally:
            os.close(sharers)
    return None


def _is_ours(descriptor: int) -> bool:
    """Take the lock for us alone, if nobody has it; return whether it is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    return os.pread(descriptor, 300, 0).decode(errors="replace") or "unknown"
