# SPDX-License-Identifier: GPL-2.0-only
"""What is written: Parquet that reads back, a page that needs nothing beside it, never half a file."""

from __future__ import annotations

import base64
import dataclasses
import errno
import io
import os
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
import pytest
from matplotlib.collections import PathCollection
from rich.console import Console

from cohortlab import plots
from cohortlab.lab import kinds
from cohortlab.report import render, write_html
from cohortlab.results import Crash, Results, Row, read_parquet, write_atomically, write_parquet
from cohortlab.scenario import Scenario
from cohortlab.summary import complete, figures, for_machines, means_over_ideal
from cohortlab.table import digits, number, print_results, remarks, stdout


def row(policy: str, program: str, value: float, turn: int, tlb: str = "ipi") -> Row:
    return Row(
        scenario="two",
        tlb=tlb,
        round=turn,
        attempt=1,
        order=0,
        policy=policy,
        scheduler=policy.partition("@")[0],
        policy_args=("--boost", "off") if "@" in policy else (),
        program=program,
        vm="work",
        value=value,
        unit="MB/s" if program == "serve" else "s",
        rate=program == "serve",
        wall_s=2.0,
        window_s=2.5,
        cpu_s={"work": 2.5, "hog": 0.0 if policy == "alone" else 2.4},
        stats={"boosts": 7.0} if policy == "cohort@<u>" else {},
        guest={"tlb_shootdowns": 0.0 if tlb == "hypercall" else 300.0},
        host={"idle_s": 0.1},
        ended=datetime(2026, 11, 21, 12, 30, turn, tzinfo=UTC),
        kernel="9.9.9-test",
    )


@pytest.fixture
def results(two: Scenario) -> Results:
    policies = ("eevdf", "cohort@<u>")
    made = Results(
        scenario="two",
        scenario_text=two.text,
        pcpus=2,
        command="cohortlab compare two.toml",
        version="1.2.3",
        policies=policies,
        programs=("spin", "serve"),
        tlb_modes=("ipi", "hypercall"),
        rounds=3,
        places={"ipi": {"kernel": "9.9.9-test"}, "hypercall": {"kernel": "9.9.9-test"}},
        crashes=[Crash("ipi", 2, 1, "round 2 of 3: spin under eevdf", "Oops <int3>")],
        failed={("hypercall", "cohort@<u>", program): "stalled" for program in ("spin", "serve")},
        files={"spin": ("/a/workloads/spin.toml", "5a" * 32)},
        stopped="interrupted",
        binaries={"cohort@<u>": {"file": "/a/cohort", "version": "cohort 1.2.3", "sha256": "c0" * 32}},
    )
    for tlb in made.tlb_modes:
        for turn in (1, 2, 3):
            for program in made.programs:
                made.rows += [
                    row("alone", program, 4.0, turn, tlb),
                    row("eevdf", program, 8.0 + turn, turn, tlb),
                    row("cohort@<u>", program, 5.0, turn, tlb),
                ]
    return made


def test_parquet_reads_back_the_same(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write_parquet(results, path)
    assert read_parquet(path) == results


def test_parquet_can_be_read_without_this_program(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    write_parquet(results, path)
    table = pq.read_table(path, columns=["policy", "value", "cpu_s", "kernel", "ended"])
    assert table.num_rows == len(results.rows)
    assert table.to_pylist()[1] == {
        "policy": "eevdf",
        "value": 9.0,
        "cpu_s": [("work", 2.5), ("hog", 2.4)],
        "kernel": "9.9.9-test",
        "ended": datetime(2026, 11, 21, 12, 30, 1, tzinfo=UTC),
    }


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_atomically(tmp_path / "m.parquet", b"new")
    assert raised.value.filename == str(tmp_path.resolve() / "m.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


class Page(HTMLParser):
    """Collects what a browser would fetch, and the text of each table row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.rows: list[list[str]] = []
        self.counts: dict[str, int] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for name, value in attrs:
            # "#name" is a reference inside the page, as SVG makes to its own symbols.
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.fetched.append(value)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and data.strip():
            self.rows[-1].append(data.strip())


def test_report_stands_alone_and_shows_every_figure(results: Results, two: Scenario, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    found = figures(results, two)
    write_html(results, two, found, path)
    html = path.read_text()
    page = Page(html)
    assert page.fetched == []
    assert "@import" not in html
    assert page.counts["svg"] == 4  # two pictures for each of two modes
    # Alone 4 s at 1 pCPU, entitled to 1: ideal 1; 9, 10 and 11 s under eevdf; the hog's 2.4 s of 5 s are 48 % of 50 %.
    expected = [
        "eevdf",
        "10.0",
        "9.00–11.0",
        "s",
        "2.50",
        "1.00",
        "2.50",
        "48.0%",
        "50.0%",
        "0.96",
        "98.0%",
        "100.0%",
        "150",
    ]
    assert expected in page.rows
    for text in ("Not complete (interrupted): 3 of 3 rounds.", "9.9.9-test", "cohortlab compare two.toml", "spin 1"):
        assert text in html
    # What comes from outside is text, not markup.
    assert "<u>" not in html
    assert "Oops &lt;int3&gt;" in html


@pytest.mark.parametrize(
    ("emulator", "accelerator", "cost"),
    [
        ("QEMU 10.0.13 patched (f5a5fc624a4e)", "tcg", ""),
        ("QEMU 10.0.13 cured", "tcg", kinds.COSTS["cured"]),
        ("QEMU 10.0.13 stock", "tcg", kinds.COSTS["stock"]),
        ("QEMU 10.0.13 stock", "kvm", ""),
        ("unknown", "tcg", ""),
    ],
)
def test_report_says_what_another_emulator_than_the_patched_one_costs(
    results: Results, two: Scenario, emulator: str, accelerator: str, cost: str
) -> None:
    results.places["ipi"] |= {"emulator": emulator, "accelerator": accelerator}
    html = render(results, two, figures(results, two))
    assert f"<dt>emulator</dt><dd>{emulator}{f': {cost}' if cost else ''}</dd>" in html
    assert results.places["ipi"]["emulator"] == emulator, "in the file of figures it is the name alone"


def test_report_contains_its_picture(results: Results, two: Scenario, tmp_path: Path) -> None:
    picture = tmp_path / "x.svg"
    picture.write_text("<svg/>")
    page = Page(render(results, two, figures(results, two), picture))
    assert page.fetched == [f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}"]


def test_report_is_the_same_for_the_same_results(results: Results, two: Scenario) -> None:
    found = figures(results, two)
    assert render(results, two, found) == render(results, two, found)


def test_a_users_own_style_is_not_the_reports(results: Results, two: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures(results, two)
    before = render(results, two, found)
    # With the first, LaTeX would be asked to set all text.
    for name, value in {"text.usetex": True, "axes.facecolor": "black", "lines.linewidth": 9.0}.items():
        monkeypatch.setitem(mpl.rcParams, name, value)
    assert render(results, two, found) == before


def test_a_programs_name_is_no_formula(results: Results, two: Scenario) -> None:
    name = r"$\frac$"
    found = [
        dataclasses.replace(figure, program=name) if figure.program == "spin" else figure
        for figure in figures(results, two)
    ]
    results.programs = (name, "serve")
    # Below both pictures of each of two modes.
    assert render(results, two, found).count(f">{name}</text>") == 4


@pytest.mark.parametrize("width", [20, 80, 120])
def test_table(results: Results, two: Scenario, width: int) -> None:
    out = io.StringIO()
    print_results(Console(width=width, color_system=None, file=out), results, figures(results, two))
    text = out.getvalue()
    lines = [line.split() for line in text.splitlines()]
    assert ["spin", "alone", "4.00", "[4.00–4.00]", "s", "ideal", "1.00"] in lines
    assert ["eevdf", "10.0", "[9.00–11.0]", "s", "2.50", "2.50", "48.0/50.0%", "0.96"] in lines
    assert ["serve", "alone", "4.00", "[4.00–4.00]", "MB/s", "ideal", "1.00"] in lines
    # The table of TLB modes, only for the programs that flush.
    assert ["eevdf", "10.0", "[9.00–11.0]", "s", "2.50", "150"] in lines
    assert ["eevdf", "10.0", "[9.00–11.0]", "s", "2.50", "0"] in lines
    assert "…" not in text
    assert "Crashes of the host under test: 1. Void rounds, run again: 1.\n" in text
    assert "cohort@<u> failed (TLB flush by hypercall; spin, serve): stalled" in text


def test_windows_that_do_not_fit_the_run_are_told(results: Results) -> None:
    def told() -> list[str]:
        return [line for line in remarks(results, []) if "sampled" in line]

    results.rows = [dataclasses.replace(row, wall_s=2.4, window_s=2.5) for row in results.rows]
    assert told() == []
    results.rows[:2] = [dataclasses.replace(row, wall_s=1.5) for row in results.rows[:2]]
    (line,) = told()
    assert line.startswith("In 2 of 36 measurements, CPU use was sampled over more than 1.1 times the program's run")


def test_the_mean_is_over_programs_that_every_policy_has(results: Results, two: Scenario) -> None:
    found = [figure for figure in figures(results, two) if figure.tlb == "ipi"]
    means, programs = means_over_ideal(found)
    # spin 10 ÷ 4 = 2.5; serve, a rate, 4 ÷ 10 = 0.4.
    assert (means["eevdf"], programs) == (pytest.approx(1.0), ["spin", "serve"])
    lacking = [figure for figure in found if (figure.program, figure.policy) != ("serve", "cohort@<u>")]
    means, programs = means_over_ideal(lacking)
    assert (means, programs) == ({"eevdf": pytest.approx(2.5), "cohort@<u>": pytest.approx(1.25)}, ["spin"])


def test_rounds_whose_measurement_alone_is_left_out_count(results: Results, two: Scenario) -> None:
    """As `bench/tables.py --settled` leaves them out; of one policy all rows have the same order."""
    policies = {"alone": 0, "eevdf": 1}
    rows = [row for row in results.rows if row.tlb == "ipi" and row.policy in policies]
    results.rows = [
        dataclasses.replace(row, order=policies[row.policy]) for row in rows if row.policy == "eevdf" or row.round == 1
    ]
    assert {figure.program: figure.rounds for figure in figures(results, two)} == {"spin": 3, "serve": 3}


def test_the_median_of_rates_is_taken_before_it_becomes_seconds(results: Results, two: Scenario) -> None:
    figures_of = {"alone": (1.0, 3.0), "eevdf": (1.0, 2.0)}
    results.rows = [
        row(policy, "serve", value, turn) for policy, values in figures_of.items() for turn, value in enumerate(values)
    ]
    (figure,) = figures(results, two)
    assert figure.slowdowns == pytest.approx((2, 1))
    (about,) = (known for known in for_machines(results, [figure]) if known["rounds"])
    assert about["alone_median_s"] * about["alone_median"] == pytest.approx(1)
    assert about["median_s"] * about["median"] == pytest.approx(1)
    assert (about["slowdown"], about["min_s"], about["max_s"]) == pytest.approx((1.5, 0.5, 1))


@pytest.mark.parametrize(
    ("program", "walls_s", "ideal"),
    [
        # It does what it can in 2 s, for one of which the hog is there.
        ("serve", {"eevdf": 2.1, "cohort@<u>": 1.9}, 4 / 3),
        # It has so much to do, for a second alone and then beside the hog. So it is under all policies, or under none.
        ("serve", {"eevdf": 4.0, "cohort@<u>": 2.1}, 3 / 2),
        ("spin", {"eevdf": 2.0, "cohort@<u>": 2.0}, 3 / 2),
    ],
)
def test_the_ideal_of_a_rate_is_of_the_time_if_that_is_fixed(
    results: Results,
    write_scenario: Callable[[str], Path],
    scenario_text: str,
    program: str,
    walls_s: dict[str, float],
    ideal: float,
) -> None:
    late = Scenario.load(write_scenario(scenario_text.replace('load = "burn"', 'load = "burn"\nstart_s = 1')))
    alone = dataclasses.replace(row("alone", program, 4.0, 1), cpu_s={"work": 5.0, "hog": 0.0})
    loaded = [dataclasses.replace(row(policy, program, 3.0, 1), wall_s=wall_s) for policy, wall_s in walls_s.items()]
    results.rows = [alone, *loaded]
    assert [figure.ideal_slowdown for figure in figures(results, late)] == pytest.approx([ideal] * 2)


def test_who_failed_midway_is_shown_and_not_compared(results: Results, two: Scenario) -> None:
    gone = ("ipi", "cohort@<u>", "spin")
    results.failed[gone] = "hangs"
    results.rows = [row for row in results.rows if (row.tlb, row.policy, row.program) != gone or row.round == 1]
    found = figures(results, two)
    whole = [figure for figure in complete(results, found) if figure.tlb == "ipi"]
    assert means_over_ideal(whole)[1] == ["serve"]
    out = io.StringIO()
    print_results(Console(width=160, color_system=None, file=out), results, found)
    html = render(results, two, found)
    for text in (out.getvalue(), html):
        assert text.count("(1 of 3 rounds)") == 1
    # Its one round was the better one.
    (group,) = (part for part in html.split('<tbody class="group">') if "(1 of 3 rounds)" in part)
    assert '<td class="best">2.50</td>' in group


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0567, "0.057"),
        (0.00123, "0.0012"),
        (-0.0004, "-0.00040"),
        (0.5, "0.500"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2.0, "2"),
        (0.000245, "0.000245"),
        (123.4, "123"),
        (999.4, "999"),
        (999.5, "1,000"),
        (-999.7, "-1,000"),
        (1234567.8, "1,234,568"),
    ],
)
def test_digits(value: float, text: str) -> None:
    assert digits(value) == text


def test_policies_of_the_same_colour_have_other_dots() -> None:
    policies = [f"policy {number}" for number in range(2 * len(plots.COLOURS))]
    found: Any = [SimpleNamespace(program="spin", policy=policy) for policy in policies]
    _, axes = plots._canvas(["spin"])
    plots._dots(axes, found, ["spin"], policies, lambda _: [1.0, 2.0])
    drawn = [dots for dots in axes.collections if isinstance(dots, PathCollection)]
    looks = {(tuple(dots.get_facecolor()[0]), dots.get_paths()[0].vertices.tobytes()) for dots in drawn}
    assert len(looks) == len(drawn) == len(policies)


def test_a_pipe_is_written_to_and_a_link_stays_one(tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "latest", tmp_path / "file"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"through it")
    assert os.read(reader, 100) == b"through it"
    os.close(reader)
    assert pipe.is_fifo()
    end, other = os.pipe()
    write_atomically(Path(f"/dev/fd/{other}"), b"one without a name")
    assert os.read(end, 100) == b"one without a name"
    os.close(end)
    os.close(other)
    file.write_bytes(b"old")
    link.symlink_to(file)
    write_atomically(link, b"new")
    assert (link.is_symlink(), file.read_bytes()) == (True, b"new")


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    stdout().print("a[b].json, :x: and [/c]")
    assert capsys.readouterr().out == "a[b].json, :x: and [/c]\n"
