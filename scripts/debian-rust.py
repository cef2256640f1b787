# SPDX-License-Identifier: GPL-2.0-only
"""Prints the folder of Debian 13's cargo and rustc, unpacked into the cache folder if they are not there yet.

Debian 12's Rust is too old. Nothing is installed and no root rights are needed: the programs are told where their own
loader and libraries lie. They compile for this machine, with its linker and its C library.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from cohortlab.errors import one_line
from cohortlab.lab import cache
from cohortlab.lab.apt import SUITE, Apt, unpack
from cohortlab.places import PlaceError

PACKAGES = ("cargo", "rust-clippy", "rustc", "rustfmt")
# The linker and the C library are the machine's; saying that they are installed spares downloading them.
PRESENT = ("binutils", "gcc", "libc6-dev")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
NAME = f"rust-{SUITE}"


def build(folder: Path) -> None:
    apt = Apt(folder / "apt")
    apt.folder.mkdir()
    (apt.folder / "status").write_text("".join(_installed(name) for name in PRESENT))
    apt.update()
    for package in apt.fetch(PACKAGES, with_dependencies=True):
        unpack(package, folder)
    for program in (folder / "usr/bin").iterdir():
        if program.read_bytes()[:4] == b"\x7fELF":
            _relocate(program, cache.root() / NAME)
    shutil.rmtree(apt.folder)


def _installed(name: str) -> str:
    return (
        f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 99:0\n"
        "Maintainer: none\nProvides: libc-dev\nDescription: the machine's own\n\n"
    )


def _relocate(program: Path, root: Path) -> None:
    """Make a program use the loader and the libraries below ``root``."""
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    # An RPATH, unlike the newer RUNPATH, holds for the libraries of the libraries too.
    argv = ["patchelf", "--force-rpath", "--set-rpath", str(root / LIBRARIES), "--set-interpreter", str(loader)]
    subprocess.run([*argv, str(program)], check=True)


def rust() -> Path:
    """Return the folder of all of it, unpacked anew if it was moved with the cache folder."""
    root = cache.built(NAME, build)
    if not _runs(root / "usr/bin/cargo"):
        shutil.rmtree(root)
        root = cache.built(NAME, build)
    return root


def _runs(program: Path) -> bool:
    """Return whether a program finds its loader, whose place is written in it."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    try:
        print(rust() / "usr/bin")
    except (PlaceError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"debian-rust: {one_line(str(error))}")
