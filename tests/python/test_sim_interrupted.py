# SPDX-License-Identifier: GPL-2.0-only
"""A simulation ends when its process is told to stop, however long it would go on."""

import json
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from cohortlab.native import native

# Two processes that never sleep take turns of 1 or 2 us: more than ten seconds, and then an error, if nobody ends it.
LONG = json.dumps(
    {
        "name": "long",
        "seed": 1,
        "duration_ns": 86_400_000_000_000,
        "events_max": 100_000_000,
        "machine": {"cores_per_socket": 1},
        "policy": {"class": "round-robin", "slice_min_ns": 1_000, "slice_max_ns": 2_000, "shared_queue": False},
        "tasks": [{"name": "a"}, {"name": "b"}],
    }
)


class Told(Exception):
    """What the handler of the signal raises."""


@pytest.fixture
def simulator() -> Iterator[Any]:
    """The extension module, in a process that gets a signal in a moment."""
    module = native()

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise Told

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        yield module
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signals_handler_ends_a_run(simulator: Any) -> None:
    told = None
    try:
        simulator.run(LONG, figures=False)
    except Told as error:
        told = error
    # Raised only after the run, it would come on top of the run's own error.
    assert told is not None
    assert told.__context__ is None
