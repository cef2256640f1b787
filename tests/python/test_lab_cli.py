# SPDX-License-Identifier: GPL-2.0-only
"""`cohortlab lab` without a lab: what it refuses before anything boots, and what it says of a lab that stays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohortlab.lab.agent import AgentError

Run = Callable[..., Any]
VM_RULE = "NAME:VCPUS or NAME:VCPUS:TLB with VCPUS from 1 to 256, TLB one of ipi, kvm-pv, hypercall"
MEMORY_RULE = "with --memory-mb 512, or --memory-mb 544 or more (a guest needs 128 MB + 32 MB per vCPU)"
BESIDE = "allowed are MACHINE: COMMAND, --file and --timeout"


class Lab:
    """A lab that comes up, and in which every command is interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = self
        self.name = "host"
        self.done: list[str] = []

    def bring_up(self, configs: Any, **_: Any) -> Any:
        self.done.append("booted")
        return SimpleNamespace(emulator=self)

    def new_complaints(self, *, last: bool = False) -> list[str]:
        return []

    def run(self, command: str, timeout_s: float) -> Any:
        self.done.append(command)
        raise KeyboardInterrupt

    def close(self) -> None:
        self.done.append("closed")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path)
    monkeypatch.setattr(importlib.import_module("cohortlab.lab.cli"), "bring_up", made.bring_up)
    return made


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--timeout", "inf", "host: true"], "'--timeout': inf is not in the range"),
        (["--timeout", "nan", "host: true"], "'--timeout': nan is not a finite number"),
        (["--timeout", "0", "host: true"], "'--timeout': 0"),
        (["--vm", "a:2", "--vm", "a:4", "a: true"], "--vm: a is named twice: must be another name"),
        (["--vm", "host:2", "host: true"], "must be NAME:VCPUS or NAME:VCPUS:TLB with VCPUS from 1 to 256"),
        (["--vm", "a:2", "--keep", "b: true"], '"b" is no machine of this lab: must be one of host, a'),
        (["--vm", "a:2", "a: true", "guest: true"], '"guest" is no machine of this lab: must be one of host, a'),
        (["--ple-window-us", "10001", "host: true"], "'--ple-window-us': 10001 is not in the range 1<=x<=10000"),
        (["--no-ple", "--ple-window-us", "5", "host: true"], "--ple-window-us: is not allowed with --no-ple"),
        (["true"], '"true" is not allowed: must be MACHINE: COMMAND'),
        (["--vm", f"{'a' * 32}:2"], f"must be {VM_RULE}; NAME is 1 to 31 lower-case letters, digits and '-'"),
        (["--vm", "a:0"], f'--vm: "a:0" is not allowed: must be {VM_RULE}'),
        (["--vm", "a:257"], f'--vm: "a:257" is not allowed: must be {VM_RULE}'),
        (["--vm", f"a:{'9' * 20}"], f'--vm: "a:{"9" * 20}" is not allowed: must be {VM_RULE}'),
        (["--vm", f"a:{'9' * 5000}"], f"9999… is not allowed: must be {VM_RULE}"),
        (["--vm", "b:1", "--vm", "a:13"], f"--vm: a: 13 vCPUs are not allowed: must be 12 or less {MEMORY_RULE}"),
        (["--vm", "a:1", "--memory-mb", "128"], "1 vCPUs are not allowed: must be given --memory-mb 160 or more"),
    ],
)
def test_what_is_wrong_is_told_before_anything_boots(cohortlab: Run, lab: Lab, args: list[str], said: str) -> None:
    ran = cohortlab("lab", *args)
    assert (ran.code, ran.out, ran.err.count("\n"), lab.done) == (2, "", 1, []), ran.err
    assert said in ran.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--attach", "F", "--vm", "a:2", "--pcpus", "4"], f"--pcpus, --vm: not allowed with --attach: {BESIDE}"),
        # Also what is as if it were not given.
        (["--attach", "F", "--pcpus", "2", "host: true"], f"--pcpus: not allowed with --attach: {BESIDE}"),
        (["--no-ple", "--keep", "--attach", "F"], f"--no-ple, --keep: not allowed with --attach: {BESIDE}"),
        (["--stop", "F", "host: true", "a: true"], '"host: true": not allowed with --stop: it goes alone'),
        (["--stop", "F", "--timeout", "5"], "--timeout: not allowed with --stop: it goes alone"),
        (["--stop", "F", "--attach", "F"], "--attach: not allowed with --stop: it goes alone"),
    ],
)
def test_nothing_that_is_given_is_ignored(
    cohortlab: Run, lab: Lab, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    module = importlib.import_module("cohortlab.lab.cli")
    monkeypatch.setattr(module.Emulator, "attach", lambda folder: lab.done.append("attached"))
    monkeypatch.setattr(module.emulators, "stop_kept", lambda folder: lab.done.append("stopped"))
    ran = cohortlab("lab", *args)
    assert (ran.code, ran.out, ran.err, lab.done) == (2, "", f"cohortlab: {said}\n", [])


def test_a_lab_is_stopped_by_its_folder_alone(cohortlab: Run, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("cohortlab.lab.cli")
    monkeypatch.setattr(module.emulators, "stop_kept", lambda folder: lab.done.append(f"{folder} stopped"))
    assert cohortlab("lab", "--stop", "F").code == 0
    assert lab.done == ["F stopped"]


@pytest.mark.parametrize("args", [["--vm", "a:12"], ["--vm", "a:256", "--memory-mb", "8320"]])
def test_as_many_vcpus_as_the_memory_allows_boot(cohortlab: Run, lab: Lab, args: list[str]) -> None:
    assert cohortlab("lab", *args).code == 0
    assert lab.done == ["booted", "closed"]


def test_a_name_may_be_as_long_as_in_a_scenario(cohortlab: Run, lab: Lab) -> None:
    assert cohortlab("lab", "--vm", f"{'a' * 31}:1").code == 0
    assert lab.done == ["booted", "closed"]


def test_a_lab_that_stays_is_named_before_its_commands_run(cohortlab: Run, lab: Lab) -> None:
    ran = cohortlab("lab", "--keep", "host: sleep 1000")
    assert (ran.code, ran.out) == (130, f"{lab.folder}\n")
    assert lab.done == ["booted", "sleep 1000"]


def test_a_lab_that_does_not_stay_ends_with_its_commands(cohortlab: Run, lab: Lab) -> None:
    ran = cohortlab("lab", "host: sleep 1000")
    assert (ran.code, ran.out) == (130, "")
    assert lab.done == ["booted", "sleep 1000", "closed"]


def test_a_machine_that_the_lab_that_stayed_does_not_have_is_told_before_a_command_runs(
    cohortlab: Run, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("cohortlab.lab.cli")
    monkeypatch.setattr(module.Emulator, "attach", lambda folder: lab)
    monkeypatch.setattr(module.guests, "names", lambda host: ["a"])
    ran = cohortlab("lab", "--attach", str(lab.folder), "a: true", "b: true")
    assert (ran.code, ran.out, ran.err.count("\n"), lab.done) == (2, "", 1, []), ran.err
    assert '"b" is no machine of this lab: must be one of host, a' in ran.err


def test_a_program_that_cannot_be_put_into_a_lab_is_one_line(
    cohortlab: Run, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise AgentError("host: no space left")

    module = importlib.import_module("cohortlab.lab.cli")
    monkeypatch.setattr(module.Emulator, "attach", lambda folder: lab)
    monkeypatch.setattr(module.guests, "names", lambda host: [])
    monkeypatch.setattr(Lab, "put", full, raising=False)
    (tmp_path / "my tool").touch()
    ran = cohortlab("lab", "--attach", lab.folder, "--file", tmp_path / "my tool", "host: true")
    assert (ran.code, ran.err) == (1, "cohortlab: my tool cannot be put into the lab: host: no space left\n")


def test_two_programs_of_one_name_are_not_one_of_them(cohortlab: Run, lab: Lab, tmp_path: Path) -> None:
    files = [tmp_path / folder / "tool" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    ran = cohortlab("lab", "--file", files[0], "--file", files[1], "host: true")
    assert (ran.code, ran.out, lab.done) == (2, "", [])
    assert ran.err == f"cohortlab: --file: {files[1]}: tool is named twice: must have another name\n"
