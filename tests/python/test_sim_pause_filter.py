# SPDX-License-Identifier: GPL-2.0-only
"""The pause filter of simulated hosts: its window, and whether that grows."""

from pathlib import Path

import pytest
from tests.python.two_vms import two_vms

from cohortlab import scenario as scenarios
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.model import Run as Simulated


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(two_vms("tlb-flush"))
    return path


@pytest.mark.parametrize(("window_us", "ple"), [(1, (2_500, 54_612)), (100, (250_000, 5_461_250)), (None, None)])
def test_a_spin_is_caught_after_the_scenarios_window(
    path: Path, window_us: int | None, ple: tuple[int, int] | None
) -> None:
    chosen = scenarios.load(path).with_ple(window_us)
    made = Simulated(chosen, {"work": "tlb-flush"}).as_dict()["vms"][0]["kvm"]["ple"]
    # In cycles of 2.5 GHz; it may grow to 65,535 PAUSEs from 3,000.
    assert (made["mode"] == "off") == (ple is None)
    assert ple is None or (made["window_cycles"], made["window_max_cycles"]) == ple


@pytest.mark.parametrize(
    ("kernel", "ple", "grow"),
    [
        ("3.17", "", 1),
        ("3.17", "grow = 3", 3),
        ("3.18", "", None),
        ("4.16", "window_pauses = 3000", 1),
        ("4.17", "window_pauses = 3000", None),
    ],
)
def test_the_window_grows_as_the_kernel_has_it_or_as_hardware_says(
    path: Path, tmp_path: Path, kernel: str, ple: str, grow: int | None
) -> None:
    (tmp_path / "some.toml").write_text(f"[kvm.ple]\n{ple}\n")
    chosen = hardwares.load(str(tmp_path / "some.toml"))
    made = Simulated(scenarios.load(path), {"work": "tlb-flush"}, kernel=kernel, hardware=chosen).as_dict()
    assert made["vms"][0]["kvm"].get("ple", {}).get("grow") == grow
