# SPDX-License-Identifier: GPL-2.0-only
"""The rounds of a comparison as `cohortlab held-out` reads them (fidelity/rounds/).

    build/venv/bin/python bench/rounds.py FOLDER [TLB] >fidelity/rounds/NAME.toml

FOLDER is what `cohortlab compare --on lab --out FOLDER` wrote; TLB: which of its modes, where it has several.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cohortlab.fidelity import kernel_of
from cohortlab.results import ALONE, Row, read_parquet


def main(folder: str, wanted: str | None) -> None:
    results = read_parquet(Path(folder) / "measurements.parquet")
    (tlb,) = [mode for mode in results.tlb_modes if wanted in (None, mode)]
    # Where the results were written says nothing of them.
    command = re.sub(r" --out \S+", "", results.command)
    place = results.places[tlb]
    print("# SPDX-License-Identifier: GPL-2.0-only")
    print(f'about = """\n{command}\n{place["emulator"]}; PLE {place["ple"]}.\n"""')
    print(f'scenario = "{results.scenario}"')
    if tlb != "ipi":
        print(f'tlb = "{tlb}"')
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
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else None)
