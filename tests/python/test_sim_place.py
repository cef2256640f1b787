# SPDX-License-Identifier: GPL-2.0-only
"""The simulator as a place of a comparison: a program that fails there takes nothing else with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import two_vms, with_quick

from cohortlab import scenario as scenarios
from cohortlab.compare import Plan
from cohortlab.places import Measurement
from cohortlab.policies import Policy
from cohortlab.results import Results, read_parquet
from cohortlab.sim import hardware as hardwares
from cohortlab.sim import place as places
from cohortlab.sim.compared import simulate
from cohortlab.sim.model import Run as Simulated
from cohortlab.sim.model import machine_of
from cohortlab.sim.result import Result, RunEnded, RunEndless, Traces
from cohortlab.workloads import WorkloadError

Run = Callable[..., Any]
ROUNDS = 20
EEVDF, VTIME = Policy("eevdf", "eevdf"), Policy("vtime", "vtime")
ALL_THREE = {"alone", "eevdf", "vtime"}
IDLE = """
name = "idle"
[[thread]]
name = "t"
times = 2000000
steps = [{ compute = "0ns" }]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = with_quick(tmp_path)
    (tmp_path / "workloads" / "models" / "idle.toml").write_text(IDLE)
    path.write_text(two_vms("idle", "hackbench"))
    return path


def test_a_program_that_does_nothing_for_ever_is_the_only_one_that_fails(cohortlab: Run, path: Path) -> None:
    ran = cohortlab("compare", path, "--on", "sim", "--rounds", 1, "--json", "--out", "out")
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert {o["program"] for o in found if o["error"] is None and o["slowdown"] > 0} == {"hackbench"}
    kept = read_parquet(Path("out/measurements.parquet"))
    assert kept.stopped is None
    assert {program for _, _, program in kept.failed} == {"idle"}
    assert all("idle fails alone: " in why and "does nothing for ever" in why for why in kept.failed.values())


def test_explain_of_a_program_that_does_nothing_for_ever_fails(cohortlab: Run, path: Path) -> None:
    ran = cohortlab("explain", path, "--program", "idle")
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1), ran.err
    assert "does nothing for ever" in ran.err


def test_a_load_that_does_nothing_for_ever_is_no_programs_fault(path: Path) -> None:
    path.write_text(two_vms("quick", "idle").replace('"cpu-hog"', '"idle"'))
    scenario = scenarios.load(path)
    for running, vm in (({"work": "quick", "hog": "idle"}, "hog"), ({"work": "idle"}, "work")):
        with pytest.raises(RunEnded, match=f" VM {vm}: .* does nothing for ever") as caught:
            Result.of(Simulated(scenario, running))
        assert isinstance(caught.value, RunEndless) == (vm == "work")
    # Of too many events nobody knows whose they are.
    run = Simulated(scenario, {"work": "quick"})
    with pytest.raises(RunEndless, match="more than 1 events"):
        Result.of_dict(run, run.as_dict() | {"events_max": 1})


class Done:
    """A run's result; without a figure if its program did not end in time."""

    def __init__(self, *, ended: bool) -> None:
        self.ended = ended

    def measurement(self, vm: str) -> Measurement:
        if not self.ended:
            raise WorkloadError(f"quick in {vm} did not end in 600 s")
        return Measurement(1.0, 1.0, 1.0, {"work": 1.0, "hog": 1.0})


def compared(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policies: tuple[Policy, ...],
    done: Callable[[str, str], Done],
    of_hog: str = "",
) -> tuple[Results, Counter[tuple[str, str]]]:
    """Compare with ``done`` in the simulator's place, told of the policy, or "alone", and the program.

    Returns:
        the results, and how often each was asked for.
    """
    asked: list[tuple[str, str]] = []

    def of(run: Simulated, traces: Traces) -> Done:
        what = (" ".join((run.policy, *run.args)) if "hog" in run.running else "alone", run.running["work"])
        asked.append(what)
        return done(*what)

    monkeypatch.setattr(Result, "of", of)
    # Fewer than a round has: nothing of the second is begun before it is known what fails in the first.
    monkeypatch.setattr(places, "AHEAD_MAX", 2)
    path.write_text(two_vms("quick", "tlb-flush") + of_hog)
    results = simulate(Plan(policies, ROUNDS, {"ipi": scenarios.load(path)}, warm_up=False), "test", None)
    assert results.stopped is None
    return results, Counter(asked)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("where", ["vtime", "alone"])
def test_what_has_failed_is_not_simulated_ahead_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, where: str, late: bool
) -> None:
    def done(what: str, program: str) -> Done:
        fails = (what, program) == (where, "quick")
        if fails and not late:
            raise RunEndless("it does nothing for ever")
        return Done(ended=not fails)

    results, times = compared(path, monkeypatch, (EEVDF, VTIME), done)
    out = {"vtime"} if where == "vtime" else {"eevdf", "vtime"}
    assert set(results.failed) == {("ipi", policy, "quick") for policy in out}
    measured = ALL_THREE - {where, *out}
    assert {times[one, "tlb-flush"] for one in ALL_THREE} == {ROUNDS}
    assert all(times[one, "quick"] == ROUNDS for one in measured)
    # That which failed, and at most one more that was under way then.
    assert 1 <= sum(times[one, "quick"] for one in ALL_THREE - measured) <= 2


def test_what_fails_under_every_policy_is_not_simulated_alone_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def done(what: str, program: str) -> Done:
        if what != "alone" and program == "quick":
            raise RunEndless("it does nothing for ever")
        return Done(ended=True)

    results, times = compared(path, monkeypatch, (EEVDF, VTIME), done)
    assert set(results.failed) == {("ipi", policy, "quick") for policy in ("eevdf", "vtime")}
    assert [times[one, "quick"] for one in ("alone", "eevdf", "vtime")] == [1, 1, 1]
    assert {times[one, "tlb-flush"] for one in ALL_THREE} == {ROUNDS}


@pytest.mark.parametrize("failing", [VTIME, Policy("eevdf@none", "eevdf", ("--vm-cgroups", "no"))])
def test_a_policy_that_has_failed_is_not_simulated_ahead_any_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: Policy
) -> None:
    def done(what: str, program: str) -> Done:
        if what == "vtime":
            raise RunEnded("its scheduler was put out")
        return Done(ended=True)

    # Where a VM has a weight, the other one is refused before it runs.
    results, times = compared(path, monkeypatch, (EEVDF, failing), done, "weight = 200\n")
    assert set(results.failed) == {("ipi", failing.label, program) for program in ("quick", "tlb-flush")}
    name = " ".join((failing.name, *failing.args))
    assert times[name, "quick"] <= 1
    assert times[name, "tlb-flush"] == 0
    assert {times[one, program] for one in ("alone", "eevdf") for program in ("quick", "tlb-flush")} == {ROUNDS}


def test_what_a_shape_leaves_out_is_one(tmp_path: Path) -> None:
    # The simulator's own default is another: two pCPUs would be four.
    path, hardware = tmp_path / "two.toml", tmp_path / "h.toml"
    path.write_text(two_vms("hackbench"))
    hardware.write_text("[machine]\nsockets = 2\n")
    machine = machine_of(scenarios.load(path), hardwares.load(str(hardware)))
    assert machine == {"sockets": 2, "cores_per_socket": 1, "threads_per_core": 1}
