# SPDX-License-Identifier: GPL-2.0-only
"""The rounds of a comparison as `cohortlab held-out` reads them (fidelity/rounds/).

    build/venv/bin/python bench/rounds.py [--settled] FOLDER [TLB] >fidelity/rounds/NAME.toml

FOLDER is what `cohortlab compare --on lab --out FOLDER` wrote; TLB: which of its modes, where it has several. --settled
leaves out the rounds alone that bench/tables.py leaves out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tables import without_disturbed

from cohortlab.fidelity import kernel_of
from cohortlab.results import ALONE, Row, read_parquet


def main(folder: str, wanted: str | None, *, settled: bool) -> None:
    results = read_parquet(Path(folder) / "measurements.parquet")
    if settled:
        results.rows = without_disturbed(results.rows, results.pcpus)
    (tlb,) = [mode for mode in results.tlb_modes if wanted in (None, mode)]
    # Where the results were written says nothing of them.
    command = re.sub(r" --out \S+", "", results.command)
    place = results.places[tlb]
    print("# SPDX-License-Identifier: GPL-2.0-only")
    left_out = "Without the rounds alone in which a scheduler was still being cleared away.\n" if settled else ""
    print(f'about = """\n{command}\nPLE {place["ple"]}.\n{left_out}"""')
    print(f'scenario = "{results.scenario}"')
    if tlb != "ipi":
        print(f'tlb = "{tlb}"')
    print(f'emulator = "{place["emulator"]}"')
    print(
        f'kernel = "{kernel_of(results) or place["kernel"]}"\nple_window_us = {round(int(place["ple_window_us"]), -1)}'
    )
    for program in results.programs:
        _print([row for row in results.rows if row.program == program and row.tlb == tlb], program, results.policies)


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
        sys.exit(__doc__)
    main(words[0], words[1] if len(words) == 2 else None, settled="--settled" in sys.argv)
