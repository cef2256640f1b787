# SPDX-License-Identifier: GPL-2.0-only
"""Which QEMU is the first level's machine.

In software there are three, best first. They differ in what they get wrong of a processor, and figures of one say
nothing about figures of another: every result names the one it comes from.

- ``patched``: built from Debian's source with the patches of lab/emulator (see qemu_build).
- ``cured``: Debian's binary with one byte changed (see ignne).
- ``stock``: Debian's binary as it is.

Who works on the patches names a binary of theirs by its path: ``own``, taken for a patched one.

Under KVM the processor is real and Debian's binary serves as it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from cohortlab.errors import one_line
from cohortlab.lab import cache, ignne, qemu_build
from cohortlab.lab.image import Image
from cohortlab.lab.kinds import COSTS, Kind
from cohortlab.places import PlaceError, PlaceFailed

KINDS: tuple[Kind, ...] = get_args(Kind)[:-1]
# Names the one to use, or is the path of a binary; by default it is the best that is there.
VARIABLE = "COHORT_EMULATOR"
# So many are kept, of as many versions: who goes back to one need not wait for minutes until it is built again.
_KEPT = 4


@dataclass(frozen=True)
class Qemu:
    """An emulator that can be started.

    Attributes:
        argv: the start of its command line; QEMU's own options follow.
        env: what its environment must have.
        why_not: why it is not the best kind; empty if it is.
    """

    kind: Kind
    version: str
    build: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    why_not: str = ""

    @property
    def name(self) -> str:
        """What reports call it; two of the same name behave alike."""
        return f"QEMU {self.version} {self.kind}{f' ({self.build})' if self.build else ''}"

    @property
    def has_pause_filter(self) -> bool:
        """Whether its CPU lets a guest spin for a while before PAUSE exits, as hardware does."""
        return self.kind in ("patched", "own")

    @property
    def remark(self) -> str:
        """What using it costs and what would be better; empty for the best."""
        if not COSTS[self.kind] or not self.why_not:
            return ""
        return f"the lab's emulator is {self.name}: {COSTS[self.kind]}; {self.why_not}"


def choose(image: Image, accel: str) -> Qemu:
    """Return the emulator for ``accel``, "kvm" or "tcg": what COHORT_EMULATOR names, else the best there is.

    Raises:
        PlaceError: COHORT_EMULATOR names one that does not exist or is not there.
    """
    chosen = _choose(image, accel)
    # Only now: the one that is used goes first.
    for prefix in ("cured-", "qemu-"):
        cache.tidy(prefix, _KEPT)
    return chosen


def _choose(image: Image, accel: str) -> Qemu:
    if accel == "kvm":
        return _debian(image, "stock", image.qemu)
    if os.sep in os.environ.get(VARIABLE, ""):
        return _own(image, Path(os.environ[VARIABLE]).absolute())
    wanted = _wanted()
    why_not = "" if wanted else "`make emulator` builds a better one"
    if wanted in ("patched", None):
        built = qemu_build.built()
        try:
            if built:
                return _started(image, "patched", built / qemu_build.BINARY, built.name.rpartition("-")[2])
        except PlaceError as error:
            if wanted:
                raise
            why_not = f"{error}: remove its folder, then run `make emulator`"
        if wanted:
            raise PlaceError(f"{VARIABLE}={wanted}: it is not built yet: run `make emulator`")
    if wanted in ("cured", None):
        try:
            return _debian(image, "cured", _cured(image), why_not)
        except ignne.NotExpected as error:
            why_not = f"{image.qemu.name} cannot be cured: {error}; `make emulator` builds one that needs no cure"
            if wanted:
                raise PlaceError(f"{VARIABLE}={wanted}: {why_not}") from None
    return _debian(image, "stock", image.qemu, why_not)


def _wanted() -> Kind | None:
    text = os.environ.get(VARIABLE, "")
    wanted = next((kind for kind in KINDS if kind == text), None)
    if text and wanted is None:
        raise PlaceError(f'{VARIABLE}: "{text}" is not allowed: must be one of {", ".join(KINDS)}, or a path')
    return wanted


def _own(image: Image, binary: Path) -> Qemu:
    cache.keep_folder_of(binary)  # it may be an earlier build
    try:
        return _started(image, "own", binary, hashlib.sha256(binary.read_bytes()).hexdigest()[:8])
    except OSError as error:
        raise PlaceError(f"{VARIABLE}: {binary}: cannot be read: {error.strerror}") from None


def _cured(image: Image) -> Path:
    """Return the cured copy of the image's QEMU, made when the image is new."""

    def make(folder: Path) -> None:
        copy = folder / image.qemu.name
        copy.write_bytes(ignne.cure(image.qemu.read_bytes()))
        copy.chmod(0o755)

    return cache.built(f"cured-{image.root.parent.name}", make) / image.qemu.name


def _debian(image: Image, kind: Kind, binary: Path, why_not: str = "") -> Qemu:
    return _started(image, kind, binary, "", why_not)


def _started(image: Image, kind: Kind, binary: Path, build: str, why_not: str = "") -> Qemu:
    argv, env = image.command(binary), image.environment()
    done = subprocess.run([*argv, "--version"], capture_output=True, text=True, env=os.environ | env, check=False)
    version = re.search(r"QEMU emulator version (\S+)", done.stdout)
    if kind == "own" and (done.returncode != 0 or version is None):
        said = one_line(done.stderr or done.stdout) or "nothing"
        raise PlaceError(f"{VARIABLE}: {binary}: is no qemu-system-x86_64: asked for its version, it says: {said}")
    if done.returncode != 0 or version is None:
        raise PlaceFailed(one_line(f"{binary}: the emulator does not start: {done.stderr}"))
    return Qemu(kind, version[1], build, tuple(argv), env, why_not)
