# SPDX-License-Identifier: GPL-2.0-only
"""How well what was recorded under EEVDF predicts Cohort: a Markdown table.

build/venv/bin/python bench/replay/predict.py simulated        the recorded host is simulated; a minute
build/venv/bin/python bench/replay/predict.py lab [ROUNDS]     the lab's host; a quarter of an hour a round
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cohortlab import scenario as scenarios
from cohortlab.recorded import recording
from cohortlab.recorded import scenario as makes
from cohortlab.recorded.advice import Advice, advise
from cohortlab.scenario import Scenario
from cohortlab.sim.model import Run
from cohortlab.sim.result import Result, Traces

SCENARIO = "smp-2x2"
VM = "work"
SEEDS = range(1, 7)
POLICIES = ("eevdf", "cohort")
LOADING_S = 600
NS_PER_S = 1_000_000_000


def replayed(file: Path, part: makes.Part, rounds: int) -> Advice:
    """Return what the simulator makes of that part of a recording."""
    with tempfile.TemporaryDirectory() as folder:
        written = makes.write(recording.load(file), Path(folder), part, "lab")
        return advise(scenarios.load(written.path), ",".join(POLICIES), rounds)


def row(program: str, true: dict[str, list[float]], alone: list[float], found: Advice) -> str:
    """Return a line of the table: true and predicted slowdown under each policy, and the error."""
    cells = [program]
    for policy in POLICIES:
        truth = statistics.median(true[policy]) / statistics.median(alone)
        predicted = found.slowdown(policy, VM)
        cells += [f"{truth:.2f}", f"{predicted:.2f}", f"{100 * (predicted / truth - 1):+.0f} %"]
    return f"| {' | '.join(cells)} |"


def simulated(scenario: Scenario) -> Iterator[str]:
    """Yield the rows for a simulated host."""
    loads = {vm.name: vm.load for vm in scenario.neighbours if vm.load is not None}

    def results(program: str, policy: str, beside: dict[str, str], *, record: bool = False) -> list[Result]:
        running = {VM: program} | beside
        return [Result.of(Run(scenario, running, policy, (), seed), Traces(recording=record)) for seed in SEEDS]

    def took(of: list[Result]) -> list[float]:
        return [result.measurement(VM).wall_s for result in of]

    for program in scenario.program_vm.programs:
        under = {policy: results(program, policy, loads, record=policy == "eevdf") for policy in POLICIES}
        first = under["eevdf"][0]
        ran = next(ran for ran in first.about["programs"] if ran["vm"] == 0)
        with tempfile.NamedTemporaryFile(suffix=".rec") as file:
            Path(file.name).write_bytes(first.recording)
            found = replayed(Path(file.name), makes.Part(ran["start_ns"], ran["end_ns"]), len(SEEDS))
        alone = took(results(program, "eevdf", {}))
        yield row(program, {policy: took(of) for policy, of in under.items()}, alone, found)


def lab(scenario: Scenario, rounds: int) -> Iterator[str]:
    """Yield the rows for the lab: alone, under EEVDF, under Cohort, in turn; the first round is recorded."""
    from cohortlab.lab.place import LabPlace

    with LabPlace(scenario, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        host = place.emulator.host

        def clock_ns() -> int:
            return int(float(host.read("/proc/uptime").split()[0]) * NS_PER_S)

        @contextmanager
        def recorder(to: Path) -> Iterator[None]:
            job = host.spawn(f"record-{time.monotonic_ns()}", "exec cohort record --out /tmp/lab.rec")
            end = time.monotonic() + LOADING_S
            while "recording" not in job.output("stderr")[0] and time.monotonic() < end:
                time.sleep(0.3)
            yield
            job.signal(signal.SIGTERM)
            job.wait(LOADING_S)
            to.write_bytes(host.get("/tmp/lab.rec", LOADING_S))

        def took_s(program: str, policy: str) -> float:
            # A program of fixed length says how much it did, and not how long that took.
            with place.policy(policy):
                measured = place.measure(VM, program)
            return 1 / measured.value if scenario.workloads[program].is_rate else measured.wall_s

        for program in scenario.program_vm.programs:
            alone: list[float] = []
            true: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            found = None
            place.measure(VM, program)
            for _ in range(rounds):
                alone.append(took_s(program, "eevdf"))
                with place.background("hog", "cpu-hog"):
                    if found is None:
                        with tempfile.NamedTemporaryFile(suffix=".rec") as file:
                            path = Path(file.name)
                            with recorder(path):
                                begun_ns = clock_ns()
                                true["eevdf"].append(took_s(program, "eevdf"))
                                ended_ns = clock_ns()
                            start_ns = recording.load(path).about["start_ns"]
                            part = makes.Part(max(begun_ns - start_ns, 0), ended_ns - start_ns)
                            found = replayed(path, part, len(SEEDS))
                    else:
                        true["eevdf"].append(took_s(program, "eevdf"))
                    true["cohort"].append(took_s(program, "cohort"))
            print(program, alone, true, file=sys.stderr)
            if found is not None:
                yield row(program, true, alone, found)


def main() -> None:
    kind = "".join(sys.argv[1:2])
    told = (sys.argv[2:3] or ["3"])[0]
    if kind not in ("simulated", "lab") or not told.isdecimal() or not int(told):
        wrong = f"{' '.join(sys.argv[1:])!r} is not allowed: must be simulated, or lab [ROUNDS]"
        print(f"{sys.argv[0]}: {wrong}", file=sys.stderr)
        sys.exit(2)
    rounds = int(told)
    scenario = scenarios.load(scenarios.find(Path(SCENARIO)))
    if sys.argv[3:]:
        scenario = scenario.with_programs(tuple(sys.argv[3].split(",")))
    print(
        "| program | EEVDF, recorded | replayed | error | Cohort | predicted | error |", "|---|" + "---|" * 6, sep="\n"
    )
    for line in simulated(scenario) if kind == "simulated" else lab(scenario, rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
