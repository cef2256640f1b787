# SPDX-License-Identifier: GPL-2.0-only
"""Workload files and the figures read from a program's output."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cohortlab import models, workloads
from cohortlab.errors import BadInput
from cohortlab.workloads import WorkloadError

GOOD = """
name = "serve"
title = "Serve"
command = "serve"
[metric]
kind = "rate"
pattern = '^Throughput ([0-9.]+)'
unit = "MB/s"
"""

WRONG = {
    "another name": ('"serve"', '"server"', 'name: "server" is not allowed: must be "serve", the file\'s name'),
    "no metric": (
        GOOD[GOOD.index("[metric]") :],
        "",
        "metric: is missing: must be a table with kind, pattern and unit (or background = true)",
    ),
    "unknown kind": (
        '"rate"',
        '"speed"',
        'metric.kind: "speed" is not allowed: must be "elapsed" (less is better) or "rate" (more is better)',
    ),
    "pattern that is no pattern": (
        "([0-9.]+)",
        "([0-9.]+",
        'metric.pattern: "^Throughput ([0-9.]+" is not allowed: must be a regular expression with one group: the figure',  # noqa: E501
    ),
    "pattern that repeats too often": (
        "([0-9.]+)",
        "([0-9]{99999999999})",
        'metric.pattern: "^Throughput ([0-9]{99999999999})" is not allowed: '
        "must be a regular expression with one group: the figure",
    ),
    "pattern without a group": (
        "([0-9.]+)",
        "[0-9.]+",
        'metric.pattern: "^Throughput [0-9.]+" is not allowed: must be a regular expression with one group: the figure',
    ),
    "rate without a pattern": (
        "pattern = '^Throughput ([0-9.]+)'\n",
        "",
        "metric.pattern: is missing: must be given when kind is rate: the figure is in the output",
    ),
    "elapsed in another unit": (
        '"rate"',
        '"elapsed"',
        'metric.unit: "MB/s" is not allowed: must be "s" when kind is "elapsed"',
    ),
    "time-out of 0": (
        'command = "serve"',
        'command = "serve"\ntimeout_s = 0',
        "timeout_s: 0 is not allowed: must be an integer from 1 to 3600",
    ),
    "setup's time-out of 2 hours": (
        'command = "serve"',
        'command = "serve"\nsetup_timeout_s = 7200',
        "setup_timeout_s: 7200 is not allowed: must be an integer from 1 to 3600",
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_workload(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    path = tmp_path / "serve.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        workloads.load(path)
    assert str(caught.value) == f"{path}: {expected}"


@pytest.fixture
def serve(tmp_path: Path) -> workloads.Workload:
    path = tmp_path / "serve.toml"
    path.write_text(GOOD)
    return workloads.load(path)


def test_figure_from_the_output(serve: workloads.Workload) -> None:
    assert serve.figure("warming up\nThroughput 12.5 MB/sec\n", wall_s=3.0) == 12.5
    assert serve.is_rate
    assert serve.unit == "MB/s"


def test_figure_is_the_wall_clock_without_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "spin.toml"
    path.write_text('name = "spin"\ntitle = "Spin"\ncommand = "spin"\n[metric]\nkind = "elapsed"\n')
    spin = workloads.load(path)
    assert spin.figure("whatever", wall_s=3.25) == 3.25
    assert (spin.is_rate, spin.unit) == (False, "s")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("Killed\n", r"does not match .*; it ends: Killed"),
        ("Throughput 1.2.3", r'"1\.2\.3" in its output is not a number'),
        ("Throughput 0.0", r"0\.0 is not a number above 0"),
    ],
)
def test_no_figure(serve: workloads.Workload, output: str, reason: str) -> None:
    with pytest.raises(WorkloadError, match=reason):
        serve.figure(output, wall_s=1.0)


def test_a_group_that_found_nothing_is_no_figure(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(GOOD.replace("([0-9.]+)", "([0-9.]+)?"))
    with pytest.raises(WorkloadError, match=r"its output does not match .*; it ends: Throughput unknown"):
        workloads.load(path).figure("Throughput unknown", wall_s=1.0)


@pytest.mark.parametrize("path", sorted(workloads.SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_workload(path: Path) -> None:
    assert workloads.load(path).name == path.stem


def test_of_a_setup_that_was_cut_off_nothing_is_measured(tmp_path: Path) -> None:
    setup = workloads.load(workloads.SHIPPED / "pbzip2.toml").setup
    assert setup is not None
    seq = tmp_path / "bin/seq"
    seq.parent.mkdir()

    def run(does: str) -> int:
        seq.write_text(f"#!/bin/sh\n{does}\n")
        seq.chmod(0o755)
        argv = ["sh", "-c", setup.replace("/tmp", str(tmp_path))]
        return subprocess.run(argv, env={"PATH": f"{seq.parent}:/usr/bin:/bin"}, check=False).returncode

    assert run("echo half; exit 1") == 1
    assert run("echo whole") == 0
    assert (tmp_path / "pbzip2/in").read_text() == "whole\n"
    assert run("exit 1") == 0, "it is there"


def test_a_name_does_not_lead_out_of_the_folders(tmp_path: Path) -> None:
    (tmp_path / "secret.toml").write_text(GOOD)
    inside = tmp_path / "workloads"
    inside.mkdir()
    assert workloads.find("../secret", (inside,)) is None


def test_a_shipped_model_that_was_changed_is_simulated_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dedup.toml"
    text = (models.SHIPPED / "dedup.toml").read_text()
    monkeypatch.setattr(models, "SHIPPED", tmp_path)
    file.write_text(text)
    assert models.described(file) == {"model": "dedup"}
    assert "times = 8000" in text
    file.write_text(text.replace("times = 8000", "times = 80"))
    assert {thread["times"] for thread in models.described(file)["program"]["thread"]} == {80}
