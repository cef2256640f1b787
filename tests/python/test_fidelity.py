# SPDX-License-Identifier: GPL-2.0-only
"""`cohortlab fidelity`: what of the lab the simulator is told, and what it does when it is interrupted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import two_vms

from cohortlab import fidelity
from cohortlab import scenario as scenarios
from cohortlab.results import read_parquet
from cohortlab.sim import compared

Run = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(two_vms("tlb-flush"))
    return tmp_path / "small.toml"


@pytest.fixture
def lab(cohortlab: Run, path: Path) -> Path:
    assert cohortlab("compare", path, "--on", "sim", "--rounds", 1, "--policies", "eevdf", "--out", "lab").code == 0
    return Path("lab/measurements.parquet")


def test_the_guests_kernel_is_that_of_the_lab(path: Path, lab: Path) -> None:
    results = read_parquet(lab)
    (where,) = results.places
    results.places[where] = {"kernel": "7.3.4+deb14-amd64", "guests' kernel": "6.12.94+deb13-amd64"}
    chosen = fidelity._as_in_the_lab(scenarios.load(path), results)
    assert (chosen.guest.kernel, fidelity.kernel_of(results)) == ("6.12.94", "7.3.4")
    del results.places[where]["guests' kernel"]
    assert fidelity._as_in_the_lab(scenarios.load(path), results).guest.kernel is None


@pytest.mark.parametrize(("stopped", "code"), [("interrupted", 130), ("no room", 1)])
def test_a_part_of_the_rounds_is_no_table(
    cohortlab: Run, path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch, stopped: str, code: int
) -> None:
    real = compared.simulate

    def simulate(*args: Any) -> Any:
        results = real(*args)
        results.stopped = stopped
        return results

    monkeypatch.setattr(compared, "simulate", simulate)
    ran = cohortlab("fidelity", path, "--lab", lab, "--rounds", 1, "--json")
    assert (ran.code, ran.out) == (code, "")
    assert stopped in ran.err


def test_a_policy_that_was_made_to_say_more_is_simulated(
    path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = read_parquet(lab)
    results.rows = [
        dataclasses.replace(row, policy_args=("-v",) if row.policy != "alone" else ()) for row in results.rows
    ]
    monkeypatch.setattr(fidelity, "read_parquet", lambda _: results)
    (found,) = fidelity.compare(scenarios.load(path), lab, rounds=1)
    assert (found.sim is not None, found.why) == (True, "")
