# SPDX-License-Identifier: GPL-2.0-only
"""A simulated result as a thing of its own: sent elsewhere, with less in it, and by its name."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import two_vms

from cohortlab.sim import run as simulate
from cohortlab.sim.result import Result, Traces

Run = Callable[..., Any]
SMALL = two_vms("tlb-flush")
TRACES = Traces(1 << 28, 1 << 28, 4_000_000)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sim") / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def result(path: Path) -> Result:
    return simulate(path, policy="eevdf", traces=TRACES)


def test_a_result_can_be_sent(result: Result, path: Path) -> None:
    assert result.vms.num_rows == 2  # a table that was made stays behind
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        elsewhere = pool.submit(simulate, path, policy="eevdf", traces=TRACES).result()
    for back in (pickle.loads(pickle.dumps(result)), elsewhere):
        assert "vms" not in vars(back)
        assert json.dumps(back.about) == json.dumps(result.about)
        assert (back.perfetto, back.ftrace) == (result.perfetto, result.ftrace)
        assert back.timeline.equals(result.timeline)
        assert back.timeline.num_rows > 0
        assert back.measurement("work") == result.measurement("work")
    recorded = simulate(path, alone=True, traces=Traces(recording=True))
    assert pickle.loads(pickle.dumps(recorded)).recording == recorded.recording != b""


def test_what_is_not_wanted_is_not_there(result: Result, path: Path) -> None:
    few = simulate(path, policy="eevdf", traces=Traces(histograms=False))
    assert few.measurement("work") == result.measurement("work")
    assert (few.fingerprint, few.distributions) == (result.fingerprint, result.distributions)
    assert '"buckets": [[' in json.dumps(result.about)
    assert '"buckets": [[' not in json.dumps(few.about)
    none = simulate(path, policy="eevdf", traces=Traces(figures=False))
    assert none.about["programs"][0]["end_ns"] == few.about["programs"][0]["end_ns"]
    with pytest.raises(ValueError, match="histograms=True"):
        few.histograms  # noqa: B018
    for absent in ("fingerprint", "vms", "vcpus", "distributions"):
        with pytest.raises(ValueError, match="figures=True"):
            getattr(none, absent)
    with pytest.raises(ValueError, match="figures=True"):
        none.measurement("work")


def test_a_result_names_what_it_came_from(cohortlab: Run, result: Result, path: Path, tmp_path: Path) -> None:
    same = simulate(path, policy="eevdf")
    assert (same.name, same.simulator) == (result.name, result.simulator)
    others = [simulate(path, policy="eevdf", **change) for change in ({"seed": 2}, {"alone": True})]
    smaller = tmp_path / "small.toml"
    smaller.write_text(SMALL.replace("vcpus = 2", "vcpus = 1", 1))
    others.append(simulate(smaller, policy="eevdf"))
    assert len({one.name for one in (result, *others)}) == 4
    shown = json.loads(cohortlab("explain", path, "--policy", "eevdf", "--json").out)
    assert (shown["name"], shown["simulator"]) == (result.name, result.simulator)
