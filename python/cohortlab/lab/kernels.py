# SPDX-License-Identifier: GPL-2.0-only
"""The kernels of both levels: Debian's, by release, or files; and the initramfs that goes with each."""

from __future__ import annotations

import lzma
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cohortlab import shipped
from cohortlab.lab import cache, cpio
from cohortlab.lab.apt import BACKPORTS, OLD_SUITE, SUITE, Apt, archive_uri, unpack
from cohortlab.lab.image import Image
from cohortlab.places import PlaceError, PlaceFailed

# Small, and has all that a machine made of virtio devices needs.
_FLAVOUR = "cloud-amd64"
# By the order in which they must be loaded; what each needs comes before it by itself.
# Debian's newer kernels have the first two built in.
_BASE_MODULES = ("virtio_pci", "virtio_console", "virtio_blk", "overlay")
_KVM_MODULES = ("kvm-amd", "kvm-intel")
# Where Debian's packages have them now, and had them before.
_VMLINUZ_GLOBS = ("usr/lib/modules/*/vmlinuz", "boot/vmlinuz-*")
# apt of a suite that a mirror does not have, as not every one has the suite before.
_NO_SUITE = "does not have a Release file"
# So many of those that were fetched are kept.
_KEPT = 12
_INIT = shipped.folder("lab/init")


@dataclass(frozen=True)
class Kernel:
    """A kernel image and the folder (possibly without any) that holds its modules at some depth."""

    release: str
    vmlinuz: Path
    modules: Path


def kernel(wanted: str | None, named: str = "--kernel") -> Kernel:
    """Return the kernel that is wanted: a file, the start of a release, or None for Debian's newest.

    Raises:
        PlaceError: there is none such; it begins with ``named``.
    """
    if wanted is not None and ("/" in wanted or Path(wanted).is_file()):
        return _from_file(Path(wanted), named)
    if wanted is not None and not re.fullmatch(r"\d+(\.\d+)*([+-][\w.+-]*)?", wanted):
        raise PlaceError(f'{named}: "{wanted}" is not allowed: must be a file, or a release such as 6.18')
    folder = cache.built(f"kernel-{wanted or 'newest'}", lambda into: _fetch(wanted, named, into))
    cache.tidy("kernel-", _KEPT)
    vmlinuz = next(path for glob in _VMLINUZ_GLOBS for path in folder.glob(glob))
    modules = next(path for path in (folder / "usr/lib/modules", folder / "lib/modules", folder) if path.is_dir())
    return Kernel(release_of(vmlinuz), vmlinuz, modules)


def release_of(vmlinuz: Path, named: str = "--kernel") -> str:
    """Return the release that a kernel image carries in its header (Linux x86 boot protocol 2.00 and later).

    Raises:
        PlaceError: it is no such image; it begins with ``named``.
    """
    try:
        with vmlinuz.open("rb") as file:
            head = file.read(0x8000)
    except OSError as error:
        raise PlaceError(f"{named}: {vmlinuz}: cannot be read: {error.strerror}") from None
    offset = int.from_bytes(head[0x20E:0x210], "little") + 0x200
    text, end, _ = head[offset:].partition(b"\0")
    words = text.decode("ascii", "replace").split()
    if head[0x202:0x206] != b"HdrS" or offset == 0x200 or not end or not words:
        raise PlaceError(f"{named}: {vmlinuz}: is not a Linux kernel for x86: must be a vmlinuz or bzImage file")
    return words[0]


def _from_file(vmlinuz: Path, named: str) -> Kernel:
    # "./vmlinuz" has no parents to look in.
    vmlinuz = vmlinuz.absolute()
    cache.keep_folder_of(vmlinuz)
    release = release_of(vmlinuz, named)
    # The three places where modules stand: with the kernel, as unpacked from a package, and installed.
    for folder in (vmlinuz.parent / release, vmlinuz.parent.parent / "usr/lib/modules" / release):
        if folder.is_dir():
            return Kernel(release, vmlinuz, folder)
    if vmlinuz.parent == Path("/boot"):
        return Kernel(release, vmlinuz, Path("/usr/lib/modules") / release)
    return Kernel(release, vmlinuz, vmlinuz.parent)


def _fetch(wanted: str | None, named: str, folder: Path) -> None:
    apt = Apt(folder / "apt")
    apt.update()
    known = _releases(apt)
    found = _of_release(known, wanted)
    if not found:
        # The suite before is asked only if nothing else has it: to read what it has takes its time.
        try:
            apt.update(old=True)
            known = _releases(apt)
        except PlaceFailed as error:
            if _NO_SUITE not in str(error):
                raise
        found = _of_release(known, wanted)
    if not found:
        if not known:
            raise PlaceFailed(f"the Debian mirror {archive_uri()} has no kernel for the lab")
        minors = ", ".join(sorted({".".join(r.split(".")[:2]) for r in known}, key=_version_key))
        suites = f"{BACKPORTS}, {SUITE} or {OLD_SUITE}"
        raise PlaceError(f'{named}: "{wanted}" is not in {suites}: must be a file or one of {minors}')
    # One package until 6.18; later the image, the modules and the rest are packages of their own.
    names = set(apt.names("linux-"))
    parts = [f"linux-{part}-{found[-1]}" for part in ("image", "binary", "modules", "base")]
    for package in apt.fetch([part for part in parts if part in names], with_dependencies=False):
        unpack(package, folder)
    shutil.rmtree(folder / "apt")


def _releases(apt: Apt) -> list[str]:
    """Return the kernels that there are, the newest last."""
    pattern = re.compile(rf"linux-image-(\d.*-{_FLAVOUR})")
    found = (pattern.fullmatch(name) for name in apt.names("linux-image-"))
    return sorted((match[1] for match in found if match), key=_version_key)


def _of_release(releases: list[str], wanted: str | None) -> list[str]:
    # "6.1" means 6.1 and 6.1.x, not 6.18.
    start = re.compile(f"{re.escape(wanted)}(?![0-9])" if wanted else "")
    return [release for release in releases if start.match(release)]


def _version_key(release: str) -> list[int]:
    # Such as 6.18.15+deb13-cloud-amd64, and in older suites 6.1.0-37-cloud-amd64.
    return [int(number) for number in re.findall(r"\d+", release.removesuffix(f"-{_FLAVOUR}"))]


def initramfs(kernel: Kernel, image: Image, role: Literal["host", "guest"]) -> bytes:
    """Return the initramfs that a level boots with ``kernel``, without a payload."""
    files: dict[str, bytes | Path] = {"init": _INIT, "bin/busybox": image.busybox}
    done: set[str] = set()
    modules = {"base": _BASE_MODULES} if role == "guest" else {"base": _BASE_MODULES, "kvm": _KVM_MODULES}
    for folder, names in modules.items():
        for name in names:
            for module, content in _with_needed(kernel, name, done):
                files[f"modules/{folder}/{len(done):02}-{module}.ko"] = content
                done.add(module)
    return cpio.archive(files, folders=("proc", "dev", "lower", "upper", "newroot", "payload", "run"))


def guest_initramfs(kernel: Kernel, image: Image, agent: Path) -> bytes:
    """Return the initramfs that guests boot, with their agent."""
    return initramfs(kernel, image, "guest") + cpio.archive({"payload/bin/cohort-lab-agent": agent})


def _with_needed(kernel: Kernel, name: str, done: set[str]) -> list[tuple[str, bytes]]:
    """Return module ``name`` behind the ones it needs, without those in ``done`` and those built in."""
    if name in done:
        return []
    content = _module(kernel, name)
    if content is None:
        return []  # built in; if it is not, the init says what it misses
    found: list[tuple[str, bytes]] = []
    for needed in _modinfo(content, "depends").split(","):
        if needed:
            found += _with_needed(kernel, needed, done | {have for have, _ in found})
    return [*found, (name, content)]


def _module(kernel: Kernel, name: str) -> bytes | None:
    """Return the module's content, or None if there is no file of it."""
    # File names have "-" or "_" as the author liked; references have "_".
    pattern = re.sub("[-_]", "[-_]", name)
    for path in sorted(kernel.modules.rglob(f"{pattern}.ko*")) if kernel.modules.is_dir() else ():
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        elif path.suffix != ".ko":
            raise PlaceError(f"{path}: is compressed in a way the lab cannot read: must be .ko or .ko.xz")
        if _modinfo(content, "vermagic").split(" ")[0] == kernel.release:
            return content
    return None


def _modinfo(module: bytes, field: str) -> str:
    """Return a field of a module's .modinfo section, a list of NAME=VALUE strings."""
    found = re.search(rb"\0" + field.encode() + rb"=([^\0]*)\0", module)
    return found[1].decode("ascii", "replace") if found else ""
