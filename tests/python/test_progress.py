# SPDX-License-Identifier: GPL-2.0-only
"""The time left, in words and from what is known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cohortlab.progress import Bar, Lines, Progress, Step, left

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


def test_estimates() -> None:
    times = iter([0, 10, 10, 40])
    progress = Progress(clock=lambda: float(next(times)))
    progress.plan([A1, B1, A2, B2, COHORT_A])
    assert progress.left_s() is None
    progress.start(A1, "")
    progress.done(A1)  # 10 s
    # Nothing is known of b: it is taken to be like what is known.
    assert progress.left_s() == 40
    progress.start(B1, "")
    progress.done(B1)  # 30 s
    # a again 10, b again 30, and a under another policy as under this one.
    assert progress.left_s() == 10 + 30 + 10
    assert progress.fraction == pytest.approx(0.4)
    progress.again([B1])
    assert progress.left_s() == 10 + 30 + 10 + 30
    progress.skip(COHORT_A)
    assert progress.left_s() == 10 + 30 + 30


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
    assert "50%" in text
    assert "it [red]crashed" in text
