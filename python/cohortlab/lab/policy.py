# SPDX-License-Identifier: GPL-2.0-only
"""The scheduler's daemon, running in the host under test."""

from __future__ import annotations

import json
import shlex
import signal
import threading
import time
from collections.abc import Sequence

from cohortlab.errors import one_line
from cohortlab.lab.agent import Job, Machine
from cohortlab.lab.patience import Deadline
from cohortlab.places import PlaceError
from cohortlab.policies import KernelSettings

_STATE = "/sys/kernel/sched_ext/state"
_SCHED = "/sys/kernel/debug/sched"
# Loading takes under a second on a PC, and much longer in an emulator on a busy one.
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 30
# What sched_ext's state is under the kernel's own scheduler, as ``sched_ext_state`` tells it.
OFF = ("disabled", "no sched_ext")
_LOOK_S = 0.1
_ENABLED = "/sys/kernel/sched_ext/enable_seq"
_READY = "cohort: scheduling"
STATS_PERIOD_S = 1


def sched_ext_state(host: Machine) -> str:
    """Return what the kernel says of sched_ext: "disabled" when it schedules by itself."""
    return host.check(f"cat {_STATE} 2>/dev/null || echo 'no sched_ext'").strip()


def schedulers_so_far(host: Machine) -> str:
    """Return how many sched_ext schedulers the kernel has enabled since it booted; nothing if it knows none."""
    return host.check(f"cat {_ENABLED} 2>/dev/null || true").strip()


def applying(settings: KernelSettings) -> str:
    """Return the shell command that tells the kernel's own scheduler these."""
    commands = ["true"]
    if settings.cgroup_mode:
        commands.append(_set("cgroup_mode", settings.cgroup_mode))
    if settings.base_slice_us:
        commands.append(_set("base_slice_ns", f"{settings.base_slice_us}000"))
    return " && ".join(commands)


def undoing(host: Machine, settings: KernelSettings) -> str:
    """Return the shell command that puts back what is there now of what ``settings`` change.

    Raises:
        PlaceError: this kernel cannot be told that.
    """
    commands = ["true"]
    if why := settings.only_simulated:
        raise PlaceError(why)
    if settings.cgroup_mode:
        modes = host.check(f"cat {_SCHED}/cgroup_mode 2>/dev/null || true")
        if settings.cgroup_mode not in modes.replace("(", " ").replace(")", " ").split():
            raise PlaceError(
                f'--cgroup-mode: this kernel has no "{settings.cgroup_mode}": Linux 7.3 or newer is needed'
            )
        commands.append(_set("cgroup_mode", modes.partition("(")[2].partition(")")[0]))
    if settings.base_slice_us:
        now = host.check(f"cat {_SCHED}/base_slice_ns 2>/dev/null || true").strip()
        if not now:
            raise PlaceError(f"--base-slice-us: {_SCHED}/base_slice_ns cannot be read: mount debugfs")
        commands.append(_set("base_slice_ns", now))
    # One that cannot be put back does not keep the others.
    return "; ".join(commands)


def _set(knob: str, value: str) -> str:
    return f"echo {value} >{_SCHED}/{knob}"


def words_of(name: str, args: Sequence[str]) -> list[str]:
    """Return what a `cohort` is called with to schedule, and to print what it counts."""
    return ["run", "--policy", name, *args, "--stats", str(STATS_PERIOD_S), "--json"]


class PolicyRun:
    """A started ``cohort run``."""

    def __init__(self, name: str, host: Machine, job: Job) -> None:
        self.name = name
        self._host = host
        self._job = job
        # Of what it has printed: how many bytes were read, and the begin of a line whose end was not there yet.
        self._offset = 0
        self._begun = ""
        self._last: dict[str, float] = {}
        # Several programs end at the same time.
        self._reading = threading.Lock()

    @classmethod
    def start(cls, host: Machine, name: str, args: Sequence[str], cohort: str = "cohort") -> PolicyRun:
        """Start the daemon; return when it schedules."""
        command = shlex.join([cohort, *words_of(name, args)])
        run = cls(name, host, host.spawn("policy", f"exec {command}"))
        deadline = Deadline(_START_TIMEOUT_S)
        while not run._is_ready():
            if deadline.is_over():
                run.kill()
                raise PlaceError(f'policy "{name}" did not start in {_START_TIMEOUT_S} s: {run._reason()}')
        return run

    def _is_ready(self) -> bool:
        """Return whether it schedules; wait a little if not yet."""
        if self._job.wait(0.2) is not None:
            raise PlaceError(f'policy "{self.name}" did not start: {self._reason()}')
        return _READY in self._job.output("stderr")[0] and sched_ext_state(self._host) == "enabled"

    def check(self) -> None:
        """Raise PlaceError if it does not schedule any more."""
        if self._job.wait(0) is not None:
            raise PlaceError(f'policy "{self.name}" ended by itself: {self._reason()}')

    def stop(self) -> None:
        """End it as an operator would, and see that the kernel's own scheduler has taken over."""
        self.check()
        self._job.signal(signal.SIGINT, leader_only=True)
        rc = self._job.wait(_STOP_TIMEOUT_S)
        if rc != 0:
            self.kill()
            how = "did not end on SIGINT" if rc is None else f"ended with {rc}"
            raise PlaceError(f'policy "{self.name}" {how}: {self._reason()}')
        if (state := sched_ext_state(self._host)) != "disabled":
            raise PlaceError(f'policy "{self.name}" ended, but sched_ext is "{state}"')

    def kill(self) -> None:
        """End it at once; return when the kernel's own scheduler has taken over, or does not in time."""
        self._job.signal(signal.SIGKILL)
        self._job.wait(_STOP_TIMEOUT_S)
        # What has ended is taken out by the kernel in its own time, and meanwhile nothing else can be loaded.
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while sched_ext_state(self._host) not in OFF and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def latest(self) -> dict[str, float]:
        """Return the counters it printed last (none yet: an empty dictionary)."""
        with self._reading:
            # The offset is the agent's, in bytes: of a character that it cut in two, the text has other ones, and more.
            text, self._offset = self._job.output("stdout", self._offset)
            *lines, self._begun = f"{self._begun}{text}".split("\n")
            for line in lines:
                try:
                    total = json.loads(line)["total"]
                except (ValueError, KeyError, TypeError):
                    continue  # a line for people
                self._last = {key: float(value) for key, value in total.items() if isinstance(value, int | float)}
            return self._last

    def since(self, before: dict[str, float]) -> dict[str, float]:
        """Return by how much the counters grew since ``before``; wait for the line that covers the time till now."""
        now = self.latest()
        deadline = time.monotonic() + 3 * STATS_PERIOD_S
        while self.latest() == now and time.monotonic() < deadline:
            time.sleep(0.1)
        return {key: value - before.get(key, 0.0) for key, value in self._last.items()}

    def _reason(self) -> str:
        return one_line(self._job.output("stderr")[0][-600:]) or "it printed no reason"
