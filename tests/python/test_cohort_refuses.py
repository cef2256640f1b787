# SPDX-License-Identifier: GPL-2.0-only
"""What `cohort` refuses: exit code 2, one line that says what is wrong and what is allowed, nothing half-written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cohortlab.lab import binaries


def cohort(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    argv = [binaries.find("cohort"), *args]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["record", "--out", "new/"], "--out new/: is the name of a folder; allowed: a file"),
        (["record", "--out", "new/."], "--out new/.: is the name of a folder; allowed: a file"),
        (["record", "--out", "words/"], "--out words/: is the name of a folder; allowed: a file"),
        (["record", "--out", "."], "--out .: is a folder; allowed: a file"),
        (
            ["sets", "--matrix", "words"],
            '--matrix: words: line 1: count "host-7"; allowed: - (a vCPU with itself), '
            "or whole numbers from 0 to 1099511627776",
        ),
        (["man", "--dir", "none"], "--dir: cannot write none/cohort.1: No such file or directory (os error 2)"),
        (["man", "--dir", "words"], "--dir: cannot write words/cohort.1: Not a directory (os error 20)"),
    ],
)
def test_one_line_says_what_is_wrong(args: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("host-7\n")
    done = cohort(*args, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"cohort: {said}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["words"]


def test_what_is_right_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "matrix").write_text("- 5\n5 0\n")
    assert cohort("sets", "--matrix", "matrix", cwd=tmp_path).returncode == 0
    assert cohort("man", "--dir", ".", cwd=tmp_path).returncode == 0
    assert (tmp_path / "cohort-run.1").exists()
