# SPDX-License-Identifier: GPL-2.0-only
"""What VMs and cgroups had in the lab's tests of shares, beside what they were due: a Markdown table.

    build/venv/bin/python bench/due.py [PYTEST ARGUMENT...]     both kernels, 11 minutes; -k newest: the one

In pCPUs, of the newest kernel and the oldest that has what Cohort needs, under EEVDF (its weights by `smp`) and under
Cohort. A test that was repeated, since others kept the lab waiting, has the figures of its last try.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/lab/test_shares.py", "tests/lab/test_neighbours.py")
# As tests/lab/ground.py knows it.
TOLD = "COHORT_LAB_DUE"
POLICIES = ("eevdf", "cohort")


def measured(arguments: list[str]) -> tuple[int, list[str]]:
    """Run the tests; return pytest's exit code, and what they have told."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "due.jsonl"
        argv = (sys.executable, "-m", "pytest", "-q", "-m", "lab and not kernels", "-p", "no:xdist", *TESTS)
        environment = os.environ | {TOLD: str(told)}
        done = subprocess.run([*argv, *arguments], cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
        return done.returncode, told.read_text().splitlines() if told.exists() else []


def by_test(lines: list[str]) -> dict[tuple[str, str, str], dict[str, tuple[float, float]]]:
    """Return, by test, kernel and name, what was due and what was had under each policy that was measured."""
    found: dict[tuple[str, str, str], dict[str, tuple[float, float]]] = {}
    for line in lines:
        told = json.loads(line)
        said = re.search(r"::test_(\w+)(?:\[(.*)\])?", told["test"])
        assert said, told["test"]
        parameters = (said[2] or "").split("-")
        policy = told["policy"]
        kernel = next((word for word in parameters if word[:1].isdigit()), "newest")
        how = [word for word in parameters if word not in (policy, kernel, "newest", "")]
        test = " ".join([said[1].replace("_", " "), *(f"({word})" for word in how)])
        for name, (due, had) in told["rows"].items():
            found.setdefault((test, kernel, name), {})[policy] = due, had
    return found


def main(arguments: list[str]) -> int:
    status, lines = measured(arguments)
    print("| test | kernel | who | due under EEVDF | had | due under Cohort | had | off |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for (test, kernel, name), policies in by_test(lines).items():
        cells = [f"{value:.3f}" for policy in POLICIES for value in policies.get(policy, ())]
        if "eevdf" not in policies:
            cells = ["–", "–", *cells]
        due, had = policies.get("cohort", (0.0, 0.0))
        cells += [f"{100 * (had / due - 1):+.1f} %"] if due else ["–"] * (5 - len(cells))
        print(f"| {test} | {kernel} | {name} | {' | '.join(cells)} |")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
