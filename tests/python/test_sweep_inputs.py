# SPDX-License-Identifier: GPL-2.0-only
"""What a sweep is given: files that its workers do not read again, values that do nothing; and how far it is."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.python.two_vms import with_quick

from cohortlab.errors import BadInput
from cohortlab.lab import kernels
from cohortlab.sim import identity
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


def test_what_takes_its_time_before_the_runs_is_shown(
    cohortlab: Run, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = axes.of_options(["policy.slice-us=4000..4003", "policy=cohort,vtime", "seed=1..5"], None)
    told: list[int] = []
    plan.make(path, given, told.append)
    assert sum(told) == plan.tries(given) == 4 + 2 + 1
    # Of what takes a moment nothing is said.
    args = ("sweep", path, "--axis", "policy.slice-us=4000..4009", "--chunk", 5, "--out", "out")
    quick = cohortlab(*args, "--shard", "1/2")
    assert "trying" not in quick.err
    assert "reading" not in quick.err
    monkeypatch.setattr(commands, "_PATIENCE_S", 0.0)
    slow = cohortlab(*args)
    assert slow.code == 0, slow.err
    assert "[ 10 %] trying: 1 of 10 values, " in slow.err
    # First the part that was there; then both, to see that they are whole, and to make the file.
    assert slow.err.count("reading: 1 of 1 chunks, ") == 1
    assert slow.err.count("reading: 2 of 2 chunks, ") == 2
    # A bar that comes late, and one that never comes.
    monkeypatch.setattr(commands, "Console", lambda **how: Console(**how, force_terminal=True, width=100))
    for after_s in (0.001, 1000.0):
        with commands._meter(2, "values", "trying: ", after_s) as tell:
            for _ in range(2):
                time.sleep(0.002)
                tell(1)
        said = capsys.readouterr().err
        assert ("2/2" in said, "trying: " in said, "values/s" in said) == (after_s < 1,) * 3


def test_a_log_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines = commands._Lines(1_000_000, "runs", "", 0.0)
    lines(1)
    assert capsys.readouterr().err == ""
    lines.told -= commands._TELL_S
    lines(1)
    assert capsys.readouterr().err.startswith("[  0 %] 2 of 1000000 runs, ")
    lines(1)
    assert capsys.readouterr().err == ""


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


@pytest.mark.parametrize(("policy", "knob"), [("vtime", "slice-us"), ("eevdf", "base-slice-us")])
def test_an_argument_that_the_policy_has_already_is_refused(cohortlab: Run, path: Path, policy: str, knob: str) -> None:
    options = ("--axis", f"policy={policy} --{knob} 4000", "--axis", f"policy.{knob}=8000")
    ran = cohortlab("sweep", path, *options, "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert f"--{knob}: is given twice: must be once" in ran.err


def test_hardware_is_read_in_the_order_of_its_axis(path: Path, tmp_path: Path) -> None:
    names = [f"{tmp_path}/h{number}.toml" for number in (3, 1, 4, 0, 5, 9, 2, 6)]
    for name in names:
        Path(name).write_text('description = "as it comes"\n')
    assert list(made(path, f"hardware={','.join(names)}").library.hardware) == names


def test_a_kernel_that_another_axis_overrides_is_refused(cohortlab: Run, path: Path) -> None:
    options = ("--axis", "kernel=7.3", "--axis", "scenario.defaults.kernel=6.1,6.12")
    ran = cohortlab("sweep", path, *options, "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert "--axis: scenario.defaults.kernel: changes nothing beside the axis kernel: must be left out" in ran.err


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
        ("model.quick.title={a = [1979-05-27]}", "title: 1979-05-27 is not allowed: no field is a date or a time"),
        ('hardware="a\\u0000.toml"', "--axis: hardware: has a text with the character U+0000: must be without"),
        ('policy.sets={"\\u0000" = 1}', "--axis: policy.sets: has a text with the character U+0000: must be without"),
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


def test_who_waits_for_a_worker_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cohortlab.sweep import cluster

    class WithoutWorkers:
        def nthreads(self) -> dict[str, int]:
            return {}

        def wait_for_workers(self, count: int) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "_client", lambda _: contextlib.nullcontext(WithoutWorkers()))
    with pytest.raises(KeyboardInterrupt):
        list(cluster.run(made(path, "seed=1"), [0], 16, "tcp://127.0.0.1:1"))
    assert capsys.readouterr().err == "waiting for a worker at tcp://127.0.0.1:1\n"


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


@pytest.mark.parametrize(
    "axes_texts",
    [
        ("scenario.vm.work.vcpus=2,16", "scenario.vm.work.memory_mb=256,1024"),
        ("scenario.vm.work.vcpus=2,4", "scenario.vm.work.vcpu_affinity=[0,1],[0,1,0,1]"),
    ],
)
def test_a_value_that_goes_with_another_than_the_first_is_allowed(path: Path, axes_texts: tuple[str, str]) -> None:
    for texts in (axes_texts, axes_texts[::-1]):
        planned = made(path, *texts)
        rows = [row for number in range(planned.points) for row in chunks.simulate_point(planned, number)]
        wrong = [row.get("error") is not None for row in rows]
        assert [wrong[0], wrong[-1], any(wrong)] == [False, False, True], wrong


def test_a_value_that_goes_with_none_is_refused(path: Path) -> None:
    with pytest.raises(BadInput, match=r"vcpus = 32: .*memory"):
        made(path, "scenario.vm.work.memory_mb=256,512", "scenario.vm.work.vcpus=2,32")


def test_parts_of_another_sweep_are_refused_and_stay(cohortlab: Run, path: Path) -> None:
    args = ("sweep", path, "--axis", "seed=1..4", "--workers", 1)
    assert cohortlab(*args, "--chunk", 1, "--out", "one", "--shard", "1/2").code == 0
    assert cohortlab(*args, "--chunk", 2, "--out", "two", "--shard", "2/2").code == 0
    shutil.copytree("one", "both")
    copied = Path("both/parts/00000001.parquet")
    shutil.copy("two/parts/00000001.parquet", copied)
    ran = cohortlab(*args, "--chunk", 1, "--out", "both")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert f"--out: {copied}: is of another sweep, or of this one with another --chunk" in ran.err
    assert copied.exists()
    # Likewise the file of all, where nothing says whose it is.
    assert cohortlab("sweep", path, "--axis", "seed=1..2", "--out", "other").code == 0
    Path("bare").mkdir()
    shutil.copy("other/sweep.parquet", "bare")
    ran = cohortlab(*args, "--out", "bare")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert "--out: bare/sweep.parquet: is of another sweep" in ran.err


def test_what_is_known_has_the_names_that_this_sweep_gives(cohortlab: Run, path: Path) -> None:
    def args(policy: str) -> tuple[Any, ...]:
        return "sweep", path, "--axis", f"policy={policy}"

    assert cohortlab(*args("vtime --slice-us=4000"), "--out", "first").code == 0
    assert cohortlab(*args("vtime --slice-us 4000"), "--out", "fresh").code == 0
    assert cohortlab(*args("vtime --slice-us 4000"), "--known", "first/sweep.parquet", "--out", "known").code == 0
    assert Path("known/sweep.parquet").read_bytes() == Path("fresh/sweep.parquet").read_bytes()


def test_pythons_part_of_the_simulator_makes_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cohortlab"
    shutil.copytree(Path(identity.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    monkeypatch.setattr(identity.resources, "files", lambda _: package)
    seen = {identity.simulator.__wrapped__()}
    assert seen == {identity.simulator()}
    files = ("models.py", "scenario_check.py", "sim/policy.py", "sweep/chunks.py", "sweep/plan.py")
    for file in files:
        (package / file).write_text((package / file).read_text() + "# changed\n")
        seen.add(identity.simulator.__wrapped__())
    assert len(seen) == 1 + len(files)


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
