# SPDX-License-Identifier: GPL-2.0-only
"""What it costs to make a guest's pages fault again, by three ways that a VMM's memory can be taken from KVM.

    make build && build/venv/bin/python bench/sets/rearm.py [ROUNDS [KERNEL]]

Boots the lab once. A guest touches the same 4000 pages for ten seconds, again and again; the host takes its memory five
times a second, as `cohort run --traffic faults` does with a part of it. Prints a Markdown table: how long the call
takes, faults in KVM and in the VMM each time, and the guest's passes. Under emulation a fault takes many times what it
takes on hardware; faults and ratios are what to read.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.guest import GuestConfig
from cohortlab.summary import Spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/lab"))
from alone import number, refuse
from provoked import TRUTH, put

PAGES = 4000
SECONDS = 10
TIMES, EVERY_US = 5 * SECONDS, 200_000
WAYS = {
    "none": "",
    "scan": "`PAGEMAP_SCAN`, to write-protect",
    "1": "1 to `clear_refs`",
    "4": "4 to `clear_refs`",
}


def main(rounds: int, kernel: str | None) -> None:
    measured: dict[str, list[dict[str, float]]] = defaultdict(list)
    lab = bring_up([GuestConfig("work", 2, 256, 100, "ipi")], pcpus=2, ple=True, accel="tcg", kernel=kernel, fresh=True)
    try:
        for machine in (lab.emulator.host, lab.guests[0].machine):
            put(machine)
        for number in range(rounds):
            ways = list(WAYS) if number % 2 == 0 else list(WAYS)[::-1]
            for way in ways:
                measured[way].append(_measure(lab, way))
                print(f"round {number + 1} of {rounds}: {way}: {measured[way][-1]}", file=sys.stderr)
    finally:
        lab.emulator.close()
    alone = [round_["passes"] for round_ in measured["none"]]
    print("| way | µs per call | faults in KVM each time | in the VMM | guest's passes ÷ those without |")
    print("|---|---:|---:|---:|---:|")
    for way, name in WAYS.items():
        if way == "none":
            continue
        rows = measured[way]
        passes = Spread.of(row["passes"] / without for row, without in zip(rows, alone, strict=True))
        cells = [Spread.of(row[name] for row in rows) for name in ("call_us", "kvm", "host")]
        print(f"| {name} | {' | '.join(map(str, cells))} | {passes} |")


def _measure(lab: Lab, way: str) -> dict[str, float]:
    host, guest = lab.emulator.host, lab.guests[0]
    pid = guest.pid()

    def counters() -> tuple[int, int]:
        kvm = host.check(f"cat /sys/kernel/debug/kvm/{pid}-*/pf_taken")
        return int(kvm), int(host.read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[7])

    # What it touches is there.
    guest.machine.check(f"{TRUTH} passes /dev/shm/a {PAGES} 1")
    before = counters()
    job = guest.machine.spawn("passes", f"exec {TRUTH} passes /dev/shm/a {PAGES} {SECONDS}")
    call_ns = 0.0
    if way != "none":
        call_ns = float(host.check(f"{TRUTH} drops {pid} {way} {TIMES} {EVERY_US}"))
    job.wait(60)
    after = counters()
    passes = float(job.output()[0])
    kvm, minor = ((now - was) / TIMES for was, now in zip(before, after, strict=True))
    return {"call_us": call_ns / 1000, "kvm": kvm, "host": minor, "passes": passes}


if __name__ == "__main__":
    if len(sys.argv) > 3:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS [KERNEL]]")
    main(number((sys.argv[1:2] or ["3"])[0], "ROUNDS"), sys.argv[2] if len(sys.argv) > 2 else None)
