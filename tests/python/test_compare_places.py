# SPDX-License-Identifier: GPL-2.0-only
"""What a place says of itself stands in the results in the same order, whoever compares."""

from __future__ import annotations

from typing import Any

from cohortlab import compare, fidelity
from cohortlab.compare import Plan
from cohortlab.places import PlaceCrashed
from cohortlab.policies import parse_policies
from cohortlab.progress import Progress
from cohortlab.scenario import Scenario


def test_what_is_new_after_a_crash_has_an_order(place: Any, two: Scenario) -> None:
    said = ("timers", "ple_window_us", "started", "probe", "ple")

    def reset() -> None:
        place.description = {**place.description, **dict.fromkeys(said, "new")}

    place.reset = reset
    place.raises = {0: PlaceCrashed("lost")}
    plan = Plan(parse_policies("eevdf", ()), 1, {"ipi": two}, warm_up=False)
    results = plan.results("cohortlab compare")
    compare.run(plan, place.open, Progress(), results)
    assert results.stopped is None
    # That of a set of texts would be another one in each process.
    assert list(results.places["ipi"]) == ["kernel", "accelerator", *sorted(said)]


def test_each_boots_window_is_kept_and_the_median_is_over_boots(place: Any, two: Scenario) -> None:
    windows = iter(("18", "16"))

    def reset() -> None:
        place.description = {**place.description, "ple_window_us": next(windows), "started": "by a boot"}

    place.description = {**place.description, "ple_window_us": "16", "started": "by a boot"}
    place.reset = reset
    place.raises = {0: PlaceCrashed("lost"), 1: PlaceCrashed("lost again")}
    plan = Plan(parse_policies("eevdf", ()), 1, {"ipi": two}, warm_up=False)
    results = plan.results("cohortlab compare")
    compare.run(plan, place.open, Progress(), results)
    assert results.stopped is None
    said = results.places["ipi"]
    assert (said["ple_window_us"], fidelity.window_us(said)) == ("16, later 18, later 16", 16)
    assert said["started"] == "by a boot", "what is no figure is told once"
