# SPDX-License-Identifier: GPL-2.0-only
"""Mistakes put into the scheduler's source: the simulator's tests of `bpf/` must find each.

A copy of `bpf/` with one line changed is compiled into the simulator (COHORT_BPF_DIR) in a folder of its own, and
`cargo test --test bpf` runs. What does not depend on the copy is compiled once; each mistake then takes a few seconds.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
WORK = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "build" / "target")) / "mutations"


@dataclass(frozen=True)
class Mutation:
    """One line of the scheduler, changed for the worse."""

    about: str
    file: str
    right: str
    wrong: str


# At least one for each file that decides something.
MUTATIONS = [
    Mutation(
        "a heavy task is charged more, not less",
        "fair.h",
        "delta_ns * WEIGHT_DEFAULT / (weight ?: 1)",
        "delta_ns * weight / WEIGHT_DEFAULT",
    ),
    Mutation("who sleeps collects without bound", "fair.h", "vm->vtime = clock - lag_ns;", "vm->vtime += 0;"),
    Mutation(
        "a VM's sleeping vCPUs count as active",
        "registry.h",
        "__sync_fetch_and_add(&vm->nr_active, -1);",
        "__sync_fetch_and_add(&vm->nr_active, 0);",
    ),
    Mutation(
        "siblings are queued together",
        "placement.h",
        "cost = (u64)siblings_on(t, cpu) << 32;",
        "cost = (u64)!siblings_on(t, cpu) << 32;",
    ),
    Mutation("nobody starves", "runqueue.h", "if (waited <= starve_ns)", "if (waited >= 0)"),
    Mutation(
        "the wrong one is better", "runqueue.h", "return rank_before(r, &best->rank, margin_ns);", "return false;"
    ),
    Mutation(
        "a spin in user mode is boosted, one in kernel mode is not", "boost.h", "if (!in_kernel)", "if (in_kernel)"
    ),
    Mutation(
        "who was preempted in kernel mode once, and was woken since, counts as preempted there",
        "kernel.h",
        "return BPF_CORE_READ(v, preempted) && BPF_CORE_READ(v, arch.preempted_in_kernel);",
        "return BPF_CORE_READ(v, arch.preempted_in_kernel);",
    ),
    Mutation(
        "another VM's vCPU is boosted",
        "boost.h",
        "!f->vm || f->vm != t->vm)",
        "!f->vm || f->vm == t->vm)",
    ),
    Mutation("one exit gives the pCPU away twice", "boost.h", "if (spinner->exit_served) {", "if (!spinner) {"),
    Mutation(
        "an exit that had its boost is never over", "cohort.bpf.c", "v->exit_served--;", "v->exit_served = EXIT_SERVED;"
    ),
    Mutation(
        "turns have ended when they begin", "gang.h", "vm->turn_end_ns = now + slice_ns;", "vm->turn_end_ns = now;"
    ),
    Mutation("a pCPU that goes offline is still used", "cohort.bpf.c", "c->online = 0;", "c->online = 1;"),
    Mutation(
        "who deserves the pCPU more waits for the end of a slice",
        "cohort.bpf.c",
        "if (would_preempt(c, &rank, now)) {",
        "if (!would_preempt(c, &rank, now) && !now) {",
    ),
]


def run_tests(bpf: Path) -> tuple[bool, str]:
    """Run the tests against this copy. Return whether all passed, and what was printed."""
    environment = os.environ | {
        "COHORT_BPF_DIR": str(bpf),
        "CARGO_TARGET_DIR": str(WORK / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    argv = ["scripts/in-toolchain", "cargo", "test", "--locked", "--package", "cohort-sim", "--test", "bpf"]
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
    for path in (REPO / "bpf").iterdir():
        to = copy / path.name
        if not to.is_file() or to.read_bytes() != path.read_bytes():
            shutil.copyfile(path, to)
    return copy


def find(mutation: Mutation, bpf: Path) -> None:
    path = bpf / mutation.file
    source = path.read_text()
    assert source.count(mutation.right) == 1, f"{mutation.file}: where is `{mutation.right}`? Change this test's list"
    path.write_text(source.replace(mutation.right, mutation.wrong))
    passed, output = run_tests(bpf)
    # Neither is a mistake that does not compile one that tests have found.
    assert passed or "test result: FAILED" in output, output
    assert not passed, f"no test finds that {mutation.about}"


def test_a_copy_without_mistakes_passes_and_one_with_a_mistake_does_not(bpf: Path) -> None:
    passed, output = run_tests(bpf)
    assert passed, output
    find(MUTATIONS[0], bpf)


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS[1:], ids=lambda mutation: mutation.about)
def test_every_mistake_is_found(mutation: Mutation, bpf: Path) -> None:
    find(mutation, bpf)


def test_every_file_that_decides_something_has_its_mistake() -> None:
    decides_nothing = {"intf.h", "kernel_types.h", "native.h", "state.h"}
    files = {path.name for path in (REPO / "bpf").iterdir()}
    assert {mutation.file for mutation in MUTATIONS} == files - decides_nothing
