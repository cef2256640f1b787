# SPDX-License-Identifier: GPL-2.0-only
"""This host as a place where a scenario runs (see cohortlab.places)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

from cohortlab.host import checks
from cohortlab.host.agent import LocalAgent
from cohortlab.lab import binaries, guest, image, kernels, programs, sampling, vmlinux
from cohortlab.lab.agent import AgentError, Machine
from cohortlab.lab.binaries import Build
from cohortlab.lab.bringup import GUEST_KERNEL, wait_for
from cohortlab.lab.emulator import COMPLAINT
from cohortlab.lab.guest import GuestConfig, Site
from cohortlab.lab.patience import OwnTime
from cohortlab.lab.real import RealPlace
from cohortlab.places import PlaceCrashed, PlaceError, ProgressFn
from cohortlab.scenario import Scenario


class HostPlace(RealPlace):
    """All VMs of one scenario, running and idle, on this host."""

    name = "host"

    def __init__(self, scenario: Scenario, *, probe: bool = True, progress: ProgressFn = lambda text, _: None) -> None:
        """``probe``: count what vCPUs' time goes to."""
        super().__init__(scenario, probe=probe, progress=progress)
        self._agent: LocalAgent | None = None
        # The kernel log's last line that was looked at.
        self._logged = ""
        # Not those that this process may use: the guests are in a cgroup of their own.
        if (os.cpu_count() or 1) > self.pcpus:
            self._pcpus_used = range(self.pcpus)

    @property
    def host(self) -> Machine:
        if self._agent is None:
            raise RuntimeError("the guests are not up: use HostPlace in a `with` statement")
        return self._agent.machine

    @property
    def folder_there(self) -> str:  # type: ignore[override]  # known only when it is up
        return str(self._agent.folder) if self._agent else ""

    @property
    def _configs(self) -> list[GuestConfig]:
        """The guests, on as many of this host's CPUs as the scenario has."""
        configs = super()._configs
        if self._pcpus_used is None:
            return configs
        everywhere = tuple(self._pcpus_used)
        return [dataclasses.replace(config, affinity=config.affinity or everywhere) for config in configs]

    def _boot(self) -> None:
        scenario = self.scenario
        qemu = checks.can_measure(scenario)
        self._check_scenario()
        agent = binaries.find("cohort-lab-agent")
        try:
            self.cohort_there = str(binaries.find("cohort"))
        except PlaceError:
            self.cohort_there = ""  # enough for the kernel's own scheduler; another policy then says what is missing
        self._progress("the lab's image (built once)", None)
        disk = image.image(programs.packages(scenario), programs.files(scenario))
        self._progress("the guests' kernel (fetched once)", None)
        kernel = kernels.kernel(scenario.guest.kernel, GUEST_KERNEL)
        self._agent = LocalAgent(agent)
        with self._crash_if_lost():
            spin = self._ple()
            self._new_complaints()
            site = self._site(qemu, disk, kernel, agent)
            self._progress(f"booting {len(scenario.vms)} guests", None)
            guests = [guest.start(self.host, config, site=site) for config in self._configs]
            self._guests = {one.config.name: one for one in guests}
            wait_for(guests, lambda: OwnTime(None), f"this host, {self.pcpus} pCPUs")
        self._guests_are_up(guests)
        self.description = {
            "place": "host",
            "kernel": os.uname().release,
            "guests' kernel": kernel.release,
            "accelerator": "kvm",
            "emulator": _version(qemu),
            "CPUs": f"{self.pcpus} of {os.cpu_count()}",
            **spin,
            "probe": self._start_probe(),
        }
        self._progress("the guests are up", 1.0)

    def _site(self, qemu: str, disk: image.Image, kernel: kernels.Kernel, agent: Path) -> Site:
        assert self._agent is not None, "the agent runs"
        folder = self._agent.folder
        initrd = folder / "initrd"
        initrd.write_bytes(kernels.guest_initramfs(kernel, disk, agent))
        bootable = vmlinux.bootable(kernel.vmlinuz).file
        return Site(str(folder), str(self._agent.slice), str(bootable), str(initrd), str(disk.disk), (qemu,))

    def _ple(self) -> dict[str, str]:
        """Return how this host's KVM catches who spins. It cannot be changed here: it must be as the scenario says."""
        wanted = self.scenario.guest
        has = sampling.has_ple(self.host)
        if has != wanted.ple:
            how = "catches" if has else "does not catch"
            remedy = "load kvm_intel with ple_gap=0 or kvm_amd with pause_filter_count=0" if has else "--ple off"
            which = f"{self.scenario.path}: guest.ple = {str(wanted.ple).lower()}"
            raise PlaceError(f"{which} is not possible: KVM of this host {how} a guest that spins: {remedy}")
        if wanted.ple_window_us:
            which = f"{self.scenario.path}: guest.ple_window_us = {wanted.ple_window_us}"
            raise PlaceError(f"{which} is not possible on this host, whose KVM has a window of its own: leave it out")
        return sampling.ple(self.host) if has else {"ple": "off"}

    def _close(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent, self._guests, self._policy, self._probe = None, {}, None, None

    def _check(self) -> None:
        if self._agent is not None:
            self._agent.check()

    def _last_words(self) -> str:
        return self._agent.last_words() if self._agent else "nothing is up"

    def _new_complaints(self, *, last: bool = False) -> list[str]:
        try:
            lines = self.host.run("dmesg").stdout.splitlines()
        except (AgentError, TimeoutError, PlaceCrashed):
            return []
        # Their number would not do: a log that is full loses a line for each that comes. Lines have time stamps.
        seen = len(lines) - lines[::-1].index(self._logged) if self._logged in lines else 0
        new = lines[seen:]
        self._logged = lines[-1] if lines else self._logged
        return [line for line in new if COMPLAINT.search(line)]

    def _needs_cohort(self) -> None:
        # It is run where it is, and results say which one that was.
        self.cohort_there = str(binaries.build(binaries.find("cohort")).unchanged())

    def _there(self, build: Build) -> str:
        return str(build.unchanged())


def _version(qemu: str) -> str:
    said = subprocess.run([qemu, "--version"], capture_output=True, text=True, check=False).stdout
    return f"QEMU {said.split('version ', 1)[-1].split()[0]}" if "version " in said else "QEMU of unknown version"
