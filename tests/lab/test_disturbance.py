# SPDX-License-Identifier: GPL-2.0-only
"""Of what keeps the lab waiting, what others did and what its emulator did to itself."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import disturbance
import pytest
from disturbance import Disturbance


@pytest.mark.parametrize(
    ("own_s", "ran_s", "busy_s", "stolen_s", "all_in_all", "by_others"),
    [
        pytest.param(8.5, 18, 18.2, 0, 0.15, 0.02, id="its own threads wait for one another"),
        pytest.param(5.5, 10, 20, 0, 0.45, 0.45, id="others take half of the CPUs"),
        pytest.param(10, 5, 15, 0, 0, 0, id="others run where it does not want to"),
        pytest.param(10, 20, 20, 4, 0.2, 0.2, id="the machine itself was elsewhere"),
        pytest.param(10, 20, 19.9, 0, 0, 0, id="ticks that are not counted yet"),
    ],
)
def test_others_keep_it_waiting_no_longer_than_they_run(
    own_s: float,
    ran_s: float,
    busy_s: float,
    stolen_s: float,
    all_in_all: float,
    by_others: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten seconds on two CPUs."""
    now_s, spent_s = [0.0], {disturbance._BUSY: 100.0, disturbance._STEAL: 7.0}
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(disturbance, "_spent_s", spent_s.__getitem__)

    class Clock:
        ran_s = 0.0

        def __call__(self) -> float:
            self.ran_s = ran_s
            return own_s

    place: Any = SimpleNamespace(emulator=SimpleNamespace(clock=Clock))
    measured = Disturbance(place)
    now_s[0] = 10.0
    spent_s[disturbance._BUSY] += busy_s
    spent_s[disturbance._STEAL] += stolen_s
    assert measured.part() == pytest.approx(all_in_all)
    assert measured.by_others() == pytest.approx(by_others)
