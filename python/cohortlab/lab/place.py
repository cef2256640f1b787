# SPDX-License-Identifier: GPL-2.0-only
"""The lab as a place where a scenario runs (see cohortlab.places)."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from cohortlab.lab import binaries, programs, sampling
from cohortlab.lab.agent import Machine
from cohortlab.lab.binaries import Build
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.command import PAYLOAD
from cohortlab.lab.emulator import Emulator
from cohortlab.lab.qemu import Qemu
from cohortlab.lab.real import RealPlace
from cohortlab.lab.state import State
from cohortlab.lab.turn import Turn
from cohortlab.places import PlaceCrashed, PlaceError, ProgressFn
from cohortlab.scenario import Scenario


class LabPlace(RealPlace):
    """All VMs of one scenario, running and idle, on a stock kernel in an emulator."""

    name = "lab"
    folder_there = PAYLOAD

    def __init__(
        self,
        scenario: Scenario,
        *,
        kernel: str | None = None,
        accel: str = "auto",
        cohort: Path | None = None,
        probe: bool = True,
        progress: ProgressFn = lambda text, fraction: None,
    ) -> None:
        """``kernel``: a file or the start of a release; ``cohort``: another binary than the one that is built.

        ``probe``: count what vCPUs' time goes to.
        """
        super().__init__(scenario, probe=probe, progress=progress)
        self._kernel = kernel
        self._accel = accel
        self._cohort = cohort
        # The one of all boots, as the emulator is.
        self._built: Build | None = None
        self._lab: Emulator | None = None
        self._state: State | None = None
        self._qemu: Qemu | None = None
        self._turn = Turn()

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException as error:
            if isinstance(error, PlaceCrashed):
                self._forget_state()
            self._turn.end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._turn.end()

    @property
    def emulator(self) -> Emulator:
        """The first level, for tests that do more than measure."""
        if self._lab is None:
            raise RuntimeError("the lab is not up: use LabPlace in a `with` statement")
        return self._lab

    @property
    def host(self) -> Machine:
        return self.emulator.host

    def _boot(self) -> None:
        scenario = self.scenario
        cores = len(os.sched_getaffinity(0))
        if self.pcpus > cores:
            # The emulator itself would then preempt the host's CPUs: what is measured would be this machine.
            raise PlaceError(f"{scenario.name}: host.pcpus = {self.pcpus} is not allowed here: must be at most {cores}")
        self._check_scenario()
        try:
            files = {"cohort": self._build().content}
        except PlaceError:
            files = {}  # enough for the kernel's own scheduler; another policy then says what is missing
        lab = bring_up(
            self._configs,
            pcpus=self.pcpus,
            ple=scenario.guest.ple,
            ple_window_us=scenario.guest.ple_window_us,
            kernel=self._kernel,
            guest_kernel=scenario.guest.kernel,
            accel=self._accel,
            qemu=self._qemu,
            files=files,
            packages=programs.packages(scenario),
            root_files=programs.files(scenario),
            turn=self._turn,
            progress=self._progress,
        )
        self._lab, self._state = lab.emulator, lab.state
        self._guests_are_up(lab.guests)
        with self._crash_if_lost():
            ple = sampling.has_ple(self.emulator.host)
            spin = sampling.ple(self.emulator.host) if ple else {"ple": "off"}
        # One emulator for all boots: what is built meanwhile would be measured under the other's name.
        qemu = self._qemu = self.emulator.qemu
        self._accel = lab.boot.accel
        if qemu and qemu.remark:
            self._progress(qemu.remark, None)
        self.description = {
            "place": "lab",
            "kernel": lab.boot.kernel.release,
            **({"guests' kernel": lab.boot.guest_kernel.release} if lab.boot.guest_kernel else {}),
            "accelerator": lab.boot.accel,
            "emulator": qemu.name if qemu else "unknown",
            **({"timers": self._timers()} if lab.boot.accel == "tcg" else {}),
            "started": "from a saved state" if lab.restored else "by a boot",
            **spin,
            "probe": self._start_probe(),
        }

    def _timers(self) -> str:
        return "wait for a CPU (no right to real-time)" if self.emulator.timers_wait else "on time"

    def reset(self) -> None:
        self._forget_state()
        super().reset()

    def _forget_state(self) -> None:
        """Have the next lab boot: whatever is wrong with this one may be in the state that it came from."""
        if self._state is not None:
            self._state.remove()

    def _close(self) -> None:
        try:
            if self._lab is not None:
                self._collect_complaints(last=True)
        finally:
            # Also if nobody is there to be told of complaints: its emulator and its files would stay.
            lab, self._lab = self._lab, None
            self._guests, self._policy, self._probe = {}, None, None
            if lab is not None:
                lab.close()

    def _check(self) -> None:
        self.emulator.check()

    def _last_words(self) -> str:
        return self.emulator.last_words()

    def _new_complaints(self, *, last: bool = False) -> list[str]:
        return self._lab.new_complaints(last=last) if self._lab is not None else []

    def _needs_cohort(self) -> None:
        self._build()

    def _build(self) -> Build:
        if self._built is None:
            self._built = binaries.build(self._cohort or binaries.find("cohort"))
        return self._built

    def _there(self, build: Build) -> str:
        there = f"{PAYLOAD}/bin/cohort-{build.sha256[:12]}"
        # After each boot, and not with it: one saved state does for all of them, and has none.
        if self.host.run(f"test -x {there}").rc != 0:
            self.host.put(there, build.content)
        return there
