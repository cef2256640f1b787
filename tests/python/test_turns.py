# SPDX-License-Identifier: GPL-2.0-only
"""Several VMs with programs, of which one has a single program: it runs in every turn, and each time beside another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.python.measured import as_measured

from cohortlab import scenario as scenarios
from cohortlab.places import Measurement
from cohortlab.results import read_parquet, write_parquet
from cohortlab.sweep import axes, plan
from cohortlab.workloads import WorkloadError

Run = Callable[..., Any]
TURNS = """
name = "turns"
[host]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
memory_mb = 256
programs = ["spin", "chat"]
[[vm]]
name = "b"
vcpus = 2
memory_mb = 256
programs = ["serve"]
"""
LABELS = ["a:spin", "b:serve@spin", "a:chat", "b:serve@chat"]
# pCPUs: alone; and of the VMs beside each other, by the program of the first, where each has its due.
ALONE = {"spin": 2.0, "chat": 0.5, "serve": 2.0}
BESIDE = {"spin": {"a": 1.0, "b": 1.0}, "chat": {"a": 0.5, "b": 1.5}}


def measured(place: Any, vm: str, program: str, used: Mapping[str, float]) -> Measurement:
    """Return the figure of a program that takes a second alone, and needs as much CPU time beside others."""
    took_s = ALONE[program] / used[vm]
    value = 1 / took_s if place.scenario.workloads[program].is_rate else took_s
    return Measurement(value, took_s, took_s, {name: pcpus * took_s for name, pcpus in used.items()})


@pytest.fixture
def path(place: Any, write_scenario: Callable[..., Path]) -> Path:
    def alone(vm: str, program: str) -> Measurement:
        place.log.append(("alone", vm, program))
        return measured(place, vm, program, {"a": 0.0, "b": 0.0, vm: ALONE[program]})

    def together(turn: Mapping[str, str]) -> dict[str, Measurement]:
        return {vm: measured(place, vm, program, BESIDE[turn["a"]]) for vm, program in turn.items()}

    place.measure, place.measure_together = alone, together
    return write_scenario(TURNS)


def test_each_turn_has_its_own_figures_and_dues(cohortlab: Run, path: Path) -> None:
    ran = cohortlab("compare", path, "--rounds", 3, "--policies", "cohort", "--json", "--out", "out")
    assert ran.code == 0, ran.err
    found = {o["program"]: o for o in json.loads(ran.out)}
    assert list(found) == LABELS
    assert {o["rounds"] for o in found.values()} == {3}
    # Beside a program that leaves it more, it is due more.
    ideals = {label: o["ideal_slowdown"] for label, o in found.items()}
    assert ideals == pytest.approx(dict(zip(LABELS, (2, 2, 1, 4 / 3), strict=True)))
    for o in found.values():
        assert (o["over_ideal"], o["neighbour_of_due"]) == pytest.approx((1, 1)), o["program"]
    # The file says what ran where, as ever.
    assert {(row.vm, row.program) for row in read_parquet(Path("out/measurements.parquet")).rows} == {
        *(("a", "spin"), ("a", "chat"), ("b", "serve"))
    }


def test_the_table_counts_rounds_and_each_program_is_warmed_up_once(cohortlab: Run, place: Any, path: Path) -> None:
    ran = cohortlab("compare", path, "--rounds", 3)
    assert ran.out.startswith("turns, TLB flush by ipi, 3 rounds: median")
    assert place.log.count(("alone", "b", "serve")) == 1 + 3 * 2
    assert "warming up: b:serve" in ran.err
    assert "round 1 of 3: b:serve alone" in ran.err
    assert "round 3 of 3: a:chat + b:serve under cohort" in ran.err


def test_what_fails_in_one_turn_has_not_failed_in_the_other(cohortlab: Run, place: Any, path: Path) -> None:
    together = place.measure_together

    def fails(turn: Mapping[str, str]) -> dict[str, Measurement]:
        if (turn["a"], place.now) == ("spin", "cohort"):
            raise WorkloadError("spin: no memory")
        found: dict[str, Measurement] = together(turn)
        return found

    place.measure_together = fails
    ran = cohortlab("compare", path, "--rounds", 2, "--json")
    assert ran.code == 1
    errors = {(o["program"], o["policy"]): (o["rounds"], o["error"]) for o in json.loads(ran.out)}
    lost = {(label, "cohort") for label in LABELS[:2]}
    assert errors == {
        (label, policy): (0, "spin: no memory") if (label, policy) in lost else (2, None)
        for label in LABELS
        for policy in ("eevdf", "cohort")
    }


QUICK = """
name = "NAME"
[[thread]]
name = "t"
count = 2
times = 10
steps = [{ compute = "1ms" }]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The same scenario with programs that can be simulated."""
    folder = tmp_path / "workloads" / "models"
    folder.mkdir(parents=True)
    for name in ("one", "two", "three", "four"):
        (folder / f"{name}.toml").write_text(QUICK.replace("NAME", name))
    path = tmp_path / "turns.toml"
    path.write_text(TURNS.replace('"spin", "chat"', '"one", "two"').replace('"serve"', '"three"'))
    return path


def test_who_runs_alone_is_the_one_that_is_named(models: Path) -> None:
    def running(*texts: str) -> Mapping[str, str]:
        return plan.make(models, axes.of_options(texts, None)).point(0).run.running

    assert running("program=b:three@two", "alone=true") == {"b": "three"}
    assert running("program=a:two", "alone=true") == {"a": "two"}
    assert running("program=b:three@two") == {"a": "two", "b": "three"}
    assert running("alone=true") == {"a": "one"}
    assert running("program=four", "alone=true") == {"a": "four"}


@pytest.mark.parametrize(
    ("program", "more", "said"),
    [
        ("b:three@two", (), "turns: three beside two, vtime, seed 1: "),
        ("a:two", (), "turns: two beside three, vtime, seed 1: "),
        ("b:three@two", ("--alone",), "turns: three alone, vtime, seed 1: "),
        ("four", (), "turns: four beside four, vtime, seed 1: "),
    ],
)
def test_what_is_explained_is_the_program_that_is_named(
    cohortlab: Run, models: Path, program: str, more: tuple[str, ...], said: str
) -> None:
    ran = cohortlab("explain", models, "--program", program, "--policy", "vtime", "--ms", 5, "--out", "x.svg", *more)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(said)
    assert said in Path("x.svg").read_text()


def errors(cohortlab: Run, *args: Any) -> dict[str, float | None]:
    lab = as_measured(Path("lab/measurements.parquet"))
    ran = cohortlab("fidelity", *args, "--lab", lab, "--rounds", 1, "--json")
    assert ran.code == 0, ran.err
    return {fit["program"]: fit["error"] for fit in json.loads(ran.out)}


def test_fidelity_has_every_turn(cohortlab: Run, models: Path) -> None:
    compare = ("compare", models, "--on", "sim", "--rounds", 1, "--policies", "vtime", "--out", "lab")
    assert cohortlab(*compare).code == 0
    labels = scenarios.load(models).labels
    assert errors(cohortlab, models) == dict.fromkeys(labels, 0.0)
    # Of the first turn the lab has nothing: it is not simulated either.
    file = Path("lab/measurements.parquet")
    results = read_parquet(file)
    results.rows = results.rows[len(results.rows) // 2 :]
    write_parquet(results, file)
    found = errors(cohortlab, models)
    assert tuple(found) == labels[2:]
    assert None not in found.values()


def test_fidelity_has_programs_that_the_scenario_does_not_list(cohortlab: Run, models: Path) -> None:
    compare = ("compare", models, "--on", "sim", "--rounds", 1, "--policies", "vtime", "--out", "lab")
    assert cohortlab(*compare, "--programs", "three,four").code == 0
    assert errors(cohortlab, models) == dict.fromkeys(("a:three", "b:three", "a:four", "b:four"), 0.0)
    # With one VM that has programs, too.
    models.write_text(models.read_text().partition('[[vm]]\nname = "b"')[0])
    assert cohortlab(*compare, "--programs", "three,four").code == 0
    assert errors(cohortlab, models) == {"three": 0.0, "four": 0.0}


def test_fidelity_refuses_what_is_of_another_scenario(cohortlab: Run, models: Path) -> None:
    compare = ("compare", models, "--on", "sim", "--rounds", 1, "--policies", "vtime", "--out", "lab")
    text = models.read_text()
    models.write_text(text.replace('"one", "two"', '"one"'))
    assert cohortlab(*compare).code == 0
    models.write_text(text)
    ran = cohortlab("fidelity", models, "--lab", as_measured(Path("lab/measurements.parquet")))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert "--lab: lab/measurements.parquet: has " in ran.err
