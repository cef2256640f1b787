# SPDX-License-Identifier: GPL-2.0-only
"""The time left, in words and from what is known."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from cohortlab.progress import Bar, Forecast, Lines, Progress, Step, Steps, left

A1, A2 = (Step("ipi", number, "eevdf", "a") for number in (1, 2))
B1, B2 = (Step("ipi", number, "eevdf", "b") for number in (1, 2))
COHORT_A = Step("ipi", 1, "cohort", "a")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "time left not known yet"),
        (0.2, "about 1 s left"),
        (89, "about 89 s left"),
        (100, "about 2 min left"),
        (3600, "about 60 min left"),
    ],
)
def test_words(seconds: float | None, words: str) -> None:
    assert left(seconds) == words


class Clock:
    """A clock that stands still unless it is told how much passes."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_estimates() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.plan([A1, B1, A2, B2, COHORT_A])
    assert progress.left_s() is None
    progress.start(A1, "")
    clock.now_s += 10
    progress.done(A1)
    # Nothing is known of b: it is taken to be like what is known.
    assert progress.left_s() == 40
    clock.now_s += 5  # another policy, loads that settle
    progress.start(B1, "")
    clock.now_s += 25
    progress.done(B1)
    # a again 10, b again 30, and a under another policy as under this one.
    assert progress.left_s() == 10 + 30 + 10
    assert progress.fraction == pytest.approx(0.4)
    assert progress.passed == pytest.approx(40 / 90)
    progress.again([B1])
    assert progress.left_s() == 10 + 30 + 10 + 30
    progress.skip(COHORT_A)
    assert progress.left_s() == 10 + 30 + 30
    # What is begun counts less and less, but until it is done something is left of it.
    progress.start(B1, "")
    clock.now_s += 20
    assert progress.left_s() == 10 + 30 + 10
    clock.now_s += 1000
    assert progress.left_s() == 10 + 30 + 3


def test_a_forecast_counts_what_comes_before_the_first_step() -> None:
    clock = Clock()
    phases = {"image": 90.0, "booting the host": 15.0, "booting": 25.0, "warming up": 5.0}
    progress = Progress(Forecast(10.0, phases, frozenset({"image"})), clock)
    progress.plan([A1, B1])
    assert progress.left_s() == 15 + 25 + 5 + 20
    # Built once: it counts when it is being built.
    progress.place("image (built once)", None)
    assert progress.left_s() == 90 + 15 + 25 + 5 + 20
    clock.now_s += 60
    assert progress.left_s() == 30 + 15 + 25 + 5 + 20
    assert progress.passed == pytest.approx(60 / 155)
    progress.place("booting the host: Linux", None)
    assert progress.left_s() == 15 + 25 + 5 + 20
    progress.place("the kernel log says: nothing that was foreseen", None)
    clock.now_s += 100
    assert progress.left_s() == pytest.approx(1.5 + 25 + 5 + 20)
    progress.place("warming up: a", None)
    progress.place("booting the host: Linux", None)  # it crashed
    assert progress.left_s() == 15 + 25 + 5 + 20
    progress.place("warming up: a", None)
    progress.start(A1, "a")
    assert progress.left_s() == 20
    clock.now_s += 4
    assert progress.left_s() == 16
    # A crash: all of it again, but for what is built.
    passed = progress.passed
    progress.again([A1])
    progress.place("booting the host: Linux", None)
    assert progress.left_s() == 15 + 25 + 5 + 20
    assert progress.passed == passed, "a bar does not go back"


def test_what_is_shown_costs_no_more_with_many_rounds() -> None:
    kinds = [(policy, program) for policy in "abcdefgh" for program in "ijklmnop"]
    steps = [Step("ipi", number, *kind) for number in range(200) for kind in kinds]
    lines = Lines(io.StringIO())
    lines.plan(steps)
    # It takes a second or so. With a look at every step that is to come, each time, it took hours.
    deadline = time.monotonic() + 60
    for number, step in enumerate(steps):
        lines.start(step, f"step {number}")
        lines.done(step)
        assert time.monotonic() < deadline, number
    assert (lines.fraction, lines.left_s()) == (1, 0)


def test_lines_say_each_new_thing_once() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.plan([A1])
    lines.place("fetching", 0.1)
    lines.place("fetching", 0.2)
    lines.note("it crashed")
    lines.start(A1, "a under eevdf")
    lines.done(A1)
    assert stream.getvalue().splitlines() == [
        "[  0%, time left not known yet] fetching",
        "it crashed",
        "[  0%, time left not known yet] a under eevdf",
    ]


def test_time_passes_in_a_log_too() -> None:
    stream = io.StringIO()
    lines = Lines(stream, Forecast(20.0))
    lines.every_s = 0.01
    lines.plan([A1])
    lines.place("fetching", None)
    lines.watch()
    deadline = time.monotonic() + 60
    while stream.getvalue().count("fetching") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lines.stop()
    said = stream.getvalue()
    assert said.startswith("[  0%, about 20 s left] fetching\n")
    time.sleep(0.05)
    assert stream.getvalue() == said


def test_steps_say_each_tenth_once() -> None:
    stream = io.StringIO()
    steps = Steps(stream)
    steps("fetching", None)
    for percent in range(20, 35):
        steps("building", percent / 100)
    assert stream.getvalue().splitlines() == ["fetching", "building: 20 %", "building: 30 %"]


def test_bar_shows_what_happens_as_text_and_goes_away() -> None:
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=100, color_system=None))
    bar.plan([A1, A2])
    bar.start(A1, "a under [cohort]")
    bar.done(A1)
    bar.note("it [red]crashed")
    bar.stop()
    text = stream.getvalue()
    assert "a under [cohort]" in text
    assert re.search(r"[0-9]+% about [0-9]+ s left", text)
    assert "it [red]crashed" in text
