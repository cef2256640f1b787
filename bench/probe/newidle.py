# SPDX-License-Identifier: GPL-2.0-only
"""For how long a guest's vCPUs idle in the lab, and what it costs them to look for a task when they go idle.

    build/venv/bin/python bench/probe/newidle.py      three minutes

Two VMs of 2 vCPUs on 2 pCPUs, as bench/probe/queues.py has them, under EEVDF; one runs the program, alone and beside
the other, which computes. A Markdown table: medians of samples in the guest, a value for each vCPU. A vCPU whose
average is less than the cost does not look.
"""

from __future__ import annotations

import re
import sys
import time
from statistics import median

import queues

from cohortlab.lab.agent import Machine
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL

PROGRAMS = ("hackbench", "pbzip2", "dbench")
SAMPLES = 20
APART_S = 0.5
PATIENCE_S = 120
DEBUG = "/sys/kernel/debug/sched"
LOOK = f"mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug; cat {DEBUG}/debug"


def seen(guest: Machine) -> tuple[list[float], list[float]]:
    """Return each vCPU's average time of idling and greatest cost of a look, in us."""
    text = guest.check(LOOK, PATIENCE_S)
    idle, cost = (
        [int(ns) / 1e3 for ns in re.findall(rf"^  \.{name} +: (\d+)", text, re.MULTILINE)]
        for name in ("avg_idle", "max_idle_balance_cost")
    )
    return idle, cost


def row(program: str, beside: str, guest: Machine) -> str:
    samples = []
    for _ in range(SAMPLES):
        samples.append(seen(guest))
        time.sleep(APART_S)
    idle, cost = (
        ", ".join(f"{median(of_vcpu):.0f}" for of_vcpu in zip(*(sample[what] for sample in samples), strict=True))
        for what in (0, 1)
    )
    return f"| {program} | {beside} | {idle} | {cost} |"


def main() -> None:
    rows = []
    of = queues.scenario(2, 2, PROGRAMS, "7.3")
    with LabPlace(of, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        guest = place.guests["work"].machine
        for program in PROGRAMS:
            for beside in (False, True):
                print(program, "beside a load" if beside else "alone", file=sys.stderr)
                with place.policy(KERNEL), queues.busy(place, program, beside=beside):
                    rows.append(row(program, "a VM that computes" if beside else "nobody", guest))
    print("| program | beside | idle on average, µs | greatest cost of a look, µs |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    if len(sys.argv) != 1:
        print(f"{sys.argv[0]}: {sys.argv[1]!r} is not allowed: there are no arguments", file=sys.stderr)
        sys.exit(2)
    main()
