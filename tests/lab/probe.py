# SPDX-License-Identifier: GPL-2.0-only
"""The probe at work on the lab's host, and what the kernel itself says of the same vCPUs."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cohortlab.lab.probe import ProbeRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from cohortlab.lab.agent import Machine
    from conftest import Bench

TRACING = "/sys/kernel/tracing/events"
Sample = dict[str, Any]
Vcpu = dict[str, Any]
# What two have counted of the same agrees within such a part.
EXACT = 0.02
# An agent knows its jobs by name.
_numbers = itertools.count()


class Probe(AbstractContextManager["Probe"]):
    """``cohort top`` counts inside the block, beside the lab's own."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.host = bench.host
        self.last: Sample = {}

    def __enter__(self) -> Probe:
        self.run = ProbeRun.start(self.host, "/tmp", name=f"probe-{next(_numbers)}")
        self.sample()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run.stop()
        if kind is not None:
            print(json.dumps(self.last, indent=1))

    def sample(self) -> Sample:
        """Return a sample that was begun after this was called."""
        answer = self.host.channel.call({"ping": {}}, [self.run.socket])
        sample = self.run.sample_in(answer.after)
        assert sample is not None, "the probe answers"
        self.last = sample
        return self.last

    def vm(self, name: str) -> dict[str, Any]:
        (found,) = (vm for vm in self.sample()["vms"] if vm["name"] == name)
        return found

    def pin(self, name: str, *pcpus: int) -> None:
        """Let the VM's first vCPU run on the first of these pCPUs alone, and so on."""
        for vcpu, pcpu in zip(self.vm(name)["vcpus"], pcpus, strict=True):
            self.host.check(f"taskset -c -p {pcpu} {vcpu['tid']}")

    def stopped(self, name: str) -> tuple[dict[str, Any], dict[int, dict[str, int]]]:
        """Stop the VM's process until ``goes_on``; return what the probe and the kernel say of it then."""
        pid = self.bench.place.guests[name].pid()
        self.host.check(f"kill -STOP {pid}")
        self.bench.until(lambda: all(vcpu["state"] == "blocked" for vcpu in self.vm(name)["vcpus"]), f"{name} stopped")
        vm = self.vm(name)
        return vm, {vcpu["vcpu"]: self.kernel_says(pid, vcpu["tid"]) for vcpu in vm["vcpus"]}

    def goes_on(self, name: str) -> None:
        self.host.check(f"kill -CONT {self.bench.place.guests[name].pid()}")

    def kernel_says(self, pid: int, tid: int) -> dict[str, int]:
        """Return what the kernel has counted of a thread by itself, by the probe's names."""
        folder = f"/proc/{pid}/task/{tid}"
        run_ns, ready_ns, _ = map(int, self.host.read(f"{folder}/schedstat").split())
        # It sleeps; or it loses its CPU, and could go on.
        slept, preemptions = map(int, re.findall(r"ctxt_switches:\s+(\d+)", self.host.read(f"{folder}/status")))
        (migrations,) = map(int, re.findall(r"nr_migrations\s*:\s*(\d+)", self.host.read(f"{folder}/sched")))
        return {
            "run_ns": run_ns,
            "ready_ns": ready_ns,
            "switches": slept + preemptions,
            "preemptions": preemptions,
            "migrations": migrations,
        }


@contextmanager
def counted(bench: Bench, *events: str, where: str = "", key: str = "common_pid") -> Iterator[list[int]]:
    """Let the kernel count events (``kvm/kvm_exit``) in the block; afterwards the list holds how many of each."""
    trigger = f"hist:keys={key}" + (f" if {where}" if where else "")
    hits: list[int] = []
    for event in events:
        bench.host.check(f"echo '{trigger}' >{TRACING}/{event}/trigger")
    try:
        yield hits
        for event in events:
            (hit,) = re.findall(r"Hits: (\d+)", bench.host.read(f"{TRACING}/{event}/hist"))
            hits.append(int(hit))
    finally:
        for event in events:
            bench.host.run(f"echo '!{trigger}' >{TRACING}/{event}/trigger")


@contextmanager
def woken(bench: Bench, tids: list[int]) -> Iterator[list[int]]:
    """Let the kernel time in the block how long threads wait once they are woken; afterwards: how often, ns in all."""
    mine = [" || ".join(f"{field} == {tid}" for tid in tids) for field in ("pid", "next_pid")]
    event = f"{TRACING}/synthetic/truth_woken"
    triggers = [
        (f"{TRACING}/sched/sched_wakeup", f"hist:keys=pid:since=common_timestamp if {mine[0]}"),
        (
            f"{TRACING}/sched/sched_switch",
            "hist:keys=next_pid:waited=common_timestamp-$since"
            f":onmatch(sched.sched_wakeup).truth_woken($waited,next_pid) if {mine[1]}",
        ),
        (event, "hist:keys=pid:vals=waited"),
    ]
    synthetic = f"{TRACING}/../synthetic_events"
    sums: list[int] = []
    bench.host.check(f"echo 'truth_woken u64 waited; pid_t pid' >>{synthetic}")
    try:
        for place, trigger in triggers:
            bench.host.check(f"echo '{trigger}' >>{place}/trigger")
        yield sums
        found = re.findall(r"hitcount:\s+(\d+)\s+waited:\s+(\d+)", bench.host.read(f"{event}/hist"))
        sums += [sum(int(one[n]) for one in found) for n in (0, 1)]
    finally:
        for place, trigger in reversed(triggers):
            bench.host.run(f"echo '!{trigger}' >>{place}/trigger")
        bench.host.run(f"echo '!truth_woken' >>{synthetic}")


@contextmanager
def returning(bench: Bench, name: str, function: str) -> Iterator[str]:
    """Make an event, of the group ``truth``, of a kernel function's return, with its result as ``result``."""
    probes = "/sys/kernel/tracing/kprobe_events"
    bench.host.check(f"echo 'r:truth/{name} {function} result=$retval:s32' >>{probes}")
    try:
        yield f"truth/{name}"
    finally:
        bench.host.run(f"echo '-:truth/{name}' >>{probes}")


def grown(before: dict[str, Any], after: dict[str, Any], counter: str) -> int:
    """Return by how much a counter grew, of a vCPU or summed over those of a VM."""
    return after.get("total", after)[counter] - before.get("total", before)[counter]


def close_to(wanted: float, slack: float = 0) -> object:
    """Return what is equal to a figure within 2 %, or within ``slack``."""
    return pytest.approx(wanted, rel=EXACT, abs=slack)


def spent_ns(host: Machine, pid: int) -> int:
    """Return the time that the programs of a probe, by its process, have taken so far, if the kernel measures it."""
    texts = host.check(f"cat /proc/{pid}/fdinfo/* 2>/dev/null || true")
    times_ns = re.findall(r"run_time_ns:\s+(\d+)", texts)
    assert times_ns, "no program of the probe is found"
    return sum(map(int, times_ns))
