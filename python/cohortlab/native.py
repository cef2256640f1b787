# SPDX-License-Identifier: GPL-2.0-only
"""The extension module, or one line that says how to get it."""

from __future__ import annotations

from typing import Any

from cohortlab.places import PlaceError


def native() -> Any:
    """Return the simulator's extension module.

    Raises:
        PlaceError: it is not built.
    """
    try:
        import cohort_sim
    except ImportError as error:
        raise PlaceError(f"the simulator is not built for this Python ({error}): run `make build`") from None
    return cohort_sim
