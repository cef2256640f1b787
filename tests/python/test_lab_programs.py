# SPDX-License-Identifier: GPL-2.0-only
"""What the lab is told of a scenario's programs, without a lab."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohortlab import scenario, workloads
from cohortlab.errors import BadInput
from cohortlab.lab import programs

Write = Callable[..., Path]
Run = Callable[..., Any]


def brings(folder: Path, lines: str) -> None:
    file = folder / "workloads" / "spin.toml"
    file.write_text(file.read_text().replace("[metric]", f"{lines}\n[metric]"))


def test_packages_and_files(write_scenario: Write, tmp_path: Path) -> None:
    (tmp_path / "workloads" / "words.txt").write_text("a word\n")
    brings(tmp_path, 'packages = ["redis-server"]\nfiles = ["words.txt"]')
    loaded = scenario.load(write_scenario())
    assert programs.packages(loaded) == {"redis-server": f"{loaded.path}: workload spin"}
    assert programs.files(loaded) == {"srv/spin/words.txt": tmp_path / "workloads" / "words.txt"}
    assert programs.command(loaded.workloads["spin"], "spin 1") == "cd /srv/spin || exit; spin 1"
    assert programs.command(loaded.workloads["serve"], "serve") == "serve"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('packages = ["Redis"]', 'packages[0]: "Redis" is not allowed: must be a list of Debian packages'),
        ('packages = "redis"', 'packages: "redis" is not allowed: must be a list of Debian packages'),
        ('files = ["absent"]', 'files[0]: "absent" is not allowed: must be the name of a file in '),
        ('files = ["../two.toml"]', 'files[0]: "../two.toml" is not allowed: must be the name of a file in '),
    ],
)
def test_wrong_packages_and_files(write_scenario: Write, tmp_path: Path, lines: str, said: str) -> None:
    path = write_scenario()
    brings(tmp_path, lines)
    with pytest.raises(BadInput) as caught:
        scenario.load(path)
    assert f"{tmp_path / 'workloads' / 'spin.toml'}: {said}" in str(caught.value)


def test_rt_app_brings_itself(write_scenario: Write, scenario_text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"tasks": {"a": {"loop": 3, "run": 5}}}')
    loaded = scenario.load(write_scenario(scenario_text.replace('"serve"', '"x.json"')))
    workload = loaded.workloads["x.json"]
    assert programs.command(workload, workload.command or "") == "cd /srv/x || exit; rt-app x.json"
    assert list(programs.packages(loaded)) == ["rt-app"]
    assert programs.files(loaded) == {"srv/x/x.json": tmp_path / "x.json"}
    assert programs.unknown(loaded) is None


def test_two_files_of_one_name_are_refused(write_scenario: Write, scenario_text: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "app.json").write_text('{"tasks": {"a": {"loop": 3, "run": 5}}}')

    def of(*names: str) -> scenario.Scenario:
        listed = ", ".join(f'"{name}"' for name in names)
        return scenario.load(write_scenario(scenario_text.replace('"spin", "serve"', listed)))

    loaded = of("a/app.json", "b/app.json")
    with pytest.raises(BadInput) as caught:
        programs.files(loaded)
    assert str(caught.value) == (
        f"{loaded.path}: vm: {tmp_path}/a/app.json and {tmp_path}/b/app.json are both /srv/app/app.json in a guest: "
        "must have different names"
    )
    # One file by two names is one file.
    assert list(programs.files(of("a/app.json", "b/../a/app.json"))) == ["srv/app/app.json"]


def test_what_can_only_be_simulated_is_named(write_scenario: Write, scenario_text: str) -> None:
    loaded = scenario.load(write_scenario(scenario_text.replace('"serve"', '"dedup"')))
    assert programs.unknown(loaded) == (
        f'{loaded.path}: vm[0].programs[1]: "dedup" has no command: must be simulated (--on sim)'
    )


def test_a_shipped_workload_needs_nothing() -> None:
    for path in workloads.SHIPPED.glob("*.toml"):
        loaded = workloads.load(path)
        assert (loaded.packages, loaded.files) == ((), ())


def test_all_of_a_line_runs_in_the_folder_of_its_files(
    write_scenario: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workloads" / "words.txt").write_text("a word\n")
    brings(tmp_path, 'files = ["words.txt"]')
    spin = scenario.load(write_scenario()).workloads["spin"]
    monkeypatch.setattr(programs, "FILES", str(tmp_path).removeprefix("/"))

    def run(line: str) -> Any:
        argv = ["/bin/sh", "-c", programs.command(spin, line)]
        return subprocess.run(argv, cwd="/", capture_output=True, text=True, check=False)

    assert run("pwd").returncode != 0
    (tmp_path / "spin").mkdir()
    assert run("pwd >one & pwd; wait; cat one").stdout == f"{tmp_path}/spin\n" * 2
