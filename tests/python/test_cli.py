# SPDX-License-Identifier: GPL-2.0-only
"""The command line: results on standard output, errors as one line with exit code 2, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohortlab import __version__, commands, workloads
from cohortlab.places import PlaceCrashed, PlaceError
from cohortlab.policies import KNOWN
from cohortlab.results import read_parquet
from cohortlab.sim.policy import FLAGS
from cohortlab.workloads import WorkloadError

Run = Callable[..., Any]


@pytest.fixture
def path(write_scenario: Callable[..., Path]) -> Path:
    return write_scenario()


def test_version(cohortlab: Run) -> None:
    ran = cohortlab("--version")
    assert (ran.code, ran.out) == (0, f"cohortlab {__version__}\n")


def test_json_alone_is_on_standard_output(cohortlab: Run, path: Path, place: Any) -> None:
    place.took_s = {("eevdf", "spin"): 3.0, ("cohort", "spin"): 2.0}
    ran = cohortlab("compare", path, "--rounds", 3, "--json")
    assert ran.code == 0
    objects = json.loads(ran.out)
    assert [(o["program"], o["policy"]) for o in objects] == [
        ("spin", "eevdf"),
        ("spin", "cohort"),
        ("serve", "eevdf"),
        ("serve", "cohort"),
    ]
    promised = {"policy", "program", "median_s", "min_s", "max_s", "slowdown", "over_ideal", "neighbour_share"}
    assert all(promised <= set(o) for o in objects)
    assert (objects[0]["median_s"], objects[0]["over_ideal"], objects[1]["over_ideal"]) == pytest.approx((3, 1.5, 1))
    assert all(o["rounds"] == 3 for o in objects)
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    table = page.split("## Figures of `cohortlab compare --json`")[1].split("\n## ")[0]
    fields = " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))
    assert set(objects[0]) == set(re.findall(r"\w+", fields))


def test_table_and_files(cohortlab: Run, path: Path, tmp_path: Path) -> None:
    ran = cohortlab("compare", path, "--rounds", 2, "--out", tmp_path / "a" / "b")
    assert ran.code == 0
    assert ran.out.startswith("two, TLB flush by ipi, 2 rounds: median [min–max]")
    assert "Traceback" not in ran.err
    kept = read_parquet(tmp_path / "a" / "b" / "measurements.parquet")
    assert (len(kept.rows), kept.places["ipi"]["kernel"]) == (12, "9.9.9-test")
    assert kept.command.startswith("cohortlab compare ")
    assert (tmp_path / "a" / "b" / "report.html").read_text().startswith("<!doctype html>")


def test_a_vm_without_neighbours(cohortlab: Run, path: Path) -> None:
    path.write_text(path.read_text().partition('[[vm]]\nname = "hog"')[0])
    ran = cohortlab("compare", path, "--rounds", 1, "--json", "--out", "out")
    assert ran.code == 0
    assert {(o["ideal_slowdown"], o["neighbour_share"], o["neighbour_of_due"]) for o in json.loads(ran.out)} == {
        (1.0, 0.0, None)
    }
    assert "<svg" in Path("out/report.html").read_text()


def test_progress_is_on_standard_error(cohortlab: Run, path: Path) -> None:
    ran = cohortlab("compare", path, "--rounds", 1, "--json", "--no-warm-up")
    lines = ran.err.splitlines()
    assert re.fullmatch(r"\[  0%, about [0-9]+ s left\] booting", lines[0])
    assert "] round 1 of 1: spin alone" in lines[1]
    assert any("] round 1 of 1: serve under cohort" in line and ", about " in line for line in lines)


def test_without_out_the_results_go_to_a_folder_of_their_own(cohortlab: Run, path: Path) -> None:
    assert cohortlab("compare", path, "--rounds", 1).code == 0
    (folder,) = Path("results").iterdir()
    assert folder.name.startswith("two-")
    assert sorted(file.name for file in folder.iterdir()) == ["measurements.parquet", "report.html"]


def test_chosen_programs_policies_and_modes(cohortlab: Run, path: Path, place: Any) -> None:
    ran = cohortlab(
        *("compare", path, "--rounds", 1, "--json", "--programs", "serve", "--tlb", "hypercall,ipi"),
        *("--policies", "cohort, cohort@x,eevdf", "--policy-args", "cohort@x=--boost off", "--kernel", "6.18"),
    )
    assert ran.code == 0
    assert [(o["tlb"], o["policy"]) for o in json.loads(ran.out)] == [
        (tlb, policy) for tlb in ("ipi", "hypercall") for policy in ("cohort", "cohort@x", "eevdf")
    ]
    assert [entry for entry in place.log if entry[0] == "open"] == [
        ("open", "ipi", "6.18"),
        ("open", "hypercall", "6.18"),
    ]
    assert ("policy", "cohort", "--boost", "off") in place.log
    assert {entry[2] for entry in place.log if entry[0] == "measure"} == {"serve"}


# The project's, and those of conftest.
PROGRAMS = sorted({*workloads.known_names((workloads.SHIPPED,)), "burn", "chat", "serve", "spin"})

WRONG = {
    "no such file": (["compare", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
    "a folder": (["compare", "."], ".: cannot be read: Is a directory"),
    "unknown policy": (
        ["compare", "SCENARIO", "--policies", "eevdf,gang"],
        f'--policies: unknown policy "gang": known are {", ".join(KNOWN)}, and "all"',
    ),
    "all beside others": (
        ["compare", "SCENARIO", "--policies", "eevdf,all"],
        '--policies: "all" is not allowed beside others: must stand alone',
    ),
    "no policy": (
        ["compare", "SCENARIO", "--policies", ""],
        f'--policies: unknown policy "": known are {", ".join(KNOWN)}, and "all"',
    ),
    "a policy twice": (
        ["compare", "SCENARIO", "--policies", "cohort,cohort"],
        '--policies: "cohort" is named twice: write cohort@NAME for a variant of it',
    ),
    "arguments for a policy that is not there": (
        ["compare", "SCENARIO", "--policy-args", "vtime=--boost off"],
        '--policy-args: "vtime" is not among --policies: eevdf, cohort',
    ),
    "arguments for the kernel's own": (
        ["compare", "SCENARIO", "--policy-args", "eevdf=--boost off"],
        '--policy-args: "--boost off" is not allowed for eevdf: must be of --cgroup-mode MODE, one of up, smp, concur, '
        "max, tasks, and --base-slice-us N, from 100 to 100000, --latency-us N, from 100 to 1000000, "
        "--min-granularity-us N, from 100 to 1000000, --vm-cgroups yes or no, and --boost WHAT, with commas of "
        "candidate, any-mode, unfair",
    ),
    "a weight where no VM has a cgroup": (
        ["compare", "up-beside-smp", "--on", "sim", "--policies", "eevdf", "--policy-args", "eevdf=--vm-cgroups no"],
        'eevdf: --vm-cgroups: "no" is not allowed: VM "up" has a weight, as only cgroups have',
    ),
    "what only a simulated kernel is told, before anything boots": (
        ["compare", "SCENARIO", "--on", "lab", "--policies", "eevdf", "--policy-args", "eevdf=--boost unfair"],
        "eevdf: --boost: a real kernel boosts as it does: only a simulated one can be told how",
    ),
    "arguments that do not go together, before anything boots": (
        ["compare", "SCENARIO", "--on", "lab", "--policy-args", "cohort=-v --skew-us 1000"],
        "cohort: --skew-us needs --gang relaxed (it is aligned): no other looks at how far one is ahead",
    ),
    "arguments that no policy has": (
        ["compare", "SCENARIO", "--on", "lab", "--policy-args", "cohort=--wibble 1"],
        f"cohort: --wibble is not known: must be of {', '.join(FLAGS)}",
    ),
    "traffic that is none, before anything boots": (
        ["compare", "SCENARIO", "--policies", "partial-auto", "--policy-args", "partial-auto=--traffic bogus"],
        'partial-auto: --traffic: "bogus" is not allowed: must be one of interrupts, faults, both',
    ),
    "a file of sets that is not there": (
        ["compare", "SCENARIO", "--on", "lab", "--policies", "partial", "--policy-args", "partial=--sets none"],
        "partial: --sets: cannot read none: No such file or directory",
    ),
    "a file of sets that says what no set is": (
        ["compare", "SCENARIO", "--on", "sim", "--policies", "partial", "--policy-args", "partial=--sets=SCENARIO"],
        None,
    ),
    "arguments of nobody": (
        ["compare", "SCENARIO", "--policy-args", "--boost"],
        '--policy-args: "--boost" is not allowed: must be LABEL=ARGS, as in "cohort=--boost candidate"',
    ),
    "arguments with an open quote": (
        ["compare", "SCENARIO", "--policy-args", "cohort='x"],
        '--policy-args: "cohort=\'x" is not allowed: no closing quotation',
    ),
    "unknown program": (
        ["compare", "SCENARIO", "--programs", "spin,span"],
        f'--programs: "span" is not allowed: must be one of {", ".join(PROGRAMS)}',
    ),
    "unknown TLB mode": (
        ["compare", "SCENARIO", "--tlb", "magic"],
        '--tlb: "magic" is not allowed: must be of ipi, kvm-pv, hypercall',
    ),
    "a window that is none": (
        ["compare", "SCENARIO", "--ple", "0"],
        '--ple: "0" is not allowed: must be off, or microseconds from 1 to 10000',
    ),
    "a TLB mode twice": (["compare", "SCENARIO", "--tlb", "ipi,ipi"], '--tlb: "ipi" is named twice'),
    "no place": (
        ["compare", "SCENARIO", "--on", "moon"],
        '--on: "moon" does not exist in this version: must be one of lab, host, sim',
    ),
    "unreadable kernel": (
        ["compare", "SCENARIO", "--kernel", "./no/vmlinuz"],
        "--kernel: ./no/vmlinuz: cannot be read: No such file or directory",
    ),
    "unreadable kernel of guests": (
        ["compare", "SCENARIO", "--guest-kernel", "./no/vmlinuz"],
        "--guest-kernel: ./no/vmlinuz: cannot be read: No such file or directory",
    ),
    "no picture": (
        ["compare", "SCENARIO", "--picture", "no.png"],
        "--picture: no.png: cannot be read: No such file or directory",
    ),
    "another kind of picture": (
        ["compare", "SCENARIO", "--picture", "x.pdf"],
        "--picture: x.pdf: its ending must be .png or .svg",
    ),
    "out is a file": (["compare", "SCENARIO", "--out", "SCENARIO/x"], None),
    "no rounds": (["compare", "SCENARIO", "--rounds", "0"], None),
    "rounds that are no number": (["compare", "SCENARIO", "--rounds", "many"], None),
    "unknown option": (["compare", "SCENARIO", "--polices", "x"], None),
    "unknown command": (["compair"], None),
    "no command": ([], None),
    "no scenario": (["compare"], None),
}


@pytest.mark.parametrize(("args", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_input(cohortlab: Run, path: Path, place: Any, args: list[str], expected: str | None) -> None:
    ran = cohortlab(*(arg.replace("SCENARIO", str(path)) for arg in args))
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("cohortlab: ")
    if expected is not None:
        assert ran.err == f"cohortlab: {expected}\n"
    # Nothing was booted, and nothing half-written.
    assert place.log == []
    assert list(Path.cwd().iterdir()) == []


def test_what_may_have_been_meant_is_said(cohortlab: Run) -> None:
    ran = cohortlab("comapre", "smp-2x2")
    assert ran.code == 2
    assert "No such command 'comapre'. Did you mean 'compare'?" in ran.err


def test_a_kernel_that_the_scenario_names(cohortlab: Run, path: Path) -> None:
    path.write_text(f'{path.read_text()}\n[defaults]\nkernel = "./no/vmlinuz"\n')
    ran = cohortlab("compare", path)
    assert ran.code == 2
    assert ran.err == f"cohortlab: {path}: defaults.kernel: ./no/vmlinuz: cannot be read: No such file or directory\n"


@pytest.mark.parametrize("verb", ["compare", "import", "advise"])
def test_a_name_that_is_not_in_utf_8(cohortlab: Run, verb: str) -> None:
    ran = cohortlab(verb, "bad\udcff.toml")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ": is not in UTF-8" in ran.err


UNWRITABLE = {
    "a file in the way": lambda folder: folder / "file" / "out",
    "a file": lambda folder: folder / "file",
    "a name that is too long": lambda folder: folder / "new" / ("x" * 300),
    # Permissions do not say so: to root least of all.
    "no real file system": lambda folder: Path("/proc/self/new/out"),
}


@pytest.mark.parametrize("where", UNWRITABLE.values(), ids=UNWRITABLE.keys())
def test_results_that_could_not_be_written_are_noticed_before_anything_is_measured(
    cohortlab: Run, path: Path, place: Any, tmp_path: Path, where: Callable[[Path], Path]
) -> None:
    (tmp_path / "file").touch()
    out = where(tmp_path)
    ran = cohortlab("compare", path, "--out", out)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    # That an existing file is no folder is found by who parses the options.
    assert ran.err.startswith(
        (f"cohortlab: --out: {out}: cannot be written to: ", "cohortlab: Invalid value for '--out'")
    )
    assert place.log == []
    assert not (tmp_path / "new").exists()


def test_nothing_is_left_where_nothing_was_measured(cohortlab: Run, path: Path, place: Any, tmp_path: Path) -> None:
    place.raises = {0: KeyboardInterrupt(), 1: KeyboardInterrupt()}
    (tmp_path / "old").mkdir()
    for out in (tmp_path / "new" / "out", tmp_path / "old"):
        assert cohortlab("compare", path, "--out", out).code == 130
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "old").iterdir()) == []


def test_wrong_scenario_names_file_and_field(cohortlab: Run, path: Path) -> None:
    path.write_text(path.read_text().replace("vcpus = 2", "vcpus = -2", 1))
    ran = cohortlab("compare", path)
    allowed = "-2 is not allowed: must be an integer from 1 to 256"
    assert (ran.code, ran.err) == (2, f"cohortlab: {path}: vm[0].vcpus: {allowed}\n")


def test_a_place_that_refuses(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises_opening = [PlaceError("--kernel: 99 is not there:\nmust be 6.18")]
    ran = cohortlab("compare", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "cohortlab: --kernel: 99 is not there: must be 6.18\n"
    assert list(Path.cwd().iterdir()) == []


def test_a_place_that_fails_later_exits_with_1_and_what_is_complete(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises = {number: PlaceCrashed("Oops") for number in range(6, 99)}
    ran = cohortlab("compare", path, "--rounds", 2, "--json", "--no-warm-up", "--crashes", 1)
    assert ran.code == 1
    assert {o["rounds"] for o in json.loads(ran.out)} == {1}
    assert "cohortlab: gave up after 2 crashes of the host under test; the last one: Oops" in ran.err


def test_a_full_disk_takes_no_figures_that_can_be_read(
    cohortlab: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(commands, "write_parquet", full)
    ran = cohortlab("compare", path, "--rounds", 3)
    assert ran.code == 1
    assert "two, TLB flush by ipi, 1 round: median" in ran.out
    assert "Not complete ([Errno 28] No space left on device): 1 of 3 rounds." in ran.out
    assert ran.err.splitlines()[-1] == "cohortlab: No space left on device"


def test_many_short_rounds_are_not_saved_after_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    nothing: Any = None
    saved: list[float] = []

    def save(*_: Any) -> None:
        nonlocal now_s
        saved.append(now_s)
        now_s += 2

    def after_rounds_of(length_s: float) -> list[float]:
        nonlocal now_s
        now_s = 0.0
        saved.clear()
        keep = commands.keeper(nothing, tmp_path, lambda: now_s)
        for _ in range(100):
            keep()
            now_s += length_s
        return saved

    monkeypatch.setattr(commands, "_keep", save)
    assert len(after_rounds_of(60)) == 100, "rounds of real kernels are"
    # It takes two seconds: 40 must pass before the next time.
    assert after_rounds_of(1)[:3] == [0, 42, 84]


def test_a_reader_that_has_gone_takes_no_files(cohortlab: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "print_results", gone)
    assert cohortlab("compare", path, "--rounds", 1, "--out", "out").code == 130
    assert sorted(file.name for file in Path("out").iterdir()) == ["measurements.parquet", "report.html"]


def test_a_policy_that_takes_what_only_real_hosts_have(cohortlab: Run, path: Path, place: Any) -> None:
    args = "--traffic faults --faults-per-s 500"
    policies = ("--policies", "partial-auto", "--policy-args", f"partial-auto={args}")
    assert cohortlab("compare", path, "--rounds", 1, *policies).code == 0
    assert ("policy", "partial-auto", *args.split()) in place.log


def test_a_policy_that_dies_exits_with_1(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises_leaving_policy = {"cohort": PlaceError("runnable task stall")}
    ran = cohortlab("compare", path, "--rounds", 2)
    assert ran.code == 1
    assert "cohort failed (TLB flush by ipi; spin, serve): runnable task stall" in ran.out


@pytest.mark.parametrize("failures", [2, 100])
def test_a_tlb_mode_in_which_nothing_is_left_does_not_end_the_others(
    cohortlab: Run, path: Path, place: Any, failures: int
) -> None:
    place.raises = {number: WorkloadError("no room") for number in range(failures)}
    ran = cohortlab("compare", path, "--tlb", "ipi,hypercall", "--rounds", 2, "--no-warm-up", "--json")
    assert ran.code == 1
    whole, left = ({2}, {None}) if failures == 2 else ({0}, set())
    found = json.loads(ran.out)
    assert {o["rounds"] for o in found if o["tlb"] == "hypercall"} == whole
    assert {o["error"] for o in found if o["tlb"] == "hypercall"} & {None} == left
    reasons = {f"{program} fails alone: no room" for program in ("spin", "serve")}
    assert {o["error"] for o in found if o["tlb"] == "ipi"} == reasons
    assert ("no program is left to compare; serve fails alone: no room" in ran.err) == (failures == 100)
    assert [entry[1] for entry in place.log if entry[0] == "open"] == ["ipi", "hypercall"]


def test_interrupted_before_the_first_round_is_complete(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises = {0: KeyboardInterrupt()}
    ran = cohortlab("compare", path, "--json")
    assert (ran.code, {o["median_s"] for o in json.loads(ran.out)}) == (130, {None})
    assert "cohortlab: interrupted: no round was complete" in ran.err
    assert list(Path.cwd().iterdir()) == []


def test_interrupted_before_the_second_program_no_round_is_complete(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises = {3: KeyboardInterrupt()}
    ran = cohortlab("compare", path, "--rounds", 1, "--no-warm-up")
    assert ran.code == 130
    assert "Not complete (interrupted): 0 of 1 rounds." in ran.out


def test_interrupted_later_reports_the_complete_rounds(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises = {13: KeyboardInterrupt()}
    ran = cohortlab("compare", path, "--no-warm-up")
    assert ran.code == 130
    assert ", 2 rounds: median" in ran.out
    assert "Not complete (interrupted): 2 of 5 rounds." in ran.out
    assert len(read_parquet(next(Path("results").glob("*/measurements.parquet"))).rows) == 12


def test_a_mistake_of_ours_is_one_line_too(cohortlab: Run, path: Path, place: Any) -> None:
    place.raises = {0: ZeroDivisionError("division by zero")}
    ran = cohortlab("compare", path)
    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert last.startswith("cohortlab: internal error: ZeroDivisionError: division by zero (conftest.py:")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [("--version", ">&-", 0), ("--version", "<&- >&-", 0), ("compare nowhere.toml", "2>&-", 2)],
)
def test_a_stream_that_is_closed(words: str, closed: str, code: int) -> None:
    line = f"exec {shlex.quote(sys.executable)} -m cohortlab {words} {closed}"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


def test_kill_ends_it_like_ctrl_c(tmp_path: Path) -> None:
    """A real process: the signal reaches the comparison, which closes its place."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "from cohortlab import cli, doctor\n"
        "def wait():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
        "doctor.examine = wait\n"
        "sys.argv = ['cohortlab', 'doctor']\n"
        "sys.exit(cli.main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, "closed\n", "cohortlab: interrupted")
