# SPDX-License-Identifier: GPL-2.0-only
"""Things that are built once: a folder each, complete or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cohortlab.places import PlaceError

# Nobody is about to boot from what was not asked for in so long.
_LEFT_S = 3600
# Where the loader of the emulator ends the path of a folder, and apt a setting.
_NOT_IN_PATH = ':;"'
# Locks that this process has, together with all others that use the same: by what they use.
_in_use: dict[Path, int] = {}


def folder() -> Path:
    """Return where the cache folder is or would be; raise PlaceError if nothing tells."""
    if told := os.environ.get("COHORT_CACHE"):
        return Path(told).absolute()
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise PlaceError("there is no home folder for the cache: set HOME, or COHORT_CACHE to a folder") from None
    return (base / "cohort").absolute()


def root() -> Path:
    """Return the cache folder, which exists from now on."""
    path = folder()
    if wrong := next((character for character in _NOT_IN_PATH if character in str(path)), None):
        raise PlaceError(f"{path}: cannot be used as cache folder: must have no {wrong} in its path; set COHORT_CACHE")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceError(f"{path}: cannot be used as cache folder: {error.strerror}; set COHORT_CACHE") from None
    return path


def built(name: str, build: Callable[[Path], None], *, durable: bool = True) -> Path:
    """Return the cached folder ``name``; if there is none, let ``build(folder)`` fill it first.

    ``durable``: it is of use after the machine's next boot.

    The folder appears under its name only when ``build`` has returned, and two processes do not build it twice. Nobody
    tidies a durable one away while this process lives, or one that has inherited its ``locks``.
    """
    path = root() / name
    if durable:
        _use(path)
    if path.is_dir():
        _touch(path)
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
            if durable:
                # Or after a power cut there may be a folder of that name, with files of which nothing was written yet.
                os.sync()
            building.rename(path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return path


def there(name: str) -> Path | None:
    """Return the cached folder ``name`` as ``built`` does, or None if there is none; nothing is built or made."""
    with suppress(OSError, PlaceError):  # the cache folder is closed to this user, or there can be none
        path = folder() / name
        if path.is_dir():
            # First the lock, then the look: in between it may have been tidied away.
            _use(path)
            if path.is_dir():
                _touch(path)
                return path
    return None


def keep_folder_of(file: Path) -> None:
    """If ``file`` is in a cached folder, keep everybody from tidying that away, as ``built`` does."""
    with suppress(OSError, RuntimeError, ValueError, PlaceError):  # it is elsewhere, or nowhere; or there is no cache
        for name in file.resolve().relative_to(folder().resolve()).parts[:1]:
            there(name)


def _use(path: Path) -> None:
    """Keep everybody from tidying a folder away while this process lives."""
    if path in _in_use:
        return
    with suppress(OSError):  # nothing can be made there, and nothing locked
        # Only to be read, as another user's can be.
        _in_use[path] = os.open(path.with_name(f".use-{path.name}"), os.O_RDONLY | os.O_CREAT, 0o666)
        fcntl.flock(_in_use[path], fcntl.LOCK_SH)


def locks() -> tuple[int, ...]:
    """Return the locks of what this process uses: whoever inherits them uses it as well."""
    return tuple(_in_use.values())


def _touch(path: Path) -> None:
    """Let it be known that somebody has asked for a folder just now."""
    with suppress(OSError):  # it is another user's
        os.utime(path)


def tidy(prefix: str, kept: int) -> None:
    """Remove folders of that kind which nobody uses or has asked for in the last hour, but the ``kept`` last used.

    And what is left of builds of that kind that were killed.
    """
    used = {}
    for path in root().glob(f"{prefix}*"):
        with suppress(OSError):  # somebody else has just removed it
            used[path] = path.stat().st_mtime
    removed = []
    for path in sorted(used, key=lambda one: -used[one])[kept:]:
        # Under its lock nobody builds it meanwhile, nor finds a part of it; under the other one nobody uses it.
        with (
            suppress(OSError),
            (root() / f".lock-{path.name}").open("w") as lock,
            (root() / f".use-{path.name}").open("w") as use,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - path.stat().st_mtime > _LEFT_S:
                gone = path.rename(root() / f".building-{path.name}~gone")
                shutil.rmtree(gone, ignore_errors=True)
                removed.append(path.name)
    if removed:
        why = f"unused for an hour or more, and {kept} of the kind were used later"
        print(f"{root()}: removed {', '.join(removed)}: {why}", file=sys.stderr)
    for left in root().glob(f".building-{prefix}*"):
        name = left.name.removeprefix(".building-").rpartition("~")[0]
        # Whoever builds it has its lock.
        with suppress(OSError), (root() / f".lock-{name}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
