# SPDX-License-Identifier: GPL-2.0-only
"""Where a scenario runs: the contract between ``compare`` and a place.

A *place* (the lab, this host, the simulator) brings a scenario's VMs up, keeps them alive while
policies are switched under them, and measures one program in one VM at a time. ``compare`` knows nothing
else about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

# ``progress(text, fraction)``: what is happening now; fraction of the present step in 0..1 or None if unknown.
ProgressFn = Callable[[str, float | None], None]

# Between what a place said of itself and what it said otherwise after a crash, in a result.
LATER = ", later "


class PlaceError(Exception):
    """The place cannot do what was asked, for a reason the user can act on (one line, with the remedy)."""


class PlaceFailed(PlaceError):
    """The place failed at what it can do: a mirror that does not answer, a full disk. Nothing asked for was wrong."""


class PlaceCrashed(Exception):
    """The host under test died (kernel crash, hang): the round is void and may be retried after ``reset``."""


@dataclass(frozen=True)
class Measurement:
    """One program, run once in one VM.

    Attributes:
        value: the workload's figure, as its metric defines it (seconds, or a rate).
        wall_s: seconds between the program's start and end, read inside the guest.
        window_s: seconds of host time over which ``cpu_s`` was sampled.
        cpu_s: CPU seconds each VM used in that window, by VM name (the whole cgroup: vCPUs and VMM threads).
        stats: counters the policy reported over the window (empty for the kernel's own scheduler).
        guest: counters read in the guest from the program's start to its end, e.g. ``tlb_shootdowns``, ``steal_s``.
        host: counters of the host over the window, e.g. ``idle_s``: CPU seconds that all pCPUs together were idle.
        why: what each VM's vCPUs did meanwhile, by VM name: counters of cohortlab.why; empty where nothing counts them.
    """

    value: float
    wall_s: float
    window_s: float
    cpu_s: dict[str, float]
    stats: dict[str, float] = field(default_factory=dict)
    guest: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    why: dict[str, dict[str, float]] = field(default_factory=dict)


class Place(Protocol):
    """A booted place with all VMs of one scenario running and idle. Used as a context manager."""

    pcpus: int
    description: dict[str, str]  # kernel, accelerator, emulator version, ...: goes into every result

    def policy(self, name: str, args: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Run the VMs under policy ``name`` ("eevdf" is the kernel's own) inside the ``with`` block.

        Raises:
            PlaceError: the policy is unknown here or ended by itself before the block did (the reason is given).
        """

    def background(self, vm: str, workload: str) -> AbstractContextManager[None]:
        """Keep ``workload`` running in ``vm`` for the duration of the block."""

    def measure(self, vm: str, workload: str) -> Measurement:
        """Run ``workload`` once in ``vm`` and return its figure."""

    def measure_together(self, turn: Mapping[str, str]) -> dict[str, Measurement]:
        """Run programs at the same time, by VM; each begins anew until all have ended. Return the first figures."""

    def reset(self) -> None:
        """After PlaceCrashed: bring everything up again."""
