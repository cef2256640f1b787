# SPDX-License-Identifier: GPL-2.0-only
"""Every preset on the newest and on the oldest kernel: its verifier takes it, it schedules, equal VMs get the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, Ground

from cohortlab.policies import PRESETS

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long, KERNELS]

# These say of themselves that they keep no shares.
WITHOUT_SHARES = ("procco", "cpuco")
VMS = ("work", "pv", "hyper")
PCPUS = 2


@pytest.mark.parametrize("preset", PRESETS)
def test_it_is_loaded_and_divides(bench: Bench, preset: str) -> None:
    with Ground(bench, preset) as ground:
        ground.busy(*VMS)
        got = ground.got(*VMS)
        if preset in WITHOUT_SHARES:
            ground.used(got, PCPUS)
        else:
            ground.divided(got, dict.fromkeys(VMS, 1), PCPUS)
