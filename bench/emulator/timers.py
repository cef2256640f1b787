# SPDX-License-Identifier: GPL-2.0-only
"""How late the lab's timers are, with the emulator's main loop as an ordinary thread and as a real-time one.

    build/venv/bin/python bench/emulator/timers.py [ROUNDS]    5; two minutes

Two VMs of 2 busy vCPUs share 2 pCPUs under EEVDF, which ends turns with a timer (HRTICK). In turn with either kind
of main loop, the host's tracepoints are recorded for some seconds. Prints a Markdown table: how much later than wanted
the timers that end turns expired, and the turns that one vCPU took from another. Medians of the rounds, with the lowest
and the highest. A turn may also be long because the kernel lets the same vCPU go on.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from alone import number, refuse

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL
from cohortlab.summary import Spread

TRACING = "/sys/kernel/tracing"
EVENTS = ("sched/sched_switch", "timer/hrtimer_start", "timer/hrtimer_expire_entry")
SECONDS = 4
SETTLING_S = 2
SLICE_US = 1400
KINDS = {"an ordinary thread": os.SCHED_OTHER, "real-time": os.SCHED_FIFO}
LINE = re.compile(r".*\[(?P<cpu>\d+)\]\s+\S+\s+(?P<s>[\d.]+): (?P<event>\w+): (?P<of>.*)")
TIMER = re.compile(r"hrtimer=(?P<timer>\S+) function=hrtick(?: expires=(?P<at>\d+)| now=(?P<now>\d+))")
SWITCH = re.compile(r"prev_comm=qemu.* prev_state=R.* next_comm=qemu")


def main(rounds: int) -> None:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    scenario = scenarios.load(scenarios.SHIPPED / "smp-2x2.toml")
    with LabPlace(scenario, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        place.host.check(
            f"echo 0 >{TRACING}/tracing_on; echo 32768 >{TRACING}/buffer_size_kb;"
            + "".join(f"echo 1 >{TRACING}/events/{event}/enable;" for event in EVENTS)
        )
        for name, guest in place.guests.items():
            for vcpu in range(2):
                guest.machine.spawn(f"loop-{name}-{vcpu}", "exec sh -c 'while :; do :; done'")
        with place.policy(KERNEL):
            for number in range(rounds):
                for kind, policy in KINDS.items():
                    print(f"round {number + 1} of {rounds}: {kind}", file=sys.stderr)
                    os.sched_setscheduler(
                        place.emulator.pid,
                        policy | os.SCHED_RESET_ON_FORK,
                        os.sched_param(int(policy == os.SCHED_FIFO)),
                    )
                    time.sleep(SETTLING_S)
                    found[kind].append(figures(traced(place)))
    columns = list(found["real-time"][0])
    print(f"| the main loop is | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for kind, of in found.items():
        cells = [f"{Spread.of(each[column] for each in of)}" for column in columns]
        print(f"| {kind} | {' | '.join(cells)} |")


def traced(place: LabPlace) -> str:
    trace = f"{TRACING}/trace"
    place.host.check(f"echo >{trace}; echo 1 >{TRACING}/tracing_on; sleep {SECONDS}; echo 0 >{TRACING}/tracing_on")
    place.host.check(f"cat {trace} >/tmp/trace")
    return place.host.get("/tmp/trace").decode()


def figures(text: str) -> dict[str, float]:
    late, turns = list(lateness_us(text)), list(turns_us(text))
    late_at, turn_at = quantiles(late, n=100), quantiles(turns, n=100)
    return {
        "timers late by, µs: median": late_at[49],
        "90 %": late_at[89],
        "95 %": late_at[94],
        "turns, µs: median": turn_at[49],
        "longer than two slices, %": 100 * sum(turn > 2 * SLICE_US for turn in turns) / len(turns),
        "turns a second": len(turns) / SECONDS,
    }


def lateness_us(text: str) -> Iterator[float]:
    """Yield of each timer that ends a turn how much later it expired than it was set to."""
    wanted_ns: dict[str, int] = {}
    for found in TIMER.finditer(text):
        if found["at"]:
            wanted_ns[found["timer"]] = int(found["at"])
        elif found["timer"] in wanted_ns:
            yield (int(found["now"]) - wanted_ns.pop(found["timer"])) / 1000


def turns_us(text: str) -> Iterator[float]:
    """Yield how long each turn was that one vCPU took from another and lost to another."""
    since_s: dict[str, float] = {}
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        if found and found["event"] == "sched_switch":
            before = since_s.pop(found["cpu"], None)
            if SWITCH.match(found["of"]):
                if before is not None:
                    yield (float(found["s"]) - before) * 1e6
                since_s[found["cpu"]] = float(found["s"])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS]")
    main(number((sys.argv[1:] or ["5"])[0], "ROUNDS"))
