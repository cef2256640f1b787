# SPDX-License-Identifier: GPL-2.0-only
"""Where this project's own static binaries are."""

from __future__ import annotations

import os
from pathlib import Path

from cohortlab.places import PlaceError

_REPOSITORY = Path(__file__).resolve().parents[3]
_BUILT = ("x86_64-unknown-linux-gnu/release", "release", "x86_64-unknown-linux-gnu/debug", "debug")


def find(name: str) -> Path:
    """Return the built binary ``name``: in COHORT_BIN if that is set, otherwise where cargo puts it."""
    if own := os.environ.get("COHORT_BIN"):
        folders = [Path(own)]
    else:
        target = Path(os.environ.get("CARGO_TARGET_DIR") or _REPOSITORY / "target")
        folders = [target / folder for folder in _BUILT]
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).absolute()
    raise PlaceError(f"{name} is not built ({folders[0]}): run `make build`, or set COHORT_BIN to its folder")
