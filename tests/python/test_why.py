# SPDX-License-Identifier: GPL-2.0-only
"""What a VM's time went to: the figures, which are shown, and the one word for them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from cohortlab import why
from cohortlab.lab.agent import Answer, Sample
from cohortlab.lab.probe import ProbeRun
from cohortlab.report import render
from cohortlab.results import read_parquet
from cohortlab.scenario import Scenario
from cohortlab.summary import figures
from cohortlab.table import print_results

S = 1_000_000_000
# Two vCPUs for two seconds.
COUNTED = {
    "window_ns": 2 * S,
    "vcpus": 2,
    "run_ns": 2 * S,
    "ready_ns": S,
    "costop_ns": S // 2,
    "wait_kernel_ns": S // 10,
    "halted_ns": S,
    "ple": 50,
}


def test_times_are_shares_of_all_vcpus_time_and_counts_are_rates() -> None:
    found = why.of(COUNTED)
    assert found == {
        "vcpus": 2,
        "run": 0.5,
        "ready": 0.25,
        "costop": 0.125,
        "wait_kernel": 0.025,
        "halted": 0.25,
        "ple_per_s": 25,
    }
    assert why.of({"window_ns": 0, "vcpus": 2}) == {}


def test_the_median_is_of_the_rounds_that_know_a_figure() -> None:
    rounds = [{"work": COUNTED | {"ple": ple, **more}} for ple, more in ((50, {}), (90, {"spin_ns": S}), (10, {}))]
    found = why.over_rounds([*rounds, {}])
    assert found["work"]["ple_per_s"] == 25
    assert found["work"]["spin"] == 0.25
    assert why.over_rounds([{}]) == {}


def test_columns_that_say_nothing_are_left_out() -> None:
    def headings(counters: dict[str, float], *, more: bool = False) -> list[str]:
        return [column.heading for column in why.columns_of([why.of(counters)], more=more)]

    assert headings(COUNTED) == ["ran", "ready", "co-stop", "kernel", "halted", "PLE/s"]
    assert "throttled" not in headings(COUNTED | {"throttled_ns": 1000})
    assert "throttled" in headings(COUNTED | {"throttled_ns": S})
    assert "PLE/s" not in headings(COUNTED | {"ple": 0})
    assert "spun" in headings(COUNTED | {"spin_ns": S}, more=True)
    assert "spun" not in headings(COUNTED | {"spin_ns": S})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run_ns": 0, "ready_ns": 0}, "idle"),
        ({"ready_ns": S // 100}, "nothing"),
        ({"ready_ns": S // 100, "ple": 1000}, "spinning"),
        ({}, "co-stop"),
        ({"ple": 1000}, "co-stop, spinning"),
        ({"costop_ns": 0}, "busy pCPUs"),
        ({"costop_ns": 0, "wait_wakeup_ns": S}, "waking up"),
        ({"wait_kernel_ns": S // 2}, "its kernel"),
        ({"stacked_ns": S, "wait_kernel_ns": S // 2}, "stacking"),
        ({"throttled_ns": S, "stacked_ns": S}, "its limit"),
    ],
)
def test_what_it_lost_most_to(change: dict[str, float], said: str) -> None:
    assert why.mostly(why.of(COUNTED | change)) == said


# "other" is somebody else's VM.
PIDS = {"work": 7, "new": 8, "other": 9}


def sample(clock_ns: int, run_ns: int, *, missing: tuple[str, ...] = (), names: tuple[str, ...] = ("work",)) -> str:
    total = {"run_ns": run_ns, "ple": 7}
    vms = [{"pid": PIDS[n], "vcpus": [{}, {}], "stacked_ns": 5, "throttled_ns": 0, "total": total} for n in names]
    return json.dumps({"clock_ns": clock_ns, "idle_ns": clock_ns // 4, "missing": missing, "vms": vms})


def answer(before: str | None, after: str | None) -> Answer:
    return Answer({}, Sample(0, {"/x/probe.sock": before}), Sample(S, {"/x/probe.sock": after}))


def test_what_the_probe_says_before_and_after_is_subtracted() -> None:
    run = ProbeRun(None, "/x/probe.sock")  # type: ignore[arg-type]  # its job is not asked
    now = sample(3 * S, 9, missing=("ple",), names=("work", "new", "other"))
    names = {PIDS[name]: name for name in ("work", "new")}
    assert run.between(answer(sample(S, 4), now), names) == {
        "work": {"run_ns": 5, "stacked_ns": 0, "throttled_ns": 0, "vcpus": 2, "window_ns": 2 * S}
    }
    # A quarter of the probe's two seconds, of the second that is measured.
    assert run.of_host(answer(sample(S, 4), now)) == {"idle_s": 0.25}
    unlimited = sample(3 * S, 9, missing=("throttled_ns",))
    assert "throttled_ns" not in run.between(answer(sample(S, 4), unlimited), names)["work"]
    for missing in (None, "", '{"clock'):
        assert run.between(answer(sample(S, 4), missing), names) == {}
        assert run.between(answer(missing, sample(S, 4)), names) == {}
        assert run.of_host(answer(sample(S, 4), missing)) == {}


def test_it_is_in_every_output(cohortlab: Callable[..., object], place: object, two: Scenario) -> None:
    place.why = {"work": COUNTED, "hog": COUNTED | {"ple": 0}}  # type: ignore[attr-defined]
    ran = cohortlab("compare", two.path, "--rounds", "2", "--out", "out", "--json")
    assert ran.code == 0, ran.err  # type: ignore[attr-defined]
    objects = json.loads(ran.out)  # type: ignore[attr-defined]
    assert objects[0]["why"]["work"]["ready"] == 0.25
    assert set(objects[0]["why"]) == {"work", "hog"}
    assert set(objects[0]["alone_why"]) == {"work"}
    results = read_parquet(Path("out/measurements.parquet"))
    assert all(row.why["work"] == COUNTED for row in results.rows)
    found = figures(results, two)
    console = Console(file=io.StringIO(), width=100)
    print_results(console, results, found)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert why.TITLE in printed
    assert "lost most to" in printed
    page = render(results, two, found)
    assert "Why: what the vCPUs&#39; time went to" in page or "Why: what the vCPUs' time went to" in page
    assert page.count("<td>25.0</td>") >= 4


def test_the_simulator_counts_it_from_the_programs_start_to_its_end(cohortlab: Callable[..., object]) -> None:
    ran = cohortlab("compare", "smp-2x2", "--on", "sim", "--programs", "hackbench", "--rounds", "1", "--json")
    eevdf, cohort = json.loads(ran.out)  # type: ignore[attr-defined]
    for found in (eevdf, cohort):
        for vm in ("work", "hog"):
            figures = found["why"][vm]
            assert figures["run"] + figures["ready"] + figures["halted"] == pytest.approx(1, abs=1e-6), vm
            assert figures["costop"] <= figures["ready"]
        assert found["why"]["hog"]["halted"] < 0.01
    assert eevdf["why"]["work"]["ple_per_s"] > 1 > eevdf["why"]["hog"]["ple_per_s"]
    assert cohort["why"]["work"]["costop"] < eevdf["why"]["work"]["costop"] / 2


def test_the_simulator_needs_no_probe(cohortlab: Callable[..., object]) -> None:
    ran = cohortlab("compare", "smp-2x2", "--on", "sim", "--no-probe")
    assert ran.code == 2  # type: ignore[attr-defined]
    assert "--no-probe: the simulator counts without one" in ran.err  # type: ignore[attr-defined]
