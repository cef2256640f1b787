# SPDX-License-Identifier: GPL-2.0-only
"""How long to wait for a machine that boots: by how long it took here before, and by whether it still gets on."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from cohortlab.lab import cache
from cohortlab.results import write_atomically

# Of how many boots the times are kept.
_KEPT = 7
# A boot that takes longer than this many usual ones is one that hangs, if it also makes no progress.
_FACTOR = 3
# No boot is given up before.
_FLOOR_S = 30
# Where nothing has booted yet: a slow machine has taken 120 s, of which 30 without a word.
_UNKNOWN_S = 180
_UNKNOWN_SILENCE_S = 90
# Late machines that still print get this much longer with every line, up to so many times their limit: one that does
# nothing but complain is lost as well.
_GRACE_S = 15
_LIMITS_MAX = 3
# A clock that is looked at later than this stood still with this process, stopped by Ctrl-Z say: more is not counted.
_STEP_S_MAX = 20
# Who comes to look as late as this was stopped meanwhile: what it waits for may be there, and nobody has seen it.
STOOD_S = 10
# No single answer is waited for as long as this, so whoever looks later was stopped. Of less, slow answers may be the
# reason: that is pardoned for as long as this, all together.
_ANSWER_S_MAX = 90


class Deadline:
    """The end of a time that somebody may take, without that in which this process was stopped, by Ctrl-Z say.

    Whoever waits looks at it every few seconds, unless this process is stopped.
    """

    def __init__(self, limit_s: float) -> None:
        """``limit_s``: seconds from now."""
        self._looked = time.monotonic()
        self._end = self._looked + limit_s
        self._pardon_s = float(_ANSWER_S_MAX)

    def is_over(self) -> bool:
        """Return whether the time is up, which it is not by having been stopped since the last call."""
        before, self._looked = self._looked, time.monotonic()
        gap_s = self._looked - before
        if gap_s > _ANSWER_S_MAX:
            self._end += gap_s
        elif STOOD_S < gap_s <= self._pardon_s:
            self._pardon_s -= gap_s
            self._end += gap_s
        return self._looked > self._end


class OwnTime:
    """A clock that passes only as fast as a process gets the CPUs that it wants.

    On a machine that is busy with other things, a boot of twelve seconds has taken fifty; by this clock, twelve. And it
    stops soon when nobody looks at it: who waits for a boot does so every few seconds, unless this process is stopped.
    """

    def __init__(self, process: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = process
        self._clock = clock
        self._now, self._then = 0.0, clock()
        # For how long the process had CPUs, all its threads together, until this was last asked.
        self.ran_s = 0.0
        self._ran, self._waited = self._spent()

    def __call__(self) -> float:
        then, (ran, waited) = self._clock(), self._spent()
        had = max(0, ran - self._ran)
        wanted = had + max(0, waited - self._waited)
        self._now += min(then - self._then, _STEP_S_MAX) * (had / wanted if wanted else 1.0)
        self.ran_s += had / 1e9
        self._then, self._ran, self._waited = then, ran, waited
        return self._now

    def _spent(self) -> tuple[int, int]:
        """Return for how many nanoseconds the process's threads ran, and waited for a CPU."""
        ran = waited = 0
        for thread in Path(f"/proc/{self._process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
                numbers = thread.read_text().split()
                ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
        return ran, waited


class Patience:
    """Decides when a machine that boots is given up. Its clock starts when this is made."""

    def __init__(self, usual_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``usual_s``: what such a boot takes here, if that is known."""
        self._clock = clock
        self._begin = self._heard = clock()
        self._seen = 0
        self.usual_s = usual_s
        self.limit_s = _UNKNOWN_S if usual_s is None else max(_FLOOR_S, _FACTOR * usual_s)
        self._silence_s = _UNKNOWN_SILENCE_S if usual_s is None else self.limit_s
        self._grace_s = max(_GRACE_S, usual_s or 0)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._begin

    def lost(self, seen: int) -> str | None:
        """Return why to give the machine up, or None; ``seen`` is how much it has printed so far."""
        now = self._clock()
        if seen != self._seen:
            self._seen, self._heard = seen, now
        elapsed_s, silent_s = now - self._begin, now - self._heard
        is_late = elapsed_s > self.limit_s and silent_s > self._grace_s
        if not (is_late or silent_s > self._silence_s or elapsed_s > _LIMITS_MAX * self.limit_s):
            return None
        usual = (
            "such a boot was not timed here yet" if self.usual_s is None else f"it usually takes {self.usual_s:.0f} s"
        )
        return f"is not up after {elapsed_s:.0f} s and has printed nothing for {silent_s:.0f} s; {usual}"


class BootTimes:
    """What boots took on this machine, by what was booted; a small file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def usual_s(self, what: str) -> float | None:
        """Return the median of the last ones, or None if there were none."""
        times = self._read().get(what)
        return statistics.median(times) if times else None

    def add(self, what: str, took_s: float) -> None:
        """Remember one more. A file that cannot be written is no failure: the next boot is then waited for longer."""
        all_times = self._read()
        all_times[what] = [*all_times.get(what, []), round(took_s, 1)][-_KEPT:]
        # Two labs that end their boots at once may lose a time; they never see half a file.
        with contextlib.suppress(OSError):
            write_atomically(self._file, f"{json.dumps(all_times, indent=1)}\n".encode())

    def _read(self) -> dict[str, list[float]]:
        try:
            found = json.loads(self._file.read_text())
            return {str(what): [float(took) for took in times] for what, times in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # none yet, or nobody's


def boot_times() -> BootTimes:
    """Return those of this machine."""
    return BootTimes(cache.root() / "boot-times.json")
