# SPDX-License-Identifier: GPL-2.0-only
"""The probe of `cohort top` beside what is measured: what vCPUs' time went to.

It is loaded once for each boot, whatever schedules, and read right before and right after a program only: it answers at
a socket, which the agent samples beside the files.
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Mapping
from typing import Any

from cohortlab import why
from cohortlab.errors import one_line
from cohortlab.lab import sampling
from cohortlab.lab.agent import Answer, Job, Machine, Sample
from cohortlab.lab.patience import Deadline
from cohortlab.places import PlaceError

# Its programs are checked by the kernel first, which an emulator on a busy machine may take long for.
_START_TIMEOUT_S = 90
_STOP_TIMEOUT_S = 30
_READY = "answering at"
# Counters of a VM beside the sums over its vCPUs.
_OF_VMS = ("stacked_ns", "throttled_ns")


class ProbeRun:
    """A started ``cohort top`` that answers."""

    def __init__(self, job: Job, socket: str) -> None:
        self.socket = socket
        self._job = job

    @classmethod
    def start(cls, host: Machine, folder: str, *, name: str = "probe", cohort: str = "cohort") -> ProbeRun:
        """Load the probe in the host; return when it answers. ``name``: of its job, and of its socket in ``folder``.

        Raises:
            PlaceError: this kernel or this `cohort` has no probe.
        """
        socket = f"{folder}/{name}.sock"
        # It must not wait behind what it measures. As a real-time task: one of nice -20 weighs as much as 87 vCPUs, and
        # the kernel would balance by that for a quarter of a second. Some kernels have no real-time tasks in cgroups.
        # The figures of an interval are of no use here.
        first = 'first="chrt --fifo 1"; $first true 2>/dev/null || first="nice -n -20"'
        top = f"{shlex.quote(cohort)} top --batch --json --columns %RUN --answer {socket}"
        argv = f"rm -f {socket}; {first}; exec $first {top}"
        run = cls(host.spawn(name, argv), socket)
        deadline = Deadline(_START_TIMEOUT_S)
        while _READY not in (said := run._job.output("stderr")[0]):
            ended = run._job.wait(0.2)
            if ended is not None or deadline.is_over():
                run.kill()
                how = f"did not start in {_START_TIMEOUT_S} s" if ended is None else f"ended with {ended}"
                raise PlaceError(f"the probe {how}: {one_line(said[-600:]) or 'it printed no reason'}")
        return run

    @property
    def pid(self) -> int:
        return self._job.pid

    def stop(self) -> None:
        self._job.signal(signal.SIGTERM)
        if self._job.wait(_STOP_TIMEOUT_S) is None:
            self.kill()

    def kill(self) -> None:
        self._job.signal(signal.SIGKILL)

    def between(self, answer: Answer, names: Mapping[int, str]) -> dict[str, dict[str, float]]:
        """Return what VMs' counters grew by between the two samples of ``answer``; nothing if one is missing.

        ``names``: of the VMs that count, by their process numbers; the host may have others.
        """
        if (samples := self._both(answer)) is None:
            return {}
        before, after = samples
        return why.growth(_counters(before, names), _counters(after, names), after["clock_ns"] - before["clock_ns"])

    def of_host(self, answer: Answer) -> dict[str, float]:
        """Return what it knows better than the host's /proc/stat, which counts idle time by ticks; nothing if unknown.

        ``idle_s``: CPU seconds between the two samples that all pCPUs together were idle. The probe answers a little
        before the one and after the other, when nothing is measured: that time is left out by its part.
        """
        if (samples := self._both(answer)) is None:
            return {}
        idle_ns, window_ns = (samples[1][name] - samples[0][name] for name in ("idle_ns", "clock_ns"))
        return {"idle_s": idle_ns / max(window_ns, 1) * sampling.window_s(answer)}

    def _both(self, answer: Answer) -> tuple[dict[str, Any], dict[str, Any]] | None:
        before, after = self.sample_in(answer.before), self.sample_in(answer.after)
        return None if before is None or after is None else (before, after)

    def sample_in(self, sample: Sample | None) -> dict[str, Any] | None:
        """Return what it answered when ``sample`` was taken; None if it did not."""
        text = sample.files.get(self.socket) if sample else None
        try:
            found: dict[str, Any] | None = json.loads(text) if text else None
        except ValueError:  # cut off: the probe was ended meanwhile
            return None
        return found


def _counters(sample: dict[str, Any], names: Mapping[int, str]) -> dict[str, dict[str, float]]:
    """Return each VM's counters, without those that cannot be counted on this host."""
    missing = set(sample["missing"])
    return {
        names[vm["pid"]]: {name: value for name, value in vm["total"].items() if name not in missing}
        | {name: vm[name] for name in _OF_VMS if name not in missing}
        | {"vcpus": len(vm["vcpus"])}
        for vm in sample["vms"]
        if vm["pid"] in names
    }
