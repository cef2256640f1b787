# SPDX-License-Identifier: GPL-2.0-only
"""How much CPU time of what VMs ask for fits on a host: a greatest flow from VMs through vCPUs to pCPUs.

pCPUs that the same vCPUs may use are one room, vCPUs of a VM that may use the same pCPUs one group: what is left is
small, however large the host is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

# Far below what can be measured, far above rounding.
EPSILON = 1e-9

# What a VM's vCPUs may use: sets of pCPUs, and how many pCPUs' worth of time its vCPUs with that set can take.
Groups = Mapping[frozenset[int], float]


class Host:
    """Where the vCPUs of some VMs may run."""

    def __init__(self, vms: Sequence[Groups], pcpus: int, each: float) -> None:
        """``each``: the part of every pCPU that there is."""
        kinds = [(vm, cpus) for vm, groups in enumerate(vms) for cpus in groups]
        rooms = Counter(tuple(at for at, (_, cpus) in enumerate(kinds) if cpu in cpus) for cpu in range(pcpus))
        # Nodes: the source, the sink, the VMs, their groups, the rooms.
        self._vm = 2
        group, room = self._vm + len(vms), self._vm + len(vms) + len(kinds)
        self._links: list[dict[int, float]] = [{} for _ in range(room + len(rooms))]
        for at, (vm, cpus) in enumerate(kinds):
            self._link(self._vm + vm, group + at, vms[vm][cpus])
        for at, (members, count) in enumerate(rooms.items()):
            self._link(room + at, 1, each * count)
            for member in members:
                self._link(group + member, room + at, float("inf"))

    def _link(self, a: int, b: int, capacity: float) -> None:
        self._links[a][b] = capacity
        self._links[b].setdefault(a, 0.0)

    def fit(self, wants: Sequence[float]) -> tuple[float, frozenset[int]]:
        """Return how much of ``wants`` fits, in sum, and the VMs that keep each other from more; empty if all fits."""
        left = [dict(links) for links in self._links]
        for vm, want in enumerate(wants):
            left[0][self._vm + vm] = want
            left[self._vm + vm].setdefault(0, 0.0)
        total = 0.0
        while True:
            came = self._way(left)
            if 1 not in came:
                break
            way = [1]
            while way[-1] != 0:
                way.append(came[way[-1]])
            steps = list(zip(way[1:], way, strict=False))
            amount = min(left[a][b] for a, b in steps)
            for a, b in steps:
                left[a][b] -= amount
                left[b][a] = left[b].get(a, 0.0) + amount
            total += amount
        if total >= sum(wants) - EPSILON:
            return total, frozenset()
        return total, frozenset(vm for vm in range(len(wants)) if self._vm + vm in came)

    @staticmethod
    def _way(left: Sequence[Mapping[int, float]]) -> dict[int, int]:
        """Return what can still be reached from the source, and from where."""
        came = {0: 0}
        todo = deque([0])
        while todo:
            node = todo.popleft()
            for other, capacity in left[node].items():
                if capacity > EPSILON / 1000 and other not in came:
                    came[other] = node
                    todo.append(other)
        return came
