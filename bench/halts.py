# SPDX-License-Identifier: GPL-2.0-only
"""What KVM's polling at a halt is worth to a program that a load beside it takes away: a Markdown table.

    build/venv/bin/python bench/halts.py [ROUNDS [PROGRAM,...]]          ten minutes for 5

KVM polls for up to halt_poll_ns before a halted vCPU's thread sleeps, but only where nobody else could run. So a
program whose vCPUs sleep for moments is served by polls when it is alone, and by sleeps and wake-ups beside a load,
under any scheduler. Here it runs in the lab with polls and without: alone, and beside the load under each policy.
Programs of examples/everyday; medians and ranges of their own figures, and what KVM counted per second.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from alone import number, refuse

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
from cohortlab.summary import Spread

SCENARIO = Path(__file__).parents[1] / "examples/everyday/everyday.toml"
KNOB = "/sys/module/kvm/parameters/halt_poll_ns"
DEFAULT = "200000"
POLLS = {"polls": DEFAULT, "none": "0"}
# Policy, or none with no load beside it.
ALONE = "alone"
PLACES: dict[str, tuple[str, ...]] = {
    ALONE: (),
    KERNEL: (),
    "cohort": (),
    "cohort, `--guard halted`": ("--guard", "halted"),
}
COUNTS = ("halt_exits", "halt_successful_poll", "halt_wakeup")
Key = tuple[str, str, str]


def main(rounds: int, programs: list[str]) -> None:
    scenario = scenarios.load(SCENARIO)
    figures: dict[Key, list[float]] = defaultdict(list)
    counts: dict[Key, list[list[float]]] = defaultdict(list)
    with LabPlace(scenario, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        vm, (neighbour,) = scenario.program_vm.name, scenario.neighbours
        for number in range(-1, rounds):  # the first one warms up
            for program in programs:
                for where, args in PLACES.items():
                    for polls, value in POLLS.items():
                        place.host.check(f"echo {value} >{KNOB}")
                        with ExitStack() as beside:
                            policy = KERNEL if where == ALONE else where.split(",")[0]
                            beside.enter_context(place.policy(policy, args))
                            if where != ALONE:
                                beside.enter_context(place.background(neighbour.name, neighbour.load or ""))
                            before = counted(place)
                            measured = place.measure(vm, program)
                            per_s = [(b - a) / measured.wall_s for a, b in zip(before, counted(place), strict=True)]
                        print(f"round {number + 1} of {rounds}: {program}, {where}, {polls}", file=sys.stderr)
                        if number >= 0:
                            figures[program, where, polls].append(measured.value)
                            counts[program, where, polls].append(per_s)
        place.host.check(f"echo {DEFAULT} >{KNOB}")
    print(f"| program | where | polls | figure | {' | '.join(f'`{name}`/s' for name in COUNTS)} |")
    print("|---" * (4 + len(COUNTS)) + "|")
    for key, values in figures.items():
        seen = (Spread.of(list(column)).median for column in zip(*counts[key], strict=True))
        print(f"| {' | '.join(key)} | {Spread.of(values)} | {' | '.join(f'{value:,.0f}' for value in seen)} |")


def counted(place: LabPlace) -> list[float]:
    """Return what KVM has counted so far, of all VMs."""
    return [float(n) for n in place.host.check(f"cd /sys/kernel/debug/kvm && cat {' '.join(COUNTS)}").split()]


if __name__ == "__main__":
    if len(sys.argv) > 3:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS [PROGRAM,...]]")
    main(number((sys.argv[1:2] or ["5"])[0], "ROUNDS"), (sys.argv[2:3] or ["redis"])[0].split(","))
