# SPDX-License-Identifier: GPL-2.0-only
"""What needs a boot of its own: a crash of the host, another kernel, no PLE."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pauses import exits_of
from slow import patience_s

from cohortlab.lab import kernels
from cohortlab.lab.agent import AgentError
from cohortlab.lab.place import LabPlace
from cohortlab.places import PlaceCrashed

if TYPE_CHECKING:
    from conftest import Boot

pytestmark = [pytest.mark.lab, pytest.mark.long]

# Many times as many as any pause filter lets pass.
PAUSES = 2_000_000


def test_a_crashed_host_is_told_and_comes_up_again(boot: Boot, up_again: Callable[[LabPlace], None]) -> None:
    with boot() as place:
        with contextlib.suppress(AgentError, PlaceCrashed, TimeoutError):
            place.emulator.host.run("echo c >/proc/sysrq-trigger", timeout_s=patience_s(place.emulator, 20))
        with pytest.raises(PlaceCrashed, match="sysrq"):
            place.measure("work", "hackbench")
        up_again(place)
        assert place.measure("work", "hackbench").value > 0


def test_a_killed_guest_is_told(boot: Boot) -> None:
    with boot() as place:
        pv = place.guests["pv"]
        pv.kill()
        assert pv.job.wait(patience_s(place.emulator, 30)) == -signal.SIGKILL
        # All guests are told of, each with what became of its QEMU.
        died = "pv: its QEMU was killed by signal 9"
        with pytest.raises(PlaceCrashed, match=died), place.background("pv", "cpu-hog"):
            pass


def test_ple_off_is_off(boot: Boot, tmp_path: Path) -> None:
    with boot(ple=False) as place:
        assert place.description["ple"] == "off"
        found, counted = exits_of(place, PAUSES, tmp_path)
        # Not even of a kernel that spins.
        assert found == 0, counted
        assert counted, "the others are counted"


def test_an_older_kernel(boot: Boot) -> None:
    with boot(kernel="6.18") as place:
        assert place.description["kernel"].startswith("6.18.")
        for policy in ("eevdf", "cohort"):
            with place.policy(policy), place.background("pv", "cpu-hog"):
                assert place.measure("work", "tlb-shootdown").value > 0
        assert place.complaints == []


def test_guests_with_another_kernel_than_the_host(boot: Boot) -> None:
    with boot(guest_kernel="6.18") as place:
        said = {
            machine.name: machine.check("uname -r")
            for machine in (place.host, *(g.machine for g in place.guests.values()))
        }
        host = said.pop("host")
        assert not host.startswith("6.18.")
        assert all(release.startswith("6.18.") for release in said.values()), said
        assert place.description["guests' kernel"] == said["work"].strip()
        with place.policy("cohort"), place.background("pv", "cpu-hog"):
            assert place.measure("work", "tlb-shootdown").value > 0
        assert place.complaints == []


def test_a_kernel_given_as_a_file(boot: Boot) -> None:
    known = kernels.kernel(None)
    with boot(kernel=str(known.vmlinuz)) as place:
        assert place.description["kernel"] == known.release


def test_leaves_nothing_behind(boot: Boot) -> None:
    with boot() as place:
        folder = place.emulator.folder
        pid = int((folder / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
