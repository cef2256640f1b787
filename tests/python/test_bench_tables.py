# SPDX-License-Identifier: GPL-2.0-only
"""What bench/tables.py and bench/rounds.py make of a comparison's results."""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import two_vms, with_quick

from cohortlab.results import ALONE, Results, read_parquet, write_parquet

Run = Callable[..., Any]
BENCH = Path(__file__).resolve().parents[2] / "bench"
FILE = Path("out/measurements.parquet")
LAB = {"kernel": "7.3.4+deb14-amd64", "emulator": "QEMU 10.0.13 patched", "ple": "after 99 us", "ple_window_us": "99"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what loads a script of bench/, which finds the others there."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def compared(cohortlab: Run, scenario: Path, *more: str) -> Results:
    """Return a comparison of two policies that says that the lab measured it; it is in the folder ``out``."""
    args = ("--on", "sim", "--rounds", 1, "--policies", "eevdf,vtime", "--out", "out", *more)
    assert cohortlab("compare", scenario, *args).code == 0
    read = read_parquet(FILE)
    read.places = {"ipi": dict(LAB)}
    return read


@pytest.fixture
def results(cohortlab: Run, tmp_path: Path) -> Results:
    return compared(cohortlab, with_quick(tmp_path))


@pytest.fixture
def mmapfork(cohortlab: Run, tmp_path: Path) -> Results:
    """Of a program that is there for every scenario."""
    path = tmp_path / "small.toml"
    path.write_text(two_vms("tlb-flush"))
    return compared(cohortlab, path, "--programs", "mmapfork")


def test_a_table_has_the_programs_that_were_measured(
    script: Callable[[str], Any], mmapfork: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet(mmapfork, FILE)
    capsys.readouterr()
    script("tables").main(["out"], form="short")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| mmapfork, s | ")]
    assert len(rows) == 1


def test_a_scenarios_own_workloads_need_not_be_found(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    # They are beside the scenario's file, which is not here.
    write_parquet(results, FILE)
    capsys.readouterr()
    script("tables").main(["out"], form="short")
    assert sum(line.startswith("| quick, s | ") for line in capsys.readouterr().out.splitlines()) == 1


def test_a_disturbed_round_alone_stays_where_there_is_no_other(script: Callable[[str], Any], results: Results) -> None:
    (alone,) = (row for row in results.rows if row.policy == ALONE)

    def waited(ready_ns: float, **more: str) -> Any:
        row = dataclasses.replace(alone, **more)
        return dataclasses.replace(row, why={row.vm: {"vcpus": 2.0, "window_ns": 1e9, "ready_ns": ready_ns}})

    calm, disturbed = waited(0.0), waited(1e9)
    others = [waited(1e9, tlb="kvm-pv"), waited(1e9, vm="other")]
    assert script("tables").without_disturbed([calm, disturbed, *others], 2) == [calm, *others]


def rounds(script: Callable[[str], Any], results: Results) -> None:
    write_parquet(results, FILE)
    script("rounds").main("out", None, settled=False)


def test_rounds_leave_out_who_failed(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    results.failed["ipi", "vtime", "quick"] = "hangs"
    rounds(script, results)
    said = capsys.readouterr()
    (measured,) = tomllib.loads(said.out)["measured"]
    assert (measured["program"], list(measured["under"])) == ("quick", ["eevdf"])
    assert said.err == "quick under vtime is left out: hangs\n"
    results.failed["ipi", "eevdf", "quick"] = "hangs"
    rounds(script, results)
    assert "measured" not in tomllib.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("said", "guest", "option", "window_us"),
    [
        # Nobody chose it: it is hardware's, measured.
        ("98", "", "", 100),
        ("98, later 103", "", "", 100),
        ("4", "", "", 4),
        # What was chosen is that for all runs, however long each boot measures it to be.
        ("16, later 18", "[guest]\nple_window_us = 16\n", "", 16),
        ("4", "[guest]\nple_window_us = 4\n", "", 4),
        ("17", "", " --ple 16", 16),
        ("17", "", " --ple=16 --json", 16),
        ("17", "[guest]\nple_window_us = 4\n", " --ple 25 --ple 16", 16),
    ],
)
def test_rounds_have_the_window_of_the_lab(
    script: Callable[[str], Any],
    results: Results,
    capsys: pytest.CaptureFixture[str],
    said: str,
    guest: str,
    option: str,
    window_us: int,
) -> None:
    results.places["ipi"]["ple_window_us"] = said
    results.scenario_text += guest
    results.command += option
    rounds(script, results)
    assert tomllib.loads(capsys.readouterr().out)["ple_window_us"] == window_us


@pytest.mark.parametrize(("guest", "option"), [("", ""), ("[guest]\nple_window_us = 16\n", " --ple off")])
def test_rounds_without_a_pause_filter_are_refused(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str], guest: str, option: str
) -> None:
    results.scenario_text += guest
    results.command += option
    del results.places["ipi"]["ple_window_us"]
    results.places["ipi"]["ple"] = "off"
    with pytest.raises(SystemExit) as ended:
        rounds(script, results)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f'{FILE}: ple: "off" is not allowed: must be ')


@pytest.mark.parametrize(
    ("said", "left"), [("--out out", ""), ("--out=out --json", " --json"), ("--json --out 'a folder'", " --json")]
)
def test_rounds_do_not_say_where_the_results_were(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str], said: str, left: str
) -> None:
    results.command = f"cohortlab compare two.toml {said}"
    rounds(script, results)
    about = tomllib.loads(capsys.readouterr().out)["about"]
    assert about.splitlines()[0] == f"cohortlab compare two.toml{left}"


@pytest.mark.parametrize(
    ("folder", "wanted", "said"),
    [
        ("out", "kvm-pv", f'{FILE}: "kvm-pv" is not allowed: must be one of ipi\n'),
        ("none", None, "none/measurements.parquet: there is no such file; FOLDER is what "),
    ],
)
def test_rounds_of_what_is_not_there_are_refused(
    script: Callable[[str], Any],
    results: Results,
    capsys: pytest.CaptureFixture[str],
    folder: str,
    wanted: str | None,
    said: str,
) -> None:
    write_parquet(results, FILE)
    with pytest.raises(SystemExit) as ended:
        script("rounds").main(folder, wanted, settled=False)
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith(said)


def paired(results: Results) -> None:
    """Write three rounds, in each of which one policy takes twice as long as the other, and half as long once."""
    times = {
        ("eevdf", 1): 2.0,
        ("eevdf", 2): 4.0,
        ("eevdf", 3): 1.0,
        ("vtime", 1): 1.0,
        ("vtime", 2): 2.0,
        ("vtime", 3): 2.0,
    }
    row = next(row for row in results.rows if row.policy == "eevdf")
    results.rows = [
        dataclasses.replace(row, policy=policy, round=number, value=value, rate=False)
        for (policy, number), value in times.items()
    ]
    write_parquet(results, FILE)


def test_policies_are_compared_round_by_round(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    paired(results)
    capsys.readouterr()
    program = results.rows[0].program
    script("pairs").main(["out", "eevdf", "vtime"])
    # ln 2 twice and -ln 2 once: ln 2 / 3 in the mean, 2 ln 2 / 3 its standard error.
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"| {program} | 3 | 2.00 [0.50–2.00] |",
        "| geometric mean | 3 | 1.260 ± 46.2% |",
    ]


def test_each_turn_of_a_program_is_compared_with_the_same(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    row = next(row for row in results.rows if row.policy == "eevdf")
    # A turn after the other, under both policies; in the second round the first turn failed under one.
    times = [("eevdf", 1, 8.0), ("vtime", 1, 2.0), ("vtime", 1, 1.0), ("eevdf", 1, 1.0)]
    times += [("eevdf", 2, 8.0), ("vtime", 2, 1.0), ("eevdf", 2, 1.0)]
    results.rows = [
        dataclasses.replace(row, policy=policy, round=number, value=value, rate=False)
        for policy, number, value in times
    ]
    write_parquet(results, FILE)
    capsys.readouterr()
    script("pairs").main(["out", "eevdf", "vtime"])
    assert capsys.readouterr().out.splitlines()[2] == f"| {row.program} | 2 | 2.00 [1.00–4.00] |"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["out", "eevdf"], "'out eevdf' is not allowed: must be FOLDER... POLICY BASE"),
        (["out", "eevdf", "other"], "out: 'other' is no policy of it"),
        (["none", "eevdf", "vtime"], "none/measurements.parquet: there is no such file"),
    ],
)
def test_what_cannot_be_compared_round_by_round_is_refused(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str], words: list[str], wrong: str
) -> None:
    paired(results)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        script("pairs").main(words)
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith(wrong), told.err


def test_rounds_of_a_mode_that_was_not_come_to_are_refused(
    script: Callable[[str], Any], results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    results.tlb_modes = ("ipi", "kvm-pv")
    write_parquet(results, FILE)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        script("rounds").main("out", "kvm-pv", settled=False)
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert told.err == f'{FILE}: "kvm-pv" is not allowed: must be one of ipi\n'
    # The one that has rounds need not be named.
    script("rounds").main("out", None, settled=False)
    assert "tlb" not in tomllib.loads(capsys.readouterr().out)


def test_tables_of_nothing_are_refused(script: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script("tables").main([])
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err[:6]) == (2, "", "FOLDER")


def test_comparisons_beside_each_other_say_what_differs(
    script: Callable[[str], Any], mmapfork: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    write_parquet(mmapfork, FILE)
    mmapfork.command += " --ple 16"
    Path("other").mkdir()
    write_parquet(mmapfork, Path("other/measurements.parquet"))
    capsys.readouterr()
    script("tables").main(["other", "out"], form="beside")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "| program | 16 µs: EEVDF | 16 µs: vtime | 100 µs: EEVDF | 100 µs: vtime |"
    cells = [cell.strip() for cell in lines[3].strip("|").split("|")]
    # Both are of the same runs, so both halves are alike.
    assert cells[0] == "mmapfork"
    assert cells[1:3] == cells[3:]
    assert float(cells[1]) > 0


def test_only_our_own_misses_are_bold(
    script: Callable[[str], Any],
    mmapfork: Results,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_parquet(mmapfork, FILE)
    tables = script("tables")
    monkeypatch.setattr(tables, "OURS", "vtime")

    def over(goal: float) -> list[str]:
        capsys.readouterr()
        tables.main(["out"], form="short", goal=goal)
        (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| mmapfork"))
        return [cell.strip() for cell in row.strip("|").split("|")][2:]

    eevdf, ours = over(0.01)
    assert ours.startswith("**")
    assert not eevdf.startswith("*")
    assert over(100.0) == [eevdf, ours.strip("*")]
    # What the table rounds to the goal meets it.
    assert over(float(ours.strip("*"))) == [eevdf, ours.strip("*")]
