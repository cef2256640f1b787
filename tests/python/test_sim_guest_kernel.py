# SPDX-License-Identifier: GPL-2.0-only
"""Simulated guests with another kernel than their host."""

import re
from pathlib import Path

import pytest
from tests.python.two_vms import two_vms

from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.sim.model import Run as Simulated


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(two_vms("tlb-flush"))
    return path


@pytest.mark.parametrize(
    ("kernel", "scheduler"), [(None, "eevdf-delay"), ("6.1", "cfs"), ("6.6.9", "eevdf"), ("FILE", "eevdf")]
)
def test_guests_may_run_another_kernel_than_the_host(
    path: Path, tmp_path: Path, kernel: str | None, scheduler: str
) -> None:
    # An image's header: where the release stands, behind 0x200, and that it is one (Linux x86 boot protocol).
    image = bytearray(0x400)
    image[0x202:0x206], image[0x20E:0x210], image[0x300:0x308] = b"HdrS", (0x100).to_bytes(2, "little"), b"6.8.1-x\0"
    (tmp_path / "vmlinuz").write_bytes(image)
    chosen = scenarios.load(path)
    if kernel is not None:
        chosen = chosen.with_guest_kernel(str(tmp_path / "vmlinuz") if kernel == "FILE" else kernel)
    made = Simulated(chosen, {"work": "tlb-flush"}, "eevdf", kernel="6.18").as_dict()
    assert {vm["guest"]["scheduler"] for vm in made["vms"]} == {scheduler}
    assert made["policy"]["variant"].startswith("eevdf")


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        ("moon", 'kernel "moon" is not known to the simulator: must be a kernel'),
        ("./no", "a file: no: cannot be read: No such file or directory"),
    ],
)
def test_a_guests_kernel_that_is_none_is_refused(path: Path, kernel: str, wrong: str) -> None:
    with pytest.raises(BadInput, match=re.escape(f"--guest-kernel, or guest.kernel of {path}: {wrong}")):
        Simulated(scenarios.load(path).with_guest_kernel(kernel), {}).as_dict()
