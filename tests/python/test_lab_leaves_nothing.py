# SPDX-License-Identifier: GPL-2.0-only
"""Whoever ends how: no emulator, compiler or half a file stays; what is fetched from the lab is there or refused."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohortlab.lab import control, emulator, evidence, qemu_build
from cohortlab.lab.agent import AgentError, Answer, Machine
from cohortlab.lab.patience import BootTimes
from cohortlab.lab.place import LabPlace
from cohortlab.scenario import Scenario


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_emulator_does_not_begin_when_who_started_it_has_died_already() -> None:
    for starter, said in ((os.getpid(), "a  b\n"), (os.getppid(), "")):
        argv = emulator._tied(["echo", "a  b"], starter)
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr, done.returncode == 0) == (said, "", bool(said))


def test_a_lab_is_closed_also_when_nobody_hears_its_complaints(two: Scenario) -> None:
    closed: list[str] = []
    place = LabPlace(two, progress=interrupted)
    lab: Any = SimpleNamespace(new_complaints=lambda **_: ["WARNING: something"], close=lambda: closed.append("lab"))
    place._lab = lab
    with pytest.raises(KeyboardInterrupt):
        place._close()
    assert (closed, place._lab) == (["lab"], None)
    place._close()
    assert closed == ["lab"]


def test_who_compiles_for_nobody_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real_popen = subprocess.Popen

    def popen(_: object, **how: Any) -> subprocess.Popen[bytes]:
        started.append(real_popen(["sh", "-c", "echo '[1/2] compiling'; exec sleep 1000"], **how))
        return started[-1]

    monkeypatch.setattr(qemu_build.subprocess, "Popen", popen)
    recipe: Any = None
    build = qemu_build._Build(tmp_path, recipe, interrupted)
    build.output.mkdir()
    with pytest.raises(KeyboardInterrupt):
        build._compile()
    assert [process.wait(60) for process in started] == [-signal.SIGTERM]


def test_evidence_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(control, "monitor", lambda *_: ["running"])
    monkeypatch.setattr(evidence, "_APART_S", 0)
    monkeypatch.setattr("cohortlab.results.os.fsync", full)
    assert evidence.take(tmp_path, "console") is None
    assert not list((tmp_path / "lost").iterdir())


def test_boot_times_leave_nothing_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    times = BootTimes(tmp_path / "boot-times.json")
    times.add("host", 5)
    with monkeypatch.context() as patched:
        patched.setattr("cohortlab.results.os.fsync", full)
        times.add("host", 50)
    assert [path.name for path in tmp_path.iterdir()] == ["boot-times.json"]
    assert times.usual_s("host") == 5
    times.add("host", 7)
    assert times.usual_s("host") == 6


class Here:
    """This machine's shell, as an agent has it."""

    def call(self, op: dict[str, Any], sample: object = (), timeout_s: float = 60) -> Answer:
        done = subprocess.run(["sh", "-c", op["exec"]["sh"]], capture_output=True, text=True, check=False)
        said = {"rc": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        return Answer({**said, "wall_ns": 1, "timed_out": False})


def test_a_file_that_is_not_there_is_not_an_empty_one(tmp_path: Path) -> None:
    machine = Machine("host", Here())
    (tmp_path / "a file").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    assert machine.get(str(tmp_path / "a file")) == bytes(range(256))
    assert machine.get(str(tmp_path / "empty")) == b""
    with pytest.raises(AgentError, match=r"host: .*none.* ended with"):
        machine.get(str(tmp_path / "none"))
    assert {path.name for path in tmp_path.iterdir()} == {"a file", "empty"}
