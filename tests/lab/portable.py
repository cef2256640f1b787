# SPDX-License-Identifier: GPL-2.0-only
"""A disk with which a host of the lab runs this checkout's cohortlab: this machine's Python, and the lab's cache.

Only what is not in the lab's image anyway: the guests' disk is the host's own one, QEMU and busybox are in its root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cohortlab import shipped
from cohortlab.lab import image, kernels, vmlinux
from cohortlab.lab.image import make_disk

MOUNT = "/mnt"
CACHE = "/tmp/cache"
# The first disk of the lab's host, and the third.
ROOT_DISK, DISK = "/dev/vda", "/dev/vdc"
# Of use for development only.
_LEFT_OUT = shutil.ignore_patterns(
    *("test", "tests", "idlelib", "tkinter", "ensurepip", "config-3*", "site-packages", "dist-packages"),
    *(
        "pip*",
        "mypy*",
        "*__mypyc*",
        "setuptools*",
        "pandas*",
        "meson*",
        "hypothesis*",
        "clang_format*",
        "_pytest",
        "ruff*",
    ),
    *("include", "*.a", "*.pyi"),
)


def make(folder: Path) -> Path:
    """Return the disk, made in ``folder``."""
    root = folder / "root"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    binary = Path(sys.executable).resolve()
    stdlib, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    (root / "py/bin").mkdir(parents=True)
    shutil.copy(binary, root / "py/bin/python3")
    shutil.copytree(stdlib, root / f"py/lib/{version}", ignore=_LEFT_OUT)
    shutil.copytree(packages, root / "packages", ignore=_LEFT_OUT)
    for name in ("python", "scenarios", "workloads", "hardware", "lab/init"):
        source, target = shipped.CHECKOUT / name, root / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    _compile(root / "checkout/python", root / "packages")
    _copy_libraries([binary, *stdlib.glob("lib-dynload/*.so"), *packages.rglob("*.so*")], root / "libraries")
    _copy_cache(root / "cache")
    disk = folder / "portable.ext4"
    make_disk(root, disk)
    shutil.rmtree(root)
    return disk


def _compile(*folders: Path) -> None:
    """Compile what is imported: the host, which is emulated and may not write, would do so at each start."""
    argv = [sys.executable, "-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*argv, *map(str, folders)], check=False, stdout=subprocess.DEVNULL)  # some are for other Pythons


def _copy_libraries(programs: list[Path], into: Path) -> None:
    """Copy the shared libraries that programs need and that no package brings itself, and their loader."""
    into.mkdir()
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for found in sorted(set(re.findall(r"(?:=> |^\s+)(/(?:usr/)?lib\S+) \(0x", said, re.MULTILINE))):
        shutil.copy(Path(found).resolve(), into / Path(found).name)


def _copy_cache(into: Path) -> None:
    """Copy what the host cannot fetch: the guests' kernel. Their root is there already."""
    built, kernel = image.image(), kernels.kernel(None)
    bootable = vmlinux.bootable(kernel.vmlinuz)
    root = into / built.disk.parent.name
    root.mkdir(parents=True)
    (root / built.disk.name).symlink_to(ROOT_DISK)
    (root / built.root.name).symlink_to("/")
    fetched = next(path for path in kernel.vmlinuz.parents if path.name.startswith("kernel-"))
    shutil.copytree(fetched, into / fetched.name, symlinks=True)
    unpacked = into / bootable.disk.parent.name / bootable.file.parent.name
    unpacked.mkdir(parents=True)
    shutil.copy(bootable.file, unpacked)


def command(*args: str) -> str:
    """Return the shell command that runs cohortlab in the host; ``prepare`` must have run there."""
    loader = f"{MOUNT}/libraries/ld-linux-x86-64.so.2"
    variables = {
        "PYTHONHOME": f"{MOUNT}/py",
        "PYTHONPATH": f"{MOUNT}/checkout/python:{MOUNT}/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COHORT_BIN": "/run/cohort-lab/bin",
        "COHORT_CACHE": CACHE,
        "MPLCONFIGDIR": "/tmp/matplotlib",
    }
    env = " ".join(f"{name}={value}" for name, value in variables.items())
    python = f"{loader} --library-path {MOUNT}/libraries {MOUNT}/py/bin/python3"
    return f"exec env {env} {python} -m cohortlab {' '.join(args)}"


PREPARE = f"""
set -e
mkdir -p {MOUNT}
mount -t ext4 -o ro {DISK} {MOUNT}
mkdir -p {CACHE}
for entry in {MOUNT}/cache/*; do ln -s "$entry" {CACHE}/; done
"""
