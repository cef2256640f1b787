# SPDX-License-Identifier: GPL-2.0-only
"""What a saved state of the booted lab saves: a boot beside a restore, and how many restored labs work.

    build/venv/bin/python bench/emulator/snapshot.py [ROUNDS [RESTORES]]

Each round boots the lab, which saves its state, and restores it some times; all guests work a little after each.
Prints a Markdown table, and why a restore was lost. Exit code 1 if any was.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import work
from alone import number, refuse

from cohortlab.lab.agent import AgentError
from cohortlab.lab.bringup import Lab, bring_up
from cohortlab.lab.guest import GuestConfig
from cohortlab.lab.state import State
from cohortlab.places import PlaceCrashed
from cohortlab.summary import Spread

GUESTS = [GuestConfig(name, 2, 256, 100, "ipi") for name in ("work", "hog")]


def main(rounds: int, restores: int) -> int:
    boots_s: list[float] = []
    restores_s: list[float] = []
    sizes_mb: list[float] = []
    lost: list[str] = []
    for _ in range(rounds):
        saved = _saved(boots_s)
        sizes_mb.append(sum(file.stat().st_size for file in saved.folder.iterdir()) / 1e6)
        for restore in range(restores):
            said: list[str] = []
            took_s, lab = _up(said)
            try:
                if lab.restored:
                    restores_s.append(took_s)
                    work.do(lab.emulator, lab.guests)
                else:
                    _lose(lost, "; ".join(said))
            except (AgentError, PlaceCrashed, TimeoutError) as error:
                _lose(lost, str(error))
            finally:
                lab.emulator.close()
            print(f"restore {restore + 1} of {restores}: {len(lost)} lost", file=sys.stderr)
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


def _saved(boots_s: list[float]) -> State:
    """Boot the lab and return what it was saved as; there may be a state of an earlier run, which goes."""
    while True:
        took_s, lab = _up([])
        lab.emulator.close()
        if lab.state is None:
            raise SystemExit("the lab's state is not saved here: COHORT_LAB_STATE, KVM or another emulator")
        if not lab.restored:
            boots_s.append(took_s)
            return lab.state
        lab.state.remove()


def _up(said: list[str]) -> tuple[float, Lab]:
    """Return a lab, and how long it took; a restore that fails is followed by a boot."""
    begin = time.monotonic()
    lab = bring_up(GUESTS, pcpus=2, ple=True, accel="tcg", progress=lambda text, _: said.append(text))
    return time.monotonic() - begin, lab


def _lose(lost: list[str], why: str) -> None:
    lost.append(why)
    print(f"lost: {why}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        refuse(f"{' '.join(sys.argv[1:])!r} is not allowed: must be [ROUNDS [RESTORES]]")
    given = [number(word, name) for word, name in zip(sys.argv[1:], ("ROUNDS", "RESTORES"), strict=False)]
    sys.exit(main(*given, *(3, 5)[len(given) :]))
