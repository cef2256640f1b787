# SPDX-License-Identifier: GPL-2.0-only
"""What programs do alone, which is where their models' parameters come from: a Markdown table.

    build/venv/bin/python bench/alone.py lab [ROUNDS]          a minute for 3
    build/venv/bin/python bench/alone.py simulated [SEEDS]     seconds

One VM of 2 vCPUs on 2 pCPUs under EEVDF; simulated ones on hardware/lab.toml. Medians; of the figure also the lowest
and the highest. The figure is the program's own, s the time of its whole run: hackbench begins to count late.

In the lab each program has run once before, and what the guest and KVM count has a little of what it takes to ask
them. User and kernel are parts of the VM's CPU time by the guest's /proc/stat; the simulator does not tell them apart.
Calls of functions on other vCPUs include TLB flushes. The lab also runs programs with next to nothing to do: what they
take is their beginning.
"""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
from cohortlab.scenario import Scenario
from cohortlab.sim import hardware
from cohortlab.sim.model import Run
from cohortlab.sim.result import Result
from cohortlab.summary import Spread

PROGRAMS = ("hackbench-pipes", "hackbench", "user-spin", "tlb-shootdown", "tlb-flush", "mmapfork", "dbench", "pbzip2")
# The same programs with next to nothing to do.
BEGINNINGS = {
    "hackbench": "hackbench -g 2 -l 1 -f 5",
    "hackbench-pipes": "hackbench -T -p -g 4 -f 2 -l 1",
    "stress-ng": "stress-ng --quiet --spinmem 1 --spinmem-ops 1",
    "pbzip2": "seq 1 10 >/tmp/few && pbzip2 -k -f -q -b1 -c /tmp/few >/dev/null",
}
VM = "work"
HARDWARE = "lab"
# What is known of a run, by column; the figure is in the program's own unit.
FIGURE, WALL, CPU, BUSY = "figure", "s", "CPU s", "pCPUs busy"
SHARES = ("user", "kernel")
COUNTS = ("TLB flushes", "calls", "reschedules", "halts", "exits")
COLUMNS = (FIGURE, WALL, CPU, BUSY, *SHARES, *COUNTS)
Counted = dict[str, float]
Found = dict[str, list[Counted]]
# Rows of the guest's /proc/interrupts; numbers of the simulator's interrupts (vector:: in sim/src/kvm/mod.rs).
INTERRUPTS = {"TLB:": "TLB flushes", "CAL:": "calls", "RES:": "reschedules"}
CALL, TLB, RESCHED = "0", "1", "2"
TICKS_PER_S = 100


def scenario(hogs: int = 0, vcpus: int = 2) -> Scenario:
    """Return a VM for the programs, and so many that compute beside it."""
    work = {"name": VM, "vcpus": vcpus, "memory_mb": 384, "programs": list(PROGRAMS)}
    others = [{"name": f"hog{at}", "vcpus": 2, "memory_mb": 192, "load": "cpu-hog"} for at in range(1, hogs + 1)]
    data = {"name": "alone", "host": {"pcpus": 2}, "guest": {"tlb": "ipi", "ple": True}, "vm": [work, *others]}
    return scenarios.of_data(data, Path("alone.toml"))


class Lab:
    """A boot of the lab, in which programs run in one guest."""

    def __init__(self, place: LabPlace) -> None:
        self.place = place
        self.guest = place.guests[VM].machine

    def program(self, name: str) -> Counted:
        self.place.measure(VM, name)
        before = self._counted()
        measured = self.place.measure(VM, name)
        return self._since(before, used(measured.value, measured.wall_s, measured.cpu_s[VM]))

    def command(self, command: str) -> Counted:
        now = "cut -d' ' -f1 /proc/uptime"
        self.guest.check(command)
        before, before_s = self._counted(), self._cpu_s()
        wall_s = float(self.guest.check(f"a=$({now}); {command} >/dev/null; {now} | awk -v a=$a '{{print $1-a}}'"))
        cpu_s = self._cpu_s() - before_s
        return self._since(before, used(wall_s, wall_s, cpu_s))

    def _cpu_s(self) -> float:
        return int(self.place.host.check(f"awk '/usage_usec/ {{print $2}}' {self.place.guests[VM].cpu_stat}")) / 1e6

    def _counted(self) -> Counted:
        """Return what the guest and KVM have counted so far; ``user`` and ``kernel`` are seconds."""
        counted: Counted = {}
        for line in self.guest.check("cat /proc/stat /proc/interrupts").splitlines():
            words = line.split()
            if words[:1] == ["cpu"]:
                user, nice, system, _, _, irq, softirq = (int(word) / TICKS_PER_S for word in words[1:8])
                counted |= {"user": user + nice, "kernel": system + irq + softirq}
            elif words and (name := INTERRUPTS.get(words[0])):
                counted[name] = sum(int(word) for word in words[1:] if word.isdecimal())
        kvm = self.place.host.check("cd /sys/kernel/debug/kvm && cat halt_exits exits").split()
        return counted | dict(zip(("halts", "exits"), map(float, kvm), strict=True))

    def _since(self, before: Counted, used: Counted) -> Counted:
        grown = {name: value - before[name] for name, value in self._counted().items()}
        return used | grown | {share: grown[share] / used[CPU] for share in SHARES}


def used(figure: float, wall_s: float, cpu_s: float) -> Counted:
    return {FIGURE: figure, WALL: wall_s, CPU: cpu_s, BUSY: cpu_s / wall_s}


def lab(rounds: int) -> Found:
    found: Found = defaultdict(list)
    with LabPlace(scenario(), probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        booted = Lab(place)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            with place.policy(KERNEL):
                for program in PROGRAMS:
                    found[program].append(booted.program(program))
                for name, command in BEGINNINGS.items():
                    found[f"{name}'s beginning"].append(booted.command(command))
    return found


class AtOnce(Run):
    """The program begins with the run, so that what is counted of the run is the program's."""

    def as_dict(self) -> dict[str, Any]:
        made = super().as_dict()
        for vm in made["vms"]:
            vm["start_ns"] = 0
        return made


def simulated(seeds: int) -> Found:
    return {program: [once(program, seed) for seed in range(1, seeds + 1)] for program in PROGRAMS}


def once(program: str, seed: int) -> Counted:
    run = AtOnce(scenario(), {VM: program}, KERNEL, seed=seed, hardware=hardware.load(HARDWARE))
    result = Result.of(run)
    measured, (vm,) = result.measurement(VM), result.figures["vms"]
    taken = {vector: vm["ipis_taken"].get(vector, 0) for vector in (CALL, TLB, RESCHED)}
    return used(measured.value, measured.wall_s, measured.cpu_s[VM]) | {
        "TLB flushes": taken[TLB],
        "calls": taken[CALL] + taken[TLB],
        "reschedules": taken[RESCHED],
        "halts": vm["halts"],
        "exits": sum(vm["exits"].values()),
    }


def row(name: str, unit: str, runs: list[Counted]) -> str:
    cells = [f"{Spread.of(run[FIGURE] for run in runs)} {unit}"]
    for column in COLUMNS[1:]:
        if column not in runs[0]:
            cells.append("–")
            continue
        middle = median(run[column] for run in runs)
        cells.append(f"{middle:.0%}" if column in SHARES else f"{middle:.0f}" if column in COUNTS else f"{middle:.2f}")
    return f"| {name} | {' | '.join(cells)} |"


def number(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        refuse(f"{name}: {text!r} is not allowed: must be an integer of 1 or more")
    return int(text)


def refuse(wrong: str) -> NoReturn:
    print(f"{sys.argv[0]}: {wrong}", file=sys.stderr)
    sys.exit(2)


def main(kind: str = "", count: str = "3", *more: str) -> None:
    kinds: dict[str, Callable[[int], Found]] = {"lab": lab, "simulated": simulated}
    if kind not in kinds or more:
        refuse(f"{shlex.join(sys.argv[1:])!r} is not allowed: must be lab [ROUNDS] or simulated [SEEDS]")
    units = {name: workload.unit for name, workload in scenario().workloads.items()}
    found = kinds[kind](number(count, "ROUNDS" if kind == "lab" else "SEEDS"))
    print(f"| program | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for name, runs in found.items():
        print(row(name, units.get(name, "s"), runs))


if __name__ == "__main__":
    main(*sys.argv[1:])
