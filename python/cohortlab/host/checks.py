# SPDX-License-Identifier: GPL-2.0-only
"""Whether guests can be measured on this host: what is missing is said with the remedy, before anything starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cohortlab import kvm, memory
from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.policies import KERNEL, Policy
from cohortlab.scenario import Scenario

QEMU = "qemu-system-x86_64"
CGROUPS = Path("/sys/fs/cgroup")
SCHED_EXT = Path("/sys/kernel/sched_ext")
# What QEMU needs beside its guest's memory.
_PER_GUEST_MB = 128


def can_measure(scenario: Scenario) -> str:
    """Return the path of QEMU on a host that can run the scenario's guests.

    Raises:
        PlaceError: it cannot, for this reason.
    """
    if os.geteuid() != 0:
        raise PlaceError("--on host changes who schedules this host, and makes cgroups: run as root")
    found = kvm.probe()
    if not found.usable:
        remedy = "enable virtualization in the firmware and load kvm_intel or kvm_amd; --on lab needs none"
        raise PlaceError(f"--on host needs KVM: {found.reason}: {remedy}")
    qemu = shutil.which(QEMU)
    if qemu is None:
        raise PlaceError(f"--on host needs {QEMU}, which is not in PATH: install the package qemu-system-x86")
    _cgroups()
    _cpus(scenario)
    _memory(scenario)
    _scheduler()
    return qemu


def policies(wanted: Sequence[Policy]) -> str:
    """Return what cannot be compared on this host, and why; nothing if all can.

    Raises:
        BadInput: nothing can.
    """
    if (SCHED_EXT / "state").exists() or all(policy.name == KERNEL for policy in wanted):
        return ""
    left = [policy.label for policy in wanted if policy.name == KERNEL]
    out = ", ".join(policy.label for policy in wanted if policy.name != KERNEL)
    why = f"this host's kernel ({os.uname().release}) has no sched_ext"
    if not left:
        remedy = f"must be of {KERNEL}, with settings by --policy-args; --on lab has a kernel with it"
        raise BadInput(f"--policies: {out}: {why}: {remedy}")
    return f"{why}: without {out}, only {', '.join(left)} can be compared"


def _cgroups() -> None:
    try:
        controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    except OSError:
        remedy = "boot with systemd.unified_cgroup_hierarchy=1"
        raise PlaceError(f"--on host needs cgroup v2, which is not mounted at {CGROUPS}: {remedy}") from None
    if "cpu" not in controllers:
        remedy = "boot without cgroup_disable=cpu, and mount no cgroup v1 that has it"
        raise PlaceError(f"--on host needs the cpu controller of cgroup v2, which this host has not: {remedy}")


def _cpus(scenario: Scenario) -> None:
    mine = os.sched_getaffinity(0)
    missing = set(range(scenario.host.pcpus)) - mine
    if missing:
        first = min(missing)
        allowed = f"at most {first}" if first else "run where CPU 0 may be used"
        which = f"{scenario.path}: host.pcpus = {scenario.host.pcpus}"
        raise PlaceError(f"{which} is not possible here: CPU {first} is missing or not allowed: must be {allowed}")


def _memory(scenario: Scenario) -> None:
    needed_mb = sum(vm.memory_mb + _PER_GUEST_MB for vm in scenario.vms)
    left_mb = memory.left_mb()
    if 0 < left_mb < needed_mb:
        what = f"{scenario.path}: the guests need {needed_mb} MB of memory"
        raise PlaceError(f"{what}, this host has {left_mb} MB left: give the VMs less memory_mb")


def _scheduler() -> None:
    """Nobody else's scheduler may be loaded: it would be measured under the kernel's own name."""
    state = _read(SCHED_EXT / "state")
    if state not in ("", "disabled"):
        name = _read(SCHED_EXT / "root/ops") or state
        remedy = "stop it first (systemctl stop cohort, if it is that)"
        raise PlaceError(f"a sched_ext scheduler ({name}) is loaded on this host: {remedy}")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
