# SPDX-License-Identifier: GPL-2.0-only
"""`cohortlab fidelity`: what of the lab the simulator is told, what is left out, and what it does when interrupted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.python.measured import as_measured
from tests.python.two_vms import two_vms, with_quick

from cohortlab import fidelity
from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.results import read_parquet, write_parquet
from cohortlab.sim import compared, hardware

Run = Callable[..., Any]
THIRD = '[[vm]]\nname = "b"\nvcpus = 1\nmemory_mb = 256\nload = "cpu-hog"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(two_vms("tlb-flush"))
    return tmp_path / "small.toml"


@pytest.fixture
def lab(cohortlab: Run, path: Path) -> Path:
    assert cohortlab("compare", path, "--on", "sim", "--rounds", 1, "--policies", "eevdf", "--out", "lab").code == 0
    return as_measured(Path("lab/measurements.parquet"))


def test_the_guests_kernel_is_that_of_the_lab(path: Path, lab: Path) -> None:
    results = read_parquet(lab)
    (where,) = results.places
    results.places[where] = {"kernel": "7.3.4+deb14-amd64", "guests' kernel": "6.12.94+deb13-amd64"}
    chosen = fidelity._as_in_the_lab(scenarios.load(path), results.places[where])
    assert (chosen.guest.kernel, fidelity.kernel_of(results)) == ("6.12.94", "7.3.4")
    del results.places[where]["guests' kernel"]
    assert fidelity._as_in_the_lab(scenarios.load(path), results.places[where]).guest.kernel is None


@pytest.mark.parametrize(("stopped", "code"), [("interrupted", 130), ("no room", 1)])
def test_a_part_of_the_rounds_is_no_table(
    cohortlab: Run, path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch, stopped: str, code: int
) -> None:
    real = compared.simulate

    def simulate(*args: Any) -> Any:
        results = real(*args)
        results.stopped = stopped
        return results

    monkeypatch.setattr(compared, "simulate", simulate)
    ran = cohortlab("fidelity", path, "--lab", lab, "--rounds", 1, "--json")
    assert (ran.code, ran.out) == (code, "")
    assert stopped in ran.err


def test_a_policy_that_was_made_to_say_more_is_simulated(
    path: Path, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = read_parquet(lab)
    results.rows = [
        dataclasses.replace(row, policy_args=("-v",) if row.policy != "alone" else ()) for row in results.rows
    ]
    monkeypatch.setattr(fidelity, "read_parquet", lambda _: results)
    (found,) = fidelity.compare(scenarios.load(path), lab, rounds=1)
    assert (found.sim is not None, found.why) == (True, "")


def test_what_was_simulated_is_no_labs(cohortlab: Run, path: Path) -> None:
    assert cohortlab("compare", path, "--on", "sim", "--rounds", 1, "--policies", "eevdf", "--out", "own").code == 0
    ran = cohortlab("fidelity", path, "--lab", "own/measurements.parquet")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert "--lab: own/measurements.parquet: was simulated: must be measured" in ran.err


def in_two_modes(lab: Path, *emulators: str) -> Path:
    """Have the lab's file say that it has the same rounds in as many TLB modes, each with such an emulator."""
    results = read_parquet(lab)
    (was,) = results.tlb_modes
    results.tlb_modes = scenarios.TLB_MODES[: len(emulators)]
    place = results.places.pop(was)
    results.rows = [dataclasses.replace(row, tlb=tlb) for tlb in results.tlb_modes for row in results.rows]
    for tlb, emulator in zip(results.tlb_modes, emulators, strict=True):
        results.places[tlb] = place | ({"emulator": emulator} if emulator else {})
    results.command += f" --tlb {','.join(results.tlb_modes)}"
    write_parquet(results, lab)
    return lab


PATCHED = "QEMU 10.0.13 patched (f5a5fc624a4e)"


@pytest.mark.parametrize(
    ("emulators", "said"),
    [
        ((PATCHED, "QEMU 10.0.13 cured"), f'"{PATCHED}" with flushes by ipi and "QEMU 10.0.13 cured" with flushes by '),
        ((PATCHED, PATCHED.replace("f5", "9a")), "9aa5fc624a4e"),
        (
            (f"{PATCHED}, later QEMU 10.0.13 cured",),
            '"QEMU 10.0.13 cured" with flushes by ipi: must be the same in all',
        ),
    ],
)
def test_rounds_of_two_emulators_are_refused(
    cohortlab: Run, path: Path, lab: Path, emulators: tuple[str, ...], said: str
) -> None:
    ran = cohortlab("fidelity", path, "--lab", in_two_modes(lab, *emulators))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert f'--lab: {lab}: emulator: is "{PATCHED}" with flushes by ' in ran.err
    assert said in ran.err


@pytest.mark.parametrize(
    ("emulators", "is_said"),
    [((PATCHED, PATCHED), False), ((PATCHED, ""), True), (("unknown",), True), (("QEMU 9.2.0",), False)],
)
def test_rounds_of_one_emulator_are_compared_and_of_an_unknown_one_it_is_said(
    path: Path, lab: Path, emulators: tuple[str, ...], is_said: bool
) -> None:
    said: list[str] = []
    fits = fidelity.compare(scenarios.load(path), in_two_modes(lab, *emulators), rounds=1, say=said.append)
    assert len(fits) == len(emulators)
    assert bool(said) == is_said
    assert all(line.startswith(f"{lab}: not every round's emulator is named") for line in said)


def measured_by(lab: Path, emulator: str, accelerator: str) -> Path:
    """Have the lab's file name what measured it."""
    results = read_parquet(lab)
    results.places["ipi"] |= {"emulator": emulator, "accelerator": accelerator}
    write_parquet(results, lab)
    return lab


@pytest.mark.parametrize(
    ("emulator", "named", "simulated", "is_of"),
    [
        ("QEMU 10.0.13 cured", (), "lab", "patched, own: must be of cured"),
        ("QEMU 10.0.13 stock", ("--hardware", "lab"), "lab", "patched, own: must be of stock"),
        (PATCHED, ("--hardware", "lab-stock"), "lab-stock", "stock: must be of patched"),
    ],
)
def test_hardware_of_another_emulator_is_refused(
    cohortlab: Run, path: Path, lab: Path, emulator: str, named: tuple[str, ...], simulated: str, is_of: str
) -> None:
    ran = cohortlab("fidelity", path, "--lab", measured_by(lab, emulator, "tcg"), *named)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    file = hardware.SHIPPED / f"{simulated}.toml"
    assert ran.err == f"cohortlab: --hardware: {file}: emulators: is of {is_of}, which measured {lab}\n"


@pytest.mark.parametrize(
    ("emulator", "accelerator", "named"),
    [
        (PATCHED, "tcg", "lab"),
        ("QEMU 10.0.13 own (0123abcd)", "tcg", "lab"),
        ("QEMU 10.0.13 stock", "tcg", "lab-stock"),
        # The processor is real.
        ("QEMU 10.0.13 stock", "kvm", "lab"),
    ],
)
def test_hardware_of_the_same_emulator_is_simulated(
    path: Path, lab: Path, emulator: str, accelerator: str, named: str
) -> None:
    said: list[str] = []
    measured = measured_by(lab, emulator, accelerator)
    fits = fidelity.compare(scenarios.load(path), measured, rounds=1, hardware=named, say=said.append)
    assert (len(fits), said) == (1, [])


def test_of_hardware_that_names_no_emulator_it_is_said(path: Path, lab: Path) -> None:
    own = path.parent / "own.toml"
    own.write_text("[machine]\n")
    said: list[str] = []
    measured = measured_by(lab, PATCHED, "tcg")
    fidelity.compare(scenarios.load(path), measured, rounds=1, hardware=str(own), say=said.append)
    assert said == [f"{own}: emulators: is missing: whether it is of patched, which measured {lab}, is not known"]


def test_emulators_that_hardware_names_are_kinds(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('emulators = ["bochs"]\n')
    with pytest.raises(BadInput, match=r'emulators\[0\]: "bochs" is not allowed: must be a list of patched, cured'):
        hardware.load(str(own))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("pcpus = 2", "pcpus = 3", "host"),
        ('name = "hog"\nvcpus = 2', 'name = "hog"\nvcpus = 1', "vm[1]"),
        ('load = "cpu-hog"', 'load = "cpu-hog"\nstart_s = 1', "vm[1]"),
        ('[[vm]]\nname = "work"', '[guest]\nple = false\n[[vm]]\nname = "work"', "guest"),
        ('load = "cpu-hog"', f'load = "cpu-hog"\n{THIRD}', "vm[2]"),
    ],
)
def test_another_host_of_the_same_name_is_refused(
    cohortlab: Run, path: Path, lab: Path, old: str, new: str, field: str
) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    ran = cohortlab("fidelity", path, "--lab", lab)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert f"--lab: {lab}: its scenario had another {field}: must be that of {path}" in ran.err


def test_words_and_programs_make_no_other_host(path: Path, lab: Path) -> None:
    results = read_parquet(lab)
    text = path.read_text().replace('"tlb-flush"', '"tlb-flush", "mmapfork"')
    path.write_text(f"# A comment.\ndescription = 'a text'\n{text}")
    fidelity._check_machines(results, lab, scenarios.load(path))
    path.write_text(text.replace("vcpus = 2", "vcpus = 1"))
    with pytest.raises(BadInput, match="another vm"):
        fidelity._check_machines(results, lab, scenarios.load(path))


def test_each_vm_has_its_own_tlb_mode_unless_the_lab_was_told_one(path: Path, lab: Path) -> None:
    path.write_text(f'{path.read_text()}tlb = "kvm-pv"\n')
    results, scenario = read_parquet(lab), scenarios.load(path)

    def modes() -> dict[str, list[str]]:
        return {mode: [vm.tlb for vm in chosen.vms] for mode, chosen in fidelity._modes(scenario, results).items()}

    assert modes() == {"ipi": ["ipi", "kvm-pv"]}
    results.command += " --tlb ipi"
    assert modes() == {"ipi": ["ipi", "ipi"]}
    results.tlb_modes = ("ipi", "hypercall")
    assert modes() == {"ipi": ["ipi", "ipi"], "hypercall": ["hypercall", "hypercall"]}


@pytest.fixture
def quick(cohortlab: Run, tmp_path: Path) -> tuple[Path, Path]:
    """A scenario, and a lab's file of it with two policies."""
    path = with_quick(tmp_path)
    args = ("--on", "sim", "--rounds", 1, "--policies", "eevdf,vtime", "--out", "lab")
    assert cohortlab("compare", path, *args).code == 0
    return path, as_measured(Path("lab/measurements.parquet"))


def failed(lab: Path, *keys: tuple[str, str, str]) -> Path:
    """Have the lab's file say that these failed after the rounds that it has."""
    results = read_parquet(lab)
    results.failed = dict.fromkeys(keys, "hangs")
    write_parquet(results, lab)
    return lab


def test_what_failed_in_the_lab_is_not_compared(cohortlab: Run, quick: tuple[Path, Path]) -> None:
    path, lab = quick
    args = ("fidelity", path, "--lab", failed(lab, ("ipi", "vtime", "quick")), "--rounds", 1)
    ran = cohortlab(*args, "--json")
    assert ran.code == 0, ran.err
    fits = json.loads(ran.out)
    assert [(fit["policy"], fit["error"], fit["reason"]) for fit in fits] == [
        ("eevdf", 0.0, None),
        ("vtime", None, "in the lab: hangs"),
    ]
    assert {fits[1][name] for name in ("lab_slowdown", "lab_deviation", "sim_slowdown", "lab_alone")} == {None}
    shown = cohortlab(*args).out
    assert "quick under vtime: in the lab: hangs\n" in shown
    assert "1 of 1 within 15%" in shown


def test_a_lab_where_all_failed_is_refused(cohortlab: Run, quick: tuple[Path, Path]) -> None:
    path, lab = quick
    failed(lab, *(("ipi", policy, "quick") for policy in ("eevdf", "vtime")))
    ran = cohortlab("fidelity", path, "--lab", lab)
    assert (ran.code, ran.out) == (2, ""), ran.err
    assert ran.err.endswith(f"cohortlab: --lab: {lab}: every program failed: hangs\n")


def test_what_failed_simulated_is_not_compared_whatever_it_is_called_there(
    cohortlab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_quick(tmp_path)
    several = two_vms("tlb-flush", "quick").replace('load = "cpu-hog"', 'programs = ["quick"]')
    path.write_text(several)
    args = ("--on", "sim", "--rounds", 1, "--policies", "vtime", "--out", "lab")
    assert cohortlab("compare", path, *args).code == 0
    lab = as_measured(Path("lab/measurements.parquet"))
    # Without the first turn the second is the only one, and nothing is called by what runs beside it.
    failed(lab, *(("ipi", "vtime", label) for label in ("work:tlb-flush", "hog:quick@tlb-flush")))
    real = compared.simulate

    def simulate(*args: Any) -> Any:
        results = real(*args)
        assert results.programs == ("work:quick", "hog:quick")
        results.failed["ipi", "vtime", "hog:quick"] = "stalls"
        return results

    monkeypatch.setattr(compared, "simulate", simulate)
    fits = fidelity.compare(scenarios.load(path), lab, rounds=1)
    assert [(fit.program, fit.error is None, fit.why) for fit in fits] == [
        ("work:tlb-flush", True, "in the lab: hangs"),
        ("hog:quick@tlb-flush", True, "in the lab: hangs"),
        ("work:quick", False, ""),
        ("hog:quick@quick", True, "simulated: stalls"),
    ]


@pytest.mark.parametrize(
    ("said", "window_us"),
    [
        ("100", 100),
        ("16, later 18", 17),
        ("16, later 17", 16),
        ("16, later 18, later 16", 16),
        ("99, later 1, later 3", 3),
        ("0", 1),
        ("", None),
    ],
)
def test_the_window_is_the_median_of_what_the_lab_said(path: Path, said: str, window_us: int | None) -> None:
    place = {"ple": f"after {said} us", "ple_window_us": said}
    assert fidelity._as_in_the_lab(scenarios.load(path), place).guest.ple_window_us == window_us


def test_each_mode_has_the_window_and_the_guests_kernel_of_its_own_machines(path: Path, lab: Path) -> None:
    results = read_parquet(in_two_modes(lab, PATCHED, PATCHED, PATCHED))
    results.places["ipi"] |= {"ple_window_us": "100", "guests' kernel": "6.12.94+deb13-amd64"}
    results.places["kvm-pv"] |= {"ple_window_us": "16"}
    results.places["hypercall"] |= {"ple": "off"}
    modes = fidelity._modes(scenarios.load(path), results)
    guests = {mode: chosen.guest for mode, chosen in modes.items()}
    assert {mode: (guest.tlb, guest.ple_window_us, guest.kernel) for mode, guest in guests.items()} == {
        "ipi": ("ipi", 100, "6.12.94"),
        "kvm-pv": ("kvm-pv", 16, None),
        "hypercall": ("hypercall", None, None),
    }
    assert [guest.ple for guest in guests.values()] == [True, True, False]
