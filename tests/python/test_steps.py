# SPDX-License-Identifier: GPL-2.0-only
"""What `scripts/steps` leaves when it is ended, with a step that a test makes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
# As cargo does, it has started others when it is ended; one of them takes its time to end.
STEP = """#!/bin/bash
sleep 300 &
(trap 'sleep 0.2; echo ended >ended; exit' TERM; echo >trapped; while sleep 0.1; do :; done) &
echo $$ $! $(jobs -p) >pids.new
while [ ! -e trapped ]; do sleep 0.02; done
mv pids.new pids
wait
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("steps", "lib.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    program = tmp_path / "build/venv/bin/cohortlab"
    program.parent.mkdir(parents=True)
    program.write_text(STEP)
    program.chmod(0o755)
    return tmp_path


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_steps_alone_ends_what_it_has_started(tree: Path, ending: signal.Signals) -> None:
    # What started the tests may have had signals ignored, as nohup does, and a shell cannot undo that.
    argv = ["env", "--default-signal", "scripts/steps", "emulator"]
    with subprocess.Popen(argv, cwd=tree, stdout=subprocess.DEVNULL, start_new_session=True) as ran:
        try:
            deadline = time.monotonic() + 60
            while not (tree / "pids").exists():
                assert time.monotonic() < deadline
                assert ran.poll() is None
                time.sleep(0.02)
            pids = [int(pid) for pid in (tree / "pids").read_text().split()]
            assert len(set(pids)) == 3
            assert all(map(runs, pids))
            ran.send_signal(ending)
            assert ran.wait(timeout=60) != 0
            assert [pid for pid in pids if runs(pid)] == []
            assert (tree / "ended").exists(), "it was given the time for that"
        finally:
            # Nothing is left, if all is well.
            with suppress(ProcessLookupError):
                os.killpg(ran.pid, signal.SIGKILL)


@pytest.mark.parametrize("step", ["test-python", "test-lab"])
def test_a_folder_in_which_no_test_can_run_a_program_is_named(tree: Path, step: str) -> None:
    (tree / "bin").mkdir()
    findmnt = tree / "bin/findmnt"
    for path, text in ((findmnt, "echo $OPTIONS"), (tree / "build/venv/bin/pytest", "echo >ran")):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(options: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PATH": f"{tree}/bin:{os.environ['PATH']}", "TMPDIR": str(tree), "OPTIONS": options}
        return subprocess.run(["scripts/steps", step], cwd=tree, env=env, capture_output=True, text=True, check=False)

    ran = run("rw,nosuid,nodev,noexec")
    assert ran.returncode == 1
    said = f"{tree} is mounted with noexec, and tests run programs that they make there: set TMPDIR to another folder\n"
    assert ran.stderr.endswith(f": {said}"), ran.stderr
    assert not (tree / "ran").exists()
    ran = run("rw,nosuid,nodev")
    assert ran.returncode == 0, ran.stdout
    assert (tree / "ran").exists()
