# SPDX-License-Identifier: GPL-2.0-only
"""An rt-app file that an option names is in the present folder, whatever the scenario has beside itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.measured import as_measured
from tests.python.two_vms import QUICK, two_vms

from cohortlab import commands
from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.results import read_parquet, write_parquet

Run = Callable[..., Any]
# Its figure is the time that it takes; of the next one, what it does in a second.
TIMES = '{"tasks": {"a": {"loop": 3, "run": 500}}}'
SECOND = '{"global": {"duration": 1}, "tasks": {"a": {"run": 500}}}'
# The simulator does not model it.
FORKS = '{"tasks": {"a": {"loop": 1, "fork": "b"}}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A scenario in a folder S with a program x.json beside it."""
    (tmp_path / "S").mkdir()
    (tmp_path / "S" / "x.json").write_text(TIMES)
    (tmp_path / "S" / "s.toml").write_text(two_vms("x.json"))
    return tmp_path / "S" / "s.toml"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with another x.json."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x.json").write_text(SECOND)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_program_of_the_option_is_that_of_the_present_folder(path: Path, here: Path) -> None:
    loaded = scenarios.load(path)
    chosen = commands.with_programs("x.json", loaded)
    assert (loaded.workloads["x.json"].unit, chosen.workloads["x.json"].unit) == ("s", "loops/s")
    assert (loaded.models["x.json"], chosen.models["x.json"]) == (path.parent / "x.json", here / "x.json")
    # Without an option nothing changes.
    assert loaded.only(["x.json"]).models == loaded.models


def test_a_load_stays_the_scenarios(path: Path, here: Path) -> None:
    path.write_text(two_vms("tlb-flush").replace('"cpu-hog"', '"x.json"'))
    loaded = scenarios.load(path)
    assert commands.with_programs("mmapfork", loaded).models["x.json"] == path.parent / "x.json"
    with pytest.raises(BadInput) as caught:
        commands.with_programs("x.json", loaded)
    said = f'--programs: "x.json" is not allowed: must have another name than the load {path.parent / "x.json"}'
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "command", [("compare", "--on", "sim", "--rounds", 1, "--programs"), ("explain", "--ms", 5, "--program")]
)
def test_both_commands_read_the_present_folders(cohortlab: Run, path: Path, command: tuple[object, ...]) -> None:
    Path("x.json").write_text(FORKS)
    name, *options = command
    ran = cohortlab(name, path, *options, "x.json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert f"{Path.cwd() / 'x.json'}: tasks.a.fork: is not modelled" in ran.err


def test_fidelity_simulates_the_file_that_was_measured_or_none(cohortlab: Run, path: Path) -> None:
    here, beside = Path.cwd() / "x.json", path.parent / "x.json"
    here.write_text(TIMES.replace("3", "4"))
    args = ("--on", "sim", "--programs", "x.json", "--rounds", 1, "--policies", "eevdf", "--out", "lab")
    assert cohortlab("compare", path, *args).code == 0
    lab = as_measured(Path("lab/measurements.parquet"))
    fidelity = ("fidelity", path, "--lab", lab, "--rounds", 1)
    ran = cohortlab(*fidelity)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    measured, found = (hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in (here, beside))
    said = f'--lab: {lab}: "x.json" was {here} ({measured}): must be the same as {beside} ({found})'
    assert said in ran.err
    # The same elsewhere will do; and older results do not say.
    beside.write_bytes(here.read_bytes())
    assert cohortlab(*fidelity).code == 0
    beside.write_text(TIMES)
    results = read_parquet(lab)
    results.files = None
    write_parquet(results, lab)
    assert cohortlab(*fidelity).code == 0


def test_own_files_are_what_the_lab_runs(path: Path) -> None:
    folder = path.parent / "workloads"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "quick.toml").write_text(QUICK)
    (folder / "mine.toml").write_text('name = "mine"\ntitle = "M"\ncommand = "m"\n[metric]\nkind = "elapsed"\n')
    path.write_text(two_vms("x.json", "quick", "mine", "tlb-flush"))
    files = scenarios.load(path).own_files()
    # The project's are not, nor is a model.
    assert {name: file for name, (file, _) in files.items()} == {
        "x.json": str(path.parent / "x.json"),
        "mine": str(folder / "mine.toml"),
    }


def test_a_label_is_the_scenarios_own_program(cohortlab: Run, path: Path) -> None:
    second = '[[vm]]\nname = "b"\nvcpus = 1\nmemory_mb = 256\nprograms = ["x.json"]\n'
    path.write_text(two_vms("x.json") + second)
    Path("x.json").write_text(FORKS)
    ran = cohortlab("explain", path, "--program", "work:x.json", "--ms", 5, "--out", "x.svg")
    assert ran.code == 0, ran.err
