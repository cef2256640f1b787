# SPDX-License-Identifier: GPL-2.0-only
"""Scripts of bench/ refuse wrong arguments as the commands do: before anything is measured, one line, exit code 2."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("emulator/costs.py", ["few"]),
        ("emulator/costs.py", ["3", "patched", "cured"]),
        ("emulator/snapshot.py", ["3", "few"]),
        ("emulator/snapshot.py", ["3", "5", "7"]),
        ("emulator/soak.py", ["30", "few"]),
        ("emulator/soak.py", ["30", "20", "patched", "cured"]),
        ("guest-kernel/build.py", []),
        ("halts.py", ["few"]),
        ("halts.py", ["5", "redis", "memcached"]),
        ("probe/beside.py", ["few"]),
        ("probe/beside.py", ["5", "hackbench", "tlb-flush"]),
        ("record/long.py", ["long"]),
        ("record/long.py", ["600", "600"]),
        ("replay/predict.py", []),
        ("replay/predict.py", ["lab", "few"]),
        ("rounds.py", []),
        ("rounds.py", ["out", "ipi", "kvm-pv"]),
        ("scx/costs.py", ["few"]),
        ("scx/costs.py", ["3", "cohort", "vtime"]),
        ("sets/rearm.py", ["few"]),
        ("sets/rearm.py", ["3", "7.3", "6.18"]),
        ("smt/longer.py", []),
        ("smt/longer.py", [str(BENCH / "campaign.toml"), "few", "out"]),
        ("sweep.py", []),
        ("sweep.py", ["few"]),
        ("sweep.py", ["3"]),
        ("sweep.py", ["4", "few"]),
    ],
)
def test_wrong_arguments_are_one_line_and_code_2(
    script: str, args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As where it is run: it finds the others beside it.
    monkeypatch.syspath_prepend(str((BENCH / script).parent))
    monkeypatch.setattr(sys, "argv", [script, *args])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCH / script), run_name="__main__")
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1), told.err
    assert " is not allowed: must be " in told.err or told.err.startswith(f"{BENCH / script}: RUNS is missing: ")
