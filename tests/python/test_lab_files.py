# SPDX-License-Identifier: GPL-2.0-only
"""Files that a machine of the lab hands out."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

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


def test_who_may_read_a_file_of_the_image_is_not_up_to_this_users_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mirror:
        def __init__(self, folder: Path) -> None:
            folder.mkdir()

        def update(self) -> None: ...

        def fetch(self, wanted: Sequence[str], *, with_dependencies: bool) -> list[Path]:
            return [Path("base-files_13.deb")]

    def unpack(package: Path, root: Path) -> None:
        for name in ("etc", "usr/bin"):
            (root / name).mkdir(parents=True)

    modes: dict[str, int] = {}

    def look(root: Path, disk: Path) -> None:
        files = [path for path in root.rglob("*") if not path.is_symlink()]
        modes.update({str(path.relative_to(root)): path.stat().st_mode & 0o7777 for path in files})

    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(image, "_ROOM_MB", 0)
    monkeypatch.setattr(image, "_build", lambda _: None)
    monkeypatch.setattr(image, "Apt", Mirror)
    monkeypatch.setattr(image, "unpack", unpack)
    monkeypatch.setattr(image, "make_disk", look)
    program, data = tmp_path / "run.sh", tmp_path / "data"
    before = os.umask(0o077)
    try:
        program.touch(0o777)
        data.touch(0o666)
        image.image(files={"srv/run/run.sh": program, "srv/run/data": data})
    finally:
        os.umask(before)
    assert {modes[name] for name in image._FILES} == {0o644}
    assert [modes[name] for name in ("srv", "srv/run", "srv/run/run.sh")] == [0o755, 0o755, 0o755]
    assert modes["srv/run/data"] == 0o644
