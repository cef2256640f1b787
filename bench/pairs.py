# SPDX-License-Identifier: GPL-2.0-only
"""Two policies of one comparison, or two builds of `cohort`, round by round: a Markdown table.

    build/venv/bin/python bench/pairs.py FOLDER... POLICY BASE

FOLDER is what `cohortlab compare --out FOLDER` wrote; several are of the same scenario. A program's figure under POLICY
over that under BASE in the same round, as time: below 1 POLICY is the faster. The median over the rounds, with the
lowest and the highest, and the geometric mean over all of them with its standard error: what a machine does to a whole
round is in neither.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import mean, median, stdev

from tables import measurements, refuse

from cohortlab.results import Row, read_parquet


def main(words: Sequence[str]) -> None:
    if len(words) < 3:
        refuse(f"{' '.join(words)!r} is not allowed: must be FOLDER... POLICY BASE")
    *folders, policy, base = words
    rows = [
        (folder, row)
        for folder in dict.fromkeys(folders)
        for row in read_parquet(measurements(folder)).rows
        if row.policy in (policy, base)
    ]
    for name in (policy, base):
        if not any(row.policy == name for _, row in rows):
            refuse(f"{folders[0]}: {name!r} is no policy of it")
    if shapes := len({(row.scenario, row.tlb) for _, row in rows}) - 1:
        refuse(f"{' '.join(folders)!r} is not allowed: must be of one scenario and TLB mode; {shapes + 1} were found")
    pairs = _pairs(rows, policy, base)
    if not pairs:
        refuse(f"{folders[0]}: no program was measured under both in the same round")
    print(f"| program | rounds | {policy} ÷ {base} |\n|---|---:|---|")
    for program, ratios in pairs.items():
        low, middle, high = (math.exp(value) for value in (min(ratios), median(ratios), max(ratios)))
        print(f"| {program} | {len(ratios)} | {middle:.2f} [{low:.2f}–{high:.2f}] |")
    every = [ratio for ratios in pairs.values() for ratio in ratios]
    error = f" ± {stdev(every) / math.sqrt(len(every)):.1%}" if len(every) > 1 else ""
    print(f"| geometric mean | {len(every)} | {math.exp(mean(every)):.3f}{error} |")


def _pairs(rows: Sequence[tuple[str, Row]], policy: str, base: str) -> dict[str, list[float]]:
    """Return the logarithms of each program's ratios.

    One that runs in several turns has a figure of each, in their order; where one failed, which is which is not known.
    """
    seconds: dict[tuple[str, int, str, str, str], list[float]] = {}
    for folder, row in rows:
        seconds.setdefault((folder, row.round, row.vm, row.program, row.policy), []).append(row.seconds)
    pairs: dict[str, list[float]] = {}
    for (folder, number, vm, program, name), values in seconds.items():
        beside = seconds.get((folder, number, vm, program, base), [])
        if name == policy and len(beside) == len(values):
            logs = [math.log(value / other) for value, other in zip(values, beside, strict=True)]
            pairs.setdefault(program, []).extend(logs)
    return pairs


if __name__ == "__main__":
    main(sys.argv[1:])
