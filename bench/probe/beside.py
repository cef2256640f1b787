# SPDX-License-Identifier: GPL-2.0-only
"""What the probe costs the programs beside it: the lab's figures with it and without, in alternation in one boot.

    build/venv/bin/python bench/probe/beside.py [ROUNDS [PROGRAM,...]]

Under the kernel's own scheduler with the neighbour's load, as `compare` measures. Prints a Markdown table: medians and
ranges, and the median of the rounds' quotients.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from alone import number, refuse

from cohortlab import scenario as scenarios
from cohortlab.lab.command import PAYLOAD
from cohortlab.lab.place import LabPlace
from cohortlab.lab.probe import ProbeRun
from cohortlab.policies import KERNEL
from cohortlab.summary import Spread

WITH, WITHOUT = "with", "without"


def main(rounds: int, programs: list[str]) -> None:
    scenario = scenarios.load(scenarios.SHIPPED / "smp-2x2.toml")
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    with LabPlace(scenario, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        vm, (neighbour,) = scenario.program_vm.name, scenario.neighbours
        for number in range(rounds):
            for program in programs:
                for how in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
                    probe = ProbeRun.start(place.emulator.host, PAYLOAD) if how == WITH else None
                    with place.policy(KERNEL), place.background(neighbour.name, neighbour.load or ""):
                        seconds = place.measure(vm, program).wall_s
                    measured[program, how].append(seconds)
                    print(f"round {number + 1} of {rounds}: {program} {how}: {seconds:.3f} s", file=sys.stderr)
                    if probe:
                        probe.stop()
    print("| program | without, s | with, s | with ÷ without |\n|---|---|---|---|")
    for program in programs:
        both = [measured[program, how] for how in (WITHOUT, WITH)]
        quotients = [b / a for a, b in zip(*both, strict=True)]
        print(f"| {program} | {' | '.join(str(Spread.of(v)) for v in both)} | {Spread.of(quotients)} |")


if __name__ == "__main__":
    if len(sys.argv) > 3:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS [PROGRAM,...]]")
    main(number((sys.argv[1:2] or ["5"])[0], "ROUNDS"), (sys.argv[2:3] or ["hackbench,tlb-flush"])[0].split(","))
