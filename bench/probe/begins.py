# SPDX-License-Identifier: GPL-2.0-only
"""How programs begin and end in the lab, and what their VMMs do meanwhile: the host's own trace, as Markdown tables.

    build/venv/bin/python bench/probe/begins.py [ROUNDS]     3, in two minutes

One VM of 2 vCPUs on 2 pCPUs; each program alone. It has begun once both vCPUs are busy for three quarters of 30 ms on
end, and ends after the last such time. Of both parts: how long they are, for how long of that any vCPU is busy, both
are, and the busier one is; and who woke a vCPU, its sibling or its own timer. Medians.

Then a program beside another VM that computes: when the other threads of both VMs' VMMs run, before the program's
first vCPU does and after, and for how long. What the lab asks of guests goes through them.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from alone import PROGRAMS, VM, number, refuse, scenario

from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL

OTHER, LOAD, PROGRAM = "hog1", "cpu-hog", "user-spin"
TRACING = "/sys/kernel/tracing"
EVENTS = ("sched_switch", "sched_waking")
SLICE = "/sys/fs/cgroup/machine.slice"
BUCKET_S = 0.01
FULL, FULL_BUCKETS, GAP_BUCKETS, IDLE = 0.75, 3, 3, 0.3
SWITCH = re.compile(
    r"\[(?P<cpu>\d+)\] \S+\s+(?P<s>[\d.]+): sched_switch: .*prev_pid=(?P<from>\d+) .*==> .*next_pid=(?P<to>\d+)"
)
WAKING = re.compile(r"-(?P<by>\d+)\s+\[\d+\] (?P<flags>\S+)\s+(?P<s>[\d.]+): sched_waking: .*pid=(?P<who>\d+) prio")
HEAD = ("part", "ms", "busy, ms", "both, ms", "busier, ms", "woken by the sibling", "by a timer")


class Run(NamedTuple):
    """A thread had a pCPU from then till then, in seconds since the trace began."""

    thread: int
    from_s: float
    to_s: float


class Wake(NamedTuple):
    thread: int
    at_s: float
    by: int
    in_interrupt: bool


class Trace(NamedTuple):
    runs: list[Run]
    wakes: list[Wake]

    @classmethod
    def read(cls, text: str) -> Trace:
        runs: list[Run] = []
        wakes: list[Wake] = []
        on: dict[str, tuple[int, float]] = {}
        first_s: float | None = None
        for line in text.splitlines():
            found = SWITCH.search(line) or WAKING.search(line)
            if found is None:
                continue
            first_s = float(found["s"]) if first_s is None else first_s
            at_s = float(found["s"]) - first_s
            if "who" in found.groupdict():
                # The third flag is h in an interrupt, H in one that came in another.
                wakes.append(Wake(int(found["who"]), at_s, int(found["by"]), found["flags"][2:3] in ("h", "H")))
                continue
            if found["cpu"] in on:
                thread, from_s = on[found["cpu"]]
                runs.append(Run(thread, from_s, at_s))
            on[found["cpu"]] = (int(found["to"]), at_s)
        return cls(runs, wakes)


class Part(NamedTuple):
    ms: float
    busy_ms: float
    both_ms: float
    busier_ms: float
    by_sibling: float
    by_timer: float


def parts(trace: Trace, vcpus: Sequence[int]) -> tuple[Part, Part]:
    """Return a program's beginning and its end."""
    buckets = int(max(run.to_s for run in trace.runs) / BUCKET_S) + 1
    busy = {vcpu: [0.0] * buckets for vcpu in vcpus}
    for run in trace.runs:
        if run.thread in busy:
            for bucket in range(int(run.from_s / BUCKET_S), int(run.to_s / BUCKET_S) + 1):
                begin_s, end_s = bucket * BUCKET_S, (bucket + 1) * BUCKET_S
                busy[run.thread][bucket] += max(0.0, min(end_s, run.to_s) - max(begin_s, run.from_s)) / BUCKET_S
    both = _together(trace, vcpus, buckets)
    either = [sum(of[bucket] for of in busy.values()) - both[bucket] for bucket in range(buckets)]
    full = [at for at in range(buckets - FULL_BUCKETS) if min(both[at : at + FULL_BUCKETS]) > FULL]
    if not full:
        refuse("the vCPUs were never both busy: something else runs on this machine")
    first, last = full[0], full[-1] + FULL_BUCKETS
    begin, end = first, last
    while begin > 0 and max(either[max(0, begin - GAP_BUCKETS) : begin]) >= IDLE:
        begin -= 1
    while end < buckets and max(either[end : end + GAP_BUCKETS], default=0.0) >= IDLE:
        end += 1

    def part(a: int, z: int) -> Part:
        woken = [wake for wake in trace.wakes if wake.thread in vcpus and a * BUCKET_S <= wake.at_s < z * BUCKET_S]
        by_sibling = sum(wake.by in vcpus and wake.by != wake.thread for wake in woken)
        by_timer = sum(wake.in_interrupt and wake.by not in vcpus for wake in woken)
        ms = BUCKET_S * 1000
        busier = max(sum(of[a:z]) for of in busy.values())
        return Part((z - a) * ms, sum(either[a:z]) * ms, sum(both[a:z]) * ms, busier * ms, by_sibling, by_timer)

    return part(begin, first), part(last, end)


def _together(trace: Trace, vcpus: Sequence[int], buckets: int) -> list[float]:
    """Return for how much of each bucket all vCPUs run."""
    edges = sorted((at_s, step) for run in trace.runs if run.thread in vcpus for at_s, step in _edges(run))
    both, running = [0.0] * buckets, 0
    for (from_s, step), (to_s, _) in pairwise(edges):
        running += step
        if running < len(vcpus):
            continue
        for bucket in range(int(from_s / BUCKET_S), int(to_s / BUCKET_S) + 1):
            begin_s, end_s = bucket * BUCKET_S, (bucket + 1) * BUCKET_S
            both[bucket] += max(0.0, min(end_s, to_s) - max(begin_s, from_s)) / BUCKET_S
    return both


def _edges(run: Run) -> tuple[tuple[float, int], tuple[float, int]]:
    return (run.from_s, 1), (run.to_s, -1)


def threads(place: LabPlace, vm: str) -> tuple[list[int], list[int]]:
    """Return the vCPUs' threads of a VM, and the VMM's others."""
    every = {int(tid) for tid in place.host.check(f"cat {SLICE}/{vm}.scope/cgroup.threads").split()}
    # KVM knows which of them run vCPUs.
    told = place.host.check(f"cat /sys/kernel/debug/kvm/{place.guests[vm].pid()}-*/vcpu*/pid")
    vcpus = {int(tid) for tid in told.split()}
    return sorted(vcpus), sorted(every - vcpus)


def traced(place: LabPlace, program: str) -> Trace:
    place.host.check(f"echo > {TRACING}/trace; echo 1 > {TRACING}/tracing_on")
    place.measure(VM, program)
    place.host.check(f"echo 0 > {TRACING}/tracing_on")
    return Trace.read(place.host.check(f"cat {TRACING}/trace"))


def main(rounds: int) -> None:
    found: dict[str, list[tuple[Part, Part]]] = defaultdict(list)
    others: Counter[tuple[str, int]] = Counter()
    with (
        LabPlace(scenario(hogs=1), probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place,
        place.policy(KERNEL, ("--cgroup-mode", "smp")),
    ):
        place.host.check(f"echo 65536 > {TRACING}/buffer_size_kb; echo 0 > {TRACING}/tracing_on")
        for event in EVENTS:
            place.host.check(f"echo 1 > {TRACING}/events/sched/{event}/enable")
        for program in PROGRAMS:
            place.measure(VM, program)
        vcpus, _ = threads(place, VM)
        for _ in range(rounds):
            for program in PROGRAMS:
                found[program].append(parts(traced(place, program), vcpus))
            with place.background(OTHER, LOAD):
                trace = traced(place, PROGRAM)
            begun_s = min(wake.at_s for wake in trace.wakes if wake.thread in vcpus and wake.at_s > 0)
            for vm in (VM, OTHER):
                vmm = set(threads(place, vm)[1])
                for run in trace.runs:
                    if run.thread in vmm:
                        others[vm, round((run.from_s - begun_s) * 100) * 10] += round((run.to_s - run.from_s) * 1e6)
    print(f"| program | {' | '.join(HEAD)} |\n|{'---|' * (len(HEAD) + 1)}")
    for program, runs in found.items():
        for at, name in enumerate(("beginning", "end")):
            values = [f"{median(run[at][column] for run in runs):.0f}" for column in range(len(Part._fields))]
            print(f"| {program} | {name} | {' | '.join(values)} |")
    print(f"\n| VM | ms since the program's vCPUs are first woken | µs of its VMM's other threads, of {rounds} runs |")
    print("|---|---|---|")
    for (vm, at_ms), us in sorted(others.items()):
        print(f"| {vm} | {at_ms} | {us / rounds:.0f} |")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS]")
    main(number((sys.argv[1:] or ["3"])[0], "ROUNDS"))
