# SPDX-License-Identifier: GPL-2.0-only
"""Where this project's own static binaries are."""

from __future__ import annotations

import os
from pathlib import Path

from cohortlab.places import PlaceError

_REPOSITORY = Path(__file__).resolve().parents[3]
_BUILT = _REPOSITORY / "build" / "bin"


def find(name: str) -> Path:
    """Return the built binary ``name``: in COHORT_BIN if that is set, otherwise where `make build` puts it."""
    path = Path(os.environ.get("COHORT_BIN") or _BUILT).absolute() / name
    if not path.is_file():
        raise PlaceError(f"{path} does not exist: run `make build`, or set COHORT_BIN to the folder that has {name}")
    return path
