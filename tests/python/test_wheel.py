# SPDX-License-Identifier: GPL-2.0-only
"""The wheel: what is in it, that pip takes it, and that it works without the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cohortlab import scenario
from cohortlab.errors import BadInput

REPOSITORY = Path(__file__).resolve().parents[2]
SIMULATORS = sorted((REPOSITORY / "build" / "wheels").glob("cohort_sim-*.whl"))


def build(folder: Path, *, simulator: bool) -> Path:
    """Return the wheel that scripts/wheel makes; without the simulator, what an installation from the sources has."""
    environment = {name: value for name, value in os.environ.items() if name != "COHORT_SIM_WHEEL"}
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    if simulator:
        argv = ["scripts/wheel", str(folder)]
    subprocess.run(argv, cwd=REPOSITORY, env=environment, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_everything_that_comes_with_the_project_is_in_it(tmp_path: Path) -> None:
    wheel = build(tmp_path, simulator=False)
    assert wheel.name.endswith("-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        f"cohortlab/_shipped/{path.relative_to(REPOSITORY)}"
        for folder in ("scenarios", "workloads", "hardware", "papers", "fidelity")
        for path in (REPOSITORY / folder).rglob("*.toml")
    ]
    wanted += [
        "cohortlab/_shipped/lab/init",
        "cohortlab/_shipped/lab/emulator/series",
        "cohortlab/report.html.j2",
        "cohortlab/reproduce/report.html.j2",
        "cohortlab/recorded/measured.toml",
    ]
    assert len(wanted) > 20
    assert set(wanted) <= names
    assert not any(name.startswith(("cohort_sim/", "tests/", "lab/")) for name in names)
    assert [name.split("/", 1)[1] for name in names if "/licenses/" in name] == ["licenses/LICENSE"]


@pytest.mark.skipif(not SIMULATORS, reason="the simulator is not built: `make build`")
def test_it_simulates_without_the_repository(tmp_path: Path) -> None:
    wheel = build(tmp_path, simulator=True)
    assert wheel.name.endswith("-".join(SIMULATORS[0].stem.split("-")[-3:]) + ".whl")
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    zipfile.ZipFile(wheel).extractall(installed)
    # What others wrote of the simulator.
    (metadata,) = installed.glob("cohortlab-*.dist-info/METADATA")
    assert "License-File: build/THIRD-PARTY\n" in metadata.read_text()
    assert "\npyo3 " in (metadata.parent / "licenses/build/THIRD-PARTY").read_text()
    code = (
        "import cohort_sim, cohortlab, sys; from cohortlab.cli import main;"
        "print(cohort_sim.__file__, cohortlab.__file__, file=sys.stderr); sys.exit(main())"
    )
    argv = [sys.executable, "-c", code, "compare", "smp-2x2", "--on", "sim", "--programs", "hackbench", "--json"]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(argv, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].count(str(installed)) == 2
    assert json.loads(done.stdout)
    lab = [sys.executable, "-m", "cohortlab", "lab", "host: true"]
    environment.pop("COHORT_BIN", None)
    done = subprocess.run(lab, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "set COHORT_BIN" in done.stderr


@pytest.mark.long
@pytest.mark.skipif(not SIMULATORS, reason="the simulator is not built: `make build`")
def test_pip_installs_it_and_it_simulates_from_an_empty_folder(tmp_path: Path) -> None:
    wheel = build(tmp_path, simulator=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "COHORT_"))
    }
    environment["COHORT_CACHE"] = str(tmp_path / "cache")
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = environment["PIP_NO_INPUT"] = "1"
    # The versions that this repository is tested with. Their hashes are left out: the wheel itself has none.
    pins = re.findall(r"^[\w.-]+==[^\s;\\]+", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    constraints, empty = tmp_path / "constraints", tmp_path / "empty"
    constraints.write_text("\n".join(pins))
    empty.mkdir()

    def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=empty, env=environment, capture_output=True, text=True, check=False)

    venv = tmp_path / "venv"
    made = run(sys.executable, "-m", "venv", venv)
    assert made.returncode == 0, made.stdout + made.stderr
    pip = (venv / "bin/pip", "--retries", "1", "--timeout", "20")
    some = next(pin for pin in pins if pin.startswith("click=="))
    reached = run(*pip, "download", "--no-deps", "--no-cache-dir", "--dest", tmp_path / "some", some)
    if reached.returncode:
        pytest.skip(f"no package index can be reached for what the wheel needs: {reached.stderr.splitlines()[-1:]}")
    installed = run(*pip, "install", "--constraint", constraints, wheel)
    assert installed.returncode == 0, installed.stderr
    assert run(*pip, "check").returncode == 0

    done = run(venv / "bin/cohortlab", "compare", "smp-2x2", "--on", "sim", "--programs", "hackbench", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {one["policy"] for one in found} >= {"eevdf", "cohort"}
    assert all(one["slowdown"] > 0.5 for one in found)


def test_a_scenario_of_the_project_needs_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert scenario.load(Path("smp-2x2")).name == "smp-2x2"
    # A file goes first, whatever it is called.
    Path("smp-2x2").write_text("x = ")
    with pytest.raises(BadInput, match="is not valid TOML"):
        scenario.load(Path("smp-2x2"))
    with pytest.raises(BadInput, match=r'"smp-9" is no scenario: must be a file, or one of .*smp-2x2'):
        scenario.load(Path("smp-9"))
    with pytest.raises(BadInput, match=r"smp-2x4\.toml: cannot be read"):
        scenario.load(Path("smp-2x4.toml"))
