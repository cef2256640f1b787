# SPDX-License-Identifier: GPL-2.0-only
"""What a recording's events say by the definitions of docs/metrics.md, counted without the probe and the importer."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]
# VM and vCPU.
Who = tuple[int, int]
# Between two looks at the run queues, and between two exits of one spin at most.
LOOK_NS = 9_973_000
CHAIN_GAP_NS = 1_000_000
_RUNS, _WAITS, _SLEEPS = "runs", "waits", "sleeps"
_AFTER = {"run": _RUNS, "preempted": _WAITS, "woken": _WAITS, "moved": _WAITS}
_AFTER |= {"halted": _SLEEPS, "blocked": _SLEEPS, "gone": _SLEEPS}


class Recount:
    """Figures of each VM, by its number in the recording.

    Attributes:
        totals: sums over the VM's vCPUs, by the names of the probe's counters.
        skew_ns: by how much siblings' ready times differ in the end.
        chain_max: most pause-loop exits in one spin.
        distances: looks at a VM of which a vCPU ran and a sibling ran or waited; those in which a sibling was far.
    """

    def __init__(self, events: Iterable[Event], length_ns: int) -> None:
        self.totals: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.skew_ns: dict[int, int] = {}
        self.chain_max: dict[int, int] = defaultdict(int)
        self.distances: dict[int, tuple[int, int]] = {}
        # By time: pCPUs do not write in one order.
        self._events = sorted((e for e in events if e["vm"] < 1 << 31), key=lambda event: int(event["time_ns"]))
        self._length_ns = length_ns
        self._count()
        self._look()

    def _count(self) -> None:
        doing: dict[Who, tuple[str, int]] = defaultdict(lambda: (_SLEEPS, 0))
        ready: dict[Who, int] = defaultdict(int)
        ran: dict[Who, int] = defaultdict(int)
        # Exits of the spin that goes on, and the run time at the last of them.
        chains: dict[Who, tuple[int, int]] = {}
        preempted: dict[Who, list[int]] = {}
        slots: dict[int, Who] = {}
        before_ns = 0
        for event in [*self._events, {"time_ns": self._length_ns, "kind": "end", "vm": -1, "vcpu": -1}]:
            now_ns, kind, who = int(event["time_ns"]), event["kind"], (event["vm"], event["vcpu"])
            for (vm, vcpu), (state, _) in doing.items():
                if state == _RUNS:
                    self.totals[vm]["run_ns"] += now_ns - before_ns
                    ran[vm, vcpu] += now_ns - before_ns
                if state == _WAITS:
                    self.totals[vm]["ready_ns"] += now_ns - before_ns
                    ready[vm, vcpu] += now_ns - before_ns
                    if any(other == _RUNS for (of, _), (other, _) in doing.items() if of == vm):
                        self.totals[vm]["costop_ns"] += now_ns - before_ns
            before_ns = now_ns
            totals = self.totals[who[0]]
            if kind == "ple":
                exits, at_ns = chains.get(who, (0, 0))
                exits = 1 if ran[who] - at_ns > CHAIN_GAP_NS else exits + 1
                totals["ple"] += 1
                totals["ple_chains"] += exits == 1
                chains[who] = (exits, ran[who])
                self.chain_max[who[0]] = max(exits, self.chain_max[who[0]])
            elif kind == "yield":
                totals["yields_asked"] += 1
                totals["yields_granted"] += event["a"]
            elif kind == "ipi":
                totals["ipis_sent"] += 1
                if event["b"] in slots and slots[event["b"]] in preempted:
                    preempted[slots[event["b"]]].append(now_ns)
            if kind not in _AFTER:
                continue
            slots[event["slot"]] = who
            doing[who] = (_AFTER[kind], event["cpu"])
            if kind == "run":
                totals["preemptions_kernel"] += event["a"]
                sent = preempted.pop(who, [])
                totals["ipis_preempted"] += len(sent)
                totals["ipi_wait_ns"] += sum(now_ns - at_ns for at_ns in sent)
            elif kind == "preempted":
                preempted[who] = []
            elif kind == "halted":
                chains.pop(who, None)
        for vm in {vm for vm, _ in doing}:
            waits = [ready[who] for who in doing if who[0] == vm]
            self.skew_ns[vm] = max(waits) - min(waits)

    def _look(self) -> None:
        """Look at all VMs a hundred times a second, knowing what came after."""
        # Positions of turns in the order of events, by pCPU and by vCPU.
        begun: dict[int, list[int]] = defaultdict(list)
        turns: dict[Who, list[int]] = defaultdict(list)
        for at, event in enumerate(self._events):
            if event["kind"] == "run":
                begun[event["cpu"]].append(at)
                turns[event["vm"], event["vcpu"]].append(at)
        found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        doing: dict[Who, tuple[str, int]] = {}
        look_ns = LOOK_NS
        for at, event in enumerate(self._events):
            while look_ns < event["time_ns"]:
                self._look_once(doing, at, begun, turns, found)
                look_ns += LOOK_NS
            if event["kind"] in _AFTER:
                doing[event["vm"], event["vcpu"]] = (_AFTER[event["kind"]], event["cpu"])
        self.distances = {vm: (cases, far) for vm, (cases, far) in found.items()}

    def _look_once(
        self,
        doing: dict[Who, tuple[str, int]],
        at: int,
        begun: dict[int, list[int]],
        turns: dict[Who, list[int]],
        found: dict[int, list[int]],
    ) -> None:
        lengths: dict[int, int] = defaultdict(int)
        for state, cpu in doing.values():
            lengths[cpu] += state != _SLEEPS
        for vm in {vm for vm, _ in doing}:
            states = {who: where for who, where in doing.items() if who[0] == vm}
            waiting = {who: cpu for who, (state, cpu) in states.items() if state == _WAITS}
            running = sum(state == _RUNS for state, _ in states.values())
            if not running or running + len(waiting) < 2:
                continue
            far, known = False, True
            for who, cpu in waiting.items():
                turn = bisect_right(turns[who], at - 1)
                if turn == len(turns[who]):
                    known = False
                    continue
                own = turns[who][turn]
                there = self._events[own]["cpu"]
                ordinate = 1 + bisect_right(begun[there], own - 1) - bisect_right(begun[there], at - 1)
                length = lengths[there] + (there != cpu)
                far |= ordinate > 1 and 3 * ordinate > 2 * length
            if known or far:
                found[vm][0] += 1
                found[vm][1] += far
