# SPDX-License-Identifier: GPL-2.0-only
"""The rounds of a comparison as `cohortlab held-out` reads them (fidelity/rounds/).

    build/venv/bin/python bench/rounds.py [--settled] FOLDER [TLB] >fidelity/rounds/NAME.toml

FOLDER is what `cohortlab compare --on lab --out FOLDER` wrote; TLB: which of its modes, where it has several. --settled
leaves out the rounds alone that bench/tables.py leaves out. A program that failed under a policy is left out there: it
lacks rounds.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from tables import chosen_window_us, measurements, refuse, without_disturbed

from cohortlab.fidelity import kernel_of
from cohortlab.results import ALONE, Row, read_parquet


def main(folder: str, wanted: str | None, *, settled: bool) -> None:
    file = measurements(folder)
    results = read_parquet(file)
    if settled:
        results.rows = without_disturbed(results.rows, results.pcpus)
    # Of a comparison that was stopped, a mode may have no rounds.
    measured = [mode for mode in results.tlb_modes if any(row.tlb == mode for row in results.rows)]
    modes = [mode for mode in measured if wanted in (None, mode)]
    if len(modes) != 1:
        said = f'"{wanted}" is not allowed' if wanted else "TLB is missing"
        refuse(f"{file}: {said}: must be one of {', '.join(measured) or 'those with a round, and none has any'}")
    (tlb,) = modes
    place = results.places[tlb]
    window = chosen_window_us(results, place)
    if window is None:
        wrong = f'ple: "{place.get("ple", "")}" is not allowed'
        refuse(f"{file}: {wrong}: must be a pause filter whose window in us is known")
    print("# SPDX-License-Identifier: GPL-2.0-only")
    left_out = "Without the rounds alone in which a scheduler was still being cleared away.\n" if settled else ""
    print(f'about = """\n{_without_out(results.command)}\nPLE {place["ple"]}.\n{left_out}"""')
    print(f'scenario = "{results.scenario}"')
    if tlb != "ipi":
        print(f'tlb = "{tlb}"')
    print(f'emulator = "{place["emulator"]}"')
    print(f'kernel = "{kernel_of(results) or place["kernel"]}"\nple_window_us = {window}')
    for program in results.programs:
        failed = {policy: why for (mode, policy, name), why in results.failed.items() if (mode, name) == (tlb, program)}
        for policy, why in failed.items():
            print(f"{program} under {policy} is left out: {why}", file=sys.stderr)
        rows = [row for row in results.rows if row.program == program and row.tlb == tlb and row.policy not in failed]
        if any(row.policy != ALONE for row in rows):
            _print(rows, program, results.policies)


def _without_out(command: str) -> str:
    """Return it without `--out FOLDER`: where the results were written says nothing of them."""
    kept: list[str] = []
    words = iter(shlex.split(command))
    for word in words:
        if word == "--out":
            next(words, None)
        elif not word.startswith("--out="):
            kept.append(word)
    return shlex.join(kept)


def _print(rows: Sequence[Row], program: str, policies: Sequence[str]) -> None:
    print(f'\n[[measured]]\nprogram = "{program}"')
    if rows[0].rate:
        print("rate = true")
    print(f"alone = {_list([row.value for row in rows if row.policy == ALONE])}\n\n[measured.under]")
    for policy in policies:
        found = [row.value for row in rows if row.policy == policy]
        if found:
            print(f'"{policy}" = {_list(found)}' if "@" in policy else f"{policy} = {_list(found)}")


def _list(values: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in values)}]"


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--settled"]
    if len(words) not in (1, 2):
        refuse(f"{sys.argv[0]}: {' '.join(words)!r} is not allowed: must be [--settled] FOLDER [TLB]")
    main(words[0], words[1] if len(words) == 2 else None, settled="--settled" in sys.argv)
