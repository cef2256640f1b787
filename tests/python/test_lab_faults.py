# SPDX-License-Identifier: GPL-2.0-only
"""What goes wrong in the lab, or on this host in its place: nothing is left running, and what is told is the cause."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.python.test_lab_loads import LATE, Place

from cohortlab import scenario
from cohortlab.host import agent as local
from cohortlab.host.agent import LocalAgent
from cohortlab.host.place import HostPlace
from cohortlab.lab import bringup, control, emulator, evidence, real
from cohortlab.lab.policy import PolicyRun
from cohortlab.lab.probe import ProbeRun
from cohortlab.places import PlaceError, PlaceFailed
from cohortlab.scenario import Scenario

Write = Callable[..., Path]


class Host:
    """A host whose scheduler is gone a moment after its process is, and both only if somebody waits."""

    def __init__(self) -> None:
        self.states = ["enabled", "disabling", "disabling", "disabled"]
        self.lines: list[str] = []

    def check(self, _: str) -> str:
        return self.states.pop(0) if self.states[0] == "disabling" else self.states[0]

    def signal(self, _: int) -> None:
        pass

    def wait(self, _: float) -> int | None:
        self.states.pop(0)
        return -9

    def spawn(self, _: str, line: str) -> Host:
        self.lines.append(line)
        return self

    def output(self, _: str) -> tuple[str, int]:
        return "cohort: answering", 0


def test_a_policy_that_is_killed_is_gone_when_the_next_one_comes() -> None:
    host: Any = Host()
    PolicyRun("cohort", host, host).kill()
    assert host.states == ["disabled"]


def test_an_emulator_that_nobody_knows_of_yet_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **how: Any) -> subprocess.Popen[bytes]:
        started.append(real_popen(*args, **how))
        return started[-1]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    real_popen = subprocess.Popen
    monkeypatch.setattr(emulator.subprocess, "Popen", popen)
    monkeypatch.setattr(emulator.turn, "announce", interrupted)
    command: Any = SimpleNamespace(initrd=b"", argv=("sleep", "1000"), qemu=SimpleNamespace(env={}))
    turn = os.open(tmp_path / "turn", os.O_RDWR | os.O_CREAT)
    with pytest.raises(KeyboardInterrupt):
        emulator._launch(command, tmp_path, turn, keep=True, state=None)
    os.close(turn)
    assert [process.poll() for process in started] == [-9]


def test_a_program_that_is_yet_to_begin_keeps_nobody_waiting(
    write_scenario: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(real, "as_completed", interrupted)
    before = threading.active_count()
    place = Place(scenario.load(write_scenario(LATE.replace("start_s = 0.3", "start_s = 600"))), [])
    with pytest.raises(KeyboardInterrupt):
        place.measure_together({"work": "spin"})
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_probe_in_a_folder_with_a_space() -> None:
    host: Any = Host()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cohortlab.lab.probe._READY", "answering")
        ProbeRun.start(host, "/run", cohort="/srv/my repo/cohort")
    assert "/srv/my repo/cohort" in shlex.split(host.lines[0])


def test_a_full_disk_does_not_hide_that_the_host_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(control, "monitor", lambda *_: ["running"])
    monkeypatch.setattr(evidence, "_APART_S", 0)
    assert evidence.take(tmp_path, "console") is not None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lost").touch()
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "other"))
    assert evidence.take(tmp_path, "console") is None


def test_a_full_kernel_log_is_read_all_the_same(two: Scenario) -> None:
    place = HostPlace(two)
    said: list[str] = []
    machine = SimpleNamespace(run=lambda _: SimpleNamespace(stdout="\n".join(said)))
    place._agent = SimpleNamespace(machine=machine)  # type: ignore[assignment]
    log = [f"[{number}.0] all is well" for number in range(200)]
    log[120] = "[120.0] WARNING: something"
    said[:] = log[:100]
    place._new_complaints()
    said[:] = log[50:150]
    assert place._new_complaints() == ["[120.0] WARNING: something"]
    assert place._new_complaints() == []
    # So much came meanwhile that nothing is left of what was seen.
    said[:] = ["[1000.0] BUG: another"]
    assert place._new_complaints() == ["[1000.0] BUG: another"]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of a host in which an agent starts."""
    for name in ("run", "cgroup"):
        (tmp_path / name).mkdir()
    (tmp_path / "cgroup" / "cgroup.subtree_control").write_text("cpu\n")
    monkeypatch.setattr(local, "_RUN", tmp_path / "run")
    monkeypatch.setattr(local, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(local, "_TRIES", 1)
    return tmp_path


def test_a_host_is_one_comparisons_at_a_time(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalAgent, "_start", lambda *_: None)
    first = LocalAgent(host / "agent")
    first.slice.mkdir()
    with pytest.raises(PlaceError, match="another comparison runs on this host: wait until it has ended"):
        LocalAgent(host / "agent")
    first.close()
    LocalAgent(host / "agent").close()


def test_an_agent_that_still_puts_things_back_is_waited_for(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalAgent, "_start", lambda *_: None)
    dead = host / "cgroup" / "cohortlab-999999999.slice"
    dead.mkdir()
    turn = local._take_turn()
    # Its cgroups go before it does.
    puts_back = subprocess.Popen(["sh", "-c", f"sleep 0.1; rmdir {dead}; sleep 0.3"], pass_fds=(turn,))
    os.close(turn)
    LocalAgent(host / "agent").close()
    assert puts_back.poll() == 0


def test_the_agent_holds_its_host_too(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = host / "agent"
    program.write_text(
        '#!/bin/sh\nfor f in /proc/$$/fd/*; do [ "$(readlink $f)" != "$TURN" ] || echo it does >&2; done\nexit 3\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("TURN", str(host / "cgroup"))
    with pytest.raises(PlaceFailed, match=r"does not start: it does$"):
        LocalAgent(program)


def test_an_agent_that_does_not_start_says_why(host: Path) -> None:
    program = host / "agent"
    program.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(PlaceFailed, match="the agent on this host does not start: no such luck"):
        LocalAgent(program)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("who", "what"), [("Connection", "__init__"), ("Machine", "__init__"), ("Machine", "ping")])
def test_who_is_interrupted_while_the_agent_starts_does_not_wait_for_it(
    host: Path, monkeypatch: pytest.MonkeyPatch, who: str, what: str
) -> None:
    # As the agent, it ends when nobody is at the other end.
    program = host / "agent"
    program.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    program.chmod(0o755)
    monkeypatch.setattr(local, "_END_S", 20)
    monkeypatch.setattr(getattr(local, who), what, interrupted)
    ended: list[int | None] = []
    real_wait = subprocess.Popen.wait

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        ended.append(real_wait(process, timeout))
        return real_wait(process)

    monkeypatch.setattr(local.subprocess.Popen, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        LocalAgent(program)
    # By itself, if it was started: not killed in the end.
    assert ended in ([], [0])


def test_an_agent_that_nobody_knows_of_yet_does_not_stay(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = host / "agent"
    program.write_text("#!/bin/sh\nexec cat >/dev/null\n")
    program.chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **how: Any) -> None:
        started.append(real_popen(*args, **how))
        raise KeyboardInterrupt

    real_popen = subprocess.Popen
    monkeypatch.setattr(local.subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        LocalAgent(program)
    assert [process.wait(60) for process in started] == [0]


@pytest.mark.parametrize(
    ("file", "said", "is_used"),
    [
        ("cpu.weight", "100\n", False),
        ("cpu.weight", "50\n", True),
        ("cpu.max", "max 100000\n", False),
        ("cpu.max", "max 50000\n", True),
        ("cpu.max", "50000 100000\n", True),
    ],
)
@pytest.mark.parametrize("by_the_agent", [True, False])
def test_the_cpu_controller_stays_on_for_who_has_use_for_it(
    host: Path, file: str, said: str, is_used: bool, by_the_agent: bool
) -> None:
    group, folder = host / "cgroup" / "other.slice", host / "run" / "cohortlab-7-x"
    for path in (group, folder):
        path.mkdir()
    (folder / local._ADDED).touch()
    (group / "cpu.weight").write_text("100\n")
    (group / "cpu.max").write_text("max 100000\n")
    (group / file).write_text(said)
    if by_the_agent:
        place: Any = SimpleNamespace(slice=host / "cgroup" / "none.slice", folder=folder)
        script = LocalAgent._removal(place, keep_cpu=False)
        subprocess.run(["sh", "-c", script], stderr=subprocess.DEVNULL, check=False)
    else:
        local._remove_files(folder)
    wanted = "cpu" if is_used else "-cpu"
    assert (host / "cgroup" / "cgroup.subtree_control").read_text().strip() == wanted
    assert not folder.exists()


def test_a_window_that_is_too_long_is_no_reason_to_emulate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[str] = []

    def up(_: object, boot: Any, *__: object) -> None:
        tried.append(boot.accel)
        raise bringup.WindowTooLong("too long")

    monkeypatch.setattr(bringup, "up", up)
    monkeypatch.setattr(bringup.memory, "left_mb", lambda: 0)  # nothing tells
    monkeypatch.setattr(bringup.binaries, "find", lambda name: tmp_path / name)
    monkeypatch.setattr(bringup.image, "image", lambda *_: None)
    monkeypatch.setattr(bringup.kernels, "kernel", lambda *_: None)
    monkeypatch.setattr(bringup.kvm, "probe", lambda: SimpleNamespace(nested=True))
    with pytest.raises(bringup.WindowTooLong):
        bringup.bring_up([], pcpus=2, ple=True, ple_window_us=9000)
    assert tried == ["kvm"]
