# SPDX-License-Identifier: GPL-2.0-only
"""Builds the lab's emulator: Debian's source of QEMU with the patches of lab/emulator, and only what the lab uses.

Built once, into the cache folder, under a name made of all that goes into it: source, patches, configuration.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cohortlab import shipped
from cohortlab.errors import one_line
from cohortlab.lab import cache
from cohortlab.lab.apt import Apt
from cohortlab.places import PlaceError, ProgressFn

BINARY = "qemu-system-x86_64"
RECIPE = shipped.folder("lab/emulator")
# What QEMU's configure and ninja run, and what it takes from the Python environment.
_PROGRAMS = ("gcc", "patch", "pkg-config")
_MODULES = ("mesonbuild", "ninja", "pycotap")
_DEVICES = "configs/devices/x86_64-softmmu/lab.mak"
# The environment's flags for compilers: the build's name does not say them, and whoever finds it relies on its speed.
_FLAGS = {"CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS"}
# Of ninja's lines: how many steps are done, and of how many.
_STEP = re.compile(r"\[(\d+)/(\d+)\]")


@dataclass(frozen=True)
class Recipe:
    """What lab/emulator says of the build."""

    version: str
    sha256: dict[str, str]
    configure: tuple[str, ...]
    patches: tuple[Path, ...]
    devices: Path

    @property
    def key(self) -> str:
        """Names the build: the same for the same source, patches and configuration."""
        parts = [repr((self.version, sorted(self.sha256.items()), self.configure)).encode()]
        parts += [path.read_bytes() for path in (*self.patches, self.devices)]
        return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:12]


def recipe() -> Recipe:
    data = tomllib.loads((RECIPE / "emulator.toml").read_text())
    names = (RECIPE / "series").read_text().split()
    patches = tuple(RECIPE / name for name in names)
    return Recipe(data["version"], data["sha256"], tuple(data["configure"]), patches, RECIPE / "lab.mak")


def built() -> Path | None:
    """Return the folder with the built emulator, if it was built from the recipe as it is now."""
    return cache.there(_name(recipe()))


def build(progress: ProgressFn) -> Path:
    """Return the folder with the built emulator; build it first if need be, which takes some minutes.

    Raises:
        PlaceError: it cannot be built here, or failed.
    """
    chosen = recipe()
    return cache.built(_name(chosen), lambda folder: _Build(folder, chosen, progress).run())


def _name(chosen: Recipe) -> str:
    return f"qemu-{chosen.key}"


class _Build:
    """One build, in a folder that is thrown away if it fails."""

    def __init__(self, folder: Path, chosen: Recipe, progress: ProgressFn) -> None:
        self.folder = folder
        self.recipe = chosen
        self.progress = progress
        self.source = folder / "source"
        self.output = folder / "build"

    def run(self) -> None:
        _check_tools()
        self.progress("fetching the emulator's source", None)
        archives = self._fetch()
        self._unpack(archives)
        self._configure()
        self._compile()
        shutil.copy2(self.output / BINARY, self.folder / BINARY)
        for path in (self.source, self.output, self.folder / "apt"):
            shutil.rmtree(path)

    def _fetch(self) -> list[Path]:
        apt = Apt(self.folder / "apt")
        apt.update(sources=True)
        archives = apt.fetch_source("qemu", self.recipe.version)
        wanted = []
        for name, sha256 in self.recipe.sha256.items():
            path = next((path for path in archives if path.name == name), None)
            if path is None:
                raise PlaceError(f"Debian's source of qemu {self.recipe.version} has no file {name}")
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != sha256:
                raise PlaceError(f"{name}: is not the file that lab/emulator/emulator.toml names: SHA-256 {found}")
            wanted.append(path)
        return wanted

    def _unpack(self, archives: Sequence[Path]) -> None:
        """Unpack upstream's source, then Debian's patches into it; apply these, then ours."""
        self.progress("unpacking and patching the emulator's source", None)
        upstream, debian = sorted(archives, key=lambda path: ".debian." in path.name)
        top = self.folder / "top"
        for archive, into in ((upstream, top), (debian, None)):
            with tarfile.open(archive) as tar:
                tar.extractall(into or self.source)
            if into:
                (folder,) = into.iterdir()
                folder.rename(self.source)
                into.rmdir()
        series = (self.source / "debian/patches/series").read_text().splitlines()
        theirs = [self.source / "debian/patches" / name for name in series if name and not name.startswith("#")]
        for patch in (*theirs, *self.recipe.patches):
            self._run(["patch", "--strip=1", "--silent", "--fuzz=0", f"--input={patch}"], self.source)
        shutil.copy(self.recipe.devices, self.source / _DEVICES)

    def _configure(self) -> None:
        self.progress("configuring the emulator", None)
        self.output.mkdir()
        self._run([str(self.source / "configure"), f"--python={sys.executable}", *self.recipe.configure], self.output)

    def _compile(self) -> None:
        """Run ninja, and tell how far it is."""
        words: deque[str] = deque(maxlen=40)
        argv = ["ninja", BINARY]
        out = subprocess.PIPE
        with subprocess.Popen(argv, cwd=self.output, stdout=out, stderr=subprocess.STDOUT, env=_env()) as ninja:
            assert ninja.stdout is not None, "it was asked for"
            try:
                for line in ninja.stdout:
                    words.append(line.decode(errors="replace").strip())
                    if step := _STEP.match(words[-1]):
                        self.progress("building the emulator (once)", int(step[1]) / int(step[2]))
            except BaseException:
                # Who is ended by `kill`, and not by Ctrl-C, must tell it: it ends its compilers. Nobody waits for them.
                ninja.terminate()
                raise
        if ninja.returncode != 0:
            self._failed(argv[0], [word for word in words if "error:" in word] or list(words)[-1:])

    def _run(self, argv: list[str], cwd: Path) -> None:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, env=_env(), check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip().splitlines()
            told = [line for line in said if "ERROR" in line or "FAILED" in line]
            self._failed(Path(argv[0]).name, told or said[-1:])

    def _failed(self, program: str, said: Sequence[str]) -> None:
        raise PlaceError(one_line(f"the emulator cannot be built: {program} failed: {' '.join(said[:2])[:500]}"))


def _env() -> dict[str, str]:
    """Return an environment in which the programs of this Python's environment come first, and no flags are added."""
    kept = {name: value for name, value in os.environ.items() if name not in _FLAGS}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}", "LC_ALL": "C"}


def _check_tools() -> None:
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    missing += [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if not missing and subprocess.run(["pkg-config", "--exists", "glib-2.0"], check=False).returncode != 0:
        missing = ["glib-2.0 for compiling (libglib2.0-dev)"]
    if missing:
        raise PlaceError(f"the emulator cannot be built without {', '.join(missing)}: run `make setup`")
