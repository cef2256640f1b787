# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes put into the scheduler's source: the simulator's tests of `bpf/` must find each.

A copy of `bpf/` with one line changed is compiled into the simulator (COHORT_BPF_DIR) in a folder of its own, and
`cargo test --test bpf` runs. What does not depend on the copy is compiled once; each mistake then takes a few seconds.
"""

import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from tests.mutations.core_mistakes import OF_OPERATIONS
from tests.mutations.hostile_mistakes import OF_HOSTS
from tests.mutations.mistakes import MUTATIONS as OF_CORE
from tests.mutations.mutation import OWN_FILES, Mutation
from tests.mutations.policy_mistakes import OF_POLICIES, OF_SETS
from tests.mutations.way_mistakes import OF_WAYS
from tests.python.test_policies_example import with_example

from cohortlab.sim.policy import BOOST, PRESETS, TABLES

MUTATIONS = [*OF_CORE, *OF_OPERATIONS, *OF_WAYS, *OF_HOSTS, *OF_POLICIES]
REPO = Path(__file__).parents[2]
TIMEOUT_S = 900
DID_NOT_END = f"the tests did not end in {TIMEOUT_S} s"
WORK = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "build" / "target")).absolute() / "mutations"


def cargo_test(argv: list[str], environment: dict[str, str]) -> tuple[bool, str]:
    """Run cargo's tests. Return whether all passed, and what was printed."""
    cargo = subprocess.Popen(
        ["scripts/in-toolchain", "cargo", "test", *argv],
        cwd=REPO,
        env=os.environ | environment,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
        start_new_session=True,
    )
    # A mistake may let a test run for ever. It must not go on beside the next one.
    try:
        said, _ = cargo.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(cargo.pid, signal.SIGKILL)
        said, _ = cargo.communicate()
        return False, f"{said}\n{DID_NOT_END}"
    except BaseException:
        # Ctrl-C, for one, does not reach it.
        os.killpg(cargo.pid, signal.SIGKILL)
        cargo.communicate()
        raise
    return cargo.returncode == 0, said


def run_tests(bpf: Path, *, only: str = "") -> tuple[bool, str]:
    """Run the tests against this copy, or those of one module. Return whether all passed, and what was printed."""
    environment = {
        "COHORT_BPF_DIR": str(bpf),
        "CARGO_TARGET_DIR": str(WORK / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    argv = ["--locked", "--package", "cohort-sim", "--test", "bpf"]
    # Random partitions, measured against the ideal: a mistake is to be found by a test that says what is expected.
    argv += ["--", only] if only else ["--", "--skip", "maxmin::"]
    return cargo_test(argv, environment)


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
    if DID_NOT_END in output:
        # Whatever was so slow is no finding; a test that failed before that is.
        found = mutation.hangs or "... FAILED" in output
        assert found, f"{output[-2000:]}, and none says that {mutation.about}"
        return
    # Neither is a mistake that does not compile one that tests have found.
    assert passed or "test result: FAILED" in output, output
    assert not passed, f"no test finds that {mutation.about}"


@pytest.mark.long
def test_a_copy_without_mistakes_passes(bpf: Path) -> None:
    passed, output = run_tests(bpf)
    assert passed, output


def test_the_guides_example_passes_its_test(bpf: Path) -> None:
    with_example(bpf)
    passed, output = run_tests(bpf, only="example::")
    assert passed, output
    assert "example::a_lottery_divides_by_weight ... ok" in output


@pytest.mark.long
def test_the_guides_example_passes_all_other_tests(bpf: Path) -> None:
    with_example(bpf)
    passed, output = run_tests(bpf)
    assert passed, output


def test_each_line_to_be_changed_is_there_once() -> None:
    for mutation in MUTATIONS:
        count = (REPO / "bpf" / mutation.file).read_text().count(mutation.right)
        assert count == 1, f"{mutation.file} has `{mutation.right}` {count} times: change this list"


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.about)
def test_every_mistake_is_found(mutation: Mutation, bpf: Path) -> None:
    find(mutation, bpf)


def test_each_line_of_sets_to_be_changed_is_there_once() -> None:
    for mutation in OF_SETS:
        count = (REPO / "sets" / "src" / mutation.file).read_text().count(mutation.right)
        assert count == 1, f"sets/src/{mutation.file} has `{mutation.right}` {count} times: change this list"


@pytest.mark.long
def test_a_copy_of_sets_without_mistakes_passes() -> None:
    passed, output = _test_sets()
    assert passed, output


@pytest.mark.long
@pytest.mark.parametrize("mutation", OF_SETS, ids=lambda mutation: mutation.about)
def test_every_mistake_in_sets_is_found(mutation: Mutation) -> None:
    passed, output = _test_sets(mutation)
    # Neither is a mistake that does not compile one that tests have found.
    assert passed or "test result: FAILED" in output, output
    assert not passed, f"no test of sets/ finds that {mutation.about}"


def _test_sets(mutation: Mutation | None = None) -> tuple[bool, str]:
    """Run the tests of a copy of sets/, with this mistake in it."""
    copy = WORK / "sets"
    # By a new time cargo sees that a mistake has been taken out.
    shutil.copytree(REPO / "sets" / "src", copy / "src", dirs_exist_ok=True, copy_function=shutil.copyfile)
    # It stands alone: it depends on nothing.
    (copy / "Cargo.toml").write_text(
        '[package]\nname = "cohort-sets"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n'
    )
    if mutation:
        path = copy / "src" / mutation.file
        path.write_text(path.read_text().replace(mutation.right, mutation.wrong))
    argv = ["--offline", "--manifest-path", str(copy / "Cargo.toml")]
    return cargo_test(argv, {"CARGO_TARGET_DIR": str(WORK / "target-sets")})


def choices(preset: str) -> list[str]:
    """Return what a preset chooses, in the words of OWN_FILES and Mutation.of."""
    off = {"placement any", "gang off", "spin off", "boost off", "guard off"}
    axes = [(axis, value) for axis, values in PRESETS[preset].items() for value in values.split(",")]
    return [f"{axis} {value}" for axis, value in axes if f"{axis} {value}" not in off]


def about(choices: list[str]) -> list[str]:
    """Return the mistakes that are about these choices."""
    own = {file for choice in choices for file in OWN_FILES.get(choice, ())}
    return [mutation.about for mutation in MUTATIONS if mutation.of in choices or mutation.file in own]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_two_mistakes(preset: str) -> None:
    found = about(choices(preset))
    assert len(found) >= 2, f"{preset} has {found}"


def test_every_choice_of_a_policy_has_two_mistakes() -> None:
    tables = {"placement": ("balance",), **TABLES, "boost": tuple(BOOST)}
    every = [f"{axis} {value}" for axis, values in tables.items() for value in values if value != "off"]
    too_few = {choice: found for choice in every if len(found := about([choice])) < 2}
    assert not too_few, f"these have fewer than two mistakes: {too_few}"


def test_every_file_that_decides_something_has_two_mistakes() -> None:
    decides_nothing = {
        "debts.h",
        "gang_partial_auto.h",
        "intf.h",
        "kernel_types.h",
        "native.h",
        "policies.h",
        "policy.h",
    }
    files = {path.name for path in (REPO / "bpf").glob("*.[ch]")} - decides_nothing
    of_bpf = Counter(mutation.file for mutation in MUTATIONS)
    of_sets = Counter(mutation.file for mutation in OF_SETS)
    too_few = [file for file in files if of_bpf[file] < 2]
    too_few += [path.name for path in (REPO / "sets" / "src").glob("*.rs") if of_sets[path.name] < 2]
    assert not too_few, f"these have fewer than two mistakes: {sorted(too_few)}"
    assert of_bpf.keys() <= files, "a file that decides nothing has a mistake"
