# SPDX-License-Identifier: GPL-2.0-only
"""Held-out error: its arithmetic with known figures, its command, and what is wrong with a file."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import two_vms

from cohortlab.errors import BadInput
from cohortlab.heldout import predict, show
from cohortlab.heldout.errors import Cell, orders, quantile, wasserstein
from cohortlab.heldout.load import SHIPPED, load
from cohortlab.heldout.predict import Alone
from cohortlab.heldout.show import lines

Run = Callable[..., Any]

SCENARIO = two_vms("tlb-flush")
SPLIT = """
title = "a split"
seeds = 2
[[program]]
name = "tlb-flush"
class = "parameters"
why = "its model was made from it"
[[program]]
name = "dbench"
class = "held-out"
why = "nobody looked"
[[shape]]
scenario = "small.toml"
class = "looked-at"
why = "always on the table"
[[policy]]
label = "eevdf"
class = "looked-at"
why = "everybody's"
[[policy]]
label = "eevdf@long"
args = "--base-slice-us 16000"
class = "looked-at"
why = "everybody's"
[[rounds]]
file = "rounds.toml"
class = "held-out"
why = "measured later"
"""
ROUNDS = """
about = "made up"
scenario = "small.toml"
kernel = "7.3.4"
ple_window_us = 100
[[measured]]
program = "tlb-flush"
alone = [1.0, 1, 4.0]
under = { eevdf = [2.0, 8.0], "eevdf@long" = [2.0, 2.0] }
[[measured]]
program = "dbench"
rate = true
alone = [100.0, 100.0]
under = { eevdf = [50.0, 12.5] }
"""


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("small.toml", SCENARIO), ("split.toml", SPLIT), ("rounds.toml", ROUNDS)):
        (tmp_path / name).write_text(text)
    return tmp_path / "split.toml"


def cell(policy: str, lab: tuple[float, ...], sim: tuple[float, ...], kind: Any = "held-out") -> Cell:
    return Cell("2x2", "prog", policy, kind, ("program",) if kind == "held-out" else (), lab, sim)


def test_errors_of_known_figures() -> None:
    # The geometric means are 4 and 5.
    found = cell("a", (2.0, 8.0), (5.0, 5.0, 5.0))
    assert (found.lab_mean, found.sim_mean, found.error) == pytest.approx((4.0, 5.0, 0.25))
    # The logarithms are ln 2 on both sides of their mean: their standard deviation is ln 2 times the root of 2.
    assert found.lab_error == pytest.approx(1.0)
    # From 2 to 5 and from 8 to 5, on average: half of ln(5/2) + ln(8/5) = ln 4.
    assert found.distance == pytest.approx(1.0)
    assert found.inside == 0
    assert cell("a", (2.0, 8.0), (2.0, 8.0)).distance == pytest.approx(0.0)
    assert cell("a", (2.0, 2.1, 7.0), tuple(map(float, range(1, 101)))).inside == 1


def test_distance_is_that_of_distributions() -> None:
    assert wasserstein([0.0], [1.0, 3.0]) == 2.0
    assert wasserstein([3.0, 1.0, 2.0], [1.0, 2.0, 3.0]) == 0.0
    # A half, a third: 0 | 0 1 | 1 beside 0 0 | 6, in sixths: |0-0| 2, |0-0| 1, |1-0| 1, |1-6| 2.
    assert wasserstein([0.0, 1.0], [0.0, 0.0, 6.0]) == pytest.approx((1 * 1 + 2 * 5) / 6)


def test_quantiles_are_values() -> None:
    assert [quantile([3.0, 1.0, 2.0, 4.0], part) for part in (0.05, 0.25, 0.26, 0.95, 1.0)] == [1.0, 1.0, 2.0, 4.0, 4.0]


def test_the_order_is_of_what_is_no_tie() -> None:
    a, b, c = (cell("a", (1.0, 1.0), (2.0,)), cell("b", (1.04, 1.04), (1.0,)), cell("c", (2.0, 2.0), (1.5,)))
    (order,) = orders([a, b, c])
    assert [(p.better, p.worse, p.is_tie, p.is_right) for p in order.pairs] == [
        ("a", "b", True, False),
        ("a", "c", False, False),
        ("b", "c", False, True),
    ]
    assert not order.is_right
    assert order.is_held_out
    # Twice as long, but the rounds differ so much that nobody can tell.
    wide = cell("d", (1.0, 4.0), (1.0,), "looked-at")
    (order,) = orders([a, wide])
    assert order.pairs[0].lab == pytest.approx(2.0)
    assert order.pairs[0].is_tie
    assert order.is_right
    assert not order.is_held_out


def test_the_report_begins_with_what_is_held_out() -> None:
    cells = [
        cell("a", (1.0, 1.0), (1.1, 1.1)),
        cell("b", (2.0, 2.0), (2.8, 2.8)),
        Cell("2x2", "other", "a", "looked-at", (), (1.0, 1.0), (3.0, 3.0)),
    ]
    said = lines(cells, [], 2)
    assert said[0] == (
        "Held out: mean error 25.0% over 2 cells (goal 12%: missed); 1 above 30% (goal 0: missed); "
        "policies in the lab's order in 1 of 1 (goal 95%: met)."
    )
    assert said[1] == "- above 30%: 2x2, prog under b: 2.80, in the lab 2.00: +40%"
    assert "| held out | 2 | 25.0% | 0.0% | 25.0% | 0 of 4 | 1 |" in said
    assert "| looked at while modelling | 1 | 200.0% | 0.0% | 200.0% | 0 of 2 | 1 |" in said
    assert "| parameters from | 0 | – | – | – | – | – |" in said
    assert "| cells | n | mean error | the lab's own | distance | rounds in range | above 30% |" in said


def test_the_columns_goal_is_that_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "CELL_MAX", 0.45)
    said = lines([cell("b", (2.0, 2.0), (2.8, 2.8))], [], 2)
    (head,) = (line for line in said if line.startswith("| cells |"))
    assert head.endswith("| above 45% |")
    assert "| held out | 1 | 40.0% | 0.0% | 40.0% | 0 of 2 | 0 |" in said


def test_the_median_of_rates_is_taken_before_it_becomes_seconds(split: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = split.parent / "rounds.toml"
    file.write_text(ROUNDS.replace("alone = [100.0, 100.0]", "alone = [100.0, 50.0]"))
    simulated = {
        ("small", program, policy): [2.0, 4.0]
        for program in ("tlb-flush", "dbench")
        for policy in ("alone", "eevdf", "eevdf@long")
    }
    monkeypatch.setattr(predict, "_simulate", lambda *_: simulated)
    cells, alone = predict.predict(load(split), 2, print)
    assert (cells[2].program, cells[2].lab, cells[2].sim) == (
        "dbench",
        pytest.approx((75 / 50, 75 / 12.5)),
        pytest.approx((3 / 2, 3 / 4)),
    )
    assert [(one.lab_s, one.sim_s) for one in alone] == [(1.0, 3.0), pytest.approx((1 / 75, 1 / 3))]


def test_long_runs_are_shown_without_an_exponent() -> None:
    alone = [Alone("2x2", "prog", 999.7, 1234.4), Alone("2x2", "short", 0.05, 0.0456)]
    rows = ["| 2x2 | prog | 1,234 | 1,000 | +23% |", "| 2x2 | short | 0.0456 | 0.05 | -9% |"]
    assert lines([], alone, 2)[-2:] == rows


def test_the_command_says_the_same_twice(cohortlab: Run, split: Path) -> None:
    ran = cohortlab("held-out", split, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert [(c["program"], c["policy"], c["class"], c["held_out"]) for c in found["cells"]] == [
        ("tlb-flush", "eevdf", "parameters", []),
        ("tlb-flush", "eevdf@long", "parameters", []),
        ("dbench", "eevdf", "held-out", ["program"]),
    ]
    assert [c["lab_rounds"] for c in found["cells"]] == [[2.0, 8.0], [2.0, 2.0], [2.0, 8.0]]
    assert all(math.isclose(c["error"], c["sim_slowdown"] / c["lab_slowdown"] - 1) for c in found["cells"])
    assert [(o["program"], o["held_out"]) for o in found["orders"]] == [("tlb-flush", False)]
    assert cohortlab("held-out", split, "--json").out == ran.out
    assert cohortlab("held-out", split, "--seeds", 3, "--json").out != ran.out


def test_rounds_of_two_runs_make_one_cell(cohortlab: Run, split: Path) -> None:
    (split.parent / "more.toml").write_text(ROUNDS.replace("alone = [100.0, 100.0]", "alone = [50.0, 50.0]"))
    split.write_text(SPLIT + '[[rounds]]\nfile = "more.toml"\nclass = "looked-at"\nwhy = "known"\n')
    cells = json.loads(cohortlab("held-out", split, "--json").out)["cells"]
    assert [c["lab_rounds"] for c in cells][2] == [2.0, 8.0, 1.0, 4.0]
    assert [c["class"] for c in cells] == ["parameters", "parameters", "looked-at"]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "split.toml",
            'class = "parameters"',
            'class = "known"',
            'split.toml: program[0].class: "known" is not allowed',
        ),
        ("split.toml", 'why = "nobody looked"\n', "", "split.toml: program[1].why: is missing: must be a text: why"),
        ("split.toml", "seeds = 2", "seeds = 1", "split.toml: seeds: 1 is not allowed: must be an integer from 2"),
        ("split.toml", 'name = "dbench"', 'name = "tlb-flush"', 'program[1].name: "tlb-flush" is named twice'),
        ("split.toml", '"eevdf@long"', '"eevdg"', 'split.toml: policy[1]: --policies: unknown policy "eevdg"'),
        ("split.toml", '"rounds.toml"', '"../x.toml"', 'rounds[0].file: "../x.toml" is not allowed: must be a file'),
        ("split.toml", '"rounds.toml"', '"absent.toml"', "absent.toml: cannot be read"),
        ("split.toml", "seeds = 2", 'hardware = "none"', 'split.toml: hardware: "none" does not exist: must be one of'),
        (
            "split.toml",
            '"small.toml"',
            '"other.toml"',
            'rounds.toml: scenario: "small.toml" with flushes by ipi has no',
        ),
        (
            "split.toml",
            '"--base-slice-us 16000"',
            '"--base-slice 1"',
            'split.toml: policy[1].args: "--base-slice 1" is not',
        ),
        (
            "split.toml",
            'label = "eevdf"',
            'label = "all"',
            'split.toml: policy[0].label: "all" is not allowed: must be one',
        ),
        (
            "split.toml",
            'label = "eevdf"',
            'label = "eevdf,vtime"',
            'policy[0].label: "eevdf,vtime" is not allowed: must be',
        ),
        (
            "split.toml",
            'label = "eevdf"',
            'label = " eevdf"',
            'policy[0].label: " eevdf" is not allowed: must be one policy',
        ),
        (
            "small.toml",
            'load = "cpu-hog"',
            'programs = ["tlb-flush"]',
            'split.toml: shape[0].scenario: "small.toml" has programs in 2',
        ),
        ("rounds.toml", "[2.0, 8.0]", "[2.0]", "rounds.toml: measured[0].under"),
        ("rounds.toml", "[2.0, 8.0]", '["2.0", true]', "rounds.toml: measured[0].under"),
        ("rounds.toml", "[50.0, 12.5]", "[50.0, 0]", "rounds.toml: measured[1].under"),
        ("rounds.toml", '"dbench"', '"pbzip2"', 'measured[1].program: "pbzip2" is not in '),
        ("rounds.toml", "rate = true", "", "rounds.toml: measured[1].rate: is missing: must be true, as in the"),
        ("rounds.toml", "rate = true", "rate = false", "measured[1].rate: false is not allowed: must be true, as in "),
        ("rounds.toml", "rate = true", 'rate = "yes"', 'measured[1].rate: "yes" is not allowed: must be true (more is'),
        ("rounds.toml", "alone = [1.0", "rate = true\nalone = [1.0", "measured[0].rate: true is not allowed: must be"),
        ("rounds.toml", '"eevdf@long"', '"eevdf@other"', 'measured[0].under.eevdf@other: "eevdf@other" is not in '),
        ("rounds.toml", 'kernel = "7.3.4"', 'kernel = "2.4"', 'rounds.toml: kernel: kernel "2.4" is not known'),
        ("rounds.toml", "ple_window_us = 100", "ple_window_us = 0", "rounds.toml: ple_window_us: 0 is not allowed"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(
    cohortlab: Run, split: Path, file: str, old: str, new: str, said: str
) -> None:
    path = split.parent / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    ran = cohortlab("held-out", split)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err


def test_a_wrong_argument_is_known_before_anything_is_simulated(cohortlab: Run, split: Path) -> None:
    split.write_text(SPLIT.replace('"eevdf@long"\nargs = "--base-slice-us 16000"', '"cohort"\nargs = "--sliec-us 3"'))
    (split.parent / "rounds.toml").write_text(ROUNDS.replace("eevdf@long", "cohort"))
    ran = cohortlab("held-out", split)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert "split.toml: policy[1].args: --sliec-us is not known: must be of" in ran.err


def test_rounds_of_a_shape_are_of_one_kernel(cohortlab: Run, split: Path) -> None:
    (split.parent / "more.toml").write_text(ROUNDS.replace("7.3.4", "6.18"))
    split.write_text(SPLIT + '[[rounds]]\nfile = "more.toml"\nclass = "looked-at"\nwhy = "known"\n')
    ran = cohortlab("held-out", split)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert 'more.toml: kernel: "6.18" is not allowed: must be "7.3.4", as in rounds.toml' in ran.err


PATCHED = "QEMU 10.0.13 patched (f5a5fc624a4e)"
CURED = "QEMU 10.0.13 cured"
OWN = "QEMU 10.0.13 own (0123abcd)"
ABOUT = 'about = "made up"'


def with_more(split: Path, first: str, second: str) -> None:
    """Have the split name two files of rounds, of two shapes, with such lines about where they come from."""
    (split.parent / "rounds.toml").write_text(ROUNDS.replace(ABOUT, first))
    (split.parent / "other.toml").write_text(two_vms("tlb-flush", name="other"))
    (split.parent / "more.toml").write_text(ROUNDS.replace(ABOUT, second).replace('"small.toml"', '"other.toml"'))
    shape = '[[shape]]\nscenario = "other.toml"\nclass = "looked-at"\nwhy = "known"\n'
    split.write_text(f'{SPLIT}{shape}[[rounds]]\nfile = "more.toml"\nclass = "looked-at"\nwhy = "known"\n')


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            f'about = "{PATCHED}; PLE off."',
            f'about = "{CURED}; PLE off."',
            f'more.toml: about: "{CURED}" is not allowed: must be "{PATCHED}", as in rounds.toml',
        ),
        (
            f'{ABOUT}\nemulator = "{PATCHED}"',
            f'{ABOUT}\nemulator = "{PATCHED.replace("f5", "9a")}"',
            f'emulator: "{PATCHED.replace("f5", "9a")}" is not allowed: must be "{PATCHED}", as in rounds.toml',
        ),
        (
            f'about = "{PATCHED}, later {CURED}; PLE off."',
            ABOUT,
            f'rounds.toml: about: names "{PATCHED}" and "{CURED}": must be of one emulator',
        ),
        (
            ABOUT,
            f'{ABOUT}\nemulator = "{CURED}, later {PATCHED}"',
            f'more.toml: emulator: names "{CURED}" and "{PATCHED}": must be of one emulator',
        ),
        (ABOUT, f'{ABOUT}\nemulator = ""', 'more.toml: emulator: "" is not allowed: must be its name, as the lab'),
    ],
)
def test_rounds_of_two_emulators_are_refused(cohortlab: Run, split: Path, first: str, second: str, said: str) -> None:
    with_more(split, first, second)
    ran = cohortlab("held-out", split)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err


@pytest.mark.parametrize(
    ("first", "second", "unnamed"),
    [
        (f'about = "{PATCHED}; PLE off."', f'{ABOUT}\nemulator = "{PATCHED}"', []),
        (f'about = "{OWN}"', f'about = "not {OWN}"\nemulator = "{OWN}"', []),
        (f'about = "{OWN}"', ABOUT, ["more.toml"]),
        (ABOUT, ABOUT, ["rounds.toml", "more.toml"]),
    ],
)
def test_rounds_of_one_emulator_are_read_and_of_an_unknown_one_it_is_said(
    cohortlab: Run, split: Path, first: str, second: str, unnamed: list[str]
) -> None:
    with_more(split, first, second)
    ran = cohortlab("held-out", split, "--json")
    assert ran.code == 0, ran.err
    said = [f"{', '.join(unnamed)}: name no emulator: whether it is the others' is not known"] if unnamed else []
    assert [line for line in ran.err.splitlines() if "emulator" in line] == said


@pytest.mark.parametrize("where", ["rounds.toml", "more.toml"])
def test_rounds_of_another_emulator_than_the_hardwares_are_refused(cohortlab: Run, split: Path, where: str) -> None:
    of_cured = f'about = "{CURED}"'
    with_more(split, of_cured if where == "rounds.toml" else ABOUT, of_cured)
    ran = cohortlab("held-out", split)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert f'split.toml: hardware: "lab" is of patched, own: must be of cured, as {where}' in ran.err


def test_hardware_that_names_no_emulator_is_anybodys(split: Path) -> None:
    (split.parent / "own.toml").write_text("[machine]\n")
    with_more(split, f'about = "{CURED}"', ABOUT)
    split.write_text(split.read_text().replace("seeds = 2", 'seeds = 2\nhardware = "own.toml"'))
    assert [group.file.emulators for group in load(split).groups] == [(CURED,), ()]


def test_the_shipped_rounds_are_of_one_emulator_which_they_name() -> None:
    found = load(SHIPPED)
    assert found.unnamed == ()
    assert {group.file.emulators for group in found.groups} == {(PATCHED,)}


def test_files_are_beside_the_split_wherever_the_command_is_given(
    split: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    split.write_text(SPLIT.replace("seeds = 2", 'seeds = 2\nhardware = "own.toml"'))
    (split.parent / "own.toml").write_text("[machine]\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "small.toml").write_text(two_vms("tlb-flush", name="other"))
    monkeypatch.chdir(elsewhere)
    found = load(split)
    assert found.groups[0].scenario.path == split.parent / "small.toml"
    assert (found.groups[0].scenario.name, found.hardware) == ("small", str(split.parent / "own.toml"))


def test_two_shapes_are_not_called_alike(split: Path) -> None:
    (split.parent / "other").mkdir()
    (split.parent / "other" / "small.toml").write_text(SCENARIO.replace("pcpus = 2", "pcpus = 3"))
    (split.parent / "more.toml").write_text(ROUNDS.replace('"small.toml"', '"other/small.toml"'))
    shape = '[[shape]]\nscenario = "other/small.toml"\nclass = "looked-at"\nwhy = "known"\n'
    split.write_text(f'{SPLIT}{shape}[[rounds]]\nfile = "more.toml"\nclass = "looked-at"\nwhy = "known"\n')
    with pytest.raises(BadInput) as refused:
        load(split)
    wrong = 'shape[1].scenario: "other/small.toml" is called "small": must be called otherwise than "small.toml"'
    assert str(refused.value) == f"{split}: {wrong}"


def test_a_scenario_that_nobody_knows_is_named(split: Path) -> None:
    for path in (split, split.parent / "rounds.toml"):
        path.write_text(path.read_text().replace('"small.toml"', '"smp-9x9"'))
    with pytest.raises(BadInput, match=r'split\.toml: shape\[0\]\.scenario: "smp-9x9" does not exist: must be one of '):
        load(split)


def test_each_vm_has_its_own_tlb_mode_unless_the_lab_was_told_one(split: Path) -> None:
    def modes() -> list[str]:
        return [vm.tlb for vm in load(split).groups[0].scenario.vms]

    (split.parent / "small.toml").write_text(f'{SCENARIO}tlb = "hypercall"\n')
    assert modes() == ["ipi", "hypercall"]
    for path, line in ((split, 'scenario = "small.toml"\n'), (split.parent / "rounds.toml", 'kernel = "7.3.4"\n')):
        path.write_text(path.read_text().replace(line, f'{line}tlb = "kvm-pv"\n'))
    assert modes() == ["kvm-pv", "kvm-pv"]


def test_the_shipped_split_can_be_read() -> None:
    found = load(SHIPPED)
    kinds = {table.kind for table in found.file.program}
    assert {"parameters", "held-out"} <= kinds
