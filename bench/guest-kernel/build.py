# SPDX-License-Identifier: GPL-2.0-only
"""Guests' kernels with and without an option that Debian's lacks: CONFIG_PARAVIRT_TIME_ACCOUNTING.

    build/venv/bin/python bench/guest-kernel/build.py FOLDER

builds both from Debian's source of the lab's newest kernel, with Debian's configuration but for modules, which are left
out (some ten minutes on two cores, 4 GB in FOLDER): FOLDER/debian and FOLDER/paravirt-time, to be measured by

    cohortlab compare smp-2x2 --on lab --rounds 5 --guest-kernel FOLDER/debian …

A guest's tasks are then not charged for the time that others had its vCPU's pCPU; docs/measurements.md has the figures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from cohortlab.lab import kernels
from cohortlab.lab.apt import Apt, unpack

TOOLS = ("bc", "bison", "flex", "gcc", "make", "perl", "xz")
# What is a module in Debian's and a guest of the lab needs; and what serves debuggers, signatures and loaders alone.
BUILT_IN = ("VIRTIO_BLK", "OVERLAY_FS", "CRC32C", "LIBCRC32C")
LEFT_OUT = ("DEBUG_INFO_BTF", "DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT", "DEBUG_INFO", "MODULE_SIG", "SECURITY_LOCKDOWN_LSM")
OPTION = "PARAVIRT_TIME_ACCOUNTING"


def main(folder: Path) -> None:
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        sys.exit(f"to build a kernel, install {' '.join(missing)} and libelf-dev")
    folder.mkdir(parents=True, exist_ok=True)
    ours = kernels.kernel(None)
    source = _source(folder, ".".join(ours.release.split(".")[:2]))
    _configure(source, ours.modules / ours.release / "config")
    for name, switch in (("debian", "--disable"), ("paravirt-time", "--enable")):
        _config(source, switch, OPTION, "--set-str", "LOCALVERSION", f"-{name}")
        _make(source, "olddefconfig")
        has = f"CONFIG_{OPTION}=y" in (source / ".config").read_text().splitlines()
        assert has == (switch == "--enable"), "the option is as it was asked for"
        _make(source, f"-j{os.cpu_count()}", "bzImage")
        shutil.copy2(source / "arch/x86/boot/bzImage", folder / name)
        print(f"{folder / name}: Linux {kernels.release_of(folder / name)}")


def _source(folder: Path, version: str) -> Path:
    """Return the unpacked source of Debian's Linux ``version``, with Debian's patches."""
    unpacked = folder / f"linux-source-{version}"
    if not unpacked.is_dir():
        apt = Apt(folder / "apt")
        apt.update()
        (package,) = apt.fetch([f"linux-source-{version}"], with_dependencies=False)
        unpack(package, folder / "package")
        with tarfile.open(folder / f"package/usr/src/linux-source-{version}.tar.xz") as tar:
            tar.extractall(folder / "unpacking")
        (folder / "unpacking" / unpacked.name).rename(unpacked)
        for name in ("apt", "package", "unpacking"):
            shutil.rmtree(folder / name)
    return unpacked


def _configure(source: Path, theirs: Path) -> None:
    """Take Debian's configuration, without modules but for those that a guest needs."""
    text = theirs.read_text().replace("=m\n", "=n\n")
    (source / ".config").write_text(text)
    _config(
        source,
        *(word for name in BUILT_IN for word in ("--enable", name)),
        *(word for name in LEFT_OUT for word in ("--disable", name)),
        *("--enable", "DEBUG_INFO_NONE", "--set-str", "SYSTEM_TRUSTED_KEYS", "", "--disable", "LOCALVERSION_AUTO"),
    )


def _config(source: Path, *words: str) -> None:
    subprocess.run(["scripts/config", *words], cwd=source, check=True)


def _make(source: Path, *targets: str) -> None:
    subprocess.run(["make", "--silent", *targets], cwd=source, check=True, env=os.environ | {"LC_ALL": "C"})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        wrong = f"{' '.join(sys.argv[1:])!r} is not allowed: must be a folder"
        print(f"{sys.argv[0]}: {wrong}", file=sys.stderr)
        sys.exit(2)
    main(Path(sys.argv[1]).absolute())
