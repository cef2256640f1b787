# SPDX-License-Identifier: GPL-2.0-only
"""The papers' experiments: files, formulas, verdicts, the command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from cohortlab.errors import BadInput
from cohortlab.reproduce import load, outcome, report, runs
from cohortlab.reproduce.commands import reproduce
from cohortlab.reproduce.formula import Formula

SCENARIO = """
name = "two"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 2
memory_mb = 256
programs = ["tlb-flush"]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
load = "cpu-hog"
"""
EXPERIMENT = """
title = "a title"
source = "a source"
parameters = "none"
rounds = 2

[[run]]
name = "alone"
scenario = "two"
set = { alone = true }

[[run]]
name = "beside"
scenario = "two"
each = { "scenario.guest.tlb" = ["ipi", "kvm-pv"], policy = ["eevdf", "cohort --slice-us 4000"] }

[[figure]]
name = "slowdown"
place = "Table 1"
paper = 2
ours = "beside.ipi.eevdf.value / alone.value"
within = 5
group = "slowdowns"

[[figure]]
name = "far"
place = "Table 1"
paper = 1000
ours = "beside.ipi.eevdf.value / alone.value"
why = "it was made up"

[[finding]]
says = "sharing costs"
place = "section 1"
check = "beside.ipi.eevdf.value > alone.value"

[[finding]]
says = "sharing gains"
place = "section 1"
check = "beside.kvm-pv.cohort_slice-us_4000.value < alone.value"

[[own]]
name = "with a policy's arguments"
ours = "beside.ipi.cohort_slice-us_4000.value / alone.value"

[[cdf]]
title = "latency"
what = "shootdown"
of = { "beside" = "beside.ipi.eevdf" }
"""


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "papers"
    (folder / "paper" / "scenarios").mkdir(parents=True)
    (folder / "paper" / "scenarios" / "two.toml").write_text(SCENARIO)
    (folder / "paper" / "first.toml").write_text(EXPERIMENT)
    monkeypatch.setattr(load, "SHIPPED", folder)
    monkeypatch.setattr(load.find, "__defaults__", (folder,))
    monkeypatch.setattr(load.labels, "__defaults__", (folder,))
    return folder


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.x / b.y-z - 1", 1.0),
        ("1 + 2 * 3", 7.0),
        ("geomean(a.x, 1)", 2.0),
        ("mean(a.x, b.y-z) - -1", 4.0),
        ("1 < b.y-z < a.x", True),
        ("b.y-z < 1 or not a.x <= 4", False),
        ("count(a.x > 1, b.y-z > 1, 1 > 2)", 2.0),
    ],
)
def test_formula_computes(text: str, value: float | bool) -> None:
    assert Formula(text).value({"a.x": 4.0, "b.y-z": 2.0}) == value


@pytest.mark.parametrize(
    "text", ["", "a.x +", "__import__('os')", "a.x ** 9", "[1]", "'a'", "True", "unknown", "min()", "min(x=1)"]
)
def test_formula_refuses_everything_else(text: str) -> None:
    with pytest.raises(BadInput):
        Formula(text)


def test_a_division_by_zero_is_no_figure() -> None:
    measured = runs.Measured({"a.x": 1.0, "a.y": 0.0})
    assert outcome._number("a.x / a.y", measured) == (None, "is not a number")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('place = "Table 1"', 'plaec = "Table 1"', 'figure[0].plaec: is not a known field: did you mean "place"?'),
        ("paper = 2\n", 'paper = "2"\n', 'figure[0].paper: "2" is not allowed: must be a number'),
        ('name = "beside"', 'name = "alone"', 'run[1].name: "alone" is not allowed: must be unique'),
        ("beside.ipi.eevdf.value > alone.value", "besides.value > 1", 'finding[0].check: "besides.value" is of no run'),
        ("rounds = 2", "rounds = 0", "rounds: 0 is not allowed: must be an integer from 1 to 100"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_the_field(papers: Path, old: str, new: str, said: str) -> None:
    path = papers / "paper" / "first.toml"
    path.write_text(EXPERIMENT.replace(old, new, 1))
    with pytest.raises(BadInput) as error:
        load.find("paper")
    assert str(error.value).startswith(f"{path}: {said}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('scenario = "two"', 'scenario = "three"', "run[0]: "),
        ("alone = true", "colour = true", "run[0]: colour: is not a field: must be one of policy"),
        ('"scenario.guest.tlb" = ["ipi"', '"scenario.guest.tlb" = ["ipx"', "run[1]: "),
        ('policy = ["eevdf"', 'policy = ["nobody"', "run[1]: policy = "),
    ],
)
def test_a_mistake_in_a_run_is_known_before_anything_is_simulated(papers: Path, old: str, new: str, said: str) -> None:
    path = papers / "paper" / "first.toml"
    path.write_text(EXPERIMENT.replace(old, new, 1))
    with pytest.raises(BadInput) as error:
        runs.jobs(load.find("paper")[0])
    assert str(error.value).startswith(f"{path}: {said}")


def test_figures_are_the_same_for_any_number_of_workers(papers: Path) -> None:
    jobs = runs.jobs(load.find("paper:first")[0])
    one, four = (runs.run(jobs, workers, lambda: None) for workers in (1, 4))
    assert one == four
    assert {job.key for job in jobs} == {
        "alone",
        "beside.ipi.eevdf",
        "beside.kvm-pv.eevdf",
        "beside.ipi.cohort_slice-us_4000",
        "beside.kvm-pv.cohort_slice-us_4000",
    }


def test_the_report_says_what_holds_and_what_does_not(papers: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(reproduce, ["all", "--rounds", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| slowdown | Table 1 | 2 |" in text
    assert "misses; it was made up" in text
    assert "**holds**: sharing costs" in text
    assert "**does not hold**: sharing gains" in text
    assert report.UNEXPLAINED in text
    assert "1 of 2 predicted figures within their factor, 1 of 2 findings hold" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 2


def test_a_run_that_fails_is_said_and_the_others_are_reported(papers: Path, tmp_path: Path) -> None:
    workloads = papers / "paper" / "scenarios" / "workloads"
    (workloads / "models").mkdir(parents=True)
    shipped = load.shipped.folder("workloads")
    for file in ("tlb-flush.toml", "models/tlb-flush.toml"):
        shutil.copy(shipped / file, workloads / file)
    text = (workloads / "tlb-flush.toml").read_text()
    (workloads / "tlb-flush.toml").write_text(
        "\n".join("timeout_s = 1" if "timeout_s" in line else line for line in text.splitlines())
    )
    done = CliRunner().invoke(reproduce, ["paper", "--rounds", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    assert "did not end in 1 s" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("wanted", [[], ["nobody"], ["paper:nothing"]])
def test_what_there_is_not_is_named(papers: Path, wanted: list[str]) -> None:
    done = CliRunner().invoke(reproduce, wanted)
    assert isinstance(done.exception, BadInput)
    assert "paper:first" in str(done.exception)


def test_every_experiment_of_the_project_is_well_formed() -> None:
    experiments = [experiment for label in load.labels() for experiment in load.find(label)]
    assert experiments
    for experiment in experiments:
        assert runs.jobs(experiment, 1), experiment.label


def test_every_figure_of_the_project_is_of_a_run_that_there_is() -> None:
    for label in load.labels():
        experiment = load.find(label)[0]
        keys = tuple(f"{job.key}." for job in runs.jobs(experiment, 1))
        tables = (*experiment.file.figure, *experiment.file.own)
        texts = [table.ours for table in tables] + [table.check for table in experiment.file.finding]
        for name in {name for text in texts for name in Formula(text).names}:
            assert name.startswith(keys), f"{label}: {name}"
        for cdf in experiment.file.cdf:
            assert {f"{key}." for key in cdf.of.values()} <= set(keys)
