# SPDX-License-Identifier: GPL-2.0-only
"""Files that come with this project: scenarios, workloads, hardware, what the lab is made of.

In a checkout they are in its folders, in an installed wheel (pyproject.toml says so) beside the code.
"""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_PACKED = Path(__file__).resolve().parent / "_shipped"
IS_PACKED = _PACKED.is_dir()


def folder(name: str) -> Path:
    """Return the folder (or file) ``name`` as the repository has it, such as "scenarios" or "lab/emulator"."""
    return (_PACKED if IS_PACKED else CHECKOUT) / name
