# SPDX-License-Identifier: GPL-2.0-only
"""What only the simulator refuses, of a hardware file and of a model: it names the field, and no place in a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import with_quick

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


RATE = 'name = "quick"\ntitle = "Q"\n[metric]\nkind = "rate"\nunit = "x/s"\n'


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "SCENARIO", "--on", "sim", "--out", "out"),
        ("explain", "SCENARIO", "--out", "out.png"),
        ("sweep", "SCENARIO", "--axis", "seed=1..2", "--out", "out"),
        ("tune", "SCENARIO", "--held-out", "smp-2x2", "--knob", "slice-us=4000"),
    ],
)
def test_a_rate_of_a_model_that_has_none_is_refused_before_anything_runs(
    cohortlab: Callable[..., Any], tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = with_quick(tmp_path)
    (tmp_path / "workloads" / "quick.toml").write_text(RATE)
    model = tmp_path / "workloads" / "models" / "quick.toml"
    ran = cohortlab(*[path if word == "SCENARIO" else word for word in command])
    assert (ran.code, ran.out, ran.err.count("\n"), list(Path.cwd().iterdir())) == (2, "", 1, []), ran.err
    assert f"{model}: metric.rate: is missing: must be given, or the kind of [metric] in the workload " in ran.err


def test_a_rate_of_a_model_that_comes_with_the_project_is_looked_for_in_it(tmp_path: Path) -> None:
    path = with_quick(tmp_path)
    for name, has_rate in (("ebizzy", True), ("ep", False)):
        (tmp_path / "workloads" / f"{name}.toml").write_text(RATE.replace("quick", name))
        run = Run(scenarios.load(path).with_programs((name,)), {"work": name})
        if has_rate:
            assert run.as_dict()["vms"][0]["workload"] == {"model": name}
            continue
        with pytest.raises(BadInput, match=rf"models/{name}\.toml: metric\.rate: is missing"):
            run.as_dict()
