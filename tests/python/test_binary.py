# SPDX-License-Identifier: GPL-2.0-only
"""`--binary FILE`: another build of `cohort` under a label of its own; refused before anything boots, and recorded."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohortlab.errors import BadInput
from cohortlab.host.place import HostPlace
from cohortlab.lab import binaries
from cohortlab.lab.place import LabPlace
from cohortlab.lab.policy import PolicyRun
from cohortlab.lab.real import RealPlace
from cohortlab.places import PlaceError
from cohortlab.policies import split_binary
from cohortlab.results import read_parquet
from cohortlab.scenario import Scenario

Run = Callable[..., Any]
Write = Callable[..., Path]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The `cohort` that is built and a byte more, behind all that is loaded of it."""
    file = tmp_path / "copy"
    file.write_bytes(binaries.find("cohort").read_bytes() + b"\0")
    file.chmod(0o755)
    return file


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def elf(*, bits: int = 2, machine: int = 62, segment: int = 1) -> bytes:
    """Return an ELF program of a header and one segment, of nothing."""
    head = bytearray(64)
    head[:6] = b"\x7fELF" + bytes([bits, 1])
    struct.pack_into("<HH", head, 0x10, 2, machine)
    struct.pack_into("<Q", head, 0x20, 64)
    struct.pack_into("<HH", head, 0x36, 56, 1)
    return bytes(head) + struct.pack("<IIQQQQQQ", segment, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("args", "file", "others"),
    [
        ((), None, ()),
        (("--slice-us", "4000"), None, ("--slice-us", "4000")),
        (("--binary", "x", "--slice-us", "4000"), "x", ("--slice-us", "4000")),
        (("-v", "--binary=a=b", "--boost=off"), "a=b", ("-v", "--boost=off")),
    ],
)
def test_the_file_is_no_argument_of_its_run(args: tuple[str, ...], file: str | None, others: tuple[str, ...]) -> None:
    assert split_binary(args) == (file, others)


@pytest.mark.parametrize("args", [("--binary",), ("--binary=",), ("--binary", "x", "--binary", "x")])
def test_the_file_is_there_once(args: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=r"--binary must be there once, with a file$"):
        split_binary(args)


def test_each_label_says_which_cohort_it_ran(
    cohortlab: Run, write_scenario: Write, place: Any, copy: Path, tmp_path: Path
) -> None:
    more = ("--policies", "eevdf,cohort,cohort@old", "--policy-args", f"cohort@old=--binary {copy} --slice-us 4000")
    ran = cohortlab("compare", write_scenario(), "--rounds", 1, *more, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    found = read_parquet(tmp_path / "out" / "measurements.parquet").binaries
    built = binaries.find("cohort")
    assert {label: (one["file"], one["sha256"]) for label, one in found.items()} == {
        "cohort": (str(built), sha256(built)),
        "cohort@old": (str(copy), sha256(copy)),
    }
    assert all(one["version"].startswith("cohort ") for one in found.values())
    report = (tmp_path / "out" / "report.html").read_text()
    assert f"SHA-256 {sha256(copy)}: {copy}</dd>" in report
    assert ("policy", "cohort", "--binary", str(copy), "--slice-us", "4000") in place.log


def test_a_scenario_may_name_one(
    cohortlab: Run, write_scenario: Write, scenario_text: str, copy: Path, tmp_path: Path
) -> None:
    own = f'[defaults]\npolicies = ["cohort@old"]\npolicy_args = ["cohort@old=--binary {copy}"]\n'
    path = write_scenario(scenario_text + own)
    assert cohortlab("compare", path, "--rounds", 1, "--out", tmp_path / "out").code == 0
    found = read_parquet(tmp_path / "out" / "measurements.parquet").binaries
    assert [(label, one["file"]) for label, one in found.items()] == [("cohort@old", str(copy))]
    ran = cohortlab("compare", path, "--on", "sim")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert "cohort@old: --binary: the simulator runs the BPF source that it was built with" in ran.err


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        pytest.param(None, 0, "does not exist: must be a cohort", id="absent"),
        pytest.param(b"#!/bin/sh\necho cohort 9\n", 0o755, "must be a static program for x86-64", id="script"),
        pytest.param(elf(segment=3), 0o755, "must be a static program for x86-64", id="dynamic"),
        pytest.param(elf(bits=1), 0o755, "must be a static program for x86-64", id="32-bit"),
        pytest.param(elf(machine=183), 0o755, "must be a static program for x86-64", id="arm"),
        pytest.param(elf()[:60], 0o755, "must be a static program for x86-64", id="cut"),
        pytest.param(elf(), 0o644, "cannot be executed: must be an executable file", id="mode"),
    ],
)
def test_what_the_labs_host_could_not_run_is_refused_before_anything_boots(
    cohortlab: Run, write_scenario: Write, place: Any, tmp_path: Path, content: bytes | None, mode: int, said: str
) -> None:
    file = tmp_path / "other"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    more = ("--policies", "cohort,cohort@old", "--policy-args", f"cohort@old=--binary {file}")
    ran = cohortlab("compare", write_scenario(), *more)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert ran.err.startswith(f"cohortlab: cohort@old: --binary: {file}: ")
    assert said in ran.err
    assert place.log == []


def test_a_folder_and_another_program_are_no_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlaceError, match="is no file"):
        binaries.build(tmp_path)
    file = tmp_path / "busybox"
    file.write_bytes(elf())
    file.chmod(0o755)
    monkeypatch.setattr(binaries, "_ask", lambda *_: "BusyBox v1.36.1")
    with pytest.raises(PlaceError, match=r'is no cohort: asked for its --version, it says "BusyBox v1\.36\.1"$'):
        binaries.build(file)
    monkeypatch.setattr(binaries, "SIZE_MAX_MB", 0)
    with pytest.raises(PlaceError, match="is too large: must have 0 MB or fewer"):
        binaries.build(file)


def test_a_relative_path_is_from_the_present_folder(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert binaries.build(Path(copy.name)).file == copy
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(PlaceError, match=r"/elsewhere/copy: does not exist"):
        binaries.build(Path(copy.name))


def test_it_is_asked_about_all_that_it_will_be_called_with(
    cohortlab: Run, write_scenario: Write, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    called: list[str] = []
    really = binaries._ask

    def ask(file: Path, *words: str) -> str:
        asked.append((str(file), *words))
        return really(file, *words)

    def spawn(_: str, line: str) -> Any:
        called.extend(shlex.split(line))
        raise PlaceError("it is called")

    monkeypatch.setattr(binaries, "_ask", ask)
    more = ("--policies", "vtime@old", "--policy-args", f"vtime@old=--binary {copy} --slice-us 4000")
    assert cohortlab("compare", write_scenario(), "--rounds", 1, *more).code == 0
    host: Any = SimpleNamespace(spawn=spawn)
    with pytest.raises(PlaceError, match="it is called"):
        PolicyRun.start(host, "vtime", ("--slice-us", "4000"), str(copy))
    assert called[0] == "exec"
    assert asked == [(str(copy), "--version"), (*called[1:], "--help")]


@pytest.mark.parametrize("args", ["--wibble 1", "--slice-us soon", "--stats 2", "--slice-us"])
def test_what_it_does_not_know_it_refuses_itself_before_anything_boots(
    cohortlab: Run, write_scenario: Write, place: Any, copy: Path, args: str
) -> None:
    more = ("--policies", "cohort,cohort@old", "--policy-args", f"cohort@old=--binary {copy} {args}")
    ran = cohortlab("compare", write_scenario(), *more)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert args.split()[0] in ran.err.partition("run ended with 2: it said cohort: ")[2]
    assert place.log == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "smp-2x2", "--on", "sim", "--policy-args", "cohort=--binary x"), ": --binary: the simulator"),
        (("explain", "smp-2x2", "--policy-args", "--binary x"), "--binary: the simulator"),
        (("sweep", "smp-2x2", "--axis", "policy=cohort --binary x"), "--binary: the simulator"),
        (("compare", "smp-2x2", "--policy-args", "eevdf=--binary x"), '"--binary x" is not allowed for eevdf'),
    ],
)
def test_who_runs_no_other_cohort_says_so(cohortlab: Run, words: tuple[str, ...], said: str) -> None:
    ran = cohortlab(*words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err


def test_a_policy_is_run_by_its_own_cohort(monkeypatch: pytest.MonkeyPatch, copy: Path) -> None:
    started: list[Any] = []

    def start(_: object, *how: Any) -> Any:
        started.append(how)
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(PolicyRun, "start", start)
    place: Any = SimpleNamespace(
        host=None,
        cohort_there="cohort",
        _there=lambda build: f"there/{build.sha256}",
        _needs_cohort=lambda: None,
        _crash_if_lost=nullcontext,
        _nobody_else_comes=nullcontext,
        _settle=lambda: None,
        _collect_complaints=lambda: None,
    )
    for args in ((), ("--binary", str(copy), "--slice-us", "4000")):
        with RealPlace._under_cohort(place, "vtime", args):
            pass
    assert started == [("vtime", (), "cohort"), ("vtime", ("--slice-us", "4000"), f"there/{sha256(copy)}")]


def test_it_is_sent_after_each_boot_as_it_was_at_first(two: Scenario, copy: Path) -> None:
    sent: dict[str, bytes] = {}
    log: list[str] = []

    def put(path: str, content: bytes) -> None:
        sent[path] = content
        log.append(path)

    def run(sh: str) -> Any:
        return SimpleNamespace(rc=int(sh.removeprefix("test -x ") not in sent))

    place: Any = LabPlace(two)
    place._lab = SimpleNamespace(host=SimpleNamespace(run=run, put=put))
    build = binaries.build(copy)
    was = copy.read_bytes()
    copy.write_bytes(b"compiled meanwhile")
    there = place._there(binaries.build(copy))
    assert place._there(build) == there
    assert (sent, log) == ({there: was}, [there])
    # A host that goes on from a saved state has it no more than one that has booted.
    sent.clear()
    assert place._there(build) == there
    assert log == [there, there]
    assert place._there(dataclasses.replace(build, sha256="0" * 64)) != there


def test_on_this_host_it_must_stay_the_same(two: Scenario, copy: Path) -> None:
    build = binaries.build(copy)
    place = HostPlace(two)
    assert place._there(build) == str(copy)
    copy.write_bytes(b"compiled meanwhile")
    with pytest.raises(PlaceError, match="has changed since it was first looked at"):
        place._there(build)
    copy.unlink()
    with pytest.raises(PlaceError, match="has changed since it was first looked at"):
        place._there(build)


def test_on_this_host_the_one_that_is_built_must_stay_the_same(
    two: Scenario, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = copy.rename(copy.with_name("cohort"))
    monkeypatch.setenv("COHORT_BIN", str(own.parent))
    place = HostPlace(two)
    place._needs_cohort()
    assert place.cohort_there == str(own)
    own.write_bytes(b"compiled meanwhile")
    with pytest.raises(PlaceError, match="has changed since it was first looked at"):
        place._needs_cohort()
