# SPDX-License-Identifier: GPL-2.0-only
"""What all places of real kernels share: guests behind an agent, policies switched under them, programs measured."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cohortlab.errors import one_line
from cohortlab.lab import binaries, programs, sampling
from cohortlab.lab.agent import AgentError, Answer, Machine, done
from cohortlab.lab.binaries import Build
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.lab.policy import OFF, PolicyRun, applying, sched_ext_state, schedulers_so_far, undoing
from cohortlab.lab.probe import ProbeRun
from cohortlab.lab.programs import Programs
from cohortlab.places import Measurement, PlaceCrashed, PlaceError, ProgressFn
from cohortlab.policies import (
    KERNEL,
    KernelSettings,
    kernel_settings,
    read_sets,
    sets_file,
    split_binary,
    with_sets_file,
)
from cohortlab.scenario import Scenario
from cohortlab.workloads import WorkloadError, WorkloadTimeout

_DYING_S = 1
# Where the file of `cohort run --sets` is there, below the place's folder.
SETS = "policy.sets"
# The guest's answer to a program's end may be late on a busy host; it is not lost before this.
_ANSWER_TIMEOUT_S = 120
# A host is quiet if its kernel uses less of a pCPU than this, so many looks in a row. Others may keep it from that.
_QUIET = 0.2
_QUIET_LOOKS = 2
_LOOKS_MAX = 20


@dataclass(frozen=True)
class _Ran:
    """A program's run that gave a figure.

    Attributes:
        guest, host: what each answered: with its files, sampled right before the run and right after it.
        stats: the policy's counters before it.
    """

    value: float
    wall_s: float
    guest: Answer
    host: Answer
    stats: dict[str, float]


class RealPlace(ABC):
    """All VMs of one scenario, running and idle, under a real kernel. On what, is for those who inherit to say."""

    # What it is called.
    name: str
    # The program that is `cohort` on the host.
    cohort_there = "cohort"
    # Where the probe's socket is there.
    folder_there: str

    def __init__(self, scenario: Scenario, *, probe: bool, progress: ProgressFn) -> None:
        """``probe``: count what vCPUs' time goes to."""
        self.scenario = scenario
        self.pcpus = scenario.host.pcpus
        self.description: dict[str, str] = {}
        self.complaints: list[str] = []  # what kernels logged of bugs and stalls, in this boot and the ones before
        self._progress = progress
        self._guests: dict[str, Guest] = {}
        self._policy: PolicyRun | None = None
        self._programs = Programs(scenario, {})
        # The host's CPUs that the guests may use; None: all.
        self._pcpus_used: range | None = None
        self._wants_probe = probe
        self._probe: ProbeRun | None = None

    def __enter__(self) -> Self:
        try:
            self._boot()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    @abstractmethod
    def host(self) -> Machine:
        """The host under test."""

    @property
    def guests(self) -> dict[str, Guest]:
        """The guests by name, for tests that do more than measure."""
        return self._guests

    @abstractmethod
    def _boot(self) -> None:
        """Bring everything up."""

    @abstractmethod
    def _close(self) -> None:
        """End everything; there may be nothing."""

    @abstractmethod
    def _check(self) -> None:
        """Raise PlaceCrashed, or PlaceError, if the host is known to be lost."""

    @abstractmethod
    def _last_words(self) -> str:
        """Return how the host is, when it does not answer."""

    def _new_complaints(self, *, last: bool = False) -> list[str]:
        """Return what the host's kernel has logged since the last call of bugs and stalls; ``last``: it is the last."""
        return []

    @abstractmethod
    def _needs_cohort(self) -> None:
        """Raise PlaceError if there is no `cohort` to run."""

    @abstractmethod
    def _there(self, build: Build) -> str:
        """Return the program that a `cohort` of `--binary` is on the host, where it is from now on."""

    def _check_scenario(self) -> None:
        """Raise PlaceError, naming the field, for what real kernels are not told of a scenario."""
        if wrong := programs.unknown(self.scenario):
            raise PlaceError(wrong)

    def _guests_are_up(self, guests: Sequence[Guest]) -> None:
        """Take guests that are up into use."""
        self._guests = {guest.config.name: guest for guest in guests}
        self._programs = Programs(self.scenario, self._guests)
        with self._crash_if_lost():
            for guest in guests:
                guest.pin_vcpus()

    @property
    def _configs(self) -> list[GuestConfig]:
        return [
            GuestConfig(
                vm.name,
                vm.vcpus,
                vm.memory_mb,
                vm.weight,
                vm.tlb,
                vm.affinity,
                None if vm.vcpu_affinity is None else tuple(cpus or () for cpus in vm.allowed),
                vm.cap_pcpus,
            )
            for vm in self.scenario.vms
        ]

    def policy(self, name: str, args: Sequence[str] = ()) -> AbstractContextManager[None]:
        return self._under_kernel(kernel_settings(args)) if name == KERNEL else self._under_cohort(name, args)

    @contextmanager
    def _under_kernel(self, settings: KernelSettings) -> Iterator[None]:
        with self._crash_if_lost():
            host = self.host
            if (state := sched_ext_state(host)) not in OFF:
                raise PlaceError(f"the kernel's own scheduler is wanted, but sched_ext is {state}")
        with self._nobody_else_comes():
            if settings == KernelSettings():
                yield
            else:
                with self._told(settings):
                    yield
        self._collect_complaints()

    @contextmanager
    def _nobody_else_comes(self) -> Iterator[None]:
        """What is measured while another scheduler is loaded, or the same one anew, counts for nobody."""
        with self._crash_if_lost():
            before = schedulers_so_far(self.host)
        yield
        with self._crash_if_lost():
            if schedulers_so_far(self.host) != before:
                raise PlaceCrashed("a sched_ext scheduler was loaded while something was measured")

    @contextmanager
    def _told(self, settings: KernelSettings) -> Iterator[None]:
        """Tell the kernel's own scheduler these for the duration of the block."""
        with self._crash_if_lost():
            undo = undoing(self.host, settings)
            # Also if nobody is left who could.
            self.host.at_end("kernel settings", undo)
        try:
            with self._crash_if_lost():
                self.host.check(applying(settings))
            yield
        finally:
            with self._crash_if_lost():
                self.host.check(undo)
                self.host.at_end("kernel settings", None)

    @contextmanager
    def _under_cohort(self, name: str, args: Sequence[str]) -> Iterator[None]:
        binary, args = split_binary(args)
        if binary is None:
            self._needs_cohort()
        with self._crash_if_lost():
            cohort = self.cohort_there if binary is None else self._there(binaries.build(Path(binary)))
            if file := sets_file(args):
                # There it may be changed while the policy runs.
                there = f"{self.folder_there}/{SETS}"
                self.host.write(there, read_sets(file))
                args = with_sets_file(args, there)
            self._policy = PolicyRun.start(self.host, name, args, cohort)
        try:
            with self._nobody_else_comes():
                yield
            with self._crash_if_lost():
                self._policy.stop()
                self._settle()
        except PlaceCrashed:
            raise  # nothing is left to be stopped
        except BaseException as error:
            with self._crash_if_lost():
                self._policy.kill()
                # The other policies go on; after an interrupt nothing does.
                if isinstance(error, Exception):
                    self._settle()
            raise
        finally:
            self._policy = None
            self._collect_complaints()

    def _settle(self) -> None:
        """Wait until the kernel has cleared away a scheduler that has ended: that takes its threads 0.2 s in the lab.

        Whoever runs meanwhile loses that time; a program that took 0.25 s took 0.36.
        """
        quiet = 0
        for _ in range(_LOOKS_MAX):
            quiet = quiet + 1 if sampling.kernels_share(self.host.check(sampling.TWO_LOOKS)) < _QUIET else 0
            if quiet == _QUIET_LOOKS:
                return

    @contextmanager
    def background(self, vm: str, workload: str) -> Iterator[None]:
        """Keep ``workload`` running in ``vm`` for the duration of the block; if it comes later, from ``start_s`` on."""
        with self._crash_if_lost(), self._programs.load(vm, workload):
            yield

    def measure(self, vm: str, workload: str) -> Measurement:
        """Run ``workload`` once in ``vm`` and return its figure.

        Raises:
            WorkloadError: the program failed, or its setup did.
            WorkloadTimeout: it did not end in time.
            PlaceError: the policy ended.
        """
        with self._crash_if_lost():
            self._programs.prepare(vm, workload)
            # Where no load comes late, as when it runs alone, it is later than nobody.
            if self._programs.begin():
                time.sleep(self._starts_s[vm])
            return self._measure(vm, workload)

    def measure_together(self, turn: Mapping[str, str]) -> dict[str, Measurement]:
        """Run programs at the same time, by VM; each begins anew until all have ended. Return the first figures.

        Raises:
            WorkloadError, WorkloadTimeout, PlaceError: as ``measure``; or a program failed that had begun anew.
        """

        gone = threading.Event()

        def later(vm: str, workload: str) -> _Ran:
            # Python waits for this thread before it ends, also for one that sleeps.
            if gone.wait(self._starts_s[vm]):
                raise PlaceError(f"{workload} in {vm} was not begun")
            return self._run(vm, workload)

        with self._crash_if_lost():
            for vm, workload in turn.items():
                self._programs.prepare(vm, workload)
            with ExitStack() as again:
                # Its own exit would wait for the programs, also for whoever has interrupted them.
                pool = ThreadPoolExecutor(len(turn))
                again.callback(pool.shutdown, wait=False, cancel_futures=True)
                again.callback(gone.set)
                self._programs.begin()
                running = {pool.submit(later, vm, workload): vm for vm, workload in turn.items()}
                counted: dict[str, Future[Measurement]] = {}
                for ended in as_completed(running):
                    vm = running[ended]
                    if ended.exception() is not None:
                        continue
                    if not all(other.done() for other in running):
                        again.enter_context(self._programs.again(vm, turn[vm]))
                    # Only now: a policy takes a second to say what it counted, in which its VMs would be idle, and the
                    # kernel's own scheduler has nothing to say.
                    counted[vm] = pool.submit(self._counted, ended.result())
                for ended in running:
                    ended.result()  # raises what it ended with, if that is no figure
                return {vm: counted[vm].result() for vm in turn}

    @property
    def _starts_s(self) -> dict[str, float]:
        """How much later than the programs' beginning each VM comes."""
        return {vm.name: vm.start_s for vm in self.scenario.vms}

    def _measure(self, vm: str, workload: str) -> Measurement:
        return self._counted(self._run(vm, workload))

    def _run(self, vm: str, workload: str) -> _Ran:
        """Run a program once, and return at once when it has ended."""
        program, guest = self.scenario.workloads[workload], self._guests[vm]
        stats_before = self._stats()
        line = programs.command(program, program.command or "")
        op = {"exec": {"sh": line, "timeout_s": program.timeout_s}}
        # Last, hence furthest from the program: to read the probe takes longer than to read the files.
        host_files = (*self._cpu_stats, *sampling.HOST_FILES, *([self._probe.socket] if self._probe else []))
        inner, outer = guest.channel.call_sampled(
            op, sampling.GUEST_FILES, host_files, program.timeout_s + _ANSWER_TIMEOUT_S
        )
        ended = done(inner)
        try:
            if ended.timed_out:
                late = f"{workload} in {vm} did not end in {program.timeout_s} s"
                raise WorkloadTimeout(f"{late}; {guest.last_words()}")
            if ended.rc != 0:
                said = one_line(ended.stderr or ended.stdout)[-300:]
                raise WorkloadError(f"{workload} in {vm} ended with {ended.rc}: {said}")
            value = program.figure(ended.stdout + ended.stderr, ended.wall_s)
        except WorkloadError:
            self._check_policy()  # if it has ended, that is the better reason
            raise
        return _Ran(value, ended.wall_s, inner, outer, stats_before)

    def _counted(self, ran: _Ran) -> Measurement:
        """Return a run's figure with what was counted meanwhile; wait until the policy has said what it counted."""
        self._check_policy()
        return Measurement(
            value=ran.value,
            wall_s=ran.wall_s,
            window_s=sampling.window_s(ran.host),
            cpu_s=sampling.cpu_seconds(ran.host, self._cpu_stats),
            stats=self._stats(ran.stats),
            guest=sampling.guest_counters(ran.guest),
            host=self._host_counters(ran.host),
            why=self._probe.between(ran.host, self._pids()) if self._probe else {},
        )

    def _check_policy(self) -> None:
        """Raise PlaceError if the policy has ended."""
        if self._policy:
            self._policy.check()

    @property
    def _cpu_stats(self) -> dict[str, str]:
        """The files that count the VMs' CPU time, and whose each is."""
        return {guest.cpu_stat: name for name, guest in self._guests.items()}

    def _host_counters(self, answer: Answer) -> dict[str, float]:
        counted = sampling.host_counters(answer, self._pcpus_used)
        # The probe's figure is of all pCPUs.
        return counted | self._probe.of_host(answer) if self._probe and self._pcpus_used is None else counted

    def _stats(self, since: dict[str, float] | None = None) -> dict[str, float]:
        """Return the policy's counters; those of the time since others were read, if these are given."""
        if self._policy is None:
            return {}
        return self._policy.latest() if since is None else self._policy.since(since)

    def reset(self) -> None:
        """After PlaceCrashed: bring everything up again."""
        self._close()
        self._boot()

    def _pids(self) -> dict[int, str]:
        return {guest.pid(): name for name, guest in self._guests.items()}

    def _start_probe(self) -> str:
        """Load the probe into the host, if it is wanted; return what came of it."""
        if not self._wants_probe:
            return "off"
        try:
            with self._crash_if_lost():
                self._probe = ProbeRun.start(self.host, self.folder_there, cohort=self.cohort_there)
        except PlaceError as error:
            self._progress(f"what vCPUs' time goes to is not counted: {error}", None)
            return f"none: {error}"
        return "on"

    def _collect_complaints(self, *, last: bool = False) -> None:
        new = [f"host: {line}" for line in self._new_complaints(last=last)]
        self.complaints += new
        for line in new:
            self._progress(f"the kernel log says: {line}", None)

    @contextmanager
    def _crash_if_lost(self) -> Iterator[None]:
        """Turn an agent that fails or does not answer into PlaceCrashed."""
        try:
            yield
        except (AgentError, TimeoutError) as error:
            self._check()  # if the host died, that is the better reason
            raise PlaceCrashed(f"a machine was lost: {error}; {self._states()}") from None

    def _states(self) -> str:
        """Return how all guests are, those that have ended first; if the host does not say, how the host is."""
        try:
            # Its agent is gone a moment before its process is.
            dead = [guest for guest in self._guests.values() if guest.job.wait(_DYING_S) is not None]
            guests = [*dead, *(guest for guest in self._guests.values() if guest not in dead)]
            told = [f"{guest.config.name}: {guest.last_words()}" for guest in guests]
            return "; ".join(told)
        except (AgentError, TimeoutError) as error:
            return f"host: {self._last_words()}; it does not answer: {error}"
