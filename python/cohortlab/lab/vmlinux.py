# SPDX-License-Identifier: GPL-2.0-only
"""The kernel as both levels boot it: unpacked once, here, and not at every boot by a processor that is emulated.

A vmlinuz is a small program that unpacks the kernel in it. QEMU boots what is in it as well, through the entry that the
kernel has for hypervisors (PVH): the same kernel, to the byte, but some four seconds earlier at each level. Who
unpacks would also move the kernel to a random address; this way text stands where it was linked, at every boot alike.
"""

from __future__ import annotations

import bz2
import hashlib
import lzma
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cohortlab.lab import cache
from cohortlab.lab.image import make_disk

# The name of the kernel's file on its disk.
NAME = "kernel"
# The note of an ELF kernel that says where PVH enters it.
_PVH_NOTE = (b"Xen\0", 18)
_PT_NOTE = 4
# So many are kept.
_KEPT = 12


@dataclass(frozen=True)
class Bootable:
    """A kernel that QEMU takes with -kernel: as a file, and the same file alone in a disk image for the level below."""

    file: Path
    disk: Path


def bootable(vmlinuz: Path) -> Bootable:
    """Return what to boot for ``vmlinuz``: what is packed into it, or itself where that cannot be booted."""
    content = vmlinuz.read_bytes()

    def build(folder: Path) -> None:
        root = folder / "root"
        root.mkdir()
        (root / NAME).write_bytes(unpacked(content) or content)
        make_disk(root, folder / "kernel.ext4")

    folder = cache.built(f"vmlinux-{hashlib.sha256(content).hexdigest()[:12]}", build)
    # Whoever builds kernels of his own has one more each time.
    cache.tidy("vmlinux-", _KEPT)
    return Bootable(folder / "root" / NAME, folder / "kernel.ext4")


def unpacked(vmlinuz: bytes) -> bytes | None:
    """Return the ELF kernel packed into ``vmlinuz``, or None if there is none that PVH can enter."""
    # Linux x86 boot protocol 2.08: where behind the sectors of the setup code the packed kernel is, and how long.
    if vmlinuz[0x202:0x206] != b"HdrS" or int.from_bytes(vmlinuz[0x206:0x208], "little") < 0x208:
        return None
    begin = (vmlinuz[0x1F1] + 1) * 512 + int.from_bytes(vmlinuz[0x248:0x24C], "little")
    packed = vmlinuz[begin : begin + int.from_bytes(vmlinuz[0x24C:0x250], "little")]
    unpack = next((unpack for magic, unpack in _PACKED.items() if packed.startswith(magic)), None)
    try:
        elf = unpack(packed) if unpack else b""
        return elf if _has_pvh(elf) else None
    except (OSError, EOFError, ValueError, struct.error, zlib.error, lzma.LZMAError):
        return None


def _zstd(packed: bytes) -> bytes:
    import pyarrow

    # The kernel's build appends the length, which is no part of it.
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(packed[:-4]), "zstd") as stream:
        return bytes(stream.read())


_PACKED: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x28\xb5\x2f\xfd": _zstd,
    b"\x1f\x8b": lambda packed: zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed),
    b"\xfd7zXZ\0": lambda packed: lzma.LZMADecompressor().decompress(packed),
    b"\x5d\0\0": lambda packed: lzma.LZMADecompressor().decompress(packed),
    b"BZh": lambda packed: bz2.BZ2Decompressor().decompress(packed),
}


def _has_pvh(elf: bytes) -> bool:
    """Return whether an ELF file of 64 bits has the note."""
    if elf[:5] != b"\x7fELF\x02":
        return False
    (first,) = struct.unpack_from("<Q", elf, 0x20)
    size, count = struct.unpack_from("<HH", elf, 0x36)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", elf, first + number * size)
        if kind == _PT_NOTE and any(note == _PVH_NOTE for note in _notes(elf[offset : offset + length])):
            return True
    return False


def _notes(segment: bytes) -> list[tuple[bytes, int]]:
    """Return name and type of the notes in a segment."""
    found = []
    at = 0
    while at + 12 <= len(segment):
        name_size, size, kind = struct.unpack_from("<III", segment, at)
        found.append((segment[at + 12 : at + 12 + name_size], kind))
        at += 12 + (name_size + 3) // 4 * 4 + (size + 3) // 4 * 4
    return found
