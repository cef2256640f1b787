# SPDX-License-Identifier: GPL-2.0-only
"""What an ideal scheduler would give each VM, and the slowdown that this alone explains.

The definition is in docs/metrics.md. In short: fairness is between VMs, not between threads. A VM is entitled
to its weight's share of the pCPUs it may use, never to more than it can use, and what it leaves goes to the
others by weight. Everything here is in pCPUs: 1.5 is one and a half CPUs' worth of time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cohortlab.scenario import Scenario, Vm

# Shares closer than this to their limit have reached it: far below what can be measured, far above rounding.
EPSILON = 1e-9


@dataclass(frozen=True)
class Claim:
    """What one VM asks of the host.

    Attributes:
        weight: its cgroup ``cpu.weight``.
        demand: pCPUs that it would use if it had the host for itself.
        cpus: the pCPUs that it may use; None for all.
    """

    weight: float
    demand: float
    cpus: frozenset[int] | None = None


def entitlements(claims: Sequence[Claim], pcpus: int, left: float = 1.0) -> list[float]:
    """Return each claim's entitlement in pCPUs: weighted max-min fair sharing within affinity.

    All shares grow together, in proportion to their weights, until a claim has its demand or a set of pCPUs is
    full; those stop, the rest grow on. ``left`` is the part of every pCPU, 0..1, that there is to share.
    """
    everywhere = frozenset(range(pcpus))
    allowed = [everywhere if c.cpus is None else c.cpus & everywhere for c in claims]
    # A set of pCPUs is shared by the claims that may run nowhere else.
    pools = [(left * len(s), [i for i, cpus in enumerate(allowed) if cpus <= s]) for s in _connected_unions(allowed)]
    demand = [min(max(c.demand, 0.0), left * len(cpus)) for c, cpus in zip(claims, allowed, strict=True)]
    share = [0.0] * len(claims)
    growing = {i for i, d in enumerate(demand) if d > 0}
    while growing:
        level = min(demand[i] / claims[i].weight for i in growing)
        for capacity, members in pools:
            weight = sum(claims[i].weight for i in members if i in growing)
            if weight > 0:
                level = min(level, (capacity - sum(share[i] for i in members if i not in growing)) / weight)
        for i in growing:
            share[i] = claims[i].weight * level
        full: set[int] = set()
        for capacity, members in pools:
            if sum(share[i] for i in members) >= capacity - EPSILON:
                full.update(members)
        growing -= {i for i in growing if i in full or share[i] >= demand[i] - EPSILON}
    return share


def _connected_unions(sets: Collection[frozenset[int]]) -> set[frozenset[int]]:
    """Return every union of overlapping sets.

    These are the pCPU sets that can be a bottleneck: a union of sets that do not touch is full only when its parts are.
    """
    unions: set[frozenset[int]] = set()
    fresh = set(sets)
    while fresh:
        unions |= fresh
        fresh = {a | b for a in fresh for b in sets if a & b} - unions
    return unions


def full_demand(vm: Vm, pcpus: int) -> float:
    """Return the demand of a VM whose vCPUs are all busy: that of a hog."""
    return float(min(vm.vcpus, _reachable(vm, pcpus)))


def _reachable(vm: Vm, pcpus: int) -> int:
    """Return how many pCPUs ``vm`` may use."""
    return len(vm.affinity) if vm.affinity is not None else pcpus


def claim(vm: Vm, demand: float) -> Claim:
    """Return what ``vm`` asks of the host when it can use ``demand`` pCPUs."""
    return Claim(vm.weight, demand, frozenset(vm.affinity) if vm.affinity is not None else None)


def due(scenario: Scenario, demand_alone: float, left: float = 1.0) -> dict[str, float]:
    """Return each VM's due share of the host's capacity, 0..1, by name, while a program runs.

    The program uses ``demand_alone`` pCPUs when its VM is alone on the host. Every neighbour runs its load, so each
    can use all its vCPUs. ``left`` is the part of the capacity that the host's own work leaves to the VMs.
    """
    pcpus = scenario.host.pcpus
    demands = {vm.name: full_demand(vm, pcpus) for vm in scenario.neighbours}
    demands[scenario.program_vm.name] = demand_alone
    shares = entitlements([claim(vm, demands[vm.name]) for vm in scenario.vms], pcpus, left)
    return {vm.name: share / pcpus for vm, share in zip(scenario.vms, shares, strict=True)}


def ideal_slowdown(scenario: Scenario, demand_alone: float) -> float:
    """Return max(1, demand alone ÷ entitlement) of a program, with every neighbour's load running."""
    vm, pcpus = scenario.program_vm, scenario.host.pcpus
    # The VMM's threads can carry a measured demand a little over what there is: no more fits alone either.
    demand = min(demand_alone, float(_reachable(vm, pcpus)))
    if demand <= EPSILON:
        return 1.0
    return max(1.0, demand / (due(scenario, demand)[vm.name] * pcpus))
