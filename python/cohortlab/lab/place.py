# SPDX-License-Identifier: GPL-2.0-only
"""The lab as a place where a scenario runs (see cohortlab.places)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType

from cohortlab.errors import one_line
from cohortlab.lab import binaries, sampling
from cohortlab.lab.agent import AgentError, done
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.emulator import Emulator
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.lab.policy import PolicyRun, change, sched_ext_state
from cohortlab.lab.qemu import Qemu
from cohortlab.places import Measurement, PlaceCrashed, PlaceError, ProgressFn
from cohortlab.policies import KernelSettings, kernel_settings
from cohortlab.scenario import Scenario
from cohortlab.workloads import WorkloadError, WorkloadTimeout

# The kernel's own scheduler.
EEVDF = "eevdf"
_SETUP_TIMEOUT_S = 120
# A background load that is wrong (unknown option, missing program) ends at once.
_LOAD_SETTLE_S = 0.5
_LOAD_END_S = 90
_DYING_S = 1
# The guest's answer to a program's end may be late on a busy host; it is not lost before this.
_ANSWER_TIMEOUT_S = 120


class LabPlace:
    """All VMs of one scenario, running and idle, on a stock kernel in an emulator."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        kernel: str | None = None,
        accel: str = "auto",
        cohort: Path | None = None,
        progress: ProgressFn = lambda text, fraction: None,
    ) -> None:
        """``kernel``: a file or the start of a release; ``cohort``: another binary than the one that is built."""
        self.scenario = scenario
        self.pcpus = scenario.host.pcpus
        self.description: dict[str, str] = {}
        self.complaints: list[str] = []  # what kernels logged of bugs and stalls, in this boot and the ones before
        self._kernel = kernel
        self._accel = accel
        self._cohort = cohort
        self._progress = progress
        self._lab: Emulator | None = None
        self._guests: dict[str, Guest] = {}
        self._policy: PolicyRun | None = None
        self._loads = 0
        self._qemu: Qemu | None = None

    def __enter__(self) -> LabPlace:
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
    def emulator(self) -> Emulator:
        """The first level, for tests that do more than measure."""
        if self._lab is None:
            raise RuntimeError("the lab is not up: use LabPlace in a `with` statement")
        return self._lab

    @property
    def guests(self) -> dict[str, Guest]:
        """The guests by name, for tests that do more than measure."""
        return self._guests

    def policy(self, name: str, args: Sequence[str] = ()) -> AbstractContextManager[None]:
        return self._under_eevdf(kernel_settings(args)) if name == EEVDF else self._under_cohort(name, args)

    @contextmanager
    def _under_eevdf(self, settings: KernelSettings) -> Iterator[None]:
        with self._crash_if_lost():
            host = self.emulator.host
            if (state := sched_ext_state(host)) not in ("disabled", "no sched_ext"):
                raise PlaceError(f"the kernel's own scheduler is wanted, but sched_ext is {state}")
            default = change(host, settings)
        try:
            yield
        finally:
            with self._crash_if_lost():
                change(host, default)
        self._collect_complaints()

    @contextmanager
    def _under_cohort(self, name: str, args: Sequence[str]) -> Iterator[None]:
        self._cohort = self._cohort or binaries.find("cohort")
        with self._crash_if_lost():
            self._policy = PolicyRun.start(self.emulator.host, name, args)
        try:
            yield
            with self._crash_if_lost():
                self._policy.stop()
        except PlaceCrashed:
            raise  # nothing is left to be stopped
        except BaseException:
            with self._crash_if_lost():
                self._policy.kill()
            raise
        finally:
            self._policy = None
            self._collect_complaints()

    @contextmanager
    def background(self, vm: str, workload: str) -> Iterator[None]:
        """Keep ``workload`` running in ``vm`` for the duration of the block."""
        load, machine = self.scenario.workloads[workload], self._guests[vm].machine
        with self._crash_if_lost():
            if load.setup:
                machine.check(load.setup, _SETUP_TIMEOUT_S)
            self._loads += 1  # a new name each: the one before may still be ending
            again = f"exec {load.command}" if load.background else f"while {load.command}; do :; done >/dev/null"
            job = machine.spawn(f"load-{self._loads}", again)
            if (rc := job.wait(_LOAD_SETTLE_S)) is not None:
                raise PlaceError(f"{workload} ended with {rc} in {vm}: {job.output('stderr')[0].strip()[-200:]}")
        yield
        with self._crash_if_lost():
            if job.wait(0) is not None:
                raise PlaceError(f"{workload} in {vm} ended by itself: {job.output('stderr')[0].strip()[-200:]}")
            job.signal(9)
            job.wait(_LOAD_END_S)

    def measure(self, vm: str, workload: str) -> Measurement:
        """Run ``workload`` once in ``vm`` and return its figure.

        Raises:
            WorkloadError: the program failed.
            WorkloadTimeout: it did not end in time.
            PlaceError: the policy ended.
        """
        program, guest = self.scenario.workloads[workload], self._guests[vm]
        cpu_stats = {guest.cpu_stat: name for name, guest in self._guests.items()}
        with self._crash_if_lost():
            if program.setup:
                guest.machine.check(program.setup, _SETUP_TIMEOUT_S)
            stats_before = self._policy.latest() if self._policy else {}
            op = {"exec": {"sh": program.command, "timeout_s": program.timeout_s}}
            host_files = (*cpu_stats, *sampling.HOST_FILES)
            inner, outer = guest.channel.call_sampled(
                op, sampling.GUEST_FILES, host_files, program.timeout_s + _ANSWER_TIMEOUT_S
            )
            if self._policy:
                self._policy.check()
            ended = done(inner)
            if ended.timed_out:
                late = f"{workload} in {vm} did not end in {program.timeout_s} s"
                raise WorkloadTimeout(f"{late}; {guest.last_words()}")
            if ended.rc != 0:
                said = one_line(ended.stderr or ended.stdout)[-300:]
                raise WorkloadError(f"{workload} in {vm} ended with {ended.rc}: {said}")
            return Measurement(
                value=program.figure(ended.stdout + ended.stderr, ended.wall_s),
                wall_s=ended.wall_s,
                window_s=sampling.window_s(outer),
                cpu_s=sampling.cpu_seconds(outer, cpu_stats),
                stats=self._policy.since(stats_before) if self._policy else {},
                guest=sampling.guest_counters(inner),
                host=sampling.host_counters(outer),
            )

    def measure_together(self, turn: Mapping[str, str]) -> dict[str, Measurement]:
        raise PlaceError(f"{self.scenario.path}: vm: several have programs: must be one in the lab of this version")

    def reset(self) -> None:
        """After PlaceCrashed: bring everything up again."""
        self._close()
        self._boot()

    def _boot(self) -> None:
        scenario = self.scenario
        cores = len(os.sched_getaffinity(0))
        if self.pcpus > cores:
            # The emulator itself would then preempt the host's CPUs: what is measured would be this machine.
            raise PlaceError(f"{scenario.name}: host.pcpus = {self.pcpus} is not allowed here: must be at most {cores}")
        _check(scenario)
        configs = [GuestConfig(vm.name, vm.vcpus, vm.memory_mb, vm.weight, vm.tlb, vm.affinity) for vm in scenario.vms]
        try:
            self._cohort = self._cohort or binaries.find("cohort")
            files = {"cohort": self._cohort}
        except PlaceError:
            files = {}  # enough for the kernel's own scheduler; another policy then says what is missing
        lab = bring_up(
            configs,
            pcpus=self.pcpus,
            ple=scenario.guest.ple,
            ple_window_us=scenario.guest.ple_window_us,
            kernel=self._kernel,
            accel=self._accel,
            qemu=self._qemu,
            files=files,
            progress=self._progress,
        )
        self._lab, self._guests = lab.emulator, {guest.config.name: guest for guest in lab.guests}
        with self._crash_if_lost():
            ple = sampling.has_ple(self.emulator.host)
            spin = sampling.ple(self.emulator.host) if ple else {"ple": "off"}
        wanted_us, us = scenario.guest.ple_window_us, spin.get("ple_window_us")
        if wanted_us and us and int(us) < 0.9 * wanted_us - 1:
            raise PlaceError(
                f"{scenario.name}: guest.ple_window_us = {wanted_us} is not possible: must be {us} or less"
            )
        # One emulator for all boots: what is built meanwhile would be measured under the other's name.
        qemu = self._qemu = self.emulator.qemu
        if qemu and qemu.remark:
            self._progress(qemu.remark, None)
        self.description = {
            "place": "lab",
            "kernel": lab.boot.kernel.release,
            "accelerator": lab.boot.accel,
            "emulator": qemu.name if qemu else "unknown",
            **spin,
        }

    def _close(self) -> None:
        if self._lab is not None:
            self._collect_complaints()
            self._lab.close()
        self._lab, self._guests, self._policy = None, {}, None

    def _collect_complaints(self) -> None:
        if self._lab is not None:
            new = [f"host: {line}" for line in self._lab.new_complaints()]
            self.complaints += new
            for line in new:
                self._progress(f"the kernel log says: {line}", None)

    @contextmanager
    def _crash_if_lost(self) -> Iterator[None]:
        """Turn an agent that fails or does not answer into PlaceCrashed."""
        try:
            yield
        except (AgentError, TimeoutError) as error:
            self.emulator.check()  # if the host died, that is the better reason
            raise PlaceCrashed(f"the lab lost a machine: {error}; {self._states()}") from None

    def _states(self) -> str:
        """Return how all guests are, those that have ended first; if the host does not say, how the host is."""
        try:
            # Its agent is gone a moment before its process is.
            dead = [guest for guest in self._guests.values() if guest.job.wait(_DYING_S) is not None]
            guests = [*dead, *(guest for guest in self._guests.values() if guest not in dead)]
            told = [f"{guest.config.name}: {guest.last_words()}" for guest in guests]
            return "; ".join(told)
        except (AgentError, TimeoutError) as error:
            return f"host: {self.emulator.last_words()}; it does not answer: {error}"


def _check(scenario: Scenario) -> None:
    """Raise PlaceError, naming the field, for what the lab cannot do of this scenario."""
    for row, vm in zip(scenario.rows, scenario.vms, strict=True):
        for name in (*vm.programs, *([] if vm.load is None else [vm.load])):
            if scenario.workloads[name].command is None:
                field = "load" if name == vm.load else f"programs[{vm.programs.index(name)}]"
                raise PlaceError(f'{scenario.path}: vm[{row}].{field}: "{name}" has no command: must be simulated')
        for field, value in (
            ("vcpu_affinity", vm.vcpu_affinity),
            ("cap_pcpus", vm.cap_pcpus),
            ("start_s", vm.start_s or None),
            ("run_s", vm.run_s),
        ):
            if value is not None:
                raise PlaceError(f"{scenario.path}: vm[{row}].{field}: is not known to the lab of this version")
