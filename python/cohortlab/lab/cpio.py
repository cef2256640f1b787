# SPDX-License-Identifier: GPL-2.0-only
"""The archive format of an initramfs (cpio "newc"). Several, one behind the other, are one initramfs."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

_BLOCK_BYTES = 512


def archive(files: Mapping[str, bytes | Path], folders: tuple[str, ...] = (), mode: int = 0o755) -> bytes:
    """Return an archive of ``files`` (content, or a file that has it; by path without leading "/") and ``folders``."""
    parents = {str(parent) for path in (*files, *(f"{folder}/x" for folder in folders)) for parent in _parents(path)}
    parts = [_entry(name, stat.S_IFDIR | 0o755, b"") for name in sorted(parents)]
    for name, content in files.items():
        parts.append(_entry(name, stat.S_IFREG | mode, content.read_bytes() if isinstance(content, Path) else content))
    parts.append(_entry("TRAILER!!!", 0, b""))
    whole = b"".join(parts)
    return whole + bytes(-len(whole) % _BLOCK_BYTES)


def _parents(path: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "."]


def _entry(name: str, mode: int, content: bytes) -> bytes:
    encoded = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, checksum
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
