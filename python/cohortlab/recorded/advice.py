# SPDX-License-Identifier: GPL-2.0-only
"""Which policy would do best for a host: each VM's work simulated under each, and what that is worth."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.policies import KERNEL, Policy, parse_policies
from cohortlab.recorded.uncertainty import Gain, model, saved
from cohortlab.results import as_seconds
from cohortlab.scenario import Scenario, Turn
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.model import Run, check
from cohortlab.sim.policy import KERNEL_DEFAULT, host_class
from cohortlab.sim.result import Result

# A difference below this is none that anybody would notice.
NOTHING = 0.02
# Who gets nothing at all counts as one that gets so many pCPUs.
_NEXT_TO_NOTHING = 1e-6


@dataclass
class Advice:
    """What was found.

    Attributes:
        figures: by policy and VM, one for each seed: seconds, or a rate.
        alone: those without neighbours.
        failed: why a policy has none.
        loads: pCPUs that the VMs got that only load the host, by policy: the more the others take, the less they get.
        rates: of which VMs the figure is a rate.
    """

    scenario: str
    rounds: int
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    alone: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    loads: dict[str, dict[str, float]] = field(default_factory=dict)
    rates: frozenset[str] = frozenset()

    def slowdown(self, policy: str, vm: str) -> float:
        """Return by how much longer the VM's work takes than alone, medians of the figures."""
        medians = [statistics.median(figures) for figures in (self.figures[policy][vm], self.alone[vm])]
        loaded_s, alone_s = self._seconds(vm, medians)
        return loaded_s / alone_s

    def _seconds(self, vm: str, figures: Iterable[float]) -> list[float]:
        """Return figures of a VM as seconds: of the run, or of one unit of work where they are rates."""
        return [as_seconds(value, rate=vm in self.rates) for value in figures]

    def overall(self, policy: str) -> float:
        """Return the geometric mean of all VMs' slowdowns; of who only computes, beside what the kernel gives it."""
        slowdowns = [self.slowdown(policy, vm) for vm in self.alone]
        before, after = self.loads.get(KERNEL, {}), self.loads.get(policy, {})
        slowdowns += [pcpus / max(after[vm], _NEXT_TO_NOTHING) for vm, pcpus in before.items() if pcpus and vm in after]
        return math.exp(statistics.fmean(math.log(slowdown) for slowdown in slowdowns))

    def gain(self, policy: str, vm: str) -> Gain:
        """Return what ``vm`` gains from ``policy``; runs of one seed are compared with one another."""
        before, after = (self._seconds(vm, self.figures[under][vm]) for under in (KERNEL, policy))
        return Gain.of([math.log(b / a) for b, a in zip(before, after, strict=True)])

    @property
    def best(self) -> str:
        """The policy with the least slowdown over all VMs."""
        return min(self.figures, key=lambda policy: (self.overall(policy), policy != KERNEL))

    @property
    def worst_off(self) -> str:
        """The VM that loses most under the kernel's own scheduler."""
        return max(self.alone, key=lambda vm: self.slowdown(KERNEL, vm))

    def sentences(self) -> tuple[str, str, str]:
        """Return what is, what would be best, and how sure that is."""
        worst, best = self.worst_off, self.best
        now = (
            f"Under {KERNEL}, {worst} loses most on this host: its work takes {self.slowdown(KERNEL, worst):.2f} times"
            " as long as alone."
        )
        if best == KERNEL:
            return now, f"Of {len(self.figures)} policies, none would do better.", self._sure(None)
        vm = self._gainer()
        gain = self.gain(best, vm)
        expected = gain.percent[0]
        change = f"{vm} would need {abs(expected):.0f} % {'less' if expected >= 0 else 'more'} time"
        change = f"{change} ({saved(gain.percent)})"
        if not _is_noticed(gain.percent_of_runs[1]):
            return now, f"No policy would do noticeably better: with {best}, the best, {change}.", self._sure(gain)
        would = f"{best} would do best of {len(self.figures)} policies: {change}{self._others(vm)}."
        return now, would, self._sure(gain)

    def _gainer(self) -> str:
        """Return whose gain from the best policy is told: the worst-off VM's, or if only others' are noticed, the most.

        A policy may be the best, for all together, by what it does for others than the worst-off.
        """
        gains = {vm: self.gain(self.best, vm) for vm in self.alone}
        noticed = [vm for vm, gain in gains.items() if _is_noticed(gain.percent_of_runs[1])]
        if not noticed or self.worst_off in noticed:
            return self.worst_off
        return max(noticed, key=lambda vm: gains[vm].log)

    def _others(self, told: str) -> str:
        """Return what the best policy does to the VMs other than ``told``: the one that loses most."""
        lost = {vm: -self.gain(self.best, vm).percent[0] for vm in self.alone if vm != told}
        if lost and max(lost.values()) > 100 * NOTHING:
            worst = max(lost, key=lambda vm: lost[vm])
            return f", and {worst} {lost[worst]:.0f} % more"
        before, after = self.loads.get(KERNEL, {}), self.loads.get(self.best, {})
        less = {vm: 100 * (1 - after[vm] / pcpus) for vm, pcpus in before.items() if vm in after and pcpus > 0}
        if less and max(less.values()) > 100 * NOTHING:
            worst = max(less, key=lambda vm: less[vm])
            return f", while {worst}, which only computes, would get {less[worst]:.0f} % less CPU time"
        return ", and no other VM would lose anything" if lost or less else ""

    def _sure(self, gain: Gain | None) -> str:
        known = model()
        wrong = f"was off by a factor of up to {known.factor:.1f} in {len(known.errors)} gains that were measured"
        if gain is None:
            return f"That is of {self.rounds} simulated runs of each; the model itself {wrong}."
        runs = f"{self.rounds} simulated runs alone make the range of 95 % {saved(gain.percent_of_runs)}"
        rest = f"the rest of it is the model's, which {wrong}"
        if _is_noticed(gain.percent[1]):
            return f"That is more than chance, and more than the model's error: {runs}; {rest}."
        if _is_noticed(gain.percent_of_runs[1]):
            return f"That may be the model's error, though the runs agree: {runs}; {rest}."
        return f"What difference there is may be chance: {runs}; {rest}."

    def for_machines(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        gains = {
            policy: {vm: _for_machines(self.gain(policy, vm)) for vm in vms}
            for policy, vms in self.figures.items()
            if policy != KERNEL
        }
        return {
            "scenario": self.scenario,
            "rounds": self.rounds,
            "best": self.best,
            "slowdown": {policy: {vm: self.slowdown(policy, vm) for vm in vms} for policy, vms in self.figures.items()},
            "overall": {policy: self.overall(policy) for policy in self.figures},
            "gain": gains,
            "model": {"gains": len(model().errors), "factor_max": model().factor, "factor_95": math.exp(model().half)},
            "alone_s": self._all_seconds(self.alone),
            "times_s": {policy: self._all_seconds(vms) for policy, vms in self.figures.items()},
            "loads_pcpus": self.loads,
            "failed": self.failed,
            "sentences": list(self.sentences()),
        }

    def _all_seconds(self, figures: Mapping[str, Iterable[float]]) -> dict[str, list[float]]:
        return {vm: self._seconds(vm, values) for vm, values in figures.items()}


def _is_noticed(percent: float) -> bool:
    return percent > 100 * NOTHING


def _for_machines(gain: Gain) -> dict[str, float]:
    (percent, low, high), (_, low_of_runs, high_of_runs) = gain.percent, gain.percent_of_runs
    return {
        "percent": percent,
        "low": low,
        "high": high,
        "low_of_runs": low_of_runs,
        "high_of_runs": high_of_runs,
    }


def advise(
    scenario: Scenario, policies: str, rounds: int, kernel: str | None = None, hardware: str | None = None
) -> Advice:
    """Simulate each VM's work alone, and all of it together under each policy, ``rounds`` times with different seeds.

    Raises:
        BadInput: the simulator refuses what the scenario and the hardware file say, or nothing ends.
    """
    check(scenario)
    contestants = parse_policies(policies, ())
    if KERNEL not in [policy.label for policy in contestants]:
        contestants = (*parse_policies(KERNEL, ()), *contestants)
    parts = hardwares.of(scenario, hardware)
    version = kernel or scenario.defaults.kernel or KERNEL_DEFAULT
    loads = {vm.name: vm.load for vm in scenario.neighbours if vm.load is not None}
    tasks = dict.fromkeys(task for turn in scenario.turns for task in turn)
    rates = frozenset(_title(scenario, *task) for task in tasks if scenario.workloads[task[1]].is_rate)
    found = Advice(scenario.name, rounds, rates=rates)
    seeds = range(1, rounds + 1)

    def simulate(policy: Policy, running: dict[str, str], seed: int) -> Result:
        return Result.of(Run(scenario, running, policy.name, policy.args, seed, version, parts))

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        got: list[dict[str, float]] = []

        def figures(policy: Policy, turn: Turn, beside: dict[str, str]) -> dict[str, list[float]]:
            """Return the figures of the turn's programs, for each seed; ``got``: what the loads had meanwhile."""
            running = dict(turn) | beside
            results = list(pool.map(lambda seed: simulate(policy, running, seed), seeds))
            if beside:
                measured = [result.measurement(turn[0][0]) for result in results]
                pcpus = {vm: [run.cpu_s[vm] / run.window_s for run in measured] for vm in beside}
                got.append({vm: statistics.median(each) for vm, each in pcpus.items()})
            return {_title(scenario, *task): [result.measurement(task[0]).value for result in results] for task in turn}

        try:
            for task in tasks:
                found.alone |= figures(Policy(KERNEL, KERNEL), (task,), {})
        except PlaceError as error:
            raise BadInput(str(error)) from None
        for policy in contestants:
            try:
                host_class(policy.name, policy.args, version)
                beside: dict[str, list[float]] = {}
                got.clear()
                for turn in scenario.turns:
                    beside = figures(policy, turn, loads) | beside
                found.figures[policy.label] = beside
                # Beside each program, on average.
                found.loads[policy.label] = {vm: statistics.fmean(turn[vm] for turn in got) for vm in loads if got}
            except PlaceError as error:
                if policy.name == KERNEL:
                    raise BadInput(str(error)) from None
                found.failed[policy.label] = str(error)
    return found


def _title(scenario: Scenario, vm: str, program: str) -> str:
    """Return the VM's name, and its program's if it has several."""
    programs = next(other.programs for other in scenario.program_vms if other.name == vm)
    return vm if len(programs) == 1 else f"{vm}: {program}"
