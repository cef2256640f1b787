# SPDX-License-Identifier: GPL-2.0-only
"""Saved states of booted labs: the next lab of the same makings is there in a second instead of ten.

A state is good for the very same machine alone: the emulator with its whole command line, everything that the host and
its guests boot from, the lab's own code, and this boot of this machine, whose time stamp counter the lab reads.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from cohortlab.lab import cache, guest, sampling
from cohortlab.lab.agent import AgentError, Job, Machine
from cohortlab.lab.command import Boot, Command
from cohortlab.lab.emulator import Emulator
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.places import PlaceCrashed, PlaceError, ProgressFn

# "off": boot every time.
VARIABLE = "COHORT_LAB_STATE"
# A state is as large as what its host and guests use of their memory, some 500 MB: so many are kept.
KEPT = 6
# Whatever else needs room has it first.
_FREE_MIN = 2 << 30
# Emulators whose restored labs were tried: bench/emulator/snapshot.py.
_TRIED = ("patched", "own")
_ANSWER_S = 60
# Nobody is at work any more on what has not changed for so long.
_LEFT_S = 3600
# How much longer or shorter a PAUSE may take than when the pause filter was set: beyond, it is set anew by a boot.
_PAUSE_SLACK = 0.1
# Fewer cannot be timed so well. Without a filter there are none.
_PAUSES_MIN = 300
_PREFIX = "state-"


class State:
    """A saved state in the cache, which may not be there yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def folder(self) -> Path:
        return cache.root() / self.name

    def save(self, emulator: Emulator, guests: Sequence[Guest]) -> None:
        """Save the state of a lab that is up and idle, which goes on after that.

        Raises:
            PlaceCrashed: it could not be saved.
        """

        if shutil.disk_usage(cache.root()).free < _FREE_MIN:
            raise PlaceCrashed(f"{cache.root()}: there is no room for its state: must be {_FREE_MIN >> 30} GB or more")

        def write(folder: Path) -> None:
            emulator.save(folder)
            (folder / "guests.json").write_text(json.dumps({guest.config.name: guest.pid() for guest in guests}))

        try:
            cache.built(self.name, write, durable=False)
        except OSError as error:
            raise PlaceCrashed(f"{self.folder}: cannot be written: {error.strerror}") from None

    def restore(self, command: Command, boot: Boot, progress: ProgressFn) -> tuple[Emulator, dict[str, Job]]:
        """Return the lab as it was saved, and the guests' jobs by name.

        Raises:
            PlaceCrashed: it did not come up again, or is of no use now.
        """
        try:
            os.utime(self.folder)  # the ones that are used are kept
            emulator = Emulator.start(command, boot, progress, state=self.folder)
        except OSError as error:
            raise PlaceCrashed(f"{self.folder}: cannot be read: {error.strerror}") from None
        try:
            jobs = {
                name: Job(emulator.host, f"vm-{name}", int(pid))
                for name, pid in json.loads((self.folder / "guests.json").read_text()).items()
            }
            machines = [emulator.host, *(guest.machine(emulator.host, name) for name in jobs)]
            # Not as a context manager: that would wait for the others. They end when the lab is closed.
            pool = ThreadPoolExecutor(len(machines))
            try:
                list(pool.map(_tell_date, machines))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
            check_pause_filter(emulator.host)
        except (AgentError, TimeoutError, OSError, ValueError) as error:
            emulator.close()
            raise PlaceCrashed(str(error)) from None
        except BaseException:
            emulator.close()
            raise
        return emulator, jobs

    def remove(self) -> None:
        _remove(self.folder)


def of(command: Command, boot: Boot, configs: Sequence[GuestConfig]) -> State | None:
    """Return where the state of such a lab is or will be, or None if it is to boot every time.

    Raises:
        PlaceError: COHORT_LAB_STATE has another value than "off".
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "off"):
        raise PlaceError(f'{VARIABLE}: "{wanted}" is not allowed: must be off, or not set')
    if wanted or boot.accel != "tcg" or command.qemu.kind not in _TRIED:
        return None
    return State(f"{_prefix()}{_key(command, configs)}")


def tidy() -> None:
    """Remove the states of this machine's earlier boots, and all but the last used ones of this boot."""
    states = {}
    for folder in cache.root().glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else has just removed it
            states[folder] = folder.stat().st_mtime
    ours = sorted((folder for folder in states if folder.name.startswith(_prefix())), key=lambda one: -states[one])
    for folder in states.keys() - set(ours[:KEPT]):
        _remove(folder)
    for left in (*cache.root().glob(f".building-{_PREFIX}*"), *cache.root().glob(f".lock-{_PREFIX}*")):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_S:
                _remove(left)


def _remove(path: Path) -> None:
    """Remove a folder; or a file, should there be one in its place."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def _prefix() -> str:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{_PREFIX}{boot_id[:8]}-"


def _key(command: Command, configs: Sequence[GuestConfig]) -> str:
    """Return a name for all that the state depends on."""
    digest = hashlib.sha256()
    # An image is named by its recipe, not by its contents; further disks are somebody's.
    files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in command.files]
    digest.update(repr((command.qemu, command.argv, files, configs)).encode())
    digest.update(command.initrd)
    # What is done to a lab while it boots.
    for source in sorted(Path(inspect.getfile(State)).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def _tell_date(machine: Machine) -> None:
    """Let a machine that stood still know how late it is."""
    machine.check(f"date --set=@{time.time():.3f}", _ANSWER_S)


def check_pause_filter(host: Machine) -> None:
    """Raise PlaceCrashed if the processor's speed is no longer the one for which the pause filter was set."""
    count, then_ps = sampling.pause_filter(host)
    if count < _PAUSES_MIN:
        return
    now_ps = int(host.check(f"cohort-lab-agent ps-per-pause {count}", _ANSWER_S))
    if abs(now_ps - then_ps) > _PAUSE_SLACK * then_ps:
        raise PlaceCrashed(f"a PAUSE takes {now_ps / 1000:.0f} ns, it took {then_ps / 1000:.0f} ns")
    host.write(sampling.PS_PER_PAUSE, f"{now_ps}\n")
