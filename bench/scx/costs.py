# SPDX-License-Identifier: GPL-2.0-only
"""What a decision costs on a real kernel: our presets beside a minimal sched_ext scheduler of the classic shape.

    scripts/in-toolchain cargo build --release -p cohort -p cohort-bench-scx
    build/venv/bin/python bench/scx/costs.py [--share] [ROUNDS [PRESET[=FILE],...]]

PRESET=FILE is that of another build of `cohort`, beside this one. Boots the lab once. One guest runs hackbench, the
other burns CPU; each scheduler has them for some seconds, in turn, in alternating order. The kernel's BPF run-time
statistics count calls and time of each program. Prints two Markdown tables: time per task put on a pCPU and its ratio
to the minimal scheduler's of the same round; and by operation. Under emulation a program takes many times what it takes
on hardware; ratios are what to read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from alone import number, refuse

from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.guest import GuestConfig
from cohortlab.summary import Spread

SECONDS = 6
ROOT = Path(__file__).parents[2]
# As scripts/lib.sh tells cargo.
RELEASE = ROOT / os.environ.get("CARGO_TARGET_DIR", "build/target") / "x86_64-unknown-linux-gnu/release"
GUESTS = [GuestConfig("work", 2, 256, 100, "ipi"), GuestConfig("hog", 2, 256, 100, "ipi")]
MINIMAL = "minimal"
# Where they are on the lab's host.
COHORT, BENCH = "/tmp/cohort", "/tmp/bench-scx"
# What sched_ext asks a scheduler for most often, and all other programs.
OPERATIONS = ("select_cpu", "enqueue", "dispatch", "running", "stopping", "quiescent", "tick")
OTHERS = "others"
# By operation, in ns per task put on a pCPU.
Costs = dict[str, float]


def main(rounds: int, presets: list[str]) -> None:
    files = {COHORT: RELEASE / "cohort", BENCH: RELEASE / "cohort-bench-scx"}
    # Each in a folder of its own: all are called cohort.
    builds = {preset: f"/tmp/{number}/cohort" for number, preset in enumerate(presets) if "=" in preset}
    files |= {path: Path(preset.partition("=")[2]) for preset, path in builds.items()}
    for path, file in files.items():
        if not file.is_file():
            remedy = "give another build of cohort" if path in builds.values() else f"build it as {__file__} says"
            refuse(f"{file}: there is no such file: {remedy}")
    programs = {path: file.read_bytes() for path, file in files.items()}
    measured: dict[str, list[Costs]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    lab = bring_up(GUESTS, pcpus=2, ple=True, accel="tcg", share="--share" in sys.argv, fresh=True)
    try:
        host = lab.emulator.host
        for path, content in programs.items():
            host.check(f"mkdir -p {Path(path).parent}")
            host.put(path, content)
        for guest in lab.guests:
            guest.machine.spawn("load", LOADS[guest.config.name])
        for number in range(rounds):
            order = [MINIMAL, *presets]
            turns = order if number % 2 == 0 else order[::-1]
            this = {name: _measure(lab, name, builds.get(name, COHORT)) for name in turns}
            least = sum(this[MINIMAL].values())
            for name, costs in this.items():
                measured[name].append(costs)
                ratios[name].append(sum(costs.values()) / least)
            print(f"round {number + 1} of {rounds}: {this}", file=sys.stderr)
    finally:
        lab.emulator.close()
    print("| scheduler | µs per switch | ÷ minimal |\n|---|---:|---:|")
    for name, found in measured.items():
        print(f"| {name} | {Spread.of(sum(costs.values()) / 1000 for costs in found)} | {Spread.of(ratios[name])} |")
    print(f"\n| µs per switch | {' | '.join((*OPERATIONS, OTHERS))} |\n|---|{'---:|' * (len(OPERATIONS) + 1)}")
    for name, found in measured.items():
        medians = (median(costs[operation] / 1000 for costs in found) for operation in (*OPERATIONS, OTHERS))
        print(f"| {name} | {' | '.join(f'{us:.3g}' for us in medians)} |")


LOADS = {
    "work": "while :; do hackbench -g 2 -l 100 >/dev/null; done",
    "hog": "for i in 1 2; do (while :; do :; done) & done; wait",
}


def _measure(lab: Lab, name: str, program: str) -> Costs:
    """Return the time of all programs per task put on a pCPU, by operation; ``program`` runs a preset."""
    host = lab.emulator.host
    preset = name.partition("=")[0]
    command = f"exec {BENCH} minimal" if name == MINIMAL else f"exec {program} run --policy {preset}"
    scheduler = host.spawn(f"scheduler-{time.monotonic_ns()}", f"tail -f /dev/null | {command}")
    deadline = time.monotonic() + 60
    while "enabled" not in host.check("cat /sys/kernel/sched_ext/state"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: {scheduler.output('stderr')[0]}")
        time.sleep(0.2)
    time.sleep(1)
    programs = json.loads(host.check(f"{BENCH} cost {SECONDS}", 60))
    host.check("pkill -INT -x cohort; pkill -x tail; pkill -x bench-scx; true")
    while "enabled" in host.check("cat /sys/kernel/sched_ext/state"):
        time.sleep(0.2)
    running = max(1, next(program["calls"] for key, program in programs.items() if key.endswith("_running")))
    costs = dict.fromkeys((*OPERATIONS, OTHERS), 0.0)
    for key, program in programs.items():
        # The kernel keeps 15 characters of a program's name, the scheduler's among them.
        short = key.partition("_")[2]
        operation = next((name for name in OPERATIONS if short and name.startswith(short)), OTHERS)
        costs[operation] += program["ns"] / running
    return costs


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--share"]
    if len(given) > 2:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [--share] [ROUNDS [PRESET[=FILE],...]]")
    arguments = [*given, *("5", "vtime,balance,cohort")[len(given) :]]
    main(number(arguments[0], "ROUNDS"), arguments[1].split(","))
