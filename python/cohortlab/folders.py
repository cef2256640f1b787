# SPDX-License-Identifier: GPL-2.0-only
"""Folders of results: checked before anything is done for them, and filled with all of it or nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from cohortlab.errors import BadInput


def folder_for(out: Path | None, name: str) -> Path:
    """Return the folder of ``--out``, or one of that name, this time and this process; checked."""
    return writable(out or Path("results") / f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")


def writable(folder: Path) -> Path:
    """Return the folder, which can be made and written to: better known before hours of measuring.

    It is really made and written to, since permissions do not tell what root, a read-only file system or a full disk
    do; and removed again, so that a run without results leaves nothing.
    """
    with _made(folder):
        pass
    return folder


@contextlib.contextmanager
def filled_at_once(folder: Path) -> Iterator[Path]:
    """Yield an empty folder whose content is moved into ``folder`` at the end; after an error nothing of it is there.

    Of what ``folder`` has already only files of the same names are replaced.

    Raises:
        BadInput: ``folder`` cannot be written to, or has a folder where a file belongs.
    """
    # Inside of it, and not beside: there one may write, and moving is renaming.
    with _made(folder), tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as name:
        part = Path(name)
        yield part
        moves = [(path, folder / path.relative_to(part)) for path in sorted(part.rglob("*"))]
        for path, target in moves:
            if (target.exists() or target.is_symlink()) and target.is_dir() != path.is_dir():
                raise BadInput(f"--out: {target}: is in the way: must be a {'folder' if path.is_dir() else 'file'}")
        for path, target in moves:
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                path.replace(target)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make the folder and those above it, and write to it; in the end those that are still empty are removed."""
    made: list[Path] = []
    try:
        try:
            made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
        except FileExistsError:
            raise BadInput(f"--out: {folder}: is a file: must be a folder") from None
        except OSError as error:
            raise BadInput(f"--out: {folder}: cannot be written to: {error.strerror}") from None
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
