# SPDX-License-Identifier: GPL-2.0-only
"""What is happening and how long it will still take: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress


@dataclass(frozen=True)
class Step:
    """One measurement to come."""

    tlb: str
    round: int
    policy: str
    program: str


class Progress:
    """Keeps the plan and estimates the time left; subclasses show it. By itself it shows nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._to_come: list[Step] = []
        self._total = 0
        self._took_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._started: float | None = None

    def plan(self, steps: Sequence[Step]) -> None:
        """Set what is to be done, in any order."""
        self._to_come = list(steps)
        self._total = len(steps)

    def start(self, step: Step, doing: str) -> None:
        """A step begins; ``doing`` says what it is."""
        self._started = self._clock()
        self._show(doing)

    def done(self, step: Step) -> None:
        """The step that began last is complete."""
        if self._started is not None:
            self._took_s[step.policy, step.program].append(self._clock() - self._started)
        self.skip(step)
        self._show(None)

    def skip(self, step: Step) -> None:
        """The step is over, or will not be taken."""
        if step in self._to_come:
            self._to_come.remove(step)

    def again(self, steps: Sequence[Step]) -> None:
        """These steps were void and are to be done again."""
        self._to_come = [*steps, *(step for step in self._to_come if step not in steps)]

    def place(self, text: str, fraction: float | None) -> None:
        """What the place does: its ``ProgressFn``."""
        self._show(text if fraction is None else f"{text} {fraction:.0%}")

    def note(self, text: str) -> None:
        """Something happened that the user should still see at the end."""

    def stop(self) -> None:
        """Take the display away."""

    def left_s(self) -> float | None:
        """Return the estimated seconds left; None before anything is known."""
        if not self._took_s:
            return None
        overall = mean(mean(took) for took in self._took_s.values())
        return sum(self._estimate(step, overall) for step in self._to_come)

    def _estimate(self, step: Step, otherwise: float) -> float:
        """Return the seconds a step takes: as before, else as its program under other policies, else as any."""
        same = self._took_s.get((step.policy, step.program))
        if same:
            return mean(same)
        program = [mean(took) for (_, name), took in self._took_s.items() if name == step.program]
        return mean(program) if program else otherwise

    @property
    def fraction(self) -> float:
        """Completed part of the plan, 0..1."""
        return 1 - len(self._to_come) / self._total if self._total else 0.0

    def _show(self, doing: str | None) -> None:
        """Show the present state; ``doing`` is None when only the numbers changed."""


def left(seconds: float | None) -> str:
    """Return the time left in words."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {round(seconds / 60)} min left"


class Bar(Progress):
    """A progress bar for a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        columns = (
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
            TextColumn("{task.description}"),
        )
        self._bar = RichProgress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=1.0, left=left(None))
        self._bar.start()

    def note(self, text: str) -> None:
        self._bar.console.print(text, style="yellow", markup=False, highlight=False)

    def stop(self) -> None:
        self._bar.stop()

    def _show(self, doing: str | None) -> None:
        self._bar.update(self._task, completed=self.fraction, left=left(self.left_s()))
        if doing is not None:
            self._bar.update(self._task, description=doing.replace("[", "\\["))


class Lines(Progress):
    """One line for each new thing: for logs."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._last = ""

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def place(self, text: str, fraction: float | None) -> None:
        self._show(text)  # without the percentage: a log wants no line for each

    def _show(self, doing: str | None) -> None:
        if doing is not None and doing != self._last:
            self._last = doing
            print(f"[{self.fraction:4.0%}, {left(self.left_s())}] {doing}", file=self._stream, flush=True)
