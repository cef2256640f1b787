# SPDX-License-Identifier: GPL-2.0-only
"""Reads what the lab's machines count: CPU time of cgroups, interrupts and steal time of guests, PLE."""

from __future__ import annotations

from cohortlab.lab.agent import Answer, Machine
from cohortlab.places import PlaceCrashed

GUEST_FILES = ("/proc/interrupts", "/proc/stat")
# Rows of /proc/interrupts (sum over all vCPUs), by the name of the counter they become.
_INTERRUPTS = {"TLB": "tlb_shootdowns", "CAL": "call_ipis", "RES": "resched_ipis"}
# The kernel's USER_HZ, part of its ABI.
_TICKS_PER_S = 100


def usage_s(cpu_stat: str | None) -> float:
    """Return the CPU seconds in a cgroup's cpu.stat."""
    for line in (cpu_stat or "").splitlines():
        key, _, value = line.partition(" ")
        if key == "usage_usec":
            return int(value) / 1e6
    raise PlaceCrashed("a VM's cgroup is gone: the VM ended")


def guest_counters(answer: Answer) -> dict[str, float]:
    """Return what the guest counted between the two samples of ``answer``."""
    if answer.before is None or answer.after is None:
        return {}
    before, after = _counters(answer.before.files), _counters(answer.after.files)
    return {key: value - before[key] for key, value in after.items() if key in before}


def _counters(files: dict[str, str | None]) -> dict[str, float]:
    counters: dict[str, float] = {}
    for line in (files.get("/proc/interrupts") or "").splitlines():
        row, _, rest = line.strip().partition(":")
        if row in _INTERRUPTS:
            counters[_INTERRUPTS[row]] = float(sum(int(word) for word in rest.split() if word.isdecimal()))
    for line in (files.get("/proc/stat") or "").splitlines():
        words = line.split()
        if words and words[0] == "cpu":  # user nice system idle iowait irq softirq steal …
            counters["steal_s"] = int(words[8]) / _TICKS_PER_S
    return counters


def has_ple(host: Machine) -> bool:
    """Return whether KVM in the host exits on PAUSE loops."""
    files = ("kvm_amd/parameters/pause_filter_count", "kvm_intel/parameters/ple_gap")
    values = host.run(f"cd /sys/module && cat {' '.join(files)} 2>/dev/null").stdout.split()
    return any(int(value) for value in values)
