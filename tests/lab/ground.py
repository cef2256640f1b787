# SPDX-License-Identifier: GPL-2.0-only
"""Cgroups, busy loops and busy VMs on the lab's host, and what each got of its pCPUs."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest
from again import DISTURBED, Elsewhere
from disturbance import Disturbance

from cohortlab.lab import guest as guests
from cohortlab.lab import sampling
from cohortlab.lab.agent import AgentError, Answer, Job, Machine, Sample
from cohortlab.lab.place import LabPlace
from cohortlab.places import PlaceCrashed

if TYPE_CHECKING:
    from conftest import Bench


def _on(long: tuple[str, ...], more: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Have tests run on the newest kernel, on those of `make test-lab`, and on those of `make test-lab-kernels` alone.

    Tests of one kernel share its boot.
    """
    kernels = [pytest.param(None, id="newest")]
    kernels += [pytest.param(release, id=release, marks=pytest.mark.long) for release in long]
    kernels += [pytest.param(release, id=release, marks=[pytest.mark.long, pytest.mark.kernels]) for release in more]
    return pytest.mark.parametrize("place", kernels, indirect=True, scope="session")


OLDEST = "6.18"
KERNELS = _on((OLDEST,))
# The probe also runs where there is no sched_ext. What it hooks is the kernel's; its sums are its own.
PROBED_KERNELS = _on((OLDEST,), ("6.12", "6.1"))
SUMMED_KERNELS = _on((), (OLDEST, "6.12", "6.1"))
# What a policy does with what it is told is the same on all kernels that load it.
DIVIDING_KERNELS = _on((), (OLDEST,))
OLDEST_KERNEL = pytest.mark.parametrize("place", [OLDEST], indirect=True, scope="session")
policies = pytest.mark.parametrize("policy", ["eevdf", "cohort"])

CGROUPS = "/sys/fs/cgroup"
LOOP = "while :; do :; done"
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs"
SETTLE_S = 1.0
WINDOW_S = 4.0
# How far a share may be off: a part of it, and so much of a pCPU, which clock ticks, idle guests' timers and the lab's
# agent take of any window. The kernel's own scheduler moves whole tasks between pCPUs, so it is only roughly right: it
# shows that what is wanted can be had, and is measured.
SLACK = {"eevdf": (0.05, 0.25), "cohort": (0.03, 0.01)}
QUOTA_SLACK = (0.02, 0.005)
# Of a window in which others kept the emulator waiting for less there is no second one; what that does to a share is
# allowed for.
QUIET = 0.02
# So much of all pCPUs may have idled while somebody waited.
IDLE_MAX = 0.07
# Has what each pCPU's tasks have run. /proc/stat of Linux 7.3 counts more idle time than there is where a pCPU idles
# for a millisecond at a time: with what all used it was up to 1.06 of the window.
RAN = "/proc/schedstat"
# What all that competes must have used together. Interrupts, kernel threads, idle guests' timers and the daemon have
# the rest, all of which take longer on a slow machine: 4 % to 14 % were seen.
USED_MIN = 0.6
CGROUP_MODE = "/sys/kernel/debug/sched/cgroup_mode"
# How long a turn under SCHED_RR is.
RR_MS = "/proc/sys/kernel/sched_rr_timeslice_ms"
_EVIDENCE_LINES = 100
_MARK = "lab: here begins"
# The file that is told of each share: a line of JSON.
TOLD = "COHORT_LAB_DUE"
# An agent knows its jobs by name.
_numbers = itertools.count()
# Who was left with little has this long to end, or to begin.
_END_S = 60


class Cgroups(ExitStack):
    """What competes on the lab's host; it ends with the block, and all knobs are as before.

    Groups are named by their path below the VMs' slice, so that they and the VMs are siblings.
    """

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.place: LabPlace = bench.place
        self.host: Machine = bench.host
        self.everywhere = f"0-{self.place.pcpus - 1}"

    def group(self, name: str, **knobs: object) -> str:
        """Make a cgroup, and its parents; ``weight=300`` is its cpu.weight. Return its folder."""
        path = guests.SLICE
        for part in name.split("/"):
            # A cgroup has either processes or children with weights: what is made here has children.
            self.host.check(f"echo +cpu >{path}/cgroup.subtree_control")
            path = f"{path}/{part}"
            if self.host.run(f"mkdir {path}").rc == 0:
                self.callback(self.remove, path)
        for knob, value in knobs.items():
            self.host.check(f"echo '{value}' >{path}/cpu.{knob}")
        return path

    def remove(self, path: str) -> None:
        """End what runs in a cgroup, and the cgroup."""
        self.host.check(f"echo 1 >{path}/cgroup.kill")
        self.bench.until(lambda: self.host.run(f"rmdir {path}").rc == 0, f"{path} is empty", _END_S)

    def run_in(self, group: str, sh: str) -> Job:
        """Start a shell command in a cgroup; it ends with the cgroup."""
        return self.host.spawn(f"run-{next(_numbers)}", f"echo $$ >{self.folder(group)}/cgroup.procs && {sh}")

    def loops(self, group: str, count: int, prefix: str = "") -> None:
        """Start processes in a cgroup that want all they can get, by way of a program like ``taskset -c 0``."""
        loop = f"{prefix} sh -c {shlex.quote(LOOP)}"
        self.run_in(group, f"for i in $(seq {count}); do {loop} & done; wait")

    def busy(self, *vms: str, vcpus: int | None = None) -> None:
        """Let all vCPUs of these VMs, or so many, want all they can get; return when they do."""
        jobs: list[tuple[Job, int]] = []
        for vm in vms:
            guest = self.place.guests[vm]
            count = vcpus or guest.config.vcpus
            loops = f"for i in $(seq {count}); do sh -c {shlex.quote(f'echo on; {LOOP}')} & done; wait"
            jobs.append((guest.machine.spawn(f"busy-{next(_numbers)}", loops), count))
            self.callback(end, jobs[-1][0])
        # A guest that is slow, or has little, takes seconds to start them.
        self.bench.until(
            lambda: all(job.output()[0].count("on\n") == count for job, count in jobs),
            f"{', '.join(vms)} are busy",
            _END_S,
        )

    def set(self, name: str, knob: str, value: object) -> None:
        """Write to a file of a VM's or a group's cgroup, until the end."""
        file = f"{self.folder(name)}/{knob}"
        before = self.host.read(file).strip()
        self.host.check(f"echo '{value}' >{file}")
        self.callback(self.host.check, f"echo '{before}' >{file}")

    def pin(self, vm: str, pcpus: str) -> None:
        """Let all threads of a VM run on these pCPUs alone, until the end."""
        pid = self.place.guests[vm].pid()
        self.host.check(f"taskset -a -c -p {pcpus} {pid}")
        self.callback(self.host.check, f"taskset -a -c -p {self.everywhere} {pid}")

    def cpuset(self, vm: str, pcpus: str) -> None:
        """Give a VM's cgroup these pCPUs alone, until the end."""
        # Put back last, and the slice before the root, which is refused while those below have the controller.
        for folder in (CGROUPS, guests.SLICE):
            control = f"{folder}/cgroup.subtree_control"
            if "cpuset" not in self.host.read(control).split():
                self.host.check(f"echo +cpuset >{control}")
                self.callback(self.host.run, f"echo -cpuset >{control}")
        file = f"{self.folder(vm)}/cpuset.cpus"
        self.host.check(f"echo {pcpus} >{file}")
        # Not to nothing, as it was: Linux 6.18 answers EIO to that.
        self.callback(self.host.check, f"echo {self.everywhere} >{file}")

    def move(self, vm: str, group: str) -> None:
        """Put a VM into another cgroup, until the end."""
        pid = self.place.guests[vm].pid()
        self.host.check(f"echo {pid} >{self.folder(group)}/cgroup.procs")
        self.callback(self.host.check, f"echo {pid} >{self.folder(vm)}/cgroup.procs")

    def folder(self, name: str) -> str:
        scope = f"{name}.scope" if name in self.place.guests else name
        return f"{guests.SLICE}/{scope}"


def idled(answer: Answer) -> float:
    """Return how many pCPUs nobody had between the two samples, on average."""

    def ran_ns(sample: Sample | None) -> dict[str, int]:
        assert sample is not None, "the call asked for samples"
        lines = (line.split() for line in (sample.files[RAN] or "").splitlines())
        return {words[0]: int(words[7]) for words in lines if re.fullmatch(r"cpu\d+", words[0])}

    before, after, of_ns = ran_ns(answer.before), ran_ns(answer.after), sampling.window_s(answer) * 1e9
    # A line of one that runs for long grows when it ends its turn.
    return sum(max(0.0, 1 - (after[pcpu] - before[pcpu]) / of_ns) for pcpu in before.keys() & after.keys())


class Ground(Cgroups):
    """The same under one policy, and what each got of the pCPUs; nobody may complain, and no policy be ejected."""

    def __init__(self, bench: Bench, policy: str, *args: str) -> None:
        """``args``: more arguments of ``cohort run``."""
        super().__init__(bench)
        self.policy = policy
        self.args = args
        self.daemon: Job | None = None
        # The part of the last window for which this machine kept the host's pCPUs waiting.
        self.away = 0.0
        # How many of the host's pCPUs idled in it.
        self.idle = 0.0

    def __enter__(self) -> Ground:
        super().__enter__()
        self.host.check(f"echo '{_MARK} {self.policy}' >/dev/kmsg")
        # Entered first, so left last: all that competed has ended by then.
        self.enter_context(self.bench.silence())
        self.enter_context(self._scheduled())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            # If the host is lost, that is said elsewhere.
            with suppress(AgentError, TimeoutError, PlaceCrashed):
                print(self.host.check(f"dmesg | tac | sed '/{_MARK}/q' | tac | head -n {_EVIDENCE_LINES}"))
                if self.daemon is not None:
                    print(self.daemon.output("stderr")[0], json.dumps(self.statistics()), sep="\n")
        return super().__exit__(kind, error, trace)

    @contextmanager
    def _scheduled(self) -> Iterator[None]:
        if self.policy == "eevdf":
            # Its newer ways to divide a cgroup's weight count CPUs that are wanted; this one is by weight alone.
            has_modes = self.host.run(f"test -e {CGROUP_MODE}").rc == 0
            with self.place.policy("eevdf", ["--cgroup-mode", "smp"] if has_modes else []):
                yield
            return
        with self.bench.cohort("--policy", self.policy, *self.args, "--stats", "1", "--json") as self.daemon:
            before = self.host.read("/sys/kernel/sched_ext/enable_seq")
            yield
            assert self.daemon.wait(0) is None, f"it ended: {self.daemon.output('stderr')[0][-600:]}"
            assert self.bench.state() == "enabled", "it was ejected"
            assert self.host.read("/sys/kernel/sched_ext/enable_seq") == before, "it was loaded anew"

    def got(
        self, *names: str, window_s: float = WINDOW_S, settle_s: float = SETTLE_S, tries: int = 3
    ) -> dict[str, float]:
        """Return the pCPUs that VMs and groups used in a window: 0.5 is half of one.

        A window in which the lab had to wait says little, so there is another, and the quietest counts; that of
        something that happens once is looked at by who asks for it (``tries=1``).
        """
        time.sleep(settle_s)
        files = {f"{self.folder(name)}/cpu.stat": name for name in names}
        patience_s = self.bench.patience_s(_END_S)
        quietest: tuple[float, float, dict[str, float]] | None = None
        for _ in range(tries):
            disturbance = Disturbance(self.place)
            answer = self.host.channel.call(
                {"exec": {"sh": f"sleep {window_s:g}"}}, (*files, RAN), window_s + patience_s
            )
            seconds, of_s = sampling.cpu_seconds(answer, files), sampling.window_s(answer)
            # That its own threads wait for one another is no matter: who runs, and who charges it, have the same clock.
            away = disturbance.by_others()
            idle = idled(answer)
            got = {name: used_s / of_s for name, used_s in seconds.items()}
            said = ", ".join(f"{name} {pcpus:.3f}" for name, pcpus in got.items())
            disturbed = f"others kept the emulator waiting for {away:.0%} of it, all for {disturbance.part():.0%}"
            print(f"{self.policy}: in {of_s:.2f} s: {said}, idle {idle:.3f}; {disturbed}")
            if quietest is None or away < quietest[0]:
                quietest = away, idle, got
            if away < QUIET:
                break
        assert quietest is not None, "there was a try"
        self.away, self.idle, got = quietest
        if self.away < DISTURBED:
            return got
        raise Elsewhere(f"others kept the emulator waiting for {self.away:.0%} of the quietest of {tries} windows")

    def used(self, got: Mapping[str, float], pcpus: float) -> float:
        """Assert that no pCPU idled and that these had most of that many; return how many they used."""
        assert self.idle <= IDLE_MAX * self.place.pcpus, f"{self.idle:.3f} pCPUs idled while somebody waited: {got}"
        used = sum(got.values())
        assert used >= USED_MIN * pcpus, f"of {pcpus:g} pCPUs, only {used:.3f} were used: {got}"
        return used

    def divided(self, got: Mapping[str, float], weights: Mapping[str, float], pcpus: float) -> None:
        """Assert that those with weights used those pCPUs together, each its share of it."""
        used, weight = self.used({name: got[name] for name in weights}, pcpus), sum(weights.values())
        self.about(got, {name: used * share / weight for name, share in weights.items()})

    def about(
        self,
        got: Mapping[str, float],
        wanted: Mapping[str, float],
        slack: tuple[float, float] | None = None,
    ) -> None:
        """Assert that each used what is wanted, but for the slack: a part of that, and so much of a pCPU."""
        self._tell(got, wanted)
        part, small = slack or SLACK.get(self.policy, SLACK["cohort"])
        # Whoever ran while this machine was elsewhere is charged for it; and a quota cannot be used then.
        small += self.away * self.place.pcpus
        off = {
            name: f"{got[name]:.3f} pCPUs instead of {pcpus:.3f}"
            for name, pcpus in wanted.items()
            if not (1 - part) * pcpus - small <= got[name] <= (1 + part) * pcpus + small
        }
        assert not off, f"{off}, all: {got}"

    def _tell(self, got: Mapping[str, float], wanted: Mapping[str, float]) -> None:
        """Add what was due and what was had, in pCPUs, to the file that bench/due.py asks for."""
        if file := os.environ.get(TOLD):
            rows = {name: (due, got[name]) for name, due in wanted.items()}
            line = {"test": os.environ["PYTEST_CURRENT_TEST"], "policy": self.policy, "rows": rows}
            with Path(file).open("a") as told:
                told.write(json.dumps(line) + "\n")

    def counts(self, name: str) -> dict[str, int]:
        """Return the counts of a VM's or a group's cgroup: the kernel's cpu.stat, or the same of the scheduler."""
        if self.daemon is not None:
            self.bench.until(lambda: bool(self._limited(name)), f"the daemon shows the quota of {name}", _END_S)
            return {key: value for key, value in self._limited(name).items() if isinstance(value, int)}
        lines = self.host.read(f"{self.folder(name)}/cpu.stat").splitlines()
        return {key: int(value) for key, value in (line.split() for line in lines)}

    def _limited(self, name: str) -> dict[str, Any]:
        folder = self.folder(name).removeprefix(CGROUPS)
        groups: list[dict[str, Any]] = self.statistics().get("cgroups", [])
        return next((group for group in groups if group["cgroup"] == folder), {})

    def statistics(self) -> dict[str, Any]:
        """Return the last that the daemon printed."""
        assert self.daemon is not None, "the kernel's own scheduler prints none"
        lines = [line for line in self.daemon.output()[0].splitlines() if line.startswith("{") and line.endswith("}")]
        return dict(json.loads(lines[-1])) if lines else {}

    def waits_s(self, seconds: float, *vms: str) -> AbstractContextManager[dict[str, float]]:
        """In the block, wake up on each vCPU every 10 ms; the result says afterwards how late that was at worst."""
        return _waits_s(self, seconds, vms)


def end(job: Job) -> None:
    """Kill a job that may have ended."""
    job.signal(signal.SIGKILL)
    job.wait(_END_S)


@contextmanager
def ended_after(jobs: list[Job]) -> Iterator[list[Job]]:
    """Jobs that end with the block at the latest: a test that is run again begins on the same machines."""
    try:
        yield jobs
    finally:
        for job in jobs:
            with suppress(AgentError, TimeoutError, PlaceCrashed):
                end(job)


@contextmanager
def _waits_s(ground: Ground, seconds: float, vms: tuple[str, ...]) -> Iterator[dict[str, float]]:
    # Before all else in the guest: what it then waits for is its pCPU.
    command = f"exec cyclictest --quiet --threads --affinity --priority 80 --interval 10000 --duration {seconds:g}"
    name = f"waits-{next(_numbers)}"
    jobs = {vm: ground.place.guests[vm].machine.spawn(name, command) for vm in vms}
    patience_s = ground.bench.patience_s(_END_S)
    worst: dict[str, float] = {}
    with ended_after(list(jobs.values())):
        yield worst
        for vm, job in jobs.items():
            assert job.wait(seconds + patience_s) == 0, f"{vm}: {job.output('stderr')[0]}"
            said = job.output()[0]
            found = [int(us) / 1e6 for us in re.findall(r"Max:\s*(\d+)", said)]
            assert len(found) == ground.place.guests[vm].config.vcpus, said
            worst[vm] = max(found)
