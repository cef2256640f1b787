# SPDX-License-Identifier: GPL-2.0-only
"""What ``cohort audit`` says of a host."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ground import CGROUP_MODE

if TYPE_CHECKING:
    from cohortlab.lab.agent import Machine

COMMAND = "cohort audit --json"


def report(host: Machine, command: str = COMMAND) -> dict[str, Any]:
    """Return the whole JSON object."""
    done = host.run(command, 120)
    assert done.rc in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def hits(found: dict[str, Any]) -> dict[str, set[str | None]]:
    """Return by rule the names of a report's VMs; None is the host."""
    hit = defaultdict(set)
    for finding in found["findings"]:
        hit[finding["rule"]].add(finding["vm"] and finding["vm"]["name"])
    return dict(hit)


def has_cgroup_modes(host: Machine) -> bool:
    return host.run(f"test -e {CGROUP_MODE}").rc == 0
