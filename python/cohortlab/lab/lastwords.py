# SPDX-License-Identifier: GPL-2.0-only
"""What is told of a machine that was lost: how far it got, what its QEMU did, the last of what both printed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# The machine is lost when its kernel printed one of these.
DEATH = re.compile(
    r"Oops: |Oops\[|Kernel panic|BUG: unable to handle|kernel BUG at|general protection fault|Unable to mount"
    r"|CPUS still haven't responded to the NMI"
)
# From the line that tells of death on; without one, the last.
_LINES_AFTER_DEATH = 12
_LINES = 5
# What lab/init and the agent print as they get on, and what a machine does then; latest first.
_PHASES = (
    ("cohort-lab-agent: waits for requests", "its agent had started"),
    ("lab init: the root is mounted", "its agent was starting"),
    ("lab init: the kernel is up", "its init was at work"),
)
_KERNEL = "its kernel was booting"
_NOTHING = "it had printed nothing: its firmware was at work, or the kernel's very first steps"


@dataclass(frozen=True)
class Vmm:
    """What is known of a machine's QEMU.

    Attributes:
        code: what it ended with, minus the signal that ended it; None while it runs.
        cpu_s: CPU time that it has used, if known.
        printed: what it printed itself, if anything.
    """

    code: int | None
    cpu_s: float | None
    printed: str = ""


def of(vmm: Vmm, console: str) -> str:
    """Return one line: the state of the machine with this QEMU and this console, and its last words."""
    lines = _not_empty(console)
    parts = [_process(vmm), _phase(console) if lines else _NOTHING]
    if lines:
        first = next((i for i, line in enumerate(lines) if DEATH.search(line)), max(0, len(lines) - _LINES))
        parts.append(f"console: {' | '.join(lines[first : first + _LINES_AFTER_DEATH])}")
    if printed := _not_empty(vmm.printed)[-_LINES:]:
        parts.append(f"its QEMU printed: {' | '.join(printed)}")
    return "; ".join(parts)


def _not_empty(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _process(vmm: Vmm) -> str:
    used = "" if vmm.cpu_s is None else f"used {vmm.cpu_s:.1f} s of CPU time"
    if vmm.code is None:
        return f"its QEMU runs{f' and has {used}' if used else ''}"
    how = f"was killed by signal {-vmm.code}" if vmm.code < 0 else f"ended with {vmm.code}"
    return f"its QEMU {how}{f', having {used}' if used else ''}"


def _phase(console: str) -> str:
    return next((phase for mark, phase in _PHASES if mark in console), _KERNEL)


def cpu_s(process: int) -> float | None:
    """Return the CPU time that a process of this machine has used; None if it is gone."""
    try:
        # The name in parentheses may hold spaces; utime and stime are the 14th and 15th field of all.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
