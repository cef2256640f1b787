# SPDX-License-Identifier: GPL-2.0-only
"""The best values of a policy's knobs: searched for on some scenarios, judged on others.

One knob after the other takes each of its values, and keeps the best; again until a whole pass changes nothing. What is
minimized is the geometric mean of slowdown ÷ ideal (docs/metrics.md) of all programs of all training scenarios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from cohortlab import compare as comparison
from cohortlab.compare import Plan
from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.policies import Policy
from cohortlab.scenario import Scenario
from cohortlab.sim.compared import simulate
from cohortlab.sim.place import check_policy
from cohortlab.sim.policy import KERNEL_DEFAULT
from cohortlab.summary import Figure, figures

# A knob's value, by the knob; a setting leaves out those that stay as they are.
Setting = Mapping[str, str]
PASSES_MAX = 5
# By less than this nothing is better: below what another seed changes.
GAIN_MIN = 0.001
DEFAULT: Setting = {}


@dataclass(frozen=True)
class Score:
    """What a setting makes of some scenarios; infinite if a program fails.

    Attributes:
        over_ideal: geometric mean of slowdown ÷ ideal over all programs.
        worst_of_due: of all neighbours together, beside the program where they got the least of what they were due.
        error: why there are no figures: the scenario and what failed there; None if there are.
    """

    over_ideal: float
    worst_of_due: float | None
    error: str | None = None

    @classmethod
    def failed(cls, why: str) -> Score:
        """Return the score of what has no figures: nothing is worse."""
        return cls(math.inf, None, why)


@dataclass
class Search:
    """A search over a policy's knobs.

    Attributes:
        knobs: the values that each may take.
        seeds: runs of each program under each setting.
        tell: told of each setting that was tried.
        held_out: what judges the best later: what does not go with these is not tried.
        scores: of all settings that were looked at, also of those that were left out.
        tried: how many were simulated.
    """

    policy: str
    knobs: Mapping[str, Sequence[str]]
    training: Sequence[Scenario]
    seeds: int = 1
    hardware: str | None = None
    tell: Callable[[Setting, Score], None] = lambda setting, score: None
    held_out: Sequence[Scenario] = ()
    scores: dict[tuple[str, ...], Score] = field(default_factory=dict)
    tried: int = 0

    def check(self) -> None:
        """Raise BadInput for a knob or a value that is wrong alone, and with each value of each other knob."""
        for knob, values in self.knobs.items():
            others = [{other: one} for other, ones in self.knobs.items() if other != knob for one in ones]
            for value in values:
                found = [self._contradiction({knob: value, **other}) for other in ({}, *others)]
                if all(found):
                    raise BadInput(f"--knob: {found[0]}")

    def best(self) -> Setting:
        """Return the best setting that was found; the default if none is better."""
        chosen: Setting = DEFAULT
        self._try([chosen])
        for _ in range(PASSES_MAX):
            before = chosen
            for knob, values in self.knobs.items():
                others = {name: value for name, value in chosen.items() if name != knob}
                settings = [chosen, others, *({**others, knob: value} for value in values)]
                self._try(settings)
                best = min(settings, key=lambda setting: self._score(setting).over_ideal)
                if self._score(best).over_ideal < self._score(chosen).over_ideal * (1 - GAIN_MIN):
                    chosen = best
            if chosen == before:
                break
        return chosen

    def _score(self, setting: Setting) -> Score:
        return self.scores[arguments(setting)]

    def _try(self, settings: Sequence[Setting]) -> None:
        fresh: dict[tuple[str, ...], Setting] = {}
        for setting in settings:
            if arguments(setting) in self.scores:
                continue
            if contradiction := self._contradiction(setting):
                self.scores[arguments(setting)] = Score.failed(contradiction)
            else:
                fresh[arguments(setting)] = setting
        if fresh:
            self.tried += len(fresh)
            found = score(self.policy, list(fresh.values()), self.training, self.seeds, self.hardware)
            for (args, setting), scored in zip(fresh.items(), found, strict=True):
                self.scores[args] = scored
                self.tell(setting, scored)

    def _contradiction(self, setting: Setting) -> str | None:
        """Return why values are not allowed together, or not with a scenario or its kernel; None if they are."""
        try:
            for scenario in (*self.training, *self.held_out):
                check_policy(scenario, self.policy, arguments(setting), scenario.defaults.kernel or KERNEL_DEFAULT)
        except (BadInput, PlaceError) as error:
            return str(error).removeprefix("--policy-args: ")
        return None


def arguments(setting: Setting) -> tuple[str, ...]:
    """Return a setting as arguments of ``cohort run``."""
    return tuple(word for knob in sorted(setting) for word in (f"--{knob}", setting[knob]))


def score(
    policy: str, settings: Sequence[Setting], scenarios: Sequence[Scenario], seeds: int, hardware: str | None
) -> list[Score]:
    """Simulate scenarios under a policy with each of some settings."""
    policies = tuple(Policy(f"{number}", policy, arguments(setting)) for number, setting in enumerate(settings))
    by_label: dict[str, list[Figure]] = {policy.label: [] for policy in policies}
    failed: dict[str, str] = {}
    for scenario in scenarios:
        plan = Plan(policies, seeds, {scenario.program_vm.tlb: scenario}, scenario.defaults.kernel, warm_up=False)
        results = simulate(plan, "cohortlab tune", hardware)
        if results.stopped == comparison.INTERRUPTED:
            raise KeyboardInterrupt
        for (_, label, _), why in results.failed.items():
            failed.setdefault(label, f"{scenario.name}: {why}")
        # A setting that has not failed has not all its figures, and one that has is worse than any other.
        if results.stopped and not by_label.keys() <= {label for _, label, _ in results.failed}:
            raise PlaceError(f"{scenario.path}: {results.stopped}")
        for figure in figures(results, scenario):
            by_label[figure.policy].append(figure)
    return [Score.failed(failed[label]) if label in failed else _score(found) for label, found in by_label.items()]


def _score(found: Sequence[Figure]) -> Score:
    if not found:
        return Score.failed("no round was complete")
    of_due = [figure.neighbour_of_due for figure in found if figure.neighbour_of_due is not None]
    return Score(geometric_mean(figure.over_ideal for figure in found), min(of_due, default=None))
