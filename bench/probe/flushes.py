# SPDX-License-Identifier: GPL-2.0-only
"""Where a program's TLB flushes come from: the guest kernel's stacks where it asks other vCPUs to flush, as a table.

    build/venv/bin/python bench/probe/flushes.py [PROGRAM]    a minute; PROGRAM: tlb-flush

One VM of 2 vCPUs, alone on 2 pCPUs. The tracepoint tlb:tlb_flush makes the program slower, so it flushes more often
than without.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import counted

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL

TRACING = "/sys/kernel/tracing"
EVENT = f"{TRACING}/events/tlb/tlb_flush"
# TLB_REMOTE_SEND_IPI of the kernel's enum tlb_flush_reason.
SENT = 4
HISTOGRAM = f"hist:keys=common_stacktrace:size=2048 if reason=={SENT}"
# What the stacks begin with, whoever asks.
COMMON = ("flush_tlb_mm_range", "flush_tlb_multi", "native_flush_tlb_multi", "tlb_finish_mmu", "tlb_flush_mmu")


def reasons(histogram: str) -> Counter[str]:
    """Return how often each reason was met: the functions that asked for the flush, of the text of a histogram."""
    found: Counter[str] = Counter()
    lines = "\n".join(line for line in histogram.splitlines() if not line.startswith("#"))
    for stack, count in re.findall(r"\{ common_stacktrace:\s*(.*?)\}\s*hitcount:\s*(\d+)", lines, re.DOTALL):
        functions = [line.strip().partition("+")[0] for line in stack.splitlines() if line.strip()]
        rest = [name for name in functions if name not in COMMON]
        found[f"`{' < '.join(rest[:3])}`"] += int(count)
    return found


def measure(program: str) -> Counter[str]:
    vm = {"name": "work", "vcpus": 2, "memory_mb": 384, "programs": [program]}
    data = {"name": "flushes", "host": {"pcpus": 2}, "guest": {"tlb": "ipi", "ple": True}, "vm": [vm]}
    of = scenarios.of_data(data, Path("flushes.toml"))
    with LabPlace(of, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        guest = place.guests["work"].machine
        with place.policy(KERNEL):
            place.measure("work", program)  # with its setup
            guest.check(
                f"mountpoint -q {TRACING} || mount -t tracefs tracefs {TRACING}; echo '{HISTOGRAM}' > {EVENT}/trigger"
            )
            place.measure("work", program)
            return reasons(guest.check(f"cat {EVENT}/hist"))


if __name__ == "__main__":
    sys.exit(counted.run(__doc__, ["tlb-flush"], measure, "flushes that were sent | of | from"))
