# SPDX-License-Identifier: GPL-2.0-only
"""What a saved state of the booted lab saves: a boot beside a restore, and how many restored labs work.

    build/venv/bin/python bench/emulator/snapshot.py [ROUNDS [RESTORES]]

Each round boots the lab, which saves its state, and restores it some times; all guests work a little after each.
Prints a Markdown table, and why a restore was lost. Exit code 1 if any was.
"""

from __future__ import annotations

import sys
import time

import work

from cohortlab.lab import command, state
from cohortlab.lab.agent import AgentError
from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.guest import GuestConfig
from cohortlab.places import PlaceCrashed
from cohortlab.summary import Spread

GUESTS = [GuestConfig(name, 2, 256, 100, "ipi") for name in ("work", "hog")]


def main(rounds: int, restores: int) -> int:
    boots_s: list[float] = []
    restores_s: list[float] = []
    sizes_mb: list[float] = []
    lost: list[str] = []
    for _ in range(rounds):
        took_s, lab = _up(lost)
        try:
            saved = state.of(command.of(lab.boot), lab.boot, GUESTS)
            if saved is None:
                raise SystemExit("the lab's state is not saved here: COHORT_LAB_STATE, KVM or another emulator")
            if lab.restored:
                saved.remove()
        finally:
            lab.emulator.close()
        if lab.restored:
            took_s, lab = _up(lost)
            lab.emulator.close()
        boots_s.append(took_s)
        sizes_mb.append(sum(file.stat().st_size for file in saved.folder.iterdir()) / 1e6)
        for number in range(restores):
            took_s, lab = _up(lost)
            try:
                if not lab.restored:
                    continue
                restores_s.append(took_s)
                work.do(lab.emulator, lab.guests)
            except (AgentError, PlaceCrashed, TimeoutError) as error:
                _lose(lost, str(error))
            finally:
                lab.emulator.close()
            print(f"restore {number + 1} of {restores}: {len(lost)} lost", file=sys.stderr)
        saved.remove()
    print("| what | median [range] |\n|---|---|")
    for what, values in (
        ("a boot, with its state saved, s", boots_s),
        ("the state's size, MB", sizes_mb),
        ("a restore, s", restores_s),
    ):
        print(f"| {what} | {Spread.of(values) if values else '–'} |")
    print(f"\n{len(lost)} of {rounds * restores} restored labs were lost.")
    return 1 if lost else 0


def _up(lost: list[str]) -> tuple[float, Lab]:
    """Return a lab, and how long it took; a restore that fails is followed by a boot."""

    def listen(text: str, fraction: float | None) -> None:
        if text.startswith("the saved state does not do"):
            _lose(lost, text)

    begin = time.monotonic()
    lab = bring_up(GUESTS, pcpus=2, ple=True, accel="tcg", progress=listen)
    return time.monotonic() - begin, lab


def _lose(lost: list[str], why: str) -> None:
    lost.append(why)
    print(f"lost: {why}", file=sys.stderr)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*given, *(3, 5)[len(given) :]))
