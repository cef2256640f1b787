# SPDX-License-Identifier: GPL-2.0-only
"""Things that are built once: a folder each, complete or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from cohortlab.places import PlaceError


def folder() -> Path:
    """Return where the cache folder is or would be."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("COHORT_CACHE") or Path(base) / "cohort").absolute()


def root() -> Path:
    """Return the cache folder, which exists from now on."""
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(f"{path}: cannot be used as cache folder: {error.strerror}; set COHORT_CACHE") from None
    return path


def built(name: str, build: Callable[[Path], None]) -> Path:
    """Return the cached folder ``name``; if there is none, let ``build(folder)`` fill it first.

    The folder appears under its name only when ``build`` has returned, and two processes do not build it twice.
    """
    path = root() / name
    if path.is_dir():
        return path
    # One lock for each: building the emulator takes minutes, for which nobody else should have to wait.
    with (root() / f".lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():
            return path
        prefix = f".building-{name}~"
        # Leftovers of a build that was killed: nobody builds this now, we hold the lock. (No name has a tilde.)
        for leftover in root().glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=prefix, dir=root()))
        try:
            build(building)
            building.chmod(0o755)
            building.rename(path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return path
