# SPDX-License-Identifier: GPL-2.0-only
"""What SBCO's tables I and II and the pause-loop exits' figure 4 count, under EEVDF: Markdown tables.

    build/venv/bin/python bench/probe/queues.py simulated [KERNEL]    minutes; 7.3 has EEVDF, 4.15 CFS
    build/venv/bin/python bench/probe/queues.py lab [KERNEL]          a quarter of an hour

VMs of 2 vCPUs on 2 pCPUs, as the lab has them, not 4 on 4: so a queue is as long as there are VMs, and a vCPU has one
sibling instead of three. One VM runs the program, the others compute. Stacking is the first VM's, of all the time;
table I has looks at which siblings of any VM are stacked. In the lab, stacking and distance are those of a recording,
lengths of chains those of the probe.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cohortlab import scenario as scenarios
from cohortlab.lab import programs
from cohortlab.lab.agent import Job, Machine
from cohortlab.lab.place import LabPlace
from cohortlab.lab.probe import ProbeRun
from cohortlab.recorded import recording
from cohortlab.scenario import Scenario
from cohortlab.sim.model import NS_PER_S, Run
from cohortlab.sim.result import Result

QUEUES = (2, 3, 6, 10)
PROGRAMS = ("pbzip2", "hackbench", "cpu-hog")
CHAINS = ("dbench", "hackbench", "pbzip2", "tlb-flush")
SEEDS = range(1, 6)
RECORDED_S = 10
SETTLE_S = 2
PATIENCE_S = 600
UP_TO = ("1", "2", "4", "8", "16", "32", "64", "more")
# A VM's figures, and the length of the time that they are of.
Found = tuple[dict[str, Any], int]


def scenario(vms: int, vcpus: int, names: tuple[str, ...], kernel: str) -> Scenario:
    """Return so many VMs on two pCPUs: the first runs programs, the others compute."""
    common = {"vcpus": vcpus, "memory_mb": 128 + 32 * vcpus}
    work = common | {"name": "work", "programs": [name for name in names if name != "cpu-hog"], "memory_mb": 384}
    hogs = [common | {"name": f"hog{number}", "load": "cpu-hog"} for number in range(1, vms)]
    data = {
        "name": f"queues-{vms}x{vcpus}",
        "host": {"pcpus": 2},
        "guest": {"tlb": "ipi", "ple": True},
        "vm": [work, *hogs],
        "defaults": {"kernel": kernel},
    }
    return scenarios.of_data(data, Path("queues.toml"))


def of_queue(vms: int, program: str, found: list[Found]) -> str:
    stacked = sum(vm["stacked_ns"] for vm, _ in found) / sum(end_ns for _, end_ns in found)
    cases, far = (sum(vm[name] for vm, _ in found) for name in ("distances", "distances_far"))
    return f"| {vms} | {program} | {stacked:.1%} | {far / max(1, cases):.1%} | {cases} |"


def of_chains(program: str, lengths: list[int], longest: int) -> str:
    chains = max(1, sum(lengths))
    shares = " | ".join(f"{sum(lengths[: at + 1]) / chains:.0%}" for at in range(len(UP_TO) - 1))
    return f"| {program} | {sum(lengths)} | {shares} | {longest} |"


class Endless(Run):
    """All VMs go on with what they do for as long as the lab is recorded."""

    def as_dict(self) -> dict[str, Any]:
        made = super().as_dict()
        for vm in made["vms"]:
            vm |= {"start_ns": 0, "repeat": True, "measured": False}
        return made | {"duration_ns": RECORDED_S * NS_PER_S}


class Simulated:
    """Runs of the simulator: queues as long as in the lab, for chains of one program's length."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def _vms(self, of: Scenario, program: str, kind: type[Run]) -> list[Found]:
        running = {vm.name: vm.load or program for vm in of.vms}
        results = [Result.of(kind(of, running, "eevdf", (), seed, self.kernel)) for seed in SEEDS]
        return [(result.about["figures"]["vms"][0], result.end_ns) for result in results]

    def queues(self, vms: int) -> Iterator[str]:
        of = scenario(vms, 2, PROGRAMS, self.kernel)
        for program in PROGRAMS:
            yield of_queue(vms, program, self._vms(of, program, Endless))

    def chains(self) -> Iterator[str]:
        of = scenario(2, 4, CHAINS, self.kernel)
        for program in CHAINS:
            found = [vm for vm, _ in self._vms(of, program, Run)]
            lengths = [sum(of_bucket) for of_bucket in zip(*(vm["ple_chain_lengths"] for vm in found), strict=True)]
            yield of_chains(program, lengths, max(vm["ple_chain_max"] for vm in found))


class Lab:
    """The lab's host; the program is begun anew until enough was seen."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def queues(self, vms: int) -> Iterator[str]:
        of = scenario(vms, 2, PROGRAMS, self.kernel)
        with self._place(of) as place:
            for program in PROGRAMS:
                with busy(place, program), tempfile.TemporaryDirectory() as folder:
                    file = Path(folder) / "lab.rec"
                    record(place.host, file)
                    recorded = recording.load(file)
                    (vm,) = (vm for vm in recorded.figures().vms.to_pylist() if vm["name"] == "work")
                    yield of_queue(vms, program, [(vm, recorded.length_ns)])

    def chains(self) -> Iterator[str]:
        of = scenario(2, 4, CHAINS, self.kernel)
        with self._place(of) as place:
            for program in CHAINS:
                with busy(place, program):
                    probe = ProbeRun.start(place.host, "/tmp", name=f"chains-{program}")
                    time.sleep(RECORDED_S)
                    answer = place.host.channel.call({"ping": {}}, [probe.socket])
                    sample = probe.sample_in(answer.after)
                    probe.stop()
                    if sample is None:
                        raise SystemExit("the probe does not answer")
                    (vm,) = (vm for vm in sample["vms"] if vm["name"] == "work")
                    yield of_chains(program, vm["ple_chain_lengths"], vm["ple_chain_max"])

    def _place(self, of: Scenario) -> LabPlace:
        return LabPlace(of, kernel=self.kernel, probe=False, progress=lambda text, _: print(text, file=sys.stderr))


@contextmanager
def busy(place: LabPlace, program: str, *, beside: bool = True) -> Iterator[None]:
    """Let the first VM run the program again and again, and the others compute, or idle."""
    jobs: list[Job] = []
    loop = "while :; do :; done"
    try:
        for guest in place.guests.values():
            if guest.config.name != "work" and not beside:
                continue
            line = " ".join(f"sh -c '{loop}' &" for _ in range(guest.config.vcpus)) + " wait"
            if guest.config.name == "work" and program != "cpu-hog":
                place.measure("work", program)  # with its setup
                known = place.scenario.workloads[program]
                line = f"while :; do {programs.command(known, known.command or '')}; done"
            jobs.append(guest.machine.spawn(f"busy-{time.monotonic_ns()}", line))
        time.sleep(SETTLE_S)
        yield
    finally:
        for job in jobs:
            job.signal(signal.SIGKILL)
            job.wait(PATIENCE_S, PATIENCE_S)


def record(host: Machine, to: Path, then: str = "true") -> None:
    """Record what happens; ``then`` is done when the recorder is there."""
    name = f"record-{time.monotonic_ns()}"
    job = host.spawn(name, f"exec nice -n -20 cohort record --seconds {RECORDED_S} --out /tmp/{name}.rec")
    until = time.monotonic() + PATIENCE_S
    while "recording" not in job.output("stderr")[0] and job.wait(0) is None and time.monotonic() < until:
        time.sleep(0.1)
    host.check(then)
    if job.wait(PATIENCE_S, PATIENCE_S) != 0:
        raise SystemExit(f"cohort record: {job.output('stderr')[0]}")
    to.write_bytes(host.get(f"/tmp/{name}.rec", PATIENCE_S))
    host.check(f"rm /tmp/{name}.rec")


def main(kind: str, kernel: str) -> None:
    where: dict[str, Callable[[str], Simulated | Lab]] = {"simulated": Simulated, "lab": Lab}
    place = where[kind](kernel)
    head = ["a queue's length", "program", "stacked, of the time", "a sibling farther than 2/3 of its queue", "cases"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for vms in QUEUES:
        for line in place.queues(vms):
            print(line, flush=True)
    up_to = [f"up to {length}" for length in UP_TO[:-1]]
    print(f"\n| program | chains | {' | '.join(up_to)} | longest |\n|{'---|' * (len(up_to) + 3)}", flush=True)
    for line in place.chains():
        print(line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] not in (["simulated"], ["lab"]) or len(sys.argv) > 3:
        wrong = f"{' '.join(sys.argv[1:])!r} is not allowed: must be simulated or lab, and perhaps a kernel"
        print(f"{sys.argv[0]}: {wrong}", file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1], *(sys.argv[2:] or ["7.3"]))
