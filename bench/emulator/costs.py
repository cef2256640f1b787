# SPDX-License-Identifier: GPL-2.0-only
"""What emulated virtualization costs: boots, exits, pages touched again after an exit, turns after somebody else's.

    build/venv/bin/python bench/emulator/costs.py [ROUNDS [KIND,...]]

Boots the lab with each emulator in turn, in alternating order, and prints a Markdown table of medians and ranges.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from alone import number, refuse

from cohortlab.lab import qemu, sampling
from cohortlab.lab.agent import AgentError
from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.guest import SLICE, GuestConfig
from cohortlab.places import PlaceCrashed
from cohortlab.summary import Spread

EXITS = 2_000
WORK_ROUNDS = 60_000
# Both on the first pCPU: they take turns.
GUESTS = [GuestConfig(name, 1, 256, 100, "ipi", (0,)) for name in ("work", "other")]
NAMES = {
    "boot": "boot of the host and two guests, s",
    "exit": "a VM exit (CPUID), µs",
    "page": "a page touched again after it, µs",
    "turn": "a turn after somebody else's, µs",
}


def main(rounds: int, kinds: list[str]) -> None:
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    lost: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as folder:
        program = _compile(Path(folder))
        for number in range(rounds):
            for kind in kinds if number % 2 == 0 else kinds[::-1]:
                os.environ[qemu.VARIABLE] = kind
                print(f"round {number + 1} of {rounds}: {kind}", file=sys.stderr)
                try:
                    for what, value in _measure(program):
                        measured[what, kind].append(value)
                except (AgentError, PlaceCrashed, TimeoutError) as crash:
                    lost[kind] += 1
                    print(f"lost: {crash}", file=sys.stderr)
    print(f"| what | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for what, name in NAMES.items():
        cells = [str(Spread.of(measured[what, kind])) if measured[what, kind] else "–" for kind in kinds]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"| labs lost, of {rounds} | {' | '.join(str(lost[kind]) for kind in kinds)} |")


def _compile(folder: Path) -> bytes:
    source, program = Path(__file__).with_name("costs.c"), folder / "costs"
    subprocess.run(["gcc", "-O2", "-static", "-o", program, source], check=True)
    return program.read_bytes()


def _measure(program: bytes) -> Iterator[tuple[str, float]]:
    begin = time.monotonic()
    with _up() as lab:
        yield "boot", time.monotonic() - begin
        work, other = (guest.machine for guest in lab.guests)
        for machine in (work, other):
            machine.put("/tmp/costs", program)
        exits, page = map(float, work.check(f"/tmp/costs exits {EXITS}").split())
        yield "exit", exits
        yield "page", page
        alone_s, _ = _work(lab)
        load = other.spawn("load", f"exec /tmp/costs work {WORK_ROUNDS * 100}")
        beside_s, turns = _work(lab)
        load.signal(9)
        yield "turn", (beside_s - alone_s) / turns * 1e6


@contextmanager
def _up() -> Iterator[Lab]:
    lab = bring_up(GUESTS, pcpus=2, ple=False, accel="tcg", fresh=True)
    try:
        yield lab
    finally:
        lab.emulator.close()


def _work(lab: Lab) -> tuple[float, int]:
    """Return the CPU time that the work took, and how often it lost its pCPU meanwhile."""
    host, guest = lab.emulator.host, lab.guests[0]
    # All threads of its QEMU: but for the vCPU's they hardly run.
    threads = f"/proc/{guest.pid()}/task/*/status"
    counts = f"awk '/^nonvol/ {{ n += $2 }} END {{ print n }}' {threads}"

    def now() -> tuple[float, int]:
        return sampling.usage_s(host.read(f"{SLICE}/{guest.config.name}.scope/cpu.stat")), int(host.check(counts))

    before = now()
    guest.machine.check(f"/tmp/costs work {WORK_ROUNDS}", 300)
    after = now()
    return after[0] - before[0], max(1, after[1] - before[1])


if __name__ == "__main__":
    if len(sys.argv) > 3:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS [KIND,...]]")
    arguments = [*sys.argv[1:], *("3", "patched,cured")[len(sys.argv) - 1 :]]
    main(number(arguments[0], "ROUNDS"), arguments[1].split(","))
