# SPDX-License-Identifier: GPL-2.0-only
"""The lab: a stock kernel with KVM under an emulator, and real guests on it. See docs/lab.md."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cohortlab.lab.cache import folder as cache_dir
from cohortlab.places import Place, ProgressFn

if TYPE_CHECKING:
    from cohortlab.scenario import Scenario

__all__ = ["cache_dir", "open_lab"]


def open_lab(
    scenario: Scenario, *, kernel: str | None, progress: ProgressFn, probe: bool = True
) -> AbstractContextManager[Place]:
    """Return the place where ``scenario`` runs; it boots when it is entered. ``probe``: it counts what time goes to."""
    # Not above: who asks for the cache folder need not have all that a place imports.
    from cohortlab.lab.place import LabPlace

    return LabPlace(scenario, kernel=kernel, probe=probe, progress=progress)
