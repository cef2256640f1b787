# SPDX-License-Identifier: GPL-2.0-only
"""The lab as a place where a scenario runs (see cohortlab.places)."""

from __future__ import annotations

import os
from pathlib import Path

from cohortlab.lab import binaries, programs, sampling
from cohortlab.lab.agent import Machine
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.command import PAYLOAD
from cohortlab.lab.emulator import Emulator
from cohortlab.lab.qemu import Qemu
from cohortlab.lab.real import RealPlace
from cohortlab.lab.state import State
from cohortlab.places import PlaceError, ProgressFn
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
        self._lab: Emulator | None = None
        self._state: State | None = None
        self._qemu: Qemu | None = None

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
            self._cohort = self._cohort or binaries.find("cohort")
            files = {"cohort": self._cohort}
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
        if self._state is not None:
            self._state.remove()  # whatever is wrong may be in it
        super().reset()

    def _close(self) -> None:
        if self._lab is not None:
            self._collect_complaints()
            self._lab.close()
        self._lab, self._guests, self._policy, self._probe = None, {}, None, None

    def _check(self) -> None:
        self.emulator.check()

    def _last_words(self) -> str:
        return self.emulator.last_words()

    def _new_complaints(self) -> list[str]:
        return self._lab.new_complaints() if self._lab is not None else []

    def _needs_cohort(self) -> None:
        self._cohort = self._cohort or binaries.find("cohort")
