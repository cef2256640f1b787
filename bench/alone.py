# SPDX-License-Identifier: GPL-2.0-only
"""What programs do alone, which is where their models' parameters come from: a Markdown table.

    build/venv/bin/python bench/alone.py lab [ROUNDS]          two minutes a round
    build/venv/bin/python bench/alone.py simulated [SEEDS]     seconds

One VM of 2 vCPUs on 2 pCPUs. Medians; in brackets the lowest and the highest.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from cohortlab import scenario as scenarios
from cohortlab.lab.agent import Machine
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
from cohortlab.scenario import Scenario
from cohortlab.sim.model import Run
from cohortlab.sim.result import Result

PROGRAMS = ("hackbench-pipes", "hackbench", "user-spin", "tlb-shootdown", "tlb-flush", "mmapfork", "dbench", "pbzip2")
# The same programs with next to nothing to do.
BEGINNINGS = {
    "hackbench": "hackbench -g 2 -l 1 -f 5",
    "hackbench-pipes": "hackbench -T -p -g 4 -f 2 -l 1",
    "stress-ng": "stress-ng --quiet --spinmem 1 --spinmem-ops 1",
    "pbzip2": "seq 1 10 >/tmp/few && pbzip2 -k -f -q -b1 -c /tmp/few >/dev/null",
}
COLUMNS = ("s", "pCPUs busy", "user", "kernel", "TLB flushes", "calls", "reschedules", "halts", "exits")
Counted = dict[str, float]


def scenario() -> Scenario:
    vm = {"name": "work", "vcpus": 2, "memory_mb": 384, "programs": list(PROGRAMS)}
    data = {"name": "alone-2", "host": {"pcpus": 2}, "guest": {"tlb": "ipi", "ple": True}, "vm": [vm]}
    return scenarios.of_data(data, Path("alone.toml"))


def of_guest(guest: Machine) -> Counted:
    counted: Counted = {}
    for line in guest.check("cat /proc/stat /proc/interrupts").splitlines():
        words = line.split()
        if words[:1] == ["cpu"]:
            ticks = [int(word) / 100 for word in words[1:9]]
            counted |= {"user": ticks[0] + ticks[1], "kernel": ticks[2] + ticks[5] + ticks[6]}
        elif words and (name := {"TLB:": "TLB flushes", "CAL:": "calls", "RES:": "reschedules"}.get(words[0])):
            counted[name] = sum(int(word) for word in words[1:] if word.isdecimal())
    return counted


def of_host(host: Machine) -> Counted:
    kvm = host.check("cd /sys/kernel/debug/kvm && cat halt_exits exits && cut -d' ' -f1 /proc/uptime").split()
    return dict(zip(("halts", "exits", "uptime"), map(float, kvm), strict=True))


def row(name: str, runs: list[Counted]) -> str:
    cells = []
    for column in COLUMNS:
        values = sorted(run[column] for run in runs)
        digits = 3 if column == "s" else 2 if column == "pCPUs busy" else 0
        cell = f"{median(values):.0%}" if column in ("user", "kernel") else f"{median(values):.{digits}f}"
        cells.append(cell + (f" [{values[0]:.3g}–{values[-1]:.3g}]" if column == "s" and len(values) > 1 else ""))
    return f"| {name} | {' | '.join(cells)} |"


def lab(rounds: int) -> dict[str, list[Counted]]:
    found: dict[str, list[Counted]] = defaultdict(list)
    with LabPlace(scenario(), probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        guest = place.guests["work"].machine
        for _ in range(rounds):
            with place.policy(KERNEL):
                for program in PROGRAMS:
                    place.measure("work", program)  # with its setup
                    before = of_guest(guest), of_host(place.host)
                    measured = place.measure("work", program)
                    after = of_guest(guest), of_host(place.host)
                    found[program].append(between(before, after, measured.wall_s, measured.cpu_s["work"]))
                    found[program][-1]["figure"] = measured.value
                for name, command in BEGINNINGS.items():
                    guest.check(command)
                    stat = place.guests["work"].cpu_stat
                    before, used = (of_guest(guest), of_host(place.host)), cpu_s(place.host, stat)
                    wall_s = float(guest.check(f"a=$(cut -d' ' -f1 /proc/uptime); {command} >/dev/null; cut -d' ' -f1 /proc/uptime | awk -v a=$a '{{print $1-a}}'"))
                    used = cpu_s(place.host, stat) - used
                    after = of_guest(guest), of_host(place.host)
                    found[f"{name}'s beginning"].append(between(before, after, wall_s, used))
    return found


def cpu_s(host: Machine, stat: str) -> float:
    return int(host.check(f"awk '/usage_usec/ {{print $2}}' {stat}")) / 1e6


def between(before: tuple[Counted, Counted], after: tuple[Counted, Counted], wall_s: float, cpu_s: float) -> Counted:
    guest, host = ({key: b[key] - a[key] for key in a} for a, b in zip(before, after, strict=True))
    return guest | host | {"s": wall_s, "pCPUs busy": cpu_s / wall_s, "user": guest["user"] / cpu_s, "kernel": guest["kernel"] / cpu_s, "cpu_s": cpu_s}


if __name__ == "__main__":
    rounds = int((sys.argv[2:3] or ["3"])[0])
    found = lab(rounds)
    print(f"| program | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for name, runs in found.items():
        print(row(name, runs), [round(r.get("figure", 0), 3) for r in runs], [round(r["cpu_s"], 3) for r in runs])
