# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes put into the scheduler's source: the simulator's tests of `bpf/` must find each.

A copy of `bpf/` with one line changed is compiled into the simulator (COHORT_BPF_DIR) in a folder of its own, and
`cargo test --test bpf` runs. What does not depend on the copy is compiled once; each mistake then takes a few seconds.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.mutations.mistakes import MUTATIONS, Mutation
from tests.python.test_policies_example import with_example

REPO = Path(__file__).parents[2]
WORK = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "build" / "target")) / "mutations"


def run_tests(bpf: Path) -> tuple[bool, str]:
    """Run the tests against this copy. Return whether all passed, and what was printed."""
    environment = os.environ | {
        "COHORT_BPF_DIR": str(bpf),
        "CARGO_TARGET_DIR": str(WORK / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    argv = ["scripts/in-toolchain", "cargo", "test", "--locked", "--package", "cohort-sim", "--test", "bpf"]
    # Random partitions, measured against the ideal: a mistake is to be found by a test that says what is expected.
    argv += ["--", "--skip", "maxmin::"]
    # A mistake may let a test run for ever; that is found too.
    try:
        done = subprocess.run(argv, cwd=REPO, env=environment, capture_output=True, text=True, timeout=900, check=False)
    except subprocess.TimeoutExpired:
        return False, "test result: FAILED (did not end)"
    return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def bpf() -> Path:
    """Return a copy of the scheduler, always at the same place, so that little is compiled anew."""
    copy = WORK / "bpf"
    copy.mkdir(parents=True, exist_ok=True)
    for old in copy.iterdir():
        if not (REPO / "bpf" / old.name).is_file():
            old.unlink()
    for path in (REPO / "bpf").glob("*.[ch]"):
        to = copy / path.name
        if not to.is_file() or to.read_bytes() != path.read_bytes():
            shutil.copyfile(path, to)
    return copy


def find(mutation: Mutation, bpf: Path) -> None:
    path = bpf / mutation.file
    source = path.read_text()
    path.write_text(source.replace(mutation.right, mutation.wrong))
    passed, output = run_tests(bpf)
    # Neither is a mistake that does not compile one that tests have found.
    assert passed or "test result: FAILED" in output, output
    assert not passed, f"no test finds that {mutation.about}"


def test_a_copy_without_mistakes_passes_and_one_with_a_mistake_does_not(bpf: Path) -> None:
    passed, output = run_tests(bpf)
    assert passed, output
    find(MUTATIONS[0], bpf)


def test_the_guides_example_passes_its_test_and_all_others(bpf: Path) -> None:
    with_example(bpf)
    passed, output = run_tests(bpf)
    assert passed, output
    assert "example::a_lottery_divides_by_weight ... ok" in output


def test_each_line_to_be_changed_is_there_once() -> None:
    for mutation in MUTATIONS:
        count = (REPO / "bpf" / mutation.file).read_text().count(mutation.right)
        assert count == 1, f"{mutation.file} has `{mutation.right}` {count} times: change this list"


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS[1:], ids=lambda mutation: mutation.about)
def test_every_mistake_is_found(mutation: Mutation, bpf: Path) -> None:
    find(mutation, bpf)


def test_every_file_that_decides_something_has_its_mistake() -> None:
    decides_nothing = {
        "cgroup_ops.h",
        "debts.h",
        "gang_calls.h",
        "gang_partial_auto.h",
        "intf.h",
        "life_ops.h",
        "kernel_types.h",
        "native.h",
        "period.h",
        "policies.h",
        "policy.h",
    }
    files = {path.name for path in (REPO / "bpf").glob("*.[ch]")}
    assert {mutation.file for mutation in MUTATIONS} == files - decides_nothing
