# SPDX-License-Identifier: GPL-2.0-only
"""What `make demo` says of its two halves, with a cohortlab that does what a test tells it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
# What is in $SIM or $LAB happens in that half: nothing, one of these words, or the failure's text.
COHORTLAB = """#!/bin/bash
out=; half=$LAB
while [ $# -gt 0 ]; do
    case $1 in
    emulator) exit "${EMULATOR:-0}" ;;
    fidelity) echo "side by side"; exit ;;
    sim) half=$SIM ;;
    --out) out=$2 ;;
    esac
    shift
done
case $out in *.png) echo drawn >"$out"; exit "${PNG:-0}" ;; esac
mkdir -p "$out"
case $half in
"") ;;
slow | very-slow)
    trap 'echo "cohortlab: interrupted" >&2; slow=1' INT TERM
    echo trapped >ready
    while [ -z "$slow" ]; do sleep 0.05; done ;;
*) echo "cohortlab: $half" >&2; exit 1 ;;
esac
echo report >"$out/report.html"
# Figures, and what time went to: the second table has its own lines of programs alone.
[ "$half" = very-slow ] || for row in "1.00 [0.99–1.01] s  ideal 2.00" "work  99.0  0.5  nothing"; do
    printf "%s  alone  $row\n" hackbench tlb-flush dbench
done
[ -z "$half" ] || exit 130
"""

Demo = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """Return what runs the demo's steps in a tree of its own."""
    (tmp_path / "scripts").mkdir()
    for name in ("demo", "steps", "lib.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    program = tmp_path / "build/venv/bin/cohortlab"
    program.parent.mkdir(parents=True)
    program.write_text(COHORTLAB)
    program.chmod(0o755)

    def run(**happens: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"SIM": "", "LAB": ""} | happens
        argv = ["scripts/steps", "demo-sim", "lab-emulator", "demo-lab"]
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_both_halves(demo: Demo) -> None:
    ran = demo()
    assert ran.returncode == 0, ran.stderr
    first = ran.stdout.index("report   build/demo/simulated/report.html")
    assert ran.stdout.index("build/demo/timeline.png") < first < ran.stdout.index("the lab's emulator")
    assert ran.stdout.splitlines()[-3:] == [
        "Simulated: build/demo/simulated/report.html",
        "Picture: build/demo/timeline.png",
        "Real kernels: build/demo/lab/report.html",
    ]


@pytest.mark.parametrize("half", ["SIM", "LAB"])
def test_a_missing_half_is_named_with_reason_and_remedy(demo: Demo, half: str) -> None:
    assert demo().returncode == 0
    # What an earlier demo left does not pass for this one's.
    ran = demo(**{half: "no memory"})
    assert ran.returncode == 1
    name, other = {"SIM": ("Simulated", "Real kernels"), "LAB": ("Real kernels", "Simulated")}[half]
    last = ran.stdout.splitlines()[-3:]
    (missing,) = [line for line in last if line.startswith(f"{name}: missing: no memory. ")]
    assert "make demo" in missing
    assert any(line.startswith(f"{other}: build/demo/") for line in last)


def test_a_step_that_fails_leaves_the_half_before_it(demo: Demo) -> None:
    ran = demo(EMULATOR="1")
    assert ran.returncode == 1
    last = ran.stdout.splitlines()[-3:]
    assert last[0] == "Simulated: build/demo/simulated/report.html"
    assert last[2].startswith("Real kernels: missing: the step before it failed: the lab's emulator. ")


@pytest.mark.parametrize(("step", "first"), [("PNG", "Simulated: missing"), ("EMULATOR", "Simulated: build/demo")])
def test_ctrl_c_in_a_step_before_a_half_ends_all_of_it(demo: Demo, step: str, first: str) -> None:
    ran = demo(**{step: "130"})
    assert ran.returncode == 130
    last = ran.stdout.splitlines()[-3:]
    assert any(line.startswith(first) for line in last), last
    assert last[-1].startswith("Real kernels: missing: it was")
    assert "On real kernels: three" not in ran.stdout


@pytest.mark.parametrize("half", ["SIM", "LAB"])
def test_ctrl_c_ends_all_of_it_and_says_what_is_there(demo: Demo, tmp_path: Path, half: str) -> None:
    assert demo(SIM="no memory").returncode == 1  # makes the tree
    env = os.environ | {"SIM": "", "LAB": ""} | {half: "very-slow"}
    argv = ["scripts/steps", "demo-sim", "demo-lab"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as ran:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            assert ran.poll() is None
            time.sleep(0.02)
        # As a terminal does it: to all of them.
        os.killpg(ran.pid, signal.SIGINT)
        said = ran.communicate(timeout=60)[0]
    assert ran.returncode == 130
    last = said.splitlines()[-3:]
    if half == "SIM":
        assert last[0].startswith("Simulated: missing: it was interrupted. Run make demo again"), said
        assert "On real kernels" not in said
    else:
        assert last[0] == "Simulated: build/demo/simulated/report.html"
        assert last[2].startswith("Real kernels: missing: it was interrupted. Run make demo again"), said


def test_a_slow_machine_shows_what_is_complete(demo: Demo, tmp_path: Path) -> None:
    text = (tmp_path / "scripts/demo").read_text()
    assert "lab_seconds=300" in text
    (tmp_path / "scripts/demo").write_text(text.replace("lab_seconds=300", "lab_seconds=3"))
    ran = demo(LAB="slow")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "This machine is slow: what was complete " in ran.stdout
    ran = demo(LAB="very-slow")
    assert ran.returncode == 1
    assert "Real kernels: missing: 0 minutes were enough for 0 of the three programs. " in ran.stdout
