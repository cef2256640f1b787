# SPDX-License-Identifier: GPL-2.0-only
"""Do siblings stay apart, or stacked, as they began? Two VMs of 2 vCPUs on 2 pCPUs under EEVDF; a Markdown table.

    build/venv/bin/python bench/probe/stays.py lab          five minutes
    build/venv/bin/python bench/probe/stays.py simulated    seconds

One VM runs the program over and over, the other computes. In the lab vCPUs are pinned to where they begin, and freed
when the recorder is there; simulated vCPUs begin apart. Each row is ten seconds, and how much of each fifth of that
the first VM's vCPUs were stacked while neither slept.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import queues

from cohortlab.lab.place import LabPlace
from cohortlab.lab.probe import ProbeRun
from cohortlab.policies import KERNEL
from cohortlab.recorded import recording
from cohortlab.sim.model import NS_PER_S
from cohortlab.sim.result import Result, Traces

PROGRAMS = ("pbzip2", "hackbench", "cpu-hog")
# How Linux 7.3 divides a cgroup's weight: as it does by itself, and as older kernels do.
MODES = ("concur", "smp")
# On which pCPUs the first VM's vCPUs begin, and the second's.
BEGUN = {"apart": ((0, 1), (0, 1)), "stacked": ((0, 0), (1, 1))}
PARTS = 5
SEEDS = range(1, 5)
VM, OTHER = "work", "hog1"


def row(mode: str, program: str, how: str, recorded: recording.Recording) -> str:
    parts = stacked(recorded.events.to_pylist(), recorded.about["names"].index(VM), recorded.length_ns)
    moves = recorded.about["counts"].get("moved", 0) * NS_PER_S / recorded.length_ns
    return f"| {mode} | {program} | {how} | {' | '.join(f'{part:.0%}' for part in parts)} | {moves:.1f} |"


def stacked(events: list[dict[str, Any]], vm: int, length_ns: int) -> list[float]:
    """Return for which part of each fifth of the time two vCPUs of a VM were on one pCPU and neither slept."""
    where: dict[int, int] = {}
    awake: set[int] = set()
    parts = [0] * PARTS
    last_ns = 0
    for event in [*(event for event in events if event["vm"] == vm), {"kind": "end", "time_ns": length_ns}]:
        if len(awake) == 2 and len(set(where.values())) == 1:
            for part in range(PARTS):
                begin, end = part * length_ns // PARTS, (part + 1) * length_ns // PARTS
                parts[part] += max(0, min(end, event["time_ns"]) - max(begin, last_ns))
        last_ns = event["time_ns"]
        if event["kind"] in ("run", "woken", "moved", "preempted"):
            where[event["vcpu"]] = event["cpu"]
            awake.add(event["vcpu"])
        elif event["kind"] in ("halted", "blocked"):
            awake.discard(event["vcpu"])
    return [part * PARTS / length_ns for part in parts]


def simulated() -> Iterator[str]:
    of = queues.scenario(2, 2, PROGRAMS, "7.3")
    for mode in MODES:
        for program in PROGRAMS:
            for seed in SEEDS:
                running = {vm.name: vm.load or program for vm in of.vms}
                run = queues.Endless(of, running, KERNEL, ("--cgroup-mode", mode), seed)
                with tempfile.NamedTemporaryFile(suffix=".rec") as file:
                    Path(file.name).write_bytes(Result.of(run, Traces(recording=True)).recording)
                    yield row(mode, program, f"apart, seed {seed}", recording.load(Path(file.name)))


def lab() -> Iterator[str]:
    of = queues.scenario(2, 2, PROGRAMS, "7.3")
    with LabPlace(of, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        tids = threads(place)
        for mode in MODES:
            with place.policy(KERNEL, ("--cgroup-mode", mode)):
                for program in PROGRAMS:
                    for how, pcpus in BEGUN.items():
                        yield row(mode, program, how, of_lab(place, program, dict(zip(tids, pcpus, strict=True)), tids))


def of_lab(
    place: LabPlace, program: str, pcpus: dict[str, tuple[int, int]], tids: dict[str, list[int]]
) -> recording.Recording:
    each = [(tid, pcpu) for vm in tids for tid, pcpu in zip(tids[vm], pcpus[vm], strict=True)]
    with queues.busy(place, program), tempfile.TemporaryDirectory() as folder:
        for tid, pcpu in each:
            place.host.check(f"taskset -c -p {pcpu} {tid}")
        time.sleep(queues.SETTLE_S)
        file = Path(folder) / "lab.rec"
        queues.record(place.host, file, "; ".join(f"taskset -c -p 0,1 {tid}" for tid, _ in each))
        return recording.load(file)


def threads(place: LabPlace) -> dict[str, list[int]]:
    """Return the vCPUs' threads by VM, as the probe knows them."""
    probe = ProbeRun.start(place.host, "/tmp", name="stays")
    sample = probe.sample_in(place.host.channel.call({"ping": {}}, [probe.socket]).after)
    probe.stop()
    if sample is None:
        raise SystemExit("the probe does not answer")
    found = {vm["name"]: [vcpu["tid"] for vcpu in vm["vcpus"]] for vm in sample["vms"]}
    return {name: found[name] for name in (VM, OTHER)}


if __name__ == "__main__":
    if sys.argv[1:] not in (["lab"], ["simulated"]):
        wrong = f"{' '.join(sys.argv[1:])!r} is not allowed: must be lab or simulated"
        print(f"{sys.argv[0]}: {wrong}", file=sys.stderr)
        sys.exit(2)
    fifths = " | ".join(f"{part}/{PARTS}" for part in range(1, PARTS + 1))
    print(f"| cgroup mode | program | begun | {fifths} | moves/s |\n|{'---|' * (PARTS + 4)}", flush=True)
    for line in {"lab": lab, "simulated": simulated}[sys.argv[1]]():
        print(line, flush=True)
