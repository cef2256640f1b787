# SPDX-License-Identifier: GPL-2.0-only
"""The lab's tests count a recording's events anew. How they do so must be right: here the simulator knows the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from recount import Recount

from cohortlab import scenario as scenarios
from cohortlab.recorded import recording
from cohortlab.sim.model import Run
from cohortlab.sim.result import Result, Traces

SCENARIO = Path(__file__).parents[2] / "scenarios" / "three-on-two.toml"
EXACT = (
    *("run_ns", "ready_ns", "costop_ns", "ple", "yields_asked", "yields_granted", "preemptions_kernel"),
    *("ipis_preempted", "ipi_wait_ns"),
)


@pytest.mark.parametrize("program", ["hackbench", "tlb-flush"])
def test_a_recount_says_what_was_simulated(program: str, tmp_path: Path) -> None:
    running = {"work": program, "hog": "cpu-hog", "hog2": "cpu-hog"}
    truth = Result.of(Run(scenarios.load(SCENARIO), running, "eevdf", (), 1), Traces(recording=True))
    path = tmp_path / "host.rec"
    path.write_bytes(truth.recording)
    read = recording.load(path)
    counted = Recount(read.events.to_pylist(), read.length_ns)
    imported = read.figures().about["figures"]["vms"]
    for number, (vm, wanted) in enumerate(zip(imported, truth.about["figures"]["vms"], strict=True)):
        got = {name: counted.totals[number][name] for name in EXACT}
        # A wait that has not ended is in one of them.
        assert got == {name: pytest.approx(wanted[name], rel=0.001, abs=1) for name in EXACT}
        assert counted.distances[number] == (vm["distances"], vm["distances_far"])
        assert counted.distances[number][0] > 10
        assert counted.totals[number]["ple_chains"] == vm["ple_chains"] <= counted.totals[number]["ple"]
        assert counted.chain_max[number] == vm["ple_chain_max"]
        assert counted.skew_ns[number] <= wanted["skew_max_ns"]
    assert counted.distances[0][1] > 0
    assert counted.totals[0]["ple_chains"] > 10
