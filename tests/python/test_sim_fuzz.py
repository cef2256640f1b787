# SPDX-License-Identifier: GPL-2.0-only
"""Scenario files with mistakes: an error of one line or a result, never anything else.

HYPOTHESIS_EXAMPLES asks for more examples, other ones each time.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cohortlab.errors import BadInput
from cohortlab.places import PlaceError
from cohortlab.sim import Scenario
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.model import SETTLE_NS, Run, check
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
# Others that are right.
OTHERS = {"pcpus": "3", "ple": "false", "weight": "300", "start_s": "0", "count": "1", "cap_pcpus": "0.25"}
VALUES = ["0", "1", "-1", "3", "4096", "1e9", "nan", "true", '""', '"x"', '"kvm-pv"', "[]", "[0]", "[1, 1]", "{}"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A scenario with other values here and there, or with bytes changed."""
    lines = SCENARIO.splitlines()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        name, equals, _ = lines[at].partition(" = ")
        change = draw(st.sampled_from(["value", "other", "away", "twice"]))
        if change == "value" and equals:
            lines[at] = f"{name} = {draw(st.sampled_from(VALUES))}"
        elif change == "other":
            lines[at] = f"{name} = {OTHERS[name]}" if name in OTHERS else lines[at]
        elif change == "away":
            lines[at] = ""
        else:
            lines.insert(at, lines[at])
    data = bytearray("\n".join(lines).encode())
    # Few that have other bytes are read at all.
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


MORE = int(os.environ.get("HYPOTHESIS_EXAMPLES", "0"))


def at_once(described: dict[str, Any]) -> dict[str, Any]:
    """Return the beginning of a run, in which programs do not wait until the loads have settled."""
    vms = [vm | {"start_ns": max(vm.get("start_ns", 0) - SETTLE_NS, 0)} for vm in described["vms"]]
    return described | {"duration_ns": 2_000_000, "events_max": 200_000, "vms": vms}


def attempt(data: bytes, policy: str) -> bool:
    """Return whether a result comes of this, and not an error of one line."""
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
            result = Result.of_dict(short, at_once(short.as_dict()))
        except (BadInput, PlaceError) as error:
            said, is_result = str(error), False
        else:
            said, is_result = result.fingerprint, True
    assert said
    assert "\n" not in said
    return is_result


def test_an_error_or_a_result() -> None:
    results = 0

    @settings(max_examples=MORE or 150, derandomize=not MORE)
    @given(damaged(), st.sampled_from(["eevdf", "cohort", "balance"]))
    def each(data: bytes, policy: str) -> None:
        nonlocal results
        results += attempt(data, policy)

    each()
    # What only ever meets the first check tests nothing. Three are the file as it is, by each policy.
    assert results > 5, f"{results} of {MORE or 150} are results"
