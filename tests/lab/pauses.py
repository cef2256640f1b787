# SPDX-License-Identifier: GPL-2.0-only
"""A guest that executes PAUSEs, and the VM exits that its host's kernel counts meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cohortlab.lab.agent import Machine
    from cohortlab.lab.place import LabPlace

KVM_EXIT = "/sys/kernel/tracing/events/kvm/kvm_exit"
# SVM's and VMX's numbers of the exit that PAUSE causes.
PAUSE_EXITS = (0x77, 40)


def exits_of(place: LabPlace, pauses: int, folder: Path) -> tuple[int, dict[int, int]]:
    """Let "work" execute so many PAUSEs; return how often a PAUSE exited meanwhile, and how often each reason did."""
    guest, host = place.guests["work"].machine, place.emulator.host
    guest.put("/tmp/spin", _spinner(folder, pauses))
    host.check(f"echo 'hist:keys=exit_reason' >{KVM_EXIT}/trigger")
    try:
        guest.check("/tmp/spin")
        counted = _exits(host)
    finally:
        host.check(f"echo '!hist:keys=exit_reason' >{KVM_EXIT}/trigger")
    return sum(counted.get(reason, 0) for reason in PAUSE_EXITS), counted


def _exits(host: Machine) -> dict[int, int]:
    """Return how often each exit reason was counted."""
    counts: dict[int, int] = {}
    for line in host.read(f"{KVM_EXIT}/hist").splitlines():
        if line.startswith("{"):
            words = line.replace(":", " ").replace("}", " ").split()
            counts[int(words[2])] = int(words[4])
    return counts


def _spinner(folder: Path, pauses: int) -> bytes:
    """Return a program that executes so many PAUSEs."""
    source, program = folder / "spin.c", folder / "spin"
    source.write_text(f"int main(void) {{ for (long i = 0; i < {pauses}; i++) __builtin_ia32_pause(); return 0; }}\n")
    subprocess.run(["gcc", "-O2", "-static", "-o", program, source], check=True)
    return program.read_bytes()
