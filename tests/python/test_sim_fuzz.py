# SPDX-License-Identifier: GPL-2.0-only
"""Scenario files with mistakes: an error of one line or a result, never anything else.

HYPOTHESIS_EXAMPLES asks for more examples, other ones each time.
"""

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.sim import Scenario
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.model import Run, check
from cohortlab.sim.policy import KERNEL_DEFAULT
from cohortlab.sim.result import Result

SCENARIO = """
name = "fuzz"
[host]
pcpus = 2
[guest]
tlb = "ipi"
ple = true
[[vm]]
name = "work"
vcpus = 2
memory_mb = 256
weight = 100
affinity = [0, 1]
start_s = 0.0001
programs = ["hackbench"]
[[vm]]
name = "two"
count = 2
vcpus = 1
memory_mb = 256
cap_pcpus = 0.5
vcpu_affinity = [[0, 1]]
programs = ["ep"]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
tlb = "hypercall"
load = "cpu-hog"
run_s = 0.001
sleep_s = 0.001
[defaults]
hardware = "lab"
kernel = "6.12"
"""
VALUES = ["0", "1", "-1", "3", "4096", "1e9", "nan", "true", '""', '"x"', '"kvm-pv"', "[]", "[0]", "[1, 1]", "{}"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A scenario with other values here and there, or with bytes changed."""
    lines = SCENARIO.splitlines()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        name, equals, _ = lines[at].partition(" = ")
        change = draw(st.sampled_from(["value", "away", "twice"]))
        if change == "value" and equals:
            lines[at] = f"{name} = {draw(st.sampled_from(VALUES))}"
        elif change == "away":
            lines[at] = ""
        else:
            lines.insert(at, lines[at])
    data = bytearray("\n".join(lines).encode())
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


MORE = int(os.environ.get("HYPOTHESIS_EXAMPLES", "0"))


@settings(max_examples=MORE or 150, derandomize=not MORE)
@given(damaged(), st.sampled_from(["eevdf", "cohort", "balance"]))
def test_an_error_or_a_result(data: bytes, policy: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.toml"
        path.write_bytes(data)
        try:
            scenario = Scenario.load(path)
            check(scenario)
            running = {vm.name: vm.load for vm in scenario.neighbours if vm.load is not None}
            kernel = scenario.defaults.kernel or KERNEL_DEFAULT
            short = Run(
                scenario, running | dict(scenario.turns[0]), policy, kernel=kernel, hardware=hardwares.of(scenario)
            )
            described = short.as_dict() | {"duration_ns": 2_000_000, "events_max": 200_000}
            result = Result.of_dict(short, described)
        except (BadInput, PlaceError) as error:
            said = str(error)
        else:
            said = result.fingerprint
    assert said
    assert "\n" not in said
