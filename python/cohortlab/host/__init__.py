# SPDX-License-Identifier: GPL-2.0-only
"""This very host as a place: the lab's guests under its own kernel and KVM, no level in between. See docs/host.md."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cohortlab.places import Place, ProgressFn

if TYPE_CHECKING:
    from cohortlab.scenario import Scenario


def open_host(
    scenario: Scenario, *, kernel: str | None, progress: ProgressFn, probe: bool = True
) -> AbstractContextManager[Place]:
    """Return the place where ``scenario`` runs; guests boot when it is entered. ``probe``: count what time goes to."""
    from cohortlab.host.place import HostPlace

    return HostPlace(scenario, probe=probe, progress=progress)
