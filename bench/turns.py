# SPDX-License-Identifier: GPL-2.0-only
"""What a turn after somebody else's costs programs in the lab: a Markdown table.

    build/venv/bin/python bench/turns.py [ROUNDS]              5, in three and a half minutes
    build/venv/bin/python bench/turns.py siblings [ROUNDS]     as long

Two VMs of 2 vCPUs share 2 pCPUs. Each program runs in one of them while the other is idle, then while it computes. The
CPU time that the program needs more for the same work, over its turns, is what a turn costs. Turns are how often the
VM's threads were given a pCPU, for the program's setup too. Medians; of the cost also the lowest and the highest, which
can be below 0: rounds differ by more than what a few hundred turns cost.

With `siblings` nobody else is there: each program runs in a VM of 2 vCPUs, then in one of 4, which takes turns with
itself. There the CPU time is divided by the turns that came to it. What the program itself needs more with 4 vCPUs, for
locks and flushes, is in that; pbzip2 and user-spin need little.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from statistics import median
from typing import NamedTuple

from alone import PROGRAMS, VM, number, refuse, scenario

from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
from cohortlab.summary import Spread

OTHER, LOAD = "hog1", "cpu-hog"
SLICE = "/sys/fs/cgroup/machine.slice"
# Of a thread's schedstat, the third number is how often it was given a pCPU.
EACH = f"for t in $(cat {SLICE}/*{VM}*/cgroup.threads); do cut -d' ' -f3 /proc/$t/schedstat; done"
TURNS = f"{EACH} | awk '{{s+=$1}} END{{print s}}'"
HEAD = ("program", "µs a turn", "CPU s alone", "CPU s beside", "turns alone", "turns beside", "a turn beside, µs")


class Took(NamedTuple):
    """What a run took, and how much it did: in any unit, for runs of the same program alone are compared."""

    cpu_s: float
    turns: float
    work: float = 1.0

    def for_work(self, work: float) -> Took:
        return Took(self.cpu_s * work / self.work, self.turns * work / self.work, work)


def cost_us(alone: Took, beside: Took) -> float:
    """Return what a turn costs beside somebody else."""
    beside = beside.for_work(alone.work)
    return (beside.cpu_s - alone.cpu_s) / beside.turns * 1e6


def sibling_cost_us(two: Took, four: Took) -> float:
    """Return what a turn after a sibling costs."""
    four = four.for_work(two.work)
    return (four.cpu_s - two.cpu_s) / (four.turns - two.turns) * 1e6


def row(name: str, runs: list[tuple[Took, Took]]) -> str:
    costs = Spread.of(cost_us(alone, beside) for alone, beside in runs)
    as_much = [(alone, beside.for_work(alone.work)) for alone, beside in runs]
    cpu_s = [f"{median(run[at].cpu_s for run in as_much):.3f}" for at in (0, 1)]
    turns = [f"{median(run[at].turns for run in as_much):.0f}" for at in (0, 1)]
    turn_us = median(beside.cpu_s / beside.turns * 1e6 for _, beside in as_much)
    cost = f"{costs.median:.0f} [{costs.min:.0f} to {costs.max:.0f}]"
    return f"| {name} | {cost} | {' | '.join([*cpu_s, *turns])} | {turn_us:.0f} |"


def siblings(rounds: int) -> None:
    found: dict[str, dict[int, list[Took]]] = defaultdict(lambda: defaultdict(list))
    for vcpus in (2, 4):
        of = scenario(vcpus=vcpus)
        with LabPlace(of, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
            for program in PROGRAMS:
                place.measure(VM, program)
            for _ in range(rounds):
                for program in PROGRAMS:
                    found[program][vcpus].append(took(place, program))
    columns = [f"{what}, {vcpus} vCPUs" for what in ("CPU s", "turns") for vcpus in (2, 4)]
    head = ("program", "µs a turn more", *columns)
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for program, runs in found.items():
        # Runs of two boots have nothing in common but their number.
        pairs = [(two, four) for two, four in zip(runs[2], runs[4], strict=True) if four.turns > two.turns]
        if not pairs:
            print(f"| {program} |{' – |' * (len(head) - 1)}")
            continue
        costs = Spread.of(sibling_cost_us(two, four) for two, four in pairs)
        work = runs[2][0].work
        cpu_s = [f"{median(run.for_work(work).cpu_s for run in runs[vcpus]):.3f}" for vcpus in (2, 4)]
        turns = [f"{median(run.for_work(work).turns for run in runs[vcpus]):.0f}" for vcpus in (2, 4)]
        cost = f"{costs.median:.0f} [{costs.min:.0f} to {costs.max:.0f}]"
        print(f"| {program} | {cost} | {' | '.join([*cpu_s, *turns])} |")


def took(place: LabPlace, program: str) -> Took:
    turns = int(place.host.check(TURNS))
    measured = place.measure(VM, program)
    turns = int(place.host.check(TURNS)) - turns
    # What has a rate for its figure runs for the same time always, and the others do the same work.
    return Took(measured.cpu_s[VM], turns, measured.value if place.scenario.workloads[program].is_rate else 1.0)


def main(rounds: int) -> None:
    found: dict[str, list[tuple[Took, Took]]] = defaultdict(list)
    with (
        LabPlace(scenario(hogs=1), probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place,
        place.policy(KERNEL, ("--cgroup-mode", "smp")),
    ):
        for program in PROGRAMS:
            place.measure(VM, program)
        for _ in range(rounds):
            for program in PROGRAMS:
                alone = took(place, program)
                with place.background(OTHER, LOAD):
                    found[program].append((alone, took(place, program)))
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for program, runs in found.items():
        print(row(program, runs))


if __name__ == "__main__":
    args = sys.argv[1:]
    what = siblings if args[:1] == ["siblings"] else main
    args = args[1:] if what is siblings else args
    if len(args) > 1:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [siblings] [ROUNDS]")
    what(number((args or ["5"])[0], "ROUNDS"))
