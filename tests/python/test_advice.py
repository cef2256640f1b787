# SPDX-License-Identifier: GPL-2.0-only
"""What `cohortlab advise` says, and how sure it says that it is."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import two_vms

from cohortlab.recorded import advice, uncertainty
from cohortlab.recorded.uncertainty import Gain, Model, saved

Run = Callable[..., Any]
RECORD = Path(__file__).parents[2] / "docs" / "record.md"


def found(after: list[float], hog: float = 0.5) -> advice.Advice:
    """Return what came of a VM that takes 2 s under eevdf, and so long under cohort; alone it takes one."""
    times = {"eevdf": {"a": [2.0, 2.1, 1.9]}, "cohort": {"a": after}}
    loads = {"eevdf": {"hog": 0.5}, "cohort": {"hog": hog}}
    return advice.Advice("x", 3, times, {"a": [1.0, 1.0, 1.0]}, loads=loads)


def told(after: list[float], hog: float = 0.5) -> tuple[str, str, str]:
    return found(after, hog).sentences()


def test_more_than_chance_is_what_is_more_than_the_models_error_too() -> None:
    now, would, sure = told([0.2, 0.21, 0.19])
    assert now == "Under eevdf, a loses most on this host: its work takes 2.00 times as long as alone."
    assert would.startswith("cohort would do best of 2 policies: a would need 90 % less time (")
    assert re.search(r" \(\d\d to \d\d % less\), and no other VM ", would)
    assert sure.startswith(
        "That is more than chance, and more than the model's error: "
        "3 simulated runs alone make the range of 95 % 90 to 90 % less; the rest of it is the model's, which was off "
    )
    # Without a doubt in the runs, but the model was wrong by more than that.
    now, would, sure = told([1.1, 1.15, 1.05])
    assert would.startswith("cohort would do best of 2 policies: a would need 45 % less time (")
    assert re.search(r" \(\d+ % more to \d\d % less\), and no other VM ", would)
    assert sure.startswith("That may be the model's error, though the runs agree: 3 simulated runs alone make ")
    assert "chance" not in sure
    # Runs that differ: not even that is known.
    now, would, sure = told([1.2, 2.2, 1.9])
    assert would.startswith("No policy would do noticeably better: with cohort, the best, a would need ")
    assert sure.startswith("What difference there is may be chance: 3 simulated runs alone make ")
    now, would, sure = told([3.0, 3.0, 3.0])
    assert would == "Of 2 policies, none would do better."
    assert sure.startswith("That is of 3 simulated runs of each; the model itself was off by a factor of up to ")


def test_who_gains_need_not_be_who_is_worst_off() -> None:
    times = {
        "eevdf": {"a": [3.0, 3.1, 2.9], "b": [2.0, 2.1, 1.9]},
        "cohort": {"a": [3.0, 3.1, 2.9], "b": [0.5, 0.52, 0.48]},
    }
    alone = {"a": [1.0] * 3, "b": [1.0] * 3}
    now, would, sure = advice.Advice("x", 3, times, alone).sentences()
    assert now.startswith("Under eevdf, a loses most on this host: ")
    assert would.startswith("cohort would do best of 2 policies: b would need 75 % less time (")
    assert would.endswith(", and no other VM would lose anything.")
    assert "3 simulated runs alone make the range of 95 % 7" in sure
    # Who is worst off may be the one that pays.
    times["cohort"]["a"] = [3.3, 3.41, 3.19]
    assert advice.Advice("x", 3, times, alone).sentences()[1].endswith(", and a 10 % more.")
    # Where both gain, it is told of the worst-off.
    times["cohort"]["a"] = [2.0, 2.1, 1.9]
    assert "policies: a would need 3" in advice.Advice("x", 3, times, alone).sentences()[1]


@pytest.mark.parametrize("after", [[0.2, 0.21, 0.19], [1.0, 1.05, 0.95], [1.2, 2.2, 1.9], [3.0, 3.0, 3.0]])
def test_there_are_three_sentences_and_the_models_error_is_in_the_last(after: list[float]) -> None:
    sentences = told(after)
    assert len(sentences) == 3
    assert all(re.search(r"[^.]\.$", sentence) and not re.search(r"\.\s", sentence) for sentence in sentences)
    worst = max(abs(error) for error in uncertainty.model().errors)
    assert f"a factor of up to {math.exp(worst):.1f} in {len(uncertainty.model().errors)} gains" in sentences[2]
    # Who has a wheel has no docs.
    assert not any(".md" in sentence for sentence in sentences)


def test_who_pays_is_said() -> None:
    assert "while hog, which only computes, would get 20 % less CPU time." in told([1.0, 1.05, 0.95], 0.4)[1]


def test_the_range_has_the_runs_and_the_model_in_it() -> None:
    gain = Gain.of([0.5, 0.6, 0.7])
    assert gain.runs == pytest.approx(4.30 * 0.1 / math.sqrt(3))
    assert gain.model == uncertainty.model().half
    (expected, low, high), (same, low_of_runs, high_of_runs) = gain.percent, gain.percent_of_runs
    assert expected == same == pytest.approx(100 * (1 - math.exp(-0.6)))
    assert low < low_of_runs < expected < high_of_runs < high
    half = math.log((100 - low) / (100 - high)) / 2
    assert half**2 == pytest.approx(gain.runs**2 + gain.model**2)


def test_every_gain_that_was_measured_lies_in_the_models_range() -> None:
    model = uncertainty.model()
    assert all(abs(error) <= model.half for error in model.errors)
    # And it is no wider than that needs by far.
    assert model.half < 2 * max(map(abs, model.errors))


def test_an_error_is_the_true_gain_less_the_predicted_one() -> None:
    """The first table's first row by hand: hackbench gains 4.39 / 2.19, and 3.60 / 1.94 were predicted."""
    assert uncertainty.model().errors[0] == pytest.approx(math.log(4.39 / 2.19) - math.log(3.60 / 1.94))
    assert Model((0.1, -0.1)).half == pytest.approx(4.30 * 0.1)
    assert Model((0.0, -math.log(2))).factor == pytest.approx(2)


def test_the_errors_are_those_of_the_page() -> None:
    """Whoever measures anew changes both."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in RECORD.read_text().splitlines()]
    rows = [row for row in cells if len(row) == 7 and row[1].replace(".", "").isdigit()]
    page = [[float(row[column]) for column in (1, 2, 4, 5)] for row in rows]
    wrong = tuple(math.log(was / after) - math.log(replayed / then) for was, replayed, after, then in page)
    assert len(page) == 14
    assert uncertainty.model().errors == pytest.approx(wrong)
    text = RECORD.read_text()
    assert f"{uncertainty.model().factor:.2f}" in text
    assert f"{math.exp(uncertainty.model().half):.2f}" in text


@pytest.mark.parametrize(
    ("percent", "words"),
    [
        ((50, 48, 52), "48 to 52 % less"),
        ((50, -12.4, 78), "12 % more to 78 % less"),
        ((-5, -9, -2), "9 to 2 % more"),
        ((1, -0.4, 3), "0 to 3 % less"),
    ],
)
def test_a_range_in_words(percent: uncertainty.Range, words: str) -> None:
    assert saved(percent) == words


def test_json_has_both_ranges_and_the_models_figures() -> None:
    of_machine = found([1.0, 1.05, 0.95]).for_machines()
    gain = of_machine["gain"]["cohort"]["a"]
    assert gain["low"] < gain["low_of_runs"] <= gain["percent"] <= gain["high_of_runs"] < gain["high"]
    assert of_machine["model"] == {
        "gains": 14,
        "factor_max": uncertainty.model().factor,
        "factor_95": math.exp(uncertainty.model().half),
    }


def test_runs_that_are_alike_leave_the_model_alone() -> None:
    gain = Gain.of([0.5] * 5)
    assert gain.runs == pytest.approx(statistics.stdev([0.5] * 5))
    assert gain.percent_of_runs[1] == pytest.approx(gain.percent_of_runs[2])


def test_who_would_get_nothing_at_all_counts() -> None:
    assert found([0.2, 0.2, 0.2], hog=0.0).best == "eevdf"
    assert found([0.2, 0.2, 0.2], hog=0.4).best == "cohort"


def test_the_median_is_that_of_the_rates() -> None:
    rates = {"eevdf": {"a": [1.0, 3.0]}, "cohort": {"a": [4.0, 2.0]}}
    one = advice.Advice("x", 2, rates, {"a": [4.0, 4.0]}, rates=frozenset({"a"}))
    # 1 and 3 in a second are 2 in the median, so half a second each; the median of 1 s and 1/3 s is 2/3 s.
    assert (one.slowdown("eevdf", "a"), one.slowdown("cohort", "a")) == pytest.approx((2, 4 / 3))
    # Runs of one seed are compared with one another, in seconds.
    assert one.gain("cohort", "a").log == pytest.approx((math.log(4) - math.log(1.5)) / 2)
    of_machine = one.for_machines()
    assert of_machine["alone_s"] == {"a": [0.25, 0.25]}
    assert of_machine["times_s"] == {"eevdf": {"a": [1.0, 1 / 3]}, "cohort": {"a": [0.25, 0.5]}}


def test_a_policy_that_failed_is_named(cohortlab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = found([1.0, 1.0, 1.0])
    monkeypatch.setattr(advice, "advise", lambda *_: dataclasses.replace(one, failed={"vtime": "it did not end"}))
    (tmp_path / "small.toml").write_text(two_vms("tlb-flush"))
    ran = cohortlab("advise", tmp_path / "small.toml")
    assert (ran.code, ran.out.count("\n"), ran.err) == (0, 3, "failed: vtime: it did not end\n")
    ran = cohortlab("advise", tmp_path / "small.toml", "--json")
    assert (ran.code, json.loads(ran.out)["failed"]) == (0, {"vtime": "it did not end"})
    assert ran.err == "failed: vtime: it did not end\n"


def test_the_more_runs_the_surer() -> None:
    held = [uncertainty.student(degrees) for degrees in range(1, 101)]
    assert held == sorted(held, reverse=True)
    # Of tables.
    assert [round(held[degrees - 1], 2) for degrees in (15, 16, 20, 30, 100)] == [2.13, 2.12, 2.09, 2.04, 1.98]
