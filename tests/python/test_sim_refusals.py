# SPDX-License-Identifier: GPL-2.0-only
"""What only the simulator can refuse of a hardware file: it names the field, and no place in a text of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.policies import KERNEL
from cohortlab.sim import hardware
from cohortlab.sim.model import Run
from cohortlab.sim.result import Result


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threads_share = 3\n", "machine.costs.threads_share: invalid type: integer `3`, expected a boolean"),
        ("ipi_ns = -1\n", "machine.costs.ipi_ns: invalid value: integer `-1`, expected an integer from 0 to "),
        (
            "smt_speed_beside_spinner_per_mille = 100\n",
            "machine.costs.smt_speed_beside_spinner_per_mille: is 100; allowed: smt_speed_per_mille (620) to 1000",
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_field_alone(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "h.toml"
    file.write_text(f"[machine.costs]\n{text}")
    of = scenarios.load(scenarios.SHIPPED / "smp-2x2.toml")
    run = Run(of, {"work": "user-spin"}, KERNEL, seed=1, hardware=hardware.load(str(file)))
    with pytest.raises(BadInput) as refused:
        Result.of(run)
    line = str(refused.value)
    assert said in line
    assert str(file) in line
    assert " at line " not in line
