# SPDX-License-Identifier: GPL-2.0-only
"""What the user got wrong: one line that names file, field, what was wrong and what is allowed."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class BadInput(Exception):
    """The input cannot be used. ``str()`` is the one line to print; the exit code is 2."""


def one_line(text: str) -> str:
    """Return ``text`` with every run of white space, line ends included, made one space."""
    return " ".join(text.split())
