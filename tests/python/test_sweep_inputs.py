# SPDX-License-Identifier: GPL-2.0-only
"""What a sweep is given: files that its workers do not read again, values that do nothing; and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.python.two_vms import with_quick

from cohortlab.errors import BadInput
from cohortlab.lab import kernels
from cohortlab.sweep import axes, chunks, commands, plan

Run = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return with_quick(tmp_path)


def made(path: Path, *texts: str) -> plan.Plan:
    return plan.make(path, axes.of_options(texts, None))


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(commands, "Console", lambda **how: Console(**how, force_terminal=True, width=100))
    with commands._meter(40) as tell:
        for _ in range(4):
            tell(10)
    said = capsys.readouterr().err
    assert "40/40" in said
    assert "runs/s" in said


@pytest.mark.parametrize(
    "wrong_together",
    [
        ("policy.slice-us=16000,4000", "policy.boost-slice-us=400,8000"),
        ("policy=eevdf,eevdf --cgroup-mode smp", "kernel=7.3,6.12"),
    ],
)
def test_settings_that_do_not_go_together_are_a_row(path: Path, wrong_together: tuple[str, str]) -> None:
    planned = made(path, *wrong_together)
    rows = [row for number in range(planned.points) for row in chunks.simulate_point(planned, number)]
    assert [row.get("error") is None for row in rows] == [True, True, True, False]
    assert chunks.known_of(planned, 0, planned.points, {"x": []}) == {}


def test_sets_are_what_their_file_said_when_the_sweep_was_made(path: Path, tmp_path: Path) -> None:
    sets = tmp_path / "a.sets"
    sets.write_text("work: 0-1\n")
    given = (f"policy=partial --sets {sets},partial", "policy.slice-us=5000")
    first = made(path, *given)
    assert made(path, *given).key == first.key
    sets.write_text("work: 0 1\n")
    second = made(path, *given)
    assert second.key != first.key
    sets.unlink()
    # A worker has no such file.
    policies = [planned.point(0).described["policy"] for planned in (first, second)]
    assert [policy["sets"] for policy in policies] == ["work: 0-1\n", "work: 0 1\n"]
    with pytest.raises(BadInput, match="--axis: policy: --sets: cannot read"):
        made(path, *given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scenario.defaults.hardware=lab,server", "scenario.defaults.hardware: changes nothing in a sweep"),
        ("scenario.defaults.policies=eevdf", "scenario.defaults.policies: changes nothing in a sweep"),
        ("model.quick.thread[0].count=1979-05-27", "1979-05-27 is not allowed: no field is a date or a time"),
        ("policy.sets=absent", "--axis: policy.sets: --sets: cannot read absent"),
    ],
)
def test_what_does_nothing_or_is_not_there_is_refused(cohortlab: Run, path: Path, text: str, said: str) -> None:
    ran = cohortlab("sweep", path, "--axis", text, "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert said in ran.err


def test_a_sweep_that_is_complete_asks_no_scheduler_for_workers(path: Path) -> None:
    from cohortlab.sweep import cluster

    assert list(cluster.run(made(path, "seed=1"), [], 16, "tcp://127.0.0.1:1")) == []


def test_half_a_chunk_is_simulated_again(cohortlab: Run, path: Path) -> None:
    args = ("sweep", path, "--axis", "seed=1..4", "--chunk", 1, "--workers", 1)
    assert cohortlab(*args, "--out", "whole").code == 0
    assert cohortlab(*args, "--out", "copied", "--shard", "1/2").code == 0
    first, other = sorted(Path("copied/parts").iterdir())
    first.write_bytes(b"")
    other.write_bytes(other.read_bytes()[:-9])
    ran = cohortlab(*args, "--out", "copied")
    assert ran.code == 0, ran.err
    assert Path("copied/sweep.parquet").read_bytes() == Path("whole/sweep.parquet").read_bytes()


def test_a_kernel_of_guests_that_is_a_file_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f'{path.read_text()}[guest]\nkernel = "./bzImage"\n')
    found = []
    for release in ("6.12.1", "6.18.0"):
        monkeypatch.setattr(kernels, "release_of", lambda *_, release=release: release)
        found.append(made(path, "seed=1..2"))
    monkeypatch.setattr(kernels, "release_of", lambda *_: pytest.fail("workers have no such file"))
    assert [planned.point(1).run.scenario.guest.kernel for planned in found] == ["6.12.1", "6.18.0"]
    assert found[0].key != found[1].key
    with pytest.raises(BadInput, match=r'kernel: "\./bzImage" is not allowed: must be a version'):
        made(path, "scenario.guest.kernel=6.12,./bzImage")
