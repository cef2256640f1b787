# SPDX-License-Identifier: GPL-2.0-only
"""How long `cohortlab compare SCENARIO --on sim` takes as a whole: Python, simulation, tables, report."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shape import RUNS, report

SCENARIO = "scenarios/smp-2x2.toml"
OPTIONS = ("--on", "sim", "--policies", "eevdf,cohort")


def main(cohortlab: str) -> None:
    """Print the median, with everything in the page cache; and what of it is the program's start."""
    walls_s: dict[str, list[float]] = {"compare_smp_2x2": [], "compare_starting": []}
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "compare_smp_2x2": [cohortlab, "compare", SCENARIO, *OPTIONS, "--out", str(Path(folder) / "results")],
            "compare_starting": [cohortlab, "compare", "--help"],
        }
        for _ in range(RUNS + 1):
            for name, command in commands.items():
                start_s = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                walls_s[name].append(time.perf_counter() - start_s)
    for name, samples in walls_s.items():
        report(name, samples[1:], "s")


if __name__ == "__main__":
    main(sys.argv[1])
