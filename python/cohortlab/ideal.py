# SPDX-License-Identifier: GPL-2.0-only
"""What an ideal scheduler would give each VM, and the slowdown that this alone explains.

The definition is in docs/metrics.md. In short: fairness is between VMs, not between threads. A VM is entitled
to its weight's share of the pCPUs it may use, never to more than it can use, and what it leaves goes to the
others by weight. Everything here is in pCPUs: 1.5 is one and a half CPUs' worth of time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cohortlab.flow import EPSILON, Host
from cohortlab.scenario import Scenario, Vm


@dataclass(frozen=True)
class Claim:
    """What one VM asks of the host.

    Attributes:
        weight: its cgroup ``cpu.weight``.
        demand: pCPUs that it would use if it had the host for itself.
        cpus: the pCPUs that it may use; None for all.
        vcpus: those that each of its vCPUs may use, where they differ.
    """

    weight: float
    demand: float
    cpus: frozenset[int] | None = None
    vcpus: tuple[frozenset[int], ...] = ()

    def groups(self, pcpus: int) -> dict[frozenset[int], float]:
        """Return the sets of pCPUs that its vCPUs may use, and how much time they can take there."""
        everywhere = frozenset(range(pcpus))
        if self.vcpus:
            return {cpus: float(count) for cpus, count in Counter(cpus & everywhere for cpus in self.vcpus).items()}
        # How many vCPUs there are is in the demand.
        return {everywhere if self.cpus is None else self.cpus & everywhere: float(pcpus)}


def entitlements(claims: Sequence[Claim], pcpus: int, left: float = 1.0) -> list[float]:
    """Return each claim's entitlement in pCPUs: weighted max-min fair sharing within affinity.

    All shares grow together, in proportion to their weights, until a claim has its demand or some claims have all
    that there is for them; those stop, the rest grow on. ``left`` is the part of every pCPU, 0..1, that there is.
    """
    host = Host([claim.groups(pcpus) for claim in claims], pcpus, left)
    demand = [max(claim.demand, 0.0) for claim in claims]
    share = [0.0] * len(claims)
    growing = {i for i, wanted in enumerate(demand) if wanted > 0}
    while growing:
        level = min(demand[i] / claims[i].weight for i in growing)
        stopped = {i for i in growing if demand[i] / claims[i].weight <= level * (1 + EPSILON)}
        while True:
            wants = [claims[i].weight * level if i in growing else share[i] for i in range(len(claims))]
            fits, tight = host.fit(wants)
            if not tight & growing:
                break
            # These together have no more than what fits, less what the others have; the level at which they want that.
            theirs = fits - sum(wants[i] for i in range(len(claims)) if i not in tight)
            theirs -= sum(share[i] for i in tight - growing)
            stopped = set(tight & growing)
            lower = max(theirs, 0.0) / sum(claims[i].weight for i in stopped)
            if lower >= level:
                break  # by rounding alone
            level = lower
        for i in growing:
            share[i] = claims[i].weight * level
        growing -= stopped
    return share


def full_demand(vm: Vm, pcpus: int) -> float:
    """Return the demand of a VM whose vCPUs are all busy: that of a hog."""
    return _most(vm, float(vm.vcpus), pcpus)


def _most(vm: Vm, demand: float, pcpus: int) -> float:
    """Return how much of ``demand`` a VM can have of a host of its own, with its affinity and its cap."""
    demand = min(demand, float("inf") if vm.cap_pcpus is None else vm.cap_pcpus)
    fits, _ = Host([claim(vm, demand).groups(pcpus)], pcpus, 1.0).fit([demand])
    return fits


def claim(vm: Vm, demand: float) -> Claim:
    """Return what ``vm`` asks of the host when it can use ``demand`` pCPUs."""
    cpus = frozenset(vm.affinity) if vm.affinity is not None else None
    vcpus = () if vm.vcpu_affinity is None else tuple(frozenset(allowed or ()) for allowed in vm.allowed)
    return Claim(vm.weight, demand, cpus, vcpus)


# By VM name: what each VM with programs uses alone; of a single one the number will do.
Demands = float | Mapping[str, float]


def due(
    scenario: Scenario, demand_alone: Demands, left: float = 1.0, window_s: tuple[float, float] | None = None
) -> dict[str, float]:
    """Return each VM's due share of the host's capacity, 0..1, by name, while programs run.

    A VM with a program uses ``demand_alone`` pCPUs when it is alone on the host. Every neighbour runs its load, so each
    can use all its vCPUs. ``left`` is the part of the capacity that the host's own work leaves to the VMs.
    ``window_s`` is the time of which this is the mean, in the scenario's; without it all VMs have arrived.
    """
    demands = _demands(scenario, demand_alone)
    sums = dict.fromkeys((vm.name for vm in scenario.vms), 0.0)
    stretches = [(1.0, frozenset(sums))] if window_s is None else list(_stretches(scenario, *window_s))
    whole_s = sum(length_s for length_s, _ in stretches)
    for length_s, arrived in stretches:
        for name, share in _mean_shares(scenario, demands, arrived, left).items():
            sums[name] += share * length_s / whole_s
    return {name: share / scenario.host.pcpus for name, share in sums.items()}


def ideal_slowdown(
    scenario: Scenario,
    demand_alone: Demands,
    vm: str | None = None,
    alone_s: float | None = None,
    *,
    timed: bool = False,
) -> float:
    """Return max(1, demand alone ÷ entitlement) of the program in ``vm``, with every neighbour's load running.

    Where VMs arrive later, it is how much longer the work of ``alone_s`` seconds takes; of a program that is ``timed``,
    and runs for ``alone_s`` seconds in any case, how much more it does in them alone.
    """
    demands = _demands(scenario, demand_alone)
    subject = next(known for known in scenario.program_vms if vm is None or known.name == vm)
    demand = demands[subject.name]
    if demand <= EPSILON:
        return 1.0
    start_s, work = subject.start_s, demand * (alone_s or 0.0)
    last_s = max(known.start_s for known in scenario.vms)
    if timed and alone_s and last_s > start_s:
        mean = due(scenario, demands, window_s=(start_s, start_s + alone_s))[subject.name] * scenario.host.pcpus
        return max(1.0, demand / mean)
    if work > 0 and last_s > start_s:
        for length_s, arrived in _stretches(scenario, start_s, last_s):
            rate = _mean_shares(scenario, demands, arrived, 1.0)[subject.name]
            if rate * length_s >= work:
                return max(1.0, (start_s + work / rate - subject.start_s) / (alone_s or 1.0))
            work -= rate * length_s
            start_s += length_s
    rate = _mean_shares(scenario, demands, frozenset(known.name for known in scenario.vms), 1.0)[subject.name]
    if work > 0:
        return max(1.0, (start_s + work / rate - subject.start_s) / (alone_s or 1.0))
    return max(1.0, demand / rate)


def _demands(scenario: Scenario, demand_alone: Demands) -> dict[str, float]:
    """Return every VM's demand. The VMM's threads can carry a measured one a little over what there is for the VM."""
    pcpus = scenario.host.pcpus
    given = demand_alone if isinstance(demand_alone, Mapping) else {scenario.program_vm.name: demand_alone}
    measured = {vm.name: _most(vm, given[vm.name], pcpus) for vm in scenario.program_vms}
    return {vm.name: full_demand(vm, pcpus) for vm in scenario.neighbours} | measured


def _stretches(scenario: Scenario, from_s: float, to_s: float) -> Iterator[tuple[float, frozenset[str]]]:
    """Return the times between arrivals: their lengths, and who is there."""
    arrivals = sorted({vm.start_s for vm in scenario.vms if from_s < vm.start_s < to_s})
    for begin_s, end_s in itertools.pairwise([from_s, *arrivals, to_s]):
        yield end_s - begin_s, frozenset(vm.name for vm in scenario.vms if vm.start_s <= begin_s)


def _mean_shares(
    scenario: Scenario, demands: Mapping[str, float], arrived: frozenset[str], left: float
) -> dict[str, float]:
    """Return what each VM is entitled to on average, while those that sleep now and then do or do not.

    VMs of one rhythm sleep at the same time; of different ones each at any time of the other's.
    """
    rhythms: dict[tuple[float, float, float], list[str]] = {}
    for vm in scenario.vms:
        if vm.run_s is not None and vm.sleep_s is not None:
            rhythms.setdefault((vm.start_s, vm.run_s, vm.sleep_s), []).append(vm.name)
    sums = dict.fromkeys((vm.name for vm in scenario.vms), 0.0)
    for awake in itertools.product((True, False), repeat=len(rhythms)):
        part, asleep = 1.0, set[str]()
        for runs, ((_, run_s, sleep_s), names) in zip(awake, rhythms.items(), strict=True):
            part *= (run_s if runs else sleep_s) / (run_s + sleep_s)
            asleep.update(() if runs else names)
        there = [vm for vm in scenario.vms if vm.name in arrived and vm.name not in asleep]
        shares = entitlements([claim(vm, demands[vm.name]) for vm in there], scenario.host.pcpus, left)
        for vm, share in zip(there, shares, strict=True):
            sums[vm.name] += part * share
    return sums
