# SPDX-License-Identifier: GPL-2.0-only
"""Files that a machine of the lab hands out."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohortlab.lab import image
from cohortlab.lab.agent import Answer, Machine

# As the agent does it (lab/agent/src/exec.rs).
OUTPUT_BYTES_MAX = 1 << 20


class Here:
    """This machine in place of one of the lab, with an agent that keeps the end of what commands print."""

    def call(self, op: dict[str, Any], sample: Sequence[str] = (), timeout_s: float = 60) -> Answer:
        ended = subprocess.run(["sh", "-c", op["exec"]["sh"]], capture_output=True, text=True, check=False)
        printed = {"stdout": ended.stdout[-OUTPUT_BYTES_MAX:], "stderr": ended.stderr}
        return Answer({"rc": ended.returncode, "wall_ns": 0, "timed_out": False, **printed})


def test_a_file_is_handed_out_whole_however_long_it_is(tmp_path: Path) -> None:
    for size in (0, 1, 3_000_000):
        path = tmp_path / "a file"
        path.write_bytes(random.Random(size).randbytes(size))
        assert Machine("here", Here()).get(str(path)) == path.read_bytes()
        assert [file.name for file in tmp_path.iterdir()] == ["a file"]


def test_who_may_execute_a_file_is_a_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("true")
    path.chmod(0o644)
    before = image._content(path)
    path.chmod(0o755)
    assert image._content(path) != before
