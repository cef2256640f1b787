# SPDX-License-Identifier: GPL-2.0-only
"""What is happening and how long it will still take: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

# Of a phase or step that takes longer than expected, this part of what was expected is still to come.
OVERDUE = 0.1
# Policy and program of a step.
Kind = tuple[str, str]


@dataclass(frozen=True)
class Step:
    """One measurement to come."""

    tlb: str
    round: int
    policy: str
    program: str

    @property
    def kind(self) -> Kind:
        """What takes as long each time."""
        return self.policy, self.program


@dataclass(frozen=True)
class Forecast:
    """What is expected before anything was measured.

    Attributes:
        step_s: seconds that a step takes.
        phases: seconds of what a place does before the first step, in its order, by how its texts begin.
        once: of these, what is done only if it has not been done on this machine: it counts when it has begun.
    """

    step_s: float
    phases: Mapping[str, float] = field(default_factory=dict)
    once: frozenset[str] = frozenset()

    def after(self, phase: str | None) -> list[str]:
        """Return the phases that are still to come when ``phase`` has begun; all if none has."""
        names = list(self.phases)
        return [name for name in names[names.index(phase) + 1 if phase else 0 :] if name not in self.once]


class Progress:
    """Keeps the plan and estimates the time left; subclasses show it. By itself it shows nothing."""

    # How often to show that time passes while nothing new happens.
    every_s = 1.0

    def __init__(self, forecast: Forecast | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._forecast = forecast
        self._clock = clock
        # The display's own thread reads what the measuring one writes.
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None
        self._to_come: set[Step] = set()
        # Of each kind: how many are to come; how many are done, and their seconds. What is shown at each step must not
        # take longer the more rounds there are.
        self._left: Counter[Kind] = Counter()
        self._took_s: dict[Kind, tuple[int, float]] = {}
        self._total = 0
        self._began_all = clock()
        self._began: float | None = None  # what is being done now
        self._step: Step | None = None
        self._phases: list[str] = forecast.after(None) if forecast else []
        self._phase: str | None = None
        self._passed = 0.0

    def plan(self, steps: Sequence[Step]) -> None:
        """Set what is to be done, in any order."""
        with self._lock:
            each = dict.fromkeys(steps)
            self._to_come = set(each)
            self._left = Counter(step.kind for step in each)
            self._total = len(self._to_come)

    def start(self, step: Step, doing: str) -> None:
        """A step begins; ``doing`` says what it is."""
        with self._lock:
            # What lies between two steps (another policy, loads that settle) is part of the second.
            if self._step is None:
                self._began = self._clock()
            self._step, self._phase, self._phases = step, None, []
        self._show(doing)

    def done(self, step: Step) -> None:
        """The step that began last is complete."""
        with self._lock:
            now = self._clock()
            if self._began is not None:
                count, took_s = self._took_s.get(step.kind, (0, 0.0))
                self._took_s[step.kind] = count + 1, took_s + (now - self._began)
            self._began = now
            self.skip(step)
        self._show(None)

    def skip(self, step: Step) -> None:
        """The step is over, or will not be taken."""
        with self._lock:
            if step in self._to_come:
                self._to_come.remove(step)
                self._left[step.kind] -= 1

    def again(self, steps: Sequence[Step]) -> None:
        """These steps were void and are to be done again, after what comes before the first step."""
        with self._lock:
            void = set(steps) - self._to_come
            self._to_come |= void
            self._left.update(step.kind for step in void)
            self._step = None
            if self._forecast:
                self._phases = self._forecast.after(None)

    def place(self, text: str, fraction: float | None) -> None:
        """What the place does: its ``ProgressFn``."""
        self._enter(text)
        self._show(text if fraction is None else f"{text} {fraction:.0%}")

    def _enter(self, text: str) -> None:
        """Take the phases up to the one that ``text`` tells of as over."""
        if self._forecast is None:
            return
        names = list(self._forecast.phases)
        phase = next((name for name in names if text.startswith(name)), None)
        with self._lock:
            if phase is not None and phase != self._phase:
                self._phases = self._forecast.after(phase)
                self._phase, self._began, self._step = phase, self._clock(), None

    def note(self, text: str) -> None:
        """Something happened that the user should still see at the end."""

    def watch(self) -> None:
        """Show from now on that time passes, until ``stop``."""
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def stop(self) -> None:
        """Take the display away."""
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()

    def _tick(self) -> None:
        while not self._ended.wait(self.every_s):
            self._still()

    def _still(self) -> None:
        """Show that what was shown last is still being done."""

    def left_s(self) -> float | None:
        """Return the estimated seconds left; None before anything is known."""
        with self._lock:
            if self._took_s:
                overall = fmean(took_s / count for count, took_s in self._took_s.values())
            elif self._forecast:
                overall = self._forecast.step_s
            else:
                return None
            expected = {kind: self._estimate(kind, overall) for kind, count in self._left.items() if count}
            coming = sum(self._left[kind] * each_s for kind, each_s in expected.items())
            phases = self._forecast.phases if self._forecast else {}
            coming += sum(phases[name] for name in self._phases)
            # What is being done now: a phase is in the sum only from here on, a step is in it already.
            now = expected[self._step.kind] if self._step and self._step in self._to_come else 0.0
            if self._phase is not None:
                now = phases[self._phase]
                coming += now
            elapsed = self._clock() - self._began if self._began is not None else 0.0
            return coming - min(elapsed, (1 - OVERDUE) * now)

    def _estimate(self, kind: Kind, otherwise: float) -> float:
        """Return the seconds of a step of a kind: as before, else as its program under other policies, else as any."""
        if kind in self._took_s:
            count, took_s = self._took_s[kind]
            return took_s / count
        program = [took_s / count for (_, name), (count, took_s) in self._took_s.items() if name == kind[1]]
        return fmean(program) if program else otherwise

    @property
    def fraction(self) -> float:
        """Completed part of the plan, 0..1."""
        return 1 - len(self._to_come) / self._total if self._total else 0.0

    @property
    def passed(self) -> float:
        """Part of the time that has passed, 0..1, as far as is known; it never falls."""
        with self._lock:
            left_s = self.left_s()
            passed_s = self._clock() - self._began_all
            if left_s is not None and passed_s + left_s > 0:
                self._passed = max(self._passed, passed_s / (passed_s + left_s))
            return self._passed

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

    every_s = 0.5

    def __init__(self, console: Console, forecast: Forecast | None = None) -> None:
        super().__init__(forecast)
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
        super().stop()
        self._bar.stop()

    def _still(self) -> None:
        self._show(None)

    def _show(self, doing: str | None) -> None:
        self._bar.update(self._task, completed=self.passed, left=left(self.left_s()))
        if doing is not None:
            self._bar.update(self._task, description=doing.replace("[", "\\["))


class Lines(Progress):
    """One line for each new thing, and one now and then while nothing new happens: for logs."""

    every_s = 15.0

    def __init__(self, stream: TextIO, forecast: Forecast | None = None) -> None:
        super().__init__(forecast)
        self._stream = stream
        self._last = ""
        self._shown = self._clock()

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def place(self, text: str, fraction: float | None) -> None:
        self._enter(text)
        self._show(text)  # without the percentage: a log wants no line for each

    def _still(self) -> None:
        with self._lock:
            if self._last and self._clock() - self._shown >= self.every_s / 2:
                self._print(self._last)

    def _show(self, doing: str | None) -> None:
        with self._lock:
            if doing is not None and doing != self._last:
                self._last = doing
                self._print(doing)

    def _print(self, doing: str) -> None:
        self._shown = self._clock()
        print(f"[{self.passed:4.0%}, {left(self.left_s())}] {doing}", file=self._stream, flush=True)


class Steps:
    """A ``ProgressFn`` for what is no comparison: a line for each new thing, and for each tenth of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = ""

    def __call__(self, text: str, fraction: float | None) -> None:
        line = text if fraction is None else f"{text}: {int(fraction * 10) * 10} %"
        if line != self._last:
            self._last = line
            print(line, file=self._stream, flush=True)
