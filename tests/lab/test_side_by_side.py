# SPDX-License-Identifier: GPL-2.0-only
"""The simulator's figures and the lab's, number by number, where the schedule leaves nothing open: same/*.toml.

Who pins everybody, has them take turns, or limits them, knows what comes of it. So both places must say the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from again import DIED, booted, repeat, say, until_up
from side_by_side import Figures, Rule, probed, recorded, simulated, table, under

from cohortlab import scenario as scenarios
from cohortlab.lab.agent import AgentError
from cohortlab.lab.place import LabPlace
from cohortlab.places import PlaceCrashed
from cohortlab.scenario import Scenario

pytestmark = [pytest.mark.lab, pytest.mark.long]

# Of all vCPUs' time, as docs/metrics.md promises.
EXACT = 0.02
TIMES = ("ran", "ready", "co-stop", "stacked", "halted")
# A pCPU that only one vCPU wants is where the host does its own work: so much of it at most, in the lab.
HOSTS_OWN = 0.08
# Preemptions of those who never enter the guest's kernel meet it in a tick: a tenth of the time on a slow machine. Of
# those who never leave it, all.
IN_TICKS = 0.3
NOT_IN_KERNEL = 0.05
# Round robin's turns begin at ticks, and the host's own threads take a few.
TURNS = 0.08
# A machine that does other things meanwhile keeps the lab waiting, and sets figures apart that are the same. And turns
# end at the host's ticks, as far from each other as a guest's: where a boot has put both to the same instant, those who
# never enter the guest's kernel are preempted in its tick all the time. So each try has a boot of its own, in which
# ticks are at other instants. What is counted by another definition is wrong each time.
TRIES = 3
# Nearer no queue of the lab's host is to round robin (test_record.py).
FAR = 0.05


@dataclass(frozen=True)
class Case:
    """What must agree: ``exact`` within so much, ``relative`` within such a part; both by VM."""

    rule: Rule
    exact: dict[str, dict[str, float]]
    relative: dict[str, dict[str, float]]


def times(*others: str) -> dict[str, float]:
    return dict.fromkeys((*TIMES, *others), EXACT)


PINNED = {"migrations": 0.0, "in kernel": IN_TICKS}
IN_KERNEL = {"migrations": 0.0, "in kernel": NOT_IN_KERNEL}
# The second vCPU of "work" is alone on pCPU 1: what the host takes from it there it does not wait for behind siblings.
FIRST = {"ran, vCPU 0": EXACT, "ready, vCPU 0": EXACT, "stacked": EXACT, "halted": EXACT}
FIRST |= {"co-stop": HOSTS_OWN / 2, "skew": HOSTS_OWN}
TURN_BY_TURN = dict.fromkeys(("switches", "preemptions", "turn p50, ms"), TURNS)
CASES = {
    "turns": (
        Case(
            Rule(turn_ms=12),
            {
                "work": FIRST | PINNED | {"far": FAR},
                "user": times("skew") | PINNED,
                "kernel": times("skew") | IN_KERNEL,
            },
            {"user": TURN_BY_TURN, "kernel": TURN_BY_TURN},
        ),
        Case(
            Rule(args=("--cgroup-mode", "smp")),
            {"work": FIRST | PINNED, "user": times("skew") | PINNED, "kernel": times("skew") | IN_KERNEL},
            # How often is left open: the timer that ends a turn comes late in the lab, or not at all.
            {},
        ),
    ),
    "sleeping": (
        Case(
            Rule(),
            {name: times("skew") | {"migrations": 0.0} for name in ("work", "half", "idle")},
            {},
        ),
    ),
    "capped": (
        Case(
            Rule("cohort"),
            {"pair": {"ran": EXACT, "ready": EXACT, "halted": EXACT, "lag": 2 * EXACT}, "work": {"halted": EXACT}},
            {},
        ),
    ),
}


def apart(case: Case, sim: Figures, lab: Figures) -> list[str]:
    """Return what does not agree, a line each."""
    wrong = []
    for limits, is_part in ((case.exact, False), (case.relative, True)):
        for vm, names in limits.items():
            for name, limit in names.items():
                one, other = sim[vm][name], lab[vm][name]
                if abs(one - other) > (limit * one if is_part else limit):
                    wrong.append(f"{vm}: {name}: simulated {one:.4g}, in the lab {other:.4g}")
    return wrong


def tried(place: LabPlace, scenario: Scenario, case: Case, folder: Path) -> list[str]:
    """Measure both sides once; return what does not agree."""
    sim = simulated(scenario, case.rule, folder / "simulated.rec")
    with under(place, scenario, case.rule):
        lab = probed(place, scenario)
        more = recorded(place, folder / "lab.rec")
    both = {"simulated": sim, "lab": {vm: lab[vm] | more[vm] for vm in lab}}
    print(f"{scenario.name}, {case.rule}", table(both), sep="\n\n", end="\n\n", flush=True)
    wrong = apart(case, both["simulated"], both["lab"])
    print(*wrong, sep="\n", flush=True)
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_both_places_count_the_same(name: str, tmp_path: Path) -> None:
    scenario = scenarios.load(Path(__file__).with_name("same") / f"{name}.toml")
    with ExitStack() as stack:
        place = booted(stack, lambda: LabPlace(scenario, progress=say))
        for case in CASES[name]:
            wrong: list[str] = []
            for left in reversed(range(TRIES)):
                try:
                    wrong = tried(place, scenario, case, tmp_path)
                except (PlaceCrashed, AgentError, TimeoutError) as crash:
                    # What the kernel says by itself of a scheduler is no bad luck.
                    if not left or DIED.search(str(crash)):
                        raise
                    wrong = [str(crash)]
                if not wrong or not left:
                    break
                repeat(f"{name} has failed once: {wrong[0]}")
                until_up(place.reset)
            assert not wrong, "\n".join(wrong)
