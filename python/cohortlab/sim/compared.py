# SPDX-License-Identifier: GPL-2.0-only
"""A comparison that is simulated, for whoever needs its results and shows nothing meanwhile."""

from __future__ import annotations

import functools

from cohortlab import compare as comparison
from cohortlab.compare import Plan
from cohortlab.progress import Progress
from cohortlab.results import Results
from cohortlab.sim import open_sim


def simulate(plan: Plan, command: str, hardware: str | None) -> Results:
    """Return what ``plan`` gives, as far as it came: ``Results.stopped`` says why if not to its end."""
    results = plan.results(command)
    open_place = functools.partial(open_sim, hardware=hardware, policies=plan.policies, rounds=plan.rounds)
    comparison.run(plan, open_place, Progress(), results)
    return results
