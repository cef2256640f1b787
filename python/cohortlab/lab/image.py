# SPDX-License-Identifier: GPL-2.0-only
"""The Debian root of both levels, as a disk image, and the emulator that it contains.

Packages are only unpacked: none of their scripts run, so no root rights, no chroot and no mounts are needed.
What scripts would have set up and somebody needs is written here.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohortlab.errors import one_line
from cohortlab.lab import cache
from cohortlab.lab.apt import SUITE, Apt, unpack
from cohortlab.places import PlaceError, PlaceFailed

# What both levels need to be a machine, then the emulator, then the guests' programs.
_PACKAGES = (
    *("base-files", "bash", "busybox-static", "coreutils", "dash", "findutils", "grep", "gzip", "kmod", "libc-bin"),
    *("mawk", "mount", "procps", "sed", "tar", "util-linux"),
    *("qemu-system-x86", "seabios"),
    *("dbench", "pbzip2", "rt-tests", "stress-ng"),
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/hostname": "lab\n",
}
_LINKS = {"usr/bin/awk": "mawk"}
# Of no use in a machine without users.
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/zoneinfo")
# What the emulator needs of the root; the rest of it exists in the disk image only.
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_PROGRAMS = ("usr/bin/qemu-system-x86_64", "usr/bin/busybox")
_EMULATOR = (*_PROGRAMS, _LIBRARIES, "usr/lib64", "usr/share/qemu", "usr/share/seabios")
_SPARE_MB = 64
# What there is for a while when an image is made: itself, some 430 MB, the same unpacked, packages and lists of them.
_ROOM_MB = 1536
# So many images, with packages and files of programs, are kept.
_KEPT = 8
# Where programs and libraries are that are chosen among several packages', and where they are looked for.
_ALTERNATIVES = (
    ("usr/bin", "usr/lib/jvm/*/bin/*"),
    ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/blas/*.so.*"),
    ("usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/lapack/*.so.*"),
)
_OTHER_NAMES = {"usr/bin/cc": "gcc", "usr/bin/c++": "g++"}
# Of what is written here, whatever umask this user has: a guest has other users than root.
_READABLE, _EXECUTABLE = 0o644, 0o755


@dataclass(frozen=True)
class Image:
    """A built root: ``disk`` for both levels, ``root`` with the emulator and busybox for this machine."""

    disk: Path
    root: Path

    def command(self, qemu: Path) -> list[str]:
        """Return the start of a command line that runs ``qemu`` by the image's own loader and libraries."""
        data = [self.root / "usr/share/qemu", self.root / "usr/share/seabios"]
        loader = self.root / "usr/lib64/ld-linux-x86-64.so.2"
        argv = [loader, "--library-path", self.root / _LIBRARIES, qemu]
        return [str(part) for part in argv] + [text for folder in data for text in ("-L", str(folder))]

    def environment(self) -> dict[str, str]:
        """Return the environment that keeps QEMU from another one's modules."""
        return {"QEMU_MODULE_DIR": str(self.root / _LIBRARIES / "qemu"), "LC_ALL": "C"}

    @property
    def qemu(self) -> Path:
        """Debian's QEMU, as it is."""
        return self.root / "usr/bin/qemu-system-x86_64"

    @property
    def busybox(self) -> Path:
        return self.root / "usr/bin/busybox"


def image(packages: Mapping[str, str] | None = None, files: Mapping[str, Path] | None = None) -> Image:
    """Return the image, built now if the cache has none of this recipe.

    ``packages``, with who wants each, and ``files``, by their path in the root, are added to the disk; the emulator is
    the same.

    Raises:
        PlaceError: there is no such package, or no room.
    """
    recipe = repr((SUITE, _PACKAGES, _FILES, _LINKS, _LEFT_OUT, _EMULATOR, _SPARE_MB))
    folder = _built(f"root-{SUITE}-{_key(recipe)}", _build)
    if not packages and not files:
        # Also where no more are made: of older recipes, and of builds that were killed.
        cache.tidy("root-", _KEPT)
        return Image(folder / "root.ext4", folder / "root")
    contents = {name: _content(path) for name, path in sorted((files or {}).items())}
    more = sorted(packages or {})
    recipe = repr((recipe, more, contents, _ALTERNATIVES, _OTHER_NAMES))

    def build(folder: Path) -> None:
        root = _root(folder, [*_PACKAGES, *more], packages)
        _link_alternatives(root)
        for name, path in (files or {}).items():
            _add(path, root, name)
        make_disk(root, folder / "root.ext4")
        shutil.rmtree(root)
        shutil.rmtree(folder / "apt")

    disk = _built(f"root-{SUITE}-{_key(recipe)}", build) / "root.ext4"
    # Whoever edits a program's files makes one of 400 MB each time.
    cache.tidy("root-", _KEPT)
    return Image(disk, folder / "root")


def _built(name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder of an image; raise PlaceFailed, before anything is fetched, if there is no room to make it."""
    free_mb = shutil.disk_usage(cache.root()).free >> 20
    if free_mb < _ROOM_MB and not (cache.root() / name).is_dir():
        needed = f"the lab's image needs {_ROOM_MB} MB of disk while it is made"
        raise PlaceFailed(f"{cache.root()}: {needed}, {free_mb} MB are left: make room, or set COHORT_CACHE")
    return cache.built(name, build)


def _content(path: Path) -> tuple[str, int]:
    """What of a file is copied: what is in it, and whether it may be executed."""
    return hashlib.sha256(path.read_bytes()).hexdigest(), _mode(path)


def _mode(path: Path) -> int:
    """Return a file's mode in the image. Of its own, all but the first "x" is as an umask has left it."""
    return _EXECUTABLE if path.stat().st_mode & 0o100 else _READABLE


def _add(path: Path, root: Path, name: str) -> None:
    """Copy a file to ``name`` below ``root``."""
    for folder in reversed((root / name).relative_to(root).parents):
        if not (root / folder).is_dir():
            (root / folder).mkdir()
            (root / folder).chmod(_EXECUTABLE)
    shutil.copy2(path, root / name)
    (root / name).chmod(_mode(path))


def _key(recipe: str) -> str:
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def _link_alternatives(root: Path) -> None:
    """Make links that the packages' scripts would have made with update-alternatives, where nothing is in the way."""
    for into, pattern in _ALTERNATIVES:
        for path in sorted(root.glob(pattern)):
            link = root / into / path.name
            if path.is_file() and not link.exists() and not link.is_symlink():
                link.symlink_to(Path("/") / path.relative_to(root))
    for name, target in _OTHER_NAMES.items():
        if (root / name).with_name(target).exists() and not (root / name).exists():
            (root / name).symlink_to(target)


def _build(folder: Path) -> None:
    root = _root(folder, _PACKAGES)
    make_disk(root, folder / "root.ext4")
    _keep_emulator(root)
    shutil.rmtree(folder / "apt")


def _root(folder: Path, wanted: Sequence[str], wanted_by: Mapping[str, str] | None = None) -> Path:
    """Unpack packages below ``folder`` and return where."""
    apt = Apt(folder / "apt")
    apt.update()
    for name, who in (wanted_by or {}).items():
        if name not in apt.names(name):
            raise PlaceError(f'{who}: packages: "{name}" is not allowed: must be a package of Debian {SUITE}')
    root = folder / "root"
    root.mkdir()
    packages = apt.fetch(wanted, with_dependencies=True)
    # First the one with the links /bin, /lib, … to /usr: files under those paths must follow them.
    for package in sorted(packages, key=lambda path: not path.name.startswith("base-files_")):
        unpack(package, root)
    for name, text in _FILES.items():
        (root / name).write_text(text)
        (root / name).chmod(_READABLE)
    for name, target in _LINKS.items():
        (root / name).symlink_to(target)
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    return root


def make_disk(root: Path, disk: Path) -> None:
    size_mb = sum(path.lstat().st_size + 4096 for path in root.rglob("*")) // (1 << 20) * 11 // 10 + _SPARE_MB
    # Read-only for ever: no journal, no space for root.
    argv = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", str(root), str(disk), f"{size_mb}M"]
    # Debian keeps it where a user's PATH does not look.
    program = shutil.which("mke2fs", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        raise PlaceError("the lab needs mke2fs: install the package e2fsprogs")
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PlaceFailed(one_line(f"mke2fs cannot write the lab's disk image: {done.stderr}"))


def _keep_emulator(root: Path) -> None:
    """Remove from ``root`` what the emulator does not need."""
    kept = root.with_name("kept")
    for name in _EMULATOR:
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).rename(kept / name)
    shutil.rmtree(root)
    kept.rename(root)
