# SPDX-License-Identifier: GPL-2.0-only
"""Labs that share a turn: they wait for nobody, and whoever wants one alone waits for all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cohortlab.lab import turn

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "_LOOK_S", 0.01)


class Lab:
    """A lab that has its turn at once, and says so."""

    def __init__(self, runs: Path, who: str, *, share: bool = False) -> None:
        def waits(text: str, fraction: float | None) -> None:
            raise AssertionError(text)

        self._stack = ExitStack()
        descriptor = turn.take(runs, waits, share=share)
        self._stack.callback(os.close, descriptor)
        turn.announce(descriptor, who)

    def end(self) -> None:
        """End it; what has ended stays so."""
        self._stack.close()


class Waiter:
    """Somebody who wants a turn alone, and what he is told meanwhile."""

    def __init__(self, runs: Path) -> None:
        self.said: list[str] = []
        self.told = threading.Event()
        self._got: list[int] = []
        self._thread = threading.Thread(target=lambda: self._got.append(turn.take(runs, self._hears)), daemon=True)
        self._thread.start()

    def _hears(self, text: str, fraction: float | None) -> None:
        self.said.append(text)
        self.told.set()

    @property
    def has_it(self) -> bool:
        return bool(self._got)

    def end(self) -> None:
        """Have the turn, and end it."""
        self._thread.join(PATIENCE_S)
        os.close(self._got.pop())


@contextmanager
def waiting(runs: Path, *labs: Lab) -> Iterator[Waiter]:
    """Somebody who waits, whose turn comes when the block and with it these labs have ended."""
    with ExitStack() as stack:
        waiter = Waiter(runs)
        stack.callback(waiter.end)
        for lab in labs:
            stack.callback(lab.end)
        assert waiter.told.wait(PATIENCE_S)
        yield waiter


def test_who_shares_is_waited_for_when_the_first_has_ended(tmp_path: Path) -> None:
    first = Lab(tmp_path, "process 7")
    shares = Lab(tmp_path, "process 9", share=True)
    first.end()
    assert not turn.is_free(tmp_path)
    with waiting(tmp_path, shares) as waiter:
        assert waiter.said[0].endswith("(of those that share, the last to come was process 9)")
        assert not waiter.has_it
    assert turn.is_free(tmp_path)


def test_who_shares_waits_for_nobody_and_all_of_them_are_waited_for(tmp_path: Path) -> None:
    alone = Lab(tmp_path, "process 7")
    several = [Lab(tmp_path, f"process {number}", share=True) for number in (8, 9)]
    with waiting(tmp_path, alone, *several) as waiter:
        assert waiter.said[0].endswith("(process 7)")
        # Nor for who waits.
        Lab(tmp_path, "process 10", share=True).end()
        alone.end()
        several[0].end()
        assert not turn.is_free(tmp_path)
        assert not waiter.has_it


def test_who_has_ended_is_not_named(tmp_path: Path) -> None:
    Lab(tmp_path, "process 7").end()
    Lab(tmp_path, "process 8", share=True).end()
    shares = turn.take(tmp_path, lambda *_: None, share=True)
    assert turn._holder(shares) == "unknown"
    os.close(shares)
    with waiting(tmp_path, Lab(tmp_path, "process 9", share=True)):
        # The turn is that of who waits for the one that shares; a third one is told so, and not of the one before.
        third = turn._opened(tmp_path / "turn")
        assert not turn._is_ours(third)
        assert turn._holder(third) == "unknown"
        os.close(third)
