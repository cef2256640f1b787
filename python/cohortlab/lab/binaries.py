# SPDX-License-Identifier: GPL-2.0-only
"""Where this project's own static binaries are."""

from __future__ import annotations

import os
from pathlib import Path

from cohortlab import shipped
from cohortlab.places import PlaceError


def find(name: str) -> Path:
    """Return the built binary ``name``: in COHORT_BIN if that is set, otherwise where `make build` puts it."""
    told = os.environ.get("COHORT_BIN")
    if not told and shipped.IS_PACKED:
        raise PlaceError(
            f"cohortlab was installed without {name}: set COHORT_BIN to the folder where `make build` put it"
        )
    path = Path(told or shipped.CHECKOUT / "build" / "bin").absolute() / name
    if not path.is_file():
        raise PlaceError(f"{path} does not exist: run `make build`, or set COHORT_BIN to the folder that has {name}")
    return path
