# SPDX-License-Identifier: GPL-2.0-only
"""How often a lab is lost: boots in a row, with each emulator in turn; a little work in all guests of each boot.

    build/venv/bin/python bench/emulator/soak.py [BOOTS_2x2 [BOOTS_2x4 [KIND,...]]]

Prints a Markdown table of boots, of those that were lost, and of the median boot's time. Exit code 1 if any was lost.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import work
from alone import number, refuse

from cohortlab.lab import qemu
from cohortlab.lab.agent import AgentError
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.guest import GuestConfig
from cohortlab.places import PlaceCrashed
from cohortlab.summary import Spread


def main(boots: dict[int, int], kinds: list[str]) -> int:
    took_s: dict[tuple[str, int], list[float]] = defaultdict(list)
    lost: dict[tuple[str, int], list[str]] = defaultdict(list)
    for vcpus, times in boots.items():
        for turn in range(times):
            for kind in kinds if turn % 2 == 0 else kinds[::-1]:
                os.environ[qemu.VARIABLE] = kind
                try:
                    took_s[kind, vcpus].append(_boot(vcpus))
                except (AgentError, PlaceCrashed, TimeoutError) as crash:
                    lost[kind, vcpus].append(str(crash))
                    print(f"lost: {crash}", file=sys.stderr)
                print(f"2x{vcpus}, {turn + 1} of {times}, {kind}: {len(lost[kind, vcpus])} lost", file=sys.stderr)
    print("| emulator | shape | boots | lost | a boot, s: median [range] |\n|---|---|---|---|---|")
    for kind in kinds:
        for vcpus, times in boots.items():
            up_s = Spread.of(took_s[kind, vcpus]) if took_s[kind, vcpus] else "–"
            print(f"| {kind} | 2x{vcpus} | {times} | {len(lost[kind, vcpus])} | {up_s} |")
    return 1 if any(lost.values()) else 0


def _boot(vcpus: int) -> float:
    """Return how long host and guests took to come up; all of them work afterwards."""
    begin = time.monotonic()
    guests = [GuestConfig(name, vcpus, 256, 100, "ipi") for name in ("work", "hog")]
    lab = bring_up(guests, pcpus=2, ple=True, accel="tcg", fresh=True)
    try:
        up_s = time.monotonic() - begin
        work.do(lab.emulator, lab.guests)
        return up_s
    finally:
        lab.emulator.close()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [BOOTS_2x2 [BOOTS_2x4 [KIND,...]]]")
    arguments = [*sys.argv[1:], *("30", "20", "patched,cured,stock")[len(sys.argv) - 1 :]]
    boots = {2: number(arguments[0], "BOOTS_2x2"), 4: number(arguments[1], "BOOTS_2x4")}
    sys.exit(main(boots, arguments[2].split(",")))
