# SPDX-License-Identifier: GPL-2.0-only
"""Reads what the lab's machines count: CPU time of cgroups, interrupts and steal time of guests, PLE."""

from __future__ import annotations

from collections.abc import Callable

from cohortlab.lab.agent import Answer, Machine, Sample
from cohortlab.lab.command import PAYLOAD
from cohortlab.places import PlaceCrashed

GUEST_FILES = ("/proc/interrupts", "/proc/stat")
HOST_FILES = ("/proc/stat",)
# Where the host's init writes how long a PAUSE takes.
PS_PER_PAUSE = f"{PAYLOAD}/ps-per-pause"
# Rows of /proc/interrupts (sum over all vCPUs), by the name of the counter they become.
_INTERRUPTS = {"TLB": "tlb_shootdowns", "CAL": "call_ipis", "RES": "resched_ipis"}
# The columns of /proc/stat; those behind them are parts of these.
_CPU_TIMES = ("user_s", "nice_s", "system_s", "idle_s", "iowait_s", "irq_s", "softirq_s", "steal_s")
# The kernel's USER_HZ, part of its ABI.
_TICKS_PER_S = 100


_LOOK_S = 0.2
# What `kernels_share` wants to be told.
TWO_LOOKS = f"head -n 1 /proc/stat; sleep {_LOOK_S}; head -n 1 /proc/stat"


def kernels_share(two_looks: str) -> float:
    """Return how many CPUs the host's kernel used between two looks at the first line of /proc/stat."""
    before, after = (_cpu_times({"/proc/stat": line}, _CPU_TIMES) for line in two_looks.splitlines())
    return sum(after[name] - before[name] for name in ("system_s", "irq_s", "softirq_s")) / _LOOK_S


def usage_s(cpu_stat: str | None) -> float:
    """Return the CPU seconds in a cgroup's cpu.stat."""
    for line in (cpu_stat or "").splitlines():
        key, _, value = line.partition(" ")
        if key == "usage_usec":
            return int(value) / 1e6
    raise PlaceCrashed("a VM's cgroup is gone: the VM ended")


def window_s(answer: Answer) -> float:
    """Return the time between the two samples."""
    before, after = _both(answer)
    return (after.time_ns - before.time_ns) / 1e9


def cpu_seconds(answer: Answer, cpu_stats: dict[str, str]) -> dict[str, float]:
    """Return what each VM used between the two samples; ``cpu_stats`` names the VM that a cpu.stat file belongs to."""
    before, after = _both(answer)
    return {name: usage_s(after.files[path]) - usage_s(before.files[path]) for path, name in cpu_stats.items()}


def guest_counters(answer: Answer) -> dict[str, float]:
    """Return what the guest counted between the two samples."""
    return _growth(answer, lambda files: _interrupts(files) | _cpu_times(files, ("steal_s",)))


def host_counters(answer: Answer, cpus: range | None = None) -> dict[str, float]:
    """Return how the host's CPUs, or ``cpus``, spent the time between the two samples: CPU seconds of all together."""
    rows = ("cpu",) if cpus is None else tuple(f"cpu{number}" for number in cpus)
    counted = _growth(answer, lambda files: _cpu_times(files, _CPU_TIMES, rows))
    counted["idle_s"] = counted.pop("idle_s", 0.0) + counted.pop("iowait_s", 0.0)
    return counted


def _both(answer: Answer) -> tuple[Sample, Sample]:
    assert answer.before is not None, "the call asked for samples"
    assert answer.after is not None, "the call asked for samples"
    return answer.before, answer.after


def _growth(answer: Answer, read: Callable[[dict[str, str | None]], dict[str, float]]) -> dict[str, float]:
    before, after = (read(sample.files) for sample in _both(answer))
    return {key: value - before[key] for key, value in after.items() if key in before}


def _interrupts(files: dict[str, str | None]) -> dict[str, float]:
    counters: dict[str, float] = {}
    for line in (files.get("/proc/interrupts") or "").splitlines():
        row, _, rest = line.strip().partition(":")
        if row in _INTERRUPTS:
            counters[_INTERRUPTS[row]] = float(sum(int(word) for word in rest.split() if word.isdecimal()))
    return counters


def _cpu_times(
    files: dict[str, str | None], wanted: tuple[str, ...], rows: tuple[str, ...] = ("cpu",)
) -> dict[str, float]:
    """Return the sum of these rows of /proc/stat: "cpu" is all CPUs' together."""
    times: dict[str, float] = {}
    for line in (files.get("/proc/stat") or "").splitlines():
        words = line.split()
        if words and words[0] in rows:
            for name, ticks in zip(_CPU_TIMES, words[1:], strict=False):
                if name in wanted:
                    times[name] = times.get(name, 0.0) + int(ticks) / _TICKS_PER_S
    return times


def has_ple(host: Machine) -> bool:
    """Return whether KVM in the host exits on PAUSE loops."""
    # Without a threshold KVM of AMD does without the filter, too (svm_vm_init()).
    amd, intel = ("kvm_amd", "pause_filter_count", "pause_filter_thresh"), ("kvm_intel", "ple_gap")
    for module, *knobs in (amd, intel):
        files = " ".join(f"/sys/module/{module}/parameters/{knob}" for knob in knobs)
        values = host.run(f"cat {files} 2>/dev/null").stdout.split()
        if len(values) == len(knobs):
            return all(int(value) for value in values)
    return False


def pause_filter(host: Machine) -> tuple[int, int]:
    """Return how many PAUSEs the host's KVM lets pass, and how many ps one takes; zeros if that was not timed."""
    values = host.run(
        f"cat /sys/module/kvm_amd/parameters/pause_filter_count {PS_PER_PAUSE} 2>/dev/null"
    ).stdout.split()
    return (int(values[0]), int(values[1])) if len(values) == 2 else (0, 0)


def ple(host: Machine) -> dict[str, str]:
    """Return when the host's KVM, which has PLE, catches a guest that spins: in words, and in us if that is known."""
    count, ps = pause_filter(host)
    if not ps:
        return {"ple": "on"}
    us = f"{count * ps / 1e6:.0f}"
    return {"ple": f"after {us} us ({count} PAUSEs of {ps / 1000:.0f} ns)", "ple_window_us": us}
