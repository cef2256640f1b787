# SPDX-License-Identifier: GPL-2.0-only
"""Where a program's guest spins: the guest kernel's functions in which pause-loop exits catch its vCPUs, as a table.

    build/venv/bin/python bench/probe/spins.py [SCENARIO [PROGRAM [POLICY]]]

SCENARIO: scenarios/up-beside-smp.toml, spins caught after 100 us; PROGRAM: pbzip2; POLICY: cohort. Two minutes. The
tracepoint kvm:kvm_exit knows where the guest was, and the guest's kernel which function that is.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import counted

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.lab.agent import Machine
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KNOWN

DEFAULTS = ("scenarios/up-beside-smp.toml", "pbzip2", "cohort")
WINDOW_US = 100
TRACING = "/sys/kernel/tracing"
EVENT = f"{TRACING}/events/kvm/kvm_exit"
# The lab's host is an AMD one: SVM_EXIT_PAUSE.
HISTOGRAM = "hist:keys=guest_rip:size=4096 if exit_reason==0x77"
SYMBOLS = "/tmp/symbols"
# Linux' own half of the addresses.
KERNEL_FROM = 1 << 63


class Symbols:
    """The functions of a guest's kernel, by address."""

    def __init__(self, guest: Machine) -> None:
        guest.check(f"grep -i ' t ' /proc/kallsyms | cut -d' ' -f1-3 >{SYMBOLS}")
        lines = (line.split() for line in guest.get(SYMBOLS).decode().splitlines())
        self._found = sorted((int(line[0], 16), line[2]) for line in lines if len(line) >= 3)
        self._addresses = [address for address, _ in self._found]

    def at(self, address: int) -> str:
        if address < KERNEL_FROM:
            return "user mode"
        place = bisect.bisect_right(self._addresses, address) - 1
        return f"`{self._found[place][1]}()`" if place >= 0 else "unknown"


def places(histogram: str) -> Counter[int]:
    """Return how often each address was met, of the text of a histogram."""
    found: Counter[int] = Counter()
    for address, count in re.findall(r"guest_rip:\s*(-?\w+)\s*\}\s*hitcount:\s*(\d+)", histogram):
        found[int(address, 0) % (1 << 64)] += int(count)
    return found


def measure(path: str, program: str, policy: str) -> Counter[str]:
    scenario = scenarios.load(Path(path)).with_ple(WINDOW_US)
    where = [vm for vm in scenario.vms if program in vm.programs]
    if not where:
        raise BadInput(f'{path}: "{program}" is not a program of it')
    if policy not in KNOWN:
        raise BadInput(f'policy "{policy}" is not known: must be one of {", ".join(KNOWN)}')
    vm = where[0].name
    with LabPlace(scenario, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        symbols = Symbols(place.guests[vm].machine)
        place.measure(vm, program)  # with its setup
        with place.policy(policy), ExitStack() as loads:
            for other in scenario.vms:
                if other.load is not None:
                    loads.enter_context(place.background(other.name, other.load))
            mount = f"mountpoint -q {TRACING} || mount -t tracefs tracefs {TRACING}"
            place.host.check(f"{mount}; echo '{HISTOGRAM}' >{EVENT}/trigger")
            place.measure(vm, program)
            histogram = place.host.check(f"cat {EVENT}/hist")
    found: Counter[str] = Counter()
    for address, count in places(histogram).items():
        found[symbols.at(address)] += count
    return found


if __name__ == "__main__":
    sys.exit(counted.run(__doc__, DEFAULTS, measure, "pause-loop exits | of all | in"))
