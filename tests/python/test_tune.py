# SPDX-License-Identifier: GPL-2.0-only
"""The search over knobs, on a made-up landscape and in the simulator."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.python.two_vms import QUICK, two_vms

from cohortlab import scenario as scenarios
from cohortlab.places import PlaceError
from cohortlab.sweep import tune
from cohortlab.sweep.tune import Score, Search, Setting

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, program in {"train": "tlb-flush", "judge": "pbzip2"}.items():
        (tmp_path / f"{name}.toml").write_text(two_vms(program, name=name))
    return tmp_path


def landscape(monkeypatch: pytest.MonkeyPatch, height: Callable[[Setting], float]) -> list[Setting]:
    tried: list[Setting] = []

    def score(policy: str, settings: Sequence[Setting], *_: object) -> list[Score]:
        tried.extend(settings)
        return [Score(height(setting), 1.0) for setting in settings]

    monkeypatch.setattr(tune, "score", score)
    return tried


KNOBS = {"slice-us": ["2000", "4000", "8000"], "starve-us": ["50000", "200000"]}


def test_knobs_that_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def height(setting: Setting) -> float:
        slice_us, starve_us = int(setting.get("slice-us", 16_000)), int(setting.get("starve-us", 100_000))
        # With the shorter patience the shorter slice is better.
        best_us = 2_000 if starve_us == 50_000 else 4_000
        return 1 + abs(slice_us - best_us) / 10_000 + (0 if starve_us == 50_000 else 0.3)

    tried = landscape(monkeypatch, height)
    assert Search("cohort", KNOBS, []).best() == {"slice-us": "2000", "starve-us": "50000"}
    assert len({tune.arguments(setting) for setting in tried}) == len(tried), "nothing is simulated twice"


def test_nothing_is_better_than_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    landscape(monkeypatch, lambda setting: 1.0 if not setting else 1.0 - tune.GAIN_MIN / 2)
    assert Search("cohort", KNOBS, []).best() == {}


def test_what_is_not_allowed_together_is_not_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = landscape(monkeypatch, lambda setting: 2.0 - len(setting))
    knobs = {"slice-us": ["60000"], "starve-us": ["50000", "200000"]}
    training = [scenarios.load(folder / "train.toml")]
    assert Search("cohort", knobs, training).best() == {"slice-us": "60000", "starve-us": "200000"}
    assert {"slice-us": "60000", "starve-us": "50000"} not in tried


def test_what_is_left_out_does_not_count_as_tried(
    cohortlab: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    landscape(monkeypatch, lambda setting: 3.0 - len(setting))
    knobs = ("--knob", "slice-us=60000", "--knob", "starve-us=50000,200000")
    ran = cohortlab("tune", folder / "train.toml", "--held-out", folder / "judge.toml", *knobs, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["best"] == {"slice-us": "60000", "starve-us": "200000"}
    # The defaults, each of the best values alone, and both: the shorter patience contradicts the long slice.
    assert found["tried"] == ran.err.count("\n") == 4


def test_values_that_go_together_only_with_one_another_are_allowed(folder: Path) -> None:
    # 10 ms is too little for the slice that is the default, and enough for the other one.
    training = [scenarios.load(folder / "train.toml")]
    Search("cohort", {"slice-us": ["4000", "16000"], "starve-us": ["10000"]}, training).check()


def test_a_kernels_own_knobs_are_tuned_where_it_has_them(cohortlab: Run, folder: Path) -> None:
    for name in ("train", "judge"):
        file = folder / f"{name}.toml"
        file.write_text(f'{file.read_text()}\n[defaults]\nkernel = "6.1"\n')
    args = ("tune", folder / "train.toml", "--held-out", folder / "judge.toml", "--policy", "eevdf")
    ran = cohortlab(*args, "--knob", "latency-us=6000,24000", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["tried"] == 3
    ran = cohortlab(*args, "--knob", "base-slice-us=3000")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "kernel 6.1 has CFS, which has no base slice" in ran.err


@pytest.mark.parametrize(
    ("old", "new", "args", "said"),
    [
        ("pcpus = 2", "pcpus = 4", ["--hardware", "HARDWARE"], "h.toml: machine: has 2 pCPUs, but JUDGE has host."),
        ("[host]", '[defaults]\nkernel = "6.1"\n[host]', [], "--knob: --base-slice-us: kernel 6.1 has CFS"),
        ("[host]", '[defaults]\nkernel = "2.4"\n[host]', [], 'JUDGE: defaults.kernel: kernel "2.4" is not known'),
    ],
)
def test_what_does_not_go_with_a_held_out_scenario_is_found_before_the_search(
    cohortlab: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, args: list[str], said: str
) -> None:
    tried = landscape(monkeypatch, lambda _: 1.0)
    hardware, judge = folder / "h.toml", folder / "judge.toml"
    hardware.write_text("[machine]\nsockets = 1\ncores_per_socket = 2\n")
    judge.write_text(judge.read_text().replace(old, new))
    args = [str(hardware) if arg == "HARDWARE" else arg for arg in args]
    knob = ("--policy", "eevdf", "--knob", "base-slice-us=3000")
    ran = cohortlab("tune", folder / "train.toml", "--held-out", judge, *knob, *args)
    assert (ran.code, ran.out, ran.err.count("\n"), tried) == (2, "", 1, []), ran.err
    assert said.replace("JUDGE", str(judge)) in ran.err


def test_what_a_held_out_scenarios_vms_cannot_have_is_found_before_the_search(
    cohortlab: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = landscape(monkeypatch, lambda _: 1.0)
    judge = folder / "judge.toml"
    judge.write_text(f"{judge.read_text()}weight = 200\n")
    args = ("tune", folder / "train.toml", "--held-out", judge, "--policy", "eevdf", "--knob", "vm-cgroups=yes,no")
    ran = cohortlab(*args)
    assert (ran.code, ran.out, ran.err.count("\n"), tried) == (2, "", 1, []), ran.err
    assert '--knob: --vm-cgroups: "no" is not allowed: VM "hog" has a weight, as only cgroups have' in ran.err


def test_tuned_on_one_judged_by_another(cohortlab: Run, folder: Path) -> None:
    args = ("tune", folder / "train.toml", "--held-out", folder / "judge.toml", "--policy", "vtime")
    ran = cohortlab(*args, "--knob", "slice-us=4000,16000", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["tried"] == 3
    assert found["training_tuned"]["over_ideal"] <= found["training_defaults"]["over_ideal"]
    assert found["held_out_tuned"]["worst_of_due"] > 0.5
    assert ran.err.count("\n") == 3
    assert cohortlab(*args, "--knob", "slice-us=4000,16000", "--json").out == ran.out
    shown = cohortlab(*args, "--knob", "slice-us=16000")
    assert "best: vtime the defaults" in shown.out


@pytest.fixture
def slow(folder: Path) -> Path:
    """Return a scenario whose program does not end in time."""
    models = folder / "workloads" / "models"
    models.mkdir(parents=True)
    (models / "quick.toml").write_text(QUICK.replace("times = 10", "times = 5000"))
    (folder / "workloads" / "quick.toml").write_text(
        'name = "quick"\ntitle = "Q"\ntimeout_s = 1\n[metric]\nkind = "elapsed"\n'
    )
    (folder / "slow.toml").write_text(two_vms("quick", name="slow"))
    return folder / "slow.toml"


def test_a_program_that_fails_is_no_figure_and_why_is_said(cohortlab: Run, folder: Path, slow: Path) -> None:
    args = ("tune", folder / "train.toml", "--held-out", slow, "--policy", "vtime", "--knob", "slice-us=4000")
    ran = cohortlab(*args, "--json")
    assert ran.code == 1
    found = json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["training_tuned"]["error"] is None
    judged = found["held_out_defaults"]
    assert (judged["over_ideal"], judged["worst_of_due"]) == (None, None)
    assert judged["error"].startswith("slow: quick")
    assert "did not end in 1 s" in judged["error"]
    said = f"failed: held out: {judged['error']}\n"
    assert ran.err.count(said) == 1
    shown = cohortlab(*args)
    assert (shown.code, "inf" in shown.out, shown.out.count("failed")) == (1, False, 2)
    assert said in shown.err


def test_what_was_stopped_is_no_score_of_whoever_has_not_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any) -> Any:
        results = simulate(*args)
        results.stopped = "it was put out"
        results.failed["ipi", "0", "tlb-flush"] = "it did not end"
        return results

    simulate = tune.simulate
    monkeypatch.setattr(tune, "simulate", stopped)
    training = [scenarios.load(folder / "train.toml")]
    with pytest.raises(PlaceError, match=r"train\.toml: it was put out"):
        tune.score("vtime", [{}, {"slice-us": "4000"}], training, 1, None)
    # Of nobody's figures any are missing.
    (failed,) = tune.score("vtime", [{}], training, 1, None)
    assert failed.error == "train: it did not end"


def test_a_setting_that_fails_says_why(cohortlab: Run, folder: Path, slow: Path) -> None:
    ran = cohortlab("tune", slow, "--held-out", folder / "judge.toml", "--knob", "slice-us=4000")
    assert ran.code == 1
    assert "the defaults: failed: slow: quick" in ran.err
    assert "--slice-us 4000: failed: slow: quick" in ran.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--knob", "slice-us"], '--knob: "slice-us" is not allowed: must be KNOB=VALUES'),
        (["--knob", "slice-us=1,"], '--knob: "slice-us=1," is not allowed: must be KNOB=VALUES'),
        (["--knob", "slice-us=1"], "--knob: --slice-us: "),
        (["--knob", "slice-us=4000", "--knob", "--slice-us=8000"], '--knob: "slice-us" is named twice'),
        (["--knob", "base-slice-us=50", "--policy", "eevdf"], '--knob: "--base-slice-us 50" is not allowed for eevdf'),
        (
            ["--knob", "slice-us=16000", "--knob", "starve-us=10000"],
            "--knob: --slice-us 16000 (the default) contradicts --starve-us",
        ),
        (["--knob", "colour=1"], "--knob: --colour is not known: must be of --placement, "),
        (["--knob", "slice-us=4000", "--policy", "none"], '--knob: policy "none" is not known'),
        (["--knob", "slice-us=4000", "--hardware", "none"], '"none" does not exist'),
        (["--knob", "slice-us=4000", "--held-out", "TRAIN"], "is a training scenario as well: must be another"),
        (["--knob", "slice-us=4000", "--held-out", "JUDGE"], "judge.toml: is named twice: must be once"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(cohortlab: Run, folder: Path, args: list[str], said: str) -> None:
    train, judge = str(folder / "train.toml"), str(folder / "judge.toml")
    args = [{"TRAIN": train, "JUDGE": judge}.get(arg, arg) for arg in args]
    ran = cohortlab("tune", train, "--held-out", judge, *args)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err
