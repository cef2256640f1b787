# SPDX-License-Identifier: GPL-2.0-only
"""docs/programs.md does what it says in the lab too, from an empty folder; tests/python has its simulated half."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.python.test_programs_page import PAGE, write_files

pytestmark = [pytest.mark.lab, pytest.mark.long]

COMMAND = "compare two.toml --on lab --rounds 1 --programs redis,squares"
# A boot with packages to fetch and to unpack, and twelve runs of a program.
TIMEOUT_S = 540


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()
    assert f"    cohortlab {COMMAND}\n" in PAGE
    cohortlab = Path(sys.executable).with_name("cohortlab")
    ended = subprocess.run(
        [cohortlab, *COMMAND.split(), "--json", "--out", "out"],
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
    )
    assert ended.returncode == 0
    found = {(o["program"], o["policy"]): o["over_ideal"] for o in json.loads(ended.stdout)}
    assert found.keys() == {(program, policy) for program in ("redis", "squares") for policy in ("eevdf", "cohort")}
    assert all(value > 0 for value in found.values())
    assert (tmp_path / "out" / "report.html").is_file()
