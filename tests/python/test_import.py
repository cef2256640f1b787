# SPDX-License-Identifier: GPL-2.0-only
"""`cohortlab import` writes all of its folder, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.test_recorded import HOST_LINES

from cohortlab import scenario as scenarios
from cohortlab.recorded import recording
from cohortlab.recorded import scenario as makes

Run = Callable[..., Any]
ENTRIES = {"recorded.toml", "hardware.toml", "workloads", "tables", "trace.perfetto"}
VERSIONS = "is not allowed: must be a kernel's version, 2.6.34 or newer, as in 6.12"
WRONG = {
    "a text that is no version": (1, ["--kernel", "bogus"], f'--kernel: "bogus" {VERSIONS}'),
    "a quote": (1, ["--kernel", 'a"b'], f'--kernel: "a"b" {VERSIONS}'),
    "an old kernel": (1, ["--kernel", "2.4"], f'--kernel: "2.4" {VERSIONS}'),
    "a large host": (2000, [], "makes no scenario: host.pcpus: 2000 is not allowed: must be an integer"),
}


def text_of(folder: Path, pcpus: int = 1) -> Path:
    """Write the text of `trace-cmd report`."""
    path = folder / "host.txt"
    path.write_text("\n".join([f"cpus={pcpus}", *HOST_LINES]) + "\n")
    return path


@pytest.mark.parametrize(("pcpus", "options", "said"), WRONG.values(), ids=WRONG.keys())
def test_after_a_mistake_nothing_is_there(
    cohortlab: Run, tmp_path: Path, pcpus: int, options: list[str], said: str
) -> None:
    path = text_of(tmp_path, pcpus)
    old = tmp_path / "old"
    old.mkdir()
    (old / "recorded.toml").write_text("mine\n")
    for out in (tmp_path / "new" / "out", old):
        ran = cohortlab("import", path, "--out", out, *options)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
        assert said in ran.err
        assert str(out) not in ran.err
    assert not (tmp_path / "new").exists()
    assert [(file.name, file.read_text()) for file in old.iterdir()] == [("recorded.toml", "mine\n")]


def test_a_recording_that_makes_no_scenario_leaves_nothing(
    cohortlab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = text_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(makes, "STEPS_MAX", 0)
        steps = cohortlab("import", path)
    read = recording.load(path)
    read.about["vcpus"] = [0]
    monkeypatch.setattr(recording, "load", lambda *_: read)
    for ran, said in ((steps, "--for-s: "), (cohortlab("import", path), "host.txt: has no VM: record while VMs run")):
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
        assert said in ran.err
    assert not (tmp_path / "host").exists()


def test_what_else_the_folder_has_stays(cohortlab: Run, tmp_path: Path) -> None:
    path, folder = text_of(tmp_path), tmp_path / "host"
    (folder / "tables").mkdir(parents=True)
    for name in ("notes.txt", "tables/mine.parquet", "recorded.toml"):
        (folder / name).write_text("mine\n")
    ran = cohortlab("import", path, "--kernel", "6.18.3-1-amd64")
    assert ran.code == 0, ran.err
    assert {file.name for file in folder.iterdir()} == ENTRIES | {"notes.txt"}
    assert {"mine.parquet", "events.parquet", "vms.parquet"} <= {file.name for file in (folder / "tables").iterdir()}
    assert scenarios.load(folder / "recorded.toml").defaults.kernel == "6.18.3"
    assert f"s of it; measured is what vm0 did: {folder / 'recorded.toml'}" in ran.out


def test_what_the_probe_says_at_the_end_is_told_if_it_is_new(
    cohortlab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = text_of(tmp_path)
    read = recording.load(path)
    monkeypatch.setattr(recording, "load", lambda *_: read)
    read.about["header"]["notes"] = ["no ple"]
    read.about["end"]["counted"] = {"notes": ["no ple", "more VMs than the probe follows: 3 left out"]}
    told = cohortlab("import", path).out.splitlines()
    assert told.count("  no ple") == 1
    assert told.index("  more VMs than the probe follows: 3 left out") == told.index("  no ple") + 1
    # Of other recordings there is nothing, and in a damaged one anything.
    for counted in (None, [], {}, {"notes": None}, {"notes": [1]}):
        read.about["end"]["counted"] = counted
        ran = cohortlab("import", path)
        assert ran.code == 0, ran.err
        assert "  no ple\n" in ran.out


@pytest.mark.parametrize("name", ["recorded.toml", "workloads/models/vm0.toml"])
def test_a_folder_in_a_files_place_is_told_before_anything_is_replaced(
    cohortlab: Run, tmp_path: Path, name: str
) -> None:
    path, folder = text_of(tmp_path), tmp_path / "host"
    (folder / name).mkdir(parents=True)
    before = sorted(folder.rglob("*"))
    ran = cohortlab("import", path)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert f"--out: {folder / name}: is in the way: must be a file" in ran.err
    assert sorted(folder.rglob("*")) == before


def test_a_file_in_the_folders_place(cohortlab: Run, tmp_path: Path) -> None:
    path = text_of(tmp_path)
    (tmp_path / "host").touch()
    ran = cohortlab("import", path)
    assert (ran.code, ran.err) == (2, f"cohortlab: --out: {tmp_path / 'host'}: is a file: must be a folder\n")
    ran = cohortlab("import", path, "--out", tmp_path / ("x" * 300))
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "cannot be written to: File name too long" in ran.err


@pytest.mark.parametrize("name", ["dbench", "cpu-hog", "pbzip2"])
def test_a_vm_that_is_called_as_a_program_of_ours_is_not_that_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = text_of(tmp_path)
    read = recording.load(path)
    read.about["names"] = [name]
    written = makes.write(read, tmp_path / "out", makes.Part(0, read.length_ns), "lab")
    workload = scenarios.load(written.path).workloads[name]
    assert (workload.command, workload.is_rate, workload.background, workload.timeout_s) == (None, False, False, 600)


def test_a_long_part_has_the_time_to_be_replayed() -> None:
    def timeout_s(length_s: int) -> str:
        return makes._workload("vm", "program", makes.Part(0, length_s * 1_000_000_000))

    assert "timeout_s = 600\n" in timeout_s(5)
    assert "timeout_s = 2000\n" in timeout_s(100)
    assert "timeout_s = 3600\n" in timeout_s(3600)


def test_a_host_of_another_size_is_refused_before_anything_is_written(cohortlab: Run, tmp_path: Path) -> None:
    ran = cohortlab("import", text_of(tmp_path), "--hardware", "server-24")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert "makes no scenario: hardware.toml: machine: has 24 pCPUs, but recorded.toml has host.pcpus = 1" in ran.err
    assert not (tmp_path / "host").exists()
