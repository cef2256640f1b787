# SPDX-License-Identifier: GPL-2.0-only
"""A machine's console: a file that grows while it is read."""

from __future__ import annotations

from pathlib import Path


class Growing:
    """Reads such a file as it grows: each call goes on where the last whole line of the one before ended."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def read(self) -> tuple[str, str]:
        """Return the new lines that are whole, and the begin of the one after them, which comes again next time.

        Raises:
            OSError: the file is there and cannot be read. One that is not there yet is empty.
        """
        try:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return "", ""
        # No other character has this byte in it: none is cut in two.
        end = new.rfind(b"\n") + 1
        self._offset += end
        return new[:end].decode(errors="replace"), new[end:].decode(errors="replace")
