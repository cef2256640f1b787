# SPDX-License-Identifier: GPL-2.0-only
"""The papers' experiments: files, formulas, verdicts, the command."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.python.two_vms import two_vms

from cohortlab.errors import BadInput
from cohortlab.reproduce import commands, draw, load, outcome, report, runs, traced
from cohortlab.reproduce.commands import reproduce
from cohortlab.reproduce.formula import Formula

SCENARIO = two_vms("tlb-flush", name="two")
EXPERIMENT = """
title = "a title"
source = "a source"
parameters = "none"
rounds = 2
policies = { short = "cohort --slice-us 4000" }

[[run]]
name = "alone"
scenario = "two"
set = { alone = true }

[[run]]
name = "beside"
scenario = "two"
each = { "scenario.guest.tlb" = ["ipi", "kvm-pv"], policy = ["eevdf", "short"] }

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
check = "beside.kvm-pv.short.value < alone.value"

[[own]]
name = "with a policy's arguments"
ours = "beside.ipi.short.value / alone.value"

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
        # Of one alone; and what is no number, or below 0, only while it is read.
        ("min(a.x) - max(b.y-z)", 2.0),
        ("geomean(1 / (a.x - b.y-z), a.x - 2)", 1.0),
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


def of_figures(
    figures: dict[str, float],
    errors: dict[str, str] | None = None,
    seeds: dict[str, list[float]] | None = None,
    **values: str,
) -> outcome._Known:
    """Return what an experiment with these ``[values]`` knows, of runs with these figures."""
    run = load.RunTable(name="a", scenario="two")
    file = load.File(title="a title", source="a source", parameters="none", run=(run,), values=values)
    return outcome._known(file, runs.Measured(figures, seeds=seeds or {}, errors=errors or {}))


def test_a_value_is_a_part_of_later_formulas() -> None:
    known = of_figures({"a.x": 4.0, "a.y": 2.0}, both="a.x + a.y", twice="2 * values.both")
    assert known.number("values.twice / values.both + a.x") == (6.0, "")
    table = load.FindingTable(says="a finding", place="section 1", check="values.twice > a.x")
    found = outcome._finding(table, known)
    assert (found.holds, found.numbers) == (True, "values.twice 12, a.x 4")


def test_a_value_that_is_not_there_says_why() -> None:
    known = of_figures({"a.x": 1.0, "a.y": 0.0}, {"b": "it failed"}, part="a.x / a.y", other="b.x", both="values.other")
    assert known.number("1 + values.part") == (None, "is not a number")
    assert known.number("values.both") == (None, "it failed")
    table = load.FindingTable(says="a finding", place="section 1", check="not values.part > 1")
    assert outcome._finding(table, known).holds is None


@pytest.mark.parametrize("text", ["a.x / a.y", "geomean(a.x, a.y)", "min(a.x, a.x / a.y)", "a.x + (a.x / a.y > 1)"])
def test_a_division_by_zero_is_no_figure(text: str) -> None:
    assert of_figures({"a.x": 1.0, "a.y": 0.0}).number(text) == (None, "is not a number")


@pytest.mark.parametrize(
    "check", ["a.x / a.y > 2", "not a.x / a.y > 2", "a.x > 2 or geomean(a.x, a.y) < 1", "1 > 2 and a.x / a.y > 1"]
)
def test_a_finding_about_no_number_neither_holds_nor_not(check: str) -> None:
    table = load.FindingTable(says="a finding", place="section 1", check=check)
    found = outcome._finding(table, of_figures({"a.x": 1.0, "a.y": 0.0}))
    assert (found.holds, report.holds(found)) == (None, "is not a number")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('place = "Table 1"', 'plaec = "Table 1"', 'figure[0].plaec: is not a known field: did you mean "place"?'),
        ("paper = 2\n", 'paper = "2"\n', 'figure[0].paper: "2" is not allowed: must be a number'),
        ('name = "beside"', 'name = "alone"', 'run[1].name: "alone" is not allowed: must be unique'),
        ("beside.ipi.eevdf.value > alone.value", "besides.value > 1", 'finding[0].check: "besides.value" is of no run'),
        ("within = 5", 'bound = "about"', 'figure[0].bound: "about" is not allowed: must be "at least" or "at most"'),
        ("within = 5", "up_to = 1", "figure[0].up_to: 1 is not allowed: must be above 2"),
        ("within = 5", 'counts = ["1", "nothing.x"]', 'figure[0].counts[1]: "nothing.x" is of no run'),
        ('name = "alone"', 'name = "values"', 'run[0].name: "values" is not allowed: must be unique, and not values'),
        (
            "ours = ",
            'ours = "values.none"  # ',
            'figure[0].ours: "values.none" is not there: must be one of [values], above',
        ),
        ("[[figure]]", '[values]\ntwo = "2 * values.two"\n[[figure]]', 'values.two: "values.two" is not there'),
        ("[[figure]]", '[values]\ntwo = "nobody.value"\n[[figure]]', 'values.two: "nobody.value" is of no run'),
        ("[[figure]]", '[values]\nTWO = "2"\n[[figure]]', 'values: "TWO" is not allowed'),
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


def test_a_policy_may_have_a_name_in_the_file(papers: Path) -> None:
    jobs = runs.jobs(load.find("paper:first")[0], 1)
    plan = next(job.plan for job in jobs if job.key == "beside.ipi.short")
    run = plan.point(next(job.point for job in jobs if job.key == "beside.ipi.short")).run
    assert (run.policy, run.args) == ("cohort", ("--slice-us", "4000"))


def test_what_is_counted_is_added_up_over_seeds(papers: Path) -> None:
    measured = runs.run(runs.jobs(load.find("paper:first")[0]), 2, lambda: None)
    each = [runs._figures(job)[0]["switches"] for job in runs.jobs(load.find("paper:first")[0]) if job.key == "alone"]
    assert measured.figures["alone.switches.total"] == sum(each)
    assert measured.figures["alone.switches"] == sum(each) / 2, "the median of two"
    assert measured.seeds["alone.switches"] == each
    spread = abs(each[0] - each[1]) / 2**0.5 / (sum(each) / 2)
    assert measured.figures["alone.switches.rsd"] == pytest.approx(spread)


def test_the_interval_of_a_part_is_by_how_much_seeds_differ() -> None:
    # 56 of 500 are 11.2 %, so the seeds are off by -1.2, 2.8, 0.8 and -2.4: squares of 15.68. Their deviation
    # sqrt(4 / 3 * 15.68) over 500 is 0.009145, and of three degrees of freedom t is 3.18.
    counts = [(10, 100), (14, 100), (12, 100), (20, 200)]
    assert outcome.over_seeds(counts) == pytest.approx((0.112 - 0.02908, 0.112 + 0.02908), abs=1e-6)
    assert outcome.over_seeds([(0, 100), (40, 100)]) == (0, 1), "two that have nothing in common say nothing"


@pytest.mark.parametrize("counts", [(), ((1, 10),), ((0, 10), (0, 20)), ((0, 0), (0, 0)), ((1, 10), (2, 20))])
def test_seeds_that_do_not_differ_have_no_interval(counts: tuple[tuple[float, float], ...]) -> None:
    assert outcome.over_seeds(counts) is None


@pytest.mark.parametrize(
    ("hits", "trials", "said"),
    [
        ([2, 3, 1, 4], 10_835, "near, 95 %: 0.0041"),
        # As many in all, and seeds that agree more.
        ([2, 2, 3, 3], 10_835, "misses, 95 %: 0.0146 to 0.0315"),
        ([0, 0, 0, 0], 10_835, "misses"),
        # 0.04 % of 2,164 is less than one: nothing can be said of it.
        ([0, 0, 0, 3], 541, "misses, 95 %: 0 to"),
    ],
)
def test_the_papers_part_within_ours_interval_is_near(hits: list[float], trials: int, said: str) -> None:
    counts = ["a.hits.total", "a.trials.total"]
    figure = _figure(paper=0.04, unit="%", counts=counts, ours="100 * a.hits.total / a.trials.total")
    known = of_figures(
        {"a.hits.total": sum(hits), "a.trials.total": 4 * trials}, seeds={"a.hits": hits, "a.trials": [trials] * 4}
    )
    shown = outcome._figure(figure, known)
    assert report.verdict(shown).startswith(said)
    assert bool(shown.interval) == ("95 %" in said)


@pytest.mark.parametrize(
    ("bound", "ours", "is_near"),
    [("", 4, False), ("at least", 4, True), ("at least", 1, False), ("at most", 1, True), ("at most", 4, False)],
)
def test_a_bound_is_missed_on_one_side_only(bound: str, ours: float, is_near: bool) -> None:
    figure = outcome._figure(_figure(paper=2, unit="%", bound=bound), of_figures({"a.x": ours}))
    assert figure.is_near == is_near
    assert report.published(figure) == f"{bound} 2".strip()


@pytest.mark.parametrize(
    ("ours", "nearest", "is_near"), [(9, 15, False), (11, 15, True), (20, 20, True), (37, 25, True), (38, 25, False)]
)
def test_a_range_is_missed_outside_of_it_only(ours: float, nearest: float, is_near: bool) -> None:
    figure = outcome._figure(_figure(paper=15, up_to=25, unit="ms"), of_figures({"a.x": ours}))
    assert (figure.ratio, figure.is_near) == (pytest.approx(ours / nearest), is_near)
    assert report.published(figure) == "15 to 25"


def test_what_the_paper_only_expected_does_not_count() -> None:
    figure = outcome._figure(_figure(kind="expected"), of_figures({"a.x": 2}))
    assert (figure.is_scored, report.verdict(figure)) == (False, "expected, not measured")


def test_another_scheduler_than_the_papers_is_compared_and_does_not_count() -> None:
    for ours, said in ((2, "another scheduler, near"), (9, "another scheduler, misses")):
        figure = outcome._figure(_figure(kind="other", unit="%"), of_figures({"a.x": ours}))
        assert (figure.is_scored, report.verdict(figure), report.why(figure)) == (False, said, "")


def test_every_miss_that_counts_is_marked_on_the_page() -> None:
    known = of_figures(
        {"a.x": 9.0, "a.hits": 1.0, "a.trials": 43_340.0}, seeds={"a.hits": [1.0, 0.0], "a.trials": [21_670.0] * 2}
    )
    counted = {"unit": "%", "counts": ["a.hits", "a.trials"], "ours": "100 * a.hits / a.trials"}
    tables = (
        _figure(paper=8.0),
        _figure(kind="other", unit="%"),
        # Three misses: one with its interval, one in the other direction.
        _figure(unit="%"),
        _figure(paper=0.04, **counted),
        _figure(paper=0.5),
    )
    run = load.RunTable(name="a", scenario="two")
    file = load.File(title="a title", source="a source", parameters="none", run=(run,), figure=tables)
    figures = tuple(outcome._figure(table, known) for table in tables)
    experiment = load.Experiment("paper", "first", Path("first.toml"), file)
    page = report.html([outcome.Outcome(experiment, figures, (), (), runs.Measured(), 1)])
    assert page.count('class="misses"') == 3


def test_every_class_of_chains_has_a_name() -> None:
    vm = {"ple_chain_lengths": list(range(8)), "spins": {}, "run_ns": 1}
    vm |= {what: {"count": 0} | {f"{name}_ns": None for name in runs._QUANTILES} for what in runs.DISTRIBUTIONS}
    found = runs._of_vm(vm, "a.")
    assert [found[f"a.ple_chains_{of}"] for of in ("1", "3_4", "33_64", "over_64")] == [0, 2, 6, 7]


def _figure(**fields: Any) -> load.FigureTable:
    return load.FigureTable.model_validate({"name": "a name", "place": "Table 1", "paper": 2.0, "ours": "a.x"} | fields)


def test_two_at_once_in_a_queue_are_stacked() -> None:
    start, end = np.array([0, 5, 10, 20]), np.array([10, 8, 30, 25])
    begins, ends = traced.times_of_two(start, end)
    assert traced.length_ns([(begins, ends)]) == 3 + 5
    both = [(begins, ends), (np.array([6, 22]), np.array([9, 40]))]
    assert traced.length_ns(both) == 4 + 20, "what overlaps counts once"
    assert traced.length_ns([]) == 0


def test_cpu_time_until_a_look() -> None:
    start, end = np.array([0, 5, 20]), np.array([10, 8, 30])
    assert list(traced.used_ns(start, end, np.array([0, 6, 10, 25, 99]))) == [0, 6 + 1, 10 + 3, 10 + 3 + 5, 23]


def test_lag_is_what_one_vm_got_more_in_a_window() -> None:
    second = 1_000_000_000
    vm, start, end = np.array([0, 1]), np.array([0, 0]), np.array([27, 12]) * second
    found = traced._lags(vm, start, end, 27 * second)
    # Looks every 5 s and a little, from 1 s on: both have run until 12 s, in the third window, then one alone.
    late = traced._LATE_NS
    assert found["host.lag_5s_ns"] == pytest.approx((4 * second + 3 * late + 2 * (5 * second + late)) / 5)
    assert "host.lag_30s_ns" not in found
    assert traced._lags(vm[:1], start[:1], end[:1], 27 * second) == {}, "one VM lags behind nobody"


def test_stacking_is_looked_at_where_a_formula_asks_for_it(papers: Path) -> None:
    path = papers / "paper" / "first.toml"
    path.write_text(EXPERIMENT.replace("beside.ipi.eevdf.value > alone.value", "beside.ipi.eevdf.host.stacked_any < 1"))
    jobs = runs.jobs(load.find("paper:first")[0], 1)
    assert {job.key for job in jobs if job.is_traced} == {"beside.ipi.eevdf"}
    figures = runs._figures(next(job for job in jobs if job.is_traced))[0]
    both = figures["work.stacked_ns"] + figures["hog.stacked_ns"]
    assert 0 < figures["host.stacked_any"] <= both / figures["host.end_ns"] * 1.001
    assert figures["host.stacked_any"] / 2 <= figures["host.stacked_queues"] * 1.001


def test_figures_are_the_same_for_any_number_of_workers(papers: Path) -> None:
    jobs = runs.jobs(load.find("paper:first")[0])
    one, four = (runs.run(jobs, workers, lambda: None) for workers in (1, 4))
    assert one == four
    assert {job.key for job in jobs} == {
        "alone",
        "beside.ipi.eevdf",
        "beside.kvm-pv.eevdf",
        "beside.ipi.short",
        "beside.kvm-pv.short",
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
    # What was compared is there, folded.
    for form in (text, page):
        assert form.count("<summary>numbers</summary>beside.") == 2


def test_the_report_is_there_when_nobody_listens_any_more(
    papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(commands, "_show", closed)
    CliRunner().invoke(reproduce, ["all", "--rounds", "1", "--out", str(tmp_path / "out")])
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"report.md", "report.html"}


def test_figures_have_no_exponent_however_great_they_are() -> None:
    assert [report.number(value) for value in (None, 2.0, 999.7, 1234.5678)] == ["–", "2", "1,000", "1,235"]


@pytest.mark.parametrize(("lines", "are_other_lines"), [(6, False), (7, True)])
def test_lines_of_the_same_colour_have_another_style(lines: int, are_other_lines: bool) -> None:
    of = {f"line {number}": f"run.{number}" for number in range(lines)}
    measured = runs.Measured(histograms={(key, "shootdown"): [(1.0, 2), (2.0, 1)] for key in of.values()})
    drawn = draw._cdf(load.CdfTable(title="a title", what="shootdown", of=of), measured)
    assert ("stroke-dasharray" in drawn) == are_other_lines


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
    # Longer than that beside a load, but not alone.
    model = workloads / "models" / "tlb-flush.toml"
    model.write_text(model.read_text().replace("times = 50\n", "times = 200\n"))
    done = CliRunner().invoke(reproduce, ["paper", "--rounds", "1", "--out", str(tmp_path / "out")])
    assert done.exit_code == 1
    # The report says which, also where no figure is of that run.
    failed = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert failed
    text, page = ((tmp_path / "out" / name).read_text() for name in ("report.md", "report.html"))
    assert "did not end in 1 s" in text
    for line in failed:
        assert line.startswith("failed: beside."), line
        assert f"\n- {line}\n" in text
        assert f'<li class="misses">{line}\n' in page


@pytest.mark.parametrize("wanted", [[], ["nobody"], ["paper:nothing"]])
def test_what_there_is_not_is_named(papers: Path, wanted: list[str]) -> None:
    done = CliRunner().invoke(reproduce, wanted)
    assert isinstance(done.exception, BadInput)
    assert "paper:first" in str(done.exception)


@pytest.mark.parametrize("out", ["/proc/self", "/proc/self/new/out", "/etc/hostname/x"])
def test_a_report_that_could_not_be_written_is_noticed_before_anything_is_simulated(
    papers: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(runs, "run", lambda *_: pytest.fail("it was simulated"))
    done = CliRunner().invoke(reproduce, ["paper", "--rounds", "1", "--out", out])
    assert isinstance(done.exception, BadInput)
    assert str(done.exception).startswith(f"--out: {out}: cannot be written to: ")


def test_every_experiment_of_the_project_is_well_formed() -> None:
    experiments = [experiment for label in load.labels() for experiment in load.find(label)]
    assert experiments
    for experiment in experiments:
        assert runs.jobs(experiment, 1), experiment.label


def test_published_times_of_sbco_are_means_over_seeds() -> None:
    (experiment,) = load.find("sbco:order")
    times = [figure for figure in experiment.file.figure if "SBCO's time over" in figure.name]
    assert len(times) > 2
    for figure in times:
        assert all(name.endswith(runs.TOTAL) for name in Formula(figure.ours).names), figure.name


def test_every_figure_of_the_project_is_of_a_run_that_there_is() -> None:
    for label in load.labels():
        experiment = load.find(label)[0]
        keys = tuple(f"{job.key}." for job in runs.jobs(experiment, 1))
        for name in experiment.names:
            assert name.startswith(keys), f"{label}: {name}"
        for cdf in experiment.file.cdf:
            assert {f"{key}." for key in cdf.of.values()} <= set(keys)
