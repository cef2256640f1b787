# SPDX-License-Identifier: GPL-2.0-only
"""What a switch takes from those who only compute, under the kernel's own scheduler and under Cohort, in the lab.

    build/venv/bin/python bench/scx/lost.py [ROUNDS]      two minutes for three rounds

Two VMs of 2 vCPUs on 2 pCPUs count as fast as they can: with turns of 100 ms, which are next to no switches, and with
turns of 2 ms under each. What they count less, over how often their vCPUs were switched, is what a switch takes: the
scheduler's own work and what is then to be refilled. The second is the same under both; so the difference is
what Cohort's programs take more than the kernel's own scheduler. BPF's own run time statistics (bench/scx/costs.py)
count the programs alone, and the time that it takes to count.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL

COUNTED_S = 10
SHORT_US = 2_000
POLICIES = {
    "100 ms": (KERNEL, ("--cgroup-mode", "smp", "--base-slice-us", "100000")),
    "EEVDF": (KERNEL, ("--cgroup-mode", "smp", "--base-slice-us", str(SHORT_US))),
    "cohort": ("cohort", ("--slice-us", str(SHORT_US))),
}
COUNTS = 'trap "echo \\$n; exit" TERM; n=0; while :; do n=$((n + 1)); done'
COUNT = f"for i in 1 2; do sh -c '{COUNTS}' & pids=\"$pids $!\"; done; sleep {COUNTED_S}; kill $pids; wait"
SCENARIO = {
    "name": "lost",
    "host": {"pcpus": 2},
    "guest": {"tlb": "ipi", "ple": True},
    "vm": [
        {"name": "a", "vcpus": 2, "memory_mb": 256, "programs": ["hackbench"]},
        {"name": "b", "vcpus": 2, "memory_mb": 256, "load": "cpu-hog"},
    ],
}


def switches(place: LabPlace) -> int:
    """Return how often the VMs' threads were switched so far."""
    files = " ".join(f"/proc/{guest.pid()}/task/*/status" for guest in place.guests.values())
    return int(place.host.check(f"cat {files} | awk '/ctxt_switches/ {{ n += $2 }} END {{ print n }}'"))


def counted(place: LabPlace, policy: str, args: tuple[str, ...]) -> tuple[float, float]:
    """Return how far all have counted, and how often they were switched, each in a second."""
    with place.policy(policy, args):
        begin, before = time.monotonic(), switches(place)
        jobs = [guest.machine.spawn(f"count-{begin:.3f}", COUNT) for guest in place.guests.values()]
        for job in jobs:
            if job.wait(120) is None:
                raise SystemExit("they did not end")
        length_s = time.monotonic() - begin
        total = sum(int(line) for job in jobs for line in job.output()[0].split())
        return total / COUNTED_S, (switches(place) - before) / length_s


def main(rounds: int) -> None:
    found: dict[str, list[float]] = {"EEVDF": [], "cohort": [], "more": []}
    with LabPlace(
        scenarios.of_data(SCENARIO, Path("lost.toml")),
        probe=False,
        progress=lambda text, _: print(text, file=sys.stderr),
    ) as place:
        for number in range(rounds):
            got = {name: counted(place, *policy) for name, policy in POLICIES.items()}
            whole = got["100 ms"][0]
            for name in ("EEVDF", "cohort"):
                count, switched = got[name]
                found[name].append((1 - count / whole) * place.pcpus / (switched - got["100 ms"][1]) * 1e6)
            found["more"].append(found["cohort"][-1] - found["EEVDF"][-1])
            print(f"round {number + 1}: {got}", file=sys.stderr)
    print("| | µs per switch |\n|---|---|")
    for name, values in found.items():
        print(f"| {name} | {median(values):.0f} [{min(values):.0f}–{max(values):.0f}] |")


if __name__ == "__main__":
    if len(sys.argv) > 2 or not all(word.isdecimal() and int(word) for word in sys.argv[1:]):
        print(f"{sys.argv[0]}: {' '.join(sys.argv[1:])!r} is not allowed: must be a number of rounds", file=sys.stderr)
        sys.exit(2)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
