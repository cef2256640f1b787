# SPDX-License-Identifier: GPL-2.0-only
"""Where this project's own static binaries are, and which `cohort` a figure is of."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cohortlab import shipped
from cohortlab.errors import one_line
from cohortlab.places import PlaceError

_ANSWER_S = 60
# The lab's host has it in memory, more than twice while it is sent, beside its guests.
SIZE_MAX_MB = 128
# Of ELF: the processor, and the segment that names who loads a program that is not static.
_X86_64 = 62
_PT_INTERP = 3


def find(name: str) -> Path:
    """Return the built binary ``name``: in COHORT_BIN if that is set, otherwise where `make build` puts it."""
    told = os.environ.get("COHORT_BIN")
    if not told and shipped.IS_PACKED:
        raise PlaceError(
            f"cohortlab was installed without {name}: set COHORT_BIN to the folder where `make build` put it"
        )
    path = Path(told or shipped.CHECKOUT / "build" / "bin").absolute() / name
    if not path.is_file():
        raise PlaceError(f"{path} does not exist: run `make build`, or set COHORT_BIN to the folder that has {name}")
    return path


@dataclass(frozen=True)
class Build:
    """A `cohort` as it was when this process first looked at it: what is compiled meanwhile is another.

    Attributes:
        version: what it says of itself; two builds may say the same.
        sha256: of ``content``, the whole file.
    """

    file: Path
    version: str
    sha256: str
    content: bytes = field(repr=False)

    @property
    def about(self) -> dict[str, str]:
        """What results say of it."""
        return {"file": str(self.file), "version": self.version, "sha256": self.sha256}

    def check_arguments(self, words: Sequence[str]) -> None:
        """Raise PlaceError for a verb, flags and values that it does not know.

        It reads them in their order, so it refuses them before it comes to ``--help``, with which it schedules nothing.
        """
        _ask(self.file, *words, "--help")

    def unchanged(self) -> Path:
        """Return its file, to be run where it is; raise PlaceError if that has become another."""
        try:
            is_same = self.file.read_bytes() == self.content
        except OSError:
            is_same = False
        if not is_same:
            raise PlaceError(f"{self.file}: has changed since it was first looked at: start the comparison again")
        return self.file


def build(file: Path) -> Build:
    """Return the `cohort` in ``file``, which must run on any host; always the same one, whatever is there by now.

    Raises:
        PlaceError: it does not, or is something else.
    """
    return _build(file.absolute())


@functools.cache
def _build(file: Path) -> Build:
    try:
        if not file.is_file():
            wrong = "is no file" if file.exists() else "does not exist"
            raise PlaceError(f"{file}: {wrong}: must be a cohort, as `make build` puts it into build/bin")
        if file.stat().st_size > SIZE_MAX_MB << 20:
            raise PlaceError(f"{file}: is too large: must have {SIZE_MAX_MB} MB or fewer, as after `strip`")
        content = file.read_bytes()
    except OSError as error:
        raise PlaceError(f"{file}: cannot be read: {error.strerror}") from None
    if not _is_static(content):
        allowed = "must be a static program for x86-64, as `make build` makes it"
        raise PlaceError(f"{file}: is not allowed: {allowed}")
    if not os.access(file, os.X_OK):
        raise PlaceError(f"{file}: cannot be executed: must be an executable file (chmod +x)")
    version = one_line(_ask(file, "--version"))
    if not re.match(r"cohort \d", version):
        raise PlaceError(f'{file}: is no cohort: asked for its --version, it says "{version[:100]}"')
    return Build(file, version, hashlib.sha256(content).hexdigest(), content)


def _is_static(elf: bytes) -> bool:
    """Return whether that is an ELF program for x86-64 which needs no loader, and so no library."""
    if elf[:6] != b"\x7fELF\x02\x01":
        return False
    try:
        (machine,) = struct.unpack_from("<H", elf, 0x12)
        (first,) = struct.unpack_from("<Q", elf, 0x20)
        size, count = struct.unpack_from("<HH", elf, 0x36)
        segments = {struct.unpack_from("<I", elf, first + number * size)[0] for number in range(count)}
    except (struct.error, OverflowError):
        return False
    return bool(machine == _X86_64) and _PT_INTERP not in segments


def _ask(file: Path, *words: str) -> str:
    """Return what a `cohort` prints, here and now."""
    try:
        done = subprocess.run(
            [str(file), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_ANSWER_S,
        )
    except OSError as error:
        raise PlaceError(f"{file}: does not start: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise PlaceError(f"{file}: does not end within {_ANSWER_S} s: {words[0]}") from None
    if done.returncode != 0:
        said = one_line(done.stderr or done.stdout)[:300] or "nothing"
        raise PlaceError(f"{file}: {words[0]} ended with {done.returncode}: it said {said}")
    return done.stdout
