# SPDX-License-Identifier: GPL-2.0-only
"""The same scenario simulated and in the lab, every VM busy with its load for ten seconds: one set of figures of each.

The figures are those of docs/metrics.md. In the lab the probe counts them; distances need a recording.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from ground import RR_MS, end
from provoked import TRUTH, put
from recorder import recorder

from cohortlab.lab import programs
from cohortlab.lab.agent import Job
from cohortlab.lab.place import LabPlace
from cohortlab.lab.probe import ProbeRun
from cohortlab.policies import KERNEL
from cohortlab.recorded import recording
from cohortlab.scenario import Scenario, Vm
from cohortlab.sim.model import NS_PER_S, Run
from cohortlab.sim.result import Result, Traces

WINDOW_S = 10
# Of a hundred a second, those at which a sibling waited.
LOOKS_MIN = 100
# Of a busy machine's lab, until loads run.
PATIENCE_S = 300
_BUSY = 0.9
_numbers = itertools.count()
# By VM and name: shares of its vCPUs' time, counts per second.
Figures = dict[str, dict[str, float]]
SHARES = {"ran": "run_ns", "ready": "ready_ns", "co-stop": "costop_ns", "stacked": "stacked_ns", "halted": "halted_ns"}
_RATES = ("switches", "preemptions", "migrations")


@dataclass(frozen=True)
class Rule:
    """Who schedules: a policy, or turns of ``turn_ms`` under SCHED_RR for all vCPUs that are pinned to pCPU 0."""

    policy: str = KERNEL
    args: tuple[str, ...] = ()
    turn_ms: int | None = None


@dataclass(frozen=True)
class Endless(Run):
    """All VMs go on with their loads from the beginning, until the end."""

    turn_ms: int | None = None

    def as_dict(self) -> dict[str, Any]:
        made = super().as_dict()
        for vm in made["vms"]:
            vm |= {"start_ns": 0, "repeat": True, "measured": False}
        if self.turn_ms is not None:
            turn_ns = self.turn_ms * NS_PER_S // 1000
            turns = {"slice_min_ns": turn_ns, "slice_max_ns": turn_ns, "shared_queue": False}
            made["policy"] = {"class": "round-robin"} | turns
        return made | {"duration_ns": WINDOW_S * NS_PER_S}


def figures(
    counters: Mapping[str, float], first: Mapping[str, float], vcpus: int, window_ns: float
) -> dict[str, float]:
    """Return a VM's figures from what its counters grew by, and ``first``, those of its first vCPU."""
    found = {name: counters[counter] / (vcpus * window_ns) for name, counter in SHARES.items()}
    found |= {f"{name}, vCPU 0": first[SHARES[name]] / window_ns for name in ("ran", "ready")}
    found |= {name: counters[name] * NS_PER_S / window_ns for name in _RATES}
    return found | {"in kernel": counters["preemptions_kernel"] / max(1, counters["preemptions"])}


def of_recording(file: Path) -> Figures:
    """Return what the probe does not count by itself: how far siblings are, and the turns' median and 90 % quantile."""
    read = recording.load(file)
    found: Figures = {}
    for number, vm in enumerate(read.figures().about["figures"]["vms"]):
        looks = vm["distances"]
        found[vm["name"]] = {"far": vm["distances_far"] / looks} if looks > LOOKS_MIN else {}
        turns = quantiles(turns_ms([event for event in read.events.to_pylist() if event["vm"] == number]), n=10)
        found[vm["name"]] |= {"turn p50, ms": turns[4], "turn p90, ms": turns[8]}
    return found


def turns_ms(events: list[dict[str, Any]]) -> list[float]:
    """Return how long each turn of a VM's vCPUs was."""
    since_ns: dict[int, int] = {}
    found = []
    for event in events:
        if event["kind"] == "run":
            since_ns[event["vcpu"]] = event["time_ns"]
        elif event["kind"] in ("preempted", "halted", "blocked") and event["vcpu"] in since_ns:
            found.append((event["time_ns"] - since_ns.pop(event["vcpu"])) / 1e6)
    return found


def simulated(scenario: Scenario, rule: Rule, to: Path) -> Figures:
    """Simulate the window, and record it."""
    running = {vm.name: does(vm) for vm in scenario.vms}
    policy = KERNEL if rule.turn_ms else rule.policy
    result = Result.of(Endless(scenario, running, policy, rule.args, turn_ms=rule.turn_ms), Traces(recording=True))
    to.write_bytes(result.recording)
    known = of_recording(to)
    found: Figures = {}
    for vm in result.figures["vms"]:
        vcpus = vm["vcpus"]
        found[vm["name"]] = figures(vm, vcpus[0], len(vcpus), result.end_ns) | known[vm["name"]]
        found[vm["name"]]["skew"] = vm["skew_max_ns"] / result.end_ns
        if vm["lag_behind_ns"] is not None:
            found[vm["name"]]["lag"] = (vm["lag_behind_ns"] - vm["lag_ahead_ns"]) / result.end_ns
    return found


@contextmanager
def _loaded(place: LabPlace, scenario: Scenario) -> Iterator[None]:
    """Let each VM do what its load is, and wait until those that never sleep are busy."""
    jobs: list[Job] = []
    with ExitStack() as ended:
        for vm in scenario.vms:
            known = scenario.workloads[does(vm)]
            line = programs.command(known, known.command or "")
            machine = place.guests[vm.name].machine
            if TRUTH in line:
                put(machine)
            jobs.append(machine.spawn(f"load-{next(_numbers)}", line))
            ended.callback(end, jobs[-1])
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            before, after = look(place), None
            time.sleep(1)
            after = look(place)
            if all(_wants(before, after, vm) > _BUSY for vm in scenario.vms if _never_sleeps(vm)):
                break
        yield


def does(vm: Vm) -> str:
    """Return what it does; a scenario must have a program, which goes on like a load here."""
    return vm.load or vm.programs[0]


def _never_sleeps(vm: Vm) -> bool:
    return does(vm).endswith("-loop")


def _wants(before: Mapping[str, Any], after: Mapping[str, Any], vm: Vm) -> float:
    """Return for which part of the time all vCPUs ran or waited."""
    grown = _grown(before, after, vm.name)
    window_ns = after["clock_ns"] - before["clock_ns"]
    return (grown["run_ns"] + grown["ready_ns"]) / (vm.vcpus * window_ns)


def look(place: LabPlace) -> dict[str, Any]:
    """Return what the lab's probe knows now."""
    probe: ProbeRun | None = place._probe
    assert probe is not None
    sample = probe.sample_in(place.host.channel.call({"ping": {}}, [probe.socket]).after)
    assert sample is not None, "the probe answers"
    return sample


def _of(sample: Mapping[str, Any], name: str) -> dict[str, Any]:
    (found,) = (vm for vm in sample["vms"] if vm["name"] == name)
    return dict(found)


def _grown(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> dict[str, float]:
    was, now = _of(before, name), _of(after, name)
    grown = _more(was["total"], now["total"])
    ready = [vcpu["ready_ns"] - old["ready_ns"] for vcpu, old in zip(now["vcpus"], was["vcpus"], strict=True)]
    return grown | {
        "stacked_ns": now["stacked_ns"] - was["stacked_ns"],
        "lag_ns": now["lag_ns"] - was["lag_ns"],
        "skew_ns": max(ready) - min(ready),
    }


def _more(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    return {name: value - before[name] for name, value in after.items() if isinstance(value, int)}


def probed(place: LabPlace, scenario: Scenario) -> Figures:
    """Return the figures of the lab, of a window in which nothing is done there."""
    before = look(place)
    place.host.check(f"sleep {WINDOW_S}")
    after = look(place)
    window_ns = after["clock_ns"] - before["clock_ns"]
    found: Figures = {}
    for vm in scenario.vms:
        grown = _grown(before, after, vm.name)
        first = _more(*(_of(sample, vm.name)["vcpus"][0] for sample in (before, after)))
        found[vm.name] = figures(grown, first, vm.vcpus, window_ns) | {"skew": grown["skew_ns"] / window_ns}
        if not any(pcpus is not None for pcpus in (vm.affinity, vm.vcpu_affinity)):
            found[vm.name]["lag"] = grown["lag_ns"] / window_ns
    return found


def recorded(place: LabPlace, to: Path) -> Figures:
    """Record as long a window, for what the probe does not count by itself."""
    with recorder(place.host, f"nice -n -20 cohort record --seconds {WINDOW_S}", to):
        pass
    return of_recording(to)


@contextmanager
def under(place: LabPlace, scenario: Scenario, rule: Rule) -> Iterator[None]:
    """Let the loads run, scheduled by that rule."""
    with ExitStack() as stack:
        stack.enter_context(place.policy(rule.policy, rule.args))
        stack.enter_context(_loaded(place, scenario))
        if rule.turn_ms is not None:
            stack.enter_context(_in_turns(place, scenario, rule.turn_ms))
        yield


@contextmanager
def _in_turns(place: LabPlace, scenario: Scenario, turn_ms: int) -> Iterator[None]:
    """Let all vCPUs that are pinned to pCPU 0 have turns there, before all others.

    The kernel keeps a twentieth of the time for these, who hardly need it.
    """
    host, sample = place.host, look(place)
    tids = [
        vcpu["tid"]
        for vm in scenario.vms
        for vcpu, allowed in zip(_of(sample, vm.name)["vcpus"], vm.allowed, strict=True)
        if tuple(allowed or ()) == (0,)
    ]

    def each(how: str) -> str:
        return " && ".join(f"chrt {how} {tid}" for tid in tids)

    before = host.read(RR_MS).strip()
    host.check(f"echo {turn_ms} >{RR_MS} && {each('-r -p 10')}")
    try:
        yield
    finally:
        # Before the loads are ended: until then nobody reaches these VMs.
        host.check(f"{each('-o -p 0')} && echo {before} >{RR_MS}")


def table(sides: Mapping[str, Figures]) -> str:
    """Return all figures as a Markdown table, a row for each VM and figure."""
    lines = [f"| VM | figure | {' | '.join(sides)} |", f"|---|---|{'---|' * len(sides)}"]
    first = next(iter(sides.values()))
    for vm in first:
        for name in dict.fromkeys(name for side in sides.values() for name in side[vm]):
            cells = [f"{side[vm][name]:.4g}" if name in side[vm] else "–" for side in sides.values()]
            lines.append(f"| {vm} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
