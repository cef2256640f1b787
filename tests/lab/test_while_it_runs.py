# SPDX-License-Identifier: GPL-2.0-only
"""What changes while a policy runs: the sets of gang partial, by their file or as they are found; sbco's alpha."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, Ground

from cohortlab.lab.command import PAYLOAD
from cohortlab.lab.real import SETS

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long]

VMS = ("work", "pv", "hyper")
FILE = f"{PAYLOAD}/test.sets"
SECONDS = 4
# One writes a line and waits for the other's, each on a vCPU of its own: each line wakes who sleeps on the other.
PING = "exec 3<>{name}.there 4<>{name}.back; while echo x >&3; do read x <&4; done"
PONG = "exec 3<>{name}.there 4<>{name}.back; while read x <&3; do echo x >&4; done"


def total(ground: Ground, counter: str) -> float:
    return float(ground.statistics().get("total", {}).get(counter, 0))


def grew(ground: Ground, counter: str, seconds: float = SECONDS) -> float:
    """Return by how much a counter grows in some seconds, after the line that is on its way."""
    time.sleep(2)
    before = total(ground, counter)
    time.sleep(seconds)
    return total(ground, counter) - before


def test_the_file_of_sets_is_taken_along(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "of all.sets"
    file.write_text("*: all\n")
    with bench.silence(), bench.place.policy("partial", ["--sets", str(file)]):
        words = bench.host.check("tr '\\0' '\\n' </proc/$(pgrep -f '[c]ohort run')/cmdline").split("\n")
        there = words[words.index("--sets") + 1]
        assert there == f"{PAYLOAD}/{SETS}"
        assert bench.host.read(there) == "*: all\n"


def test_sets_change_while_they_run(bench: Bench) -> None:
    bench.host.write(FILE, "nobody: all\n")
    with Ground(bench, "partial", "--sets", FILE) as ground:
        ground.busy(*VMS)
        assert grew(ground, "gang_refused") == 0, "nobody is in a set"
        bench.host.write(FILE, "*: all  # of each VM\n")
        assert grew(ground, "gang_refused") > 0, "three sets want the two pCPUs"
        assert ground.daemon is not None
        assert f"sets read anew from {FILE}" in ground.daemon.output("stderr")[0]
        bench.host.write(FILE, "work: 0-\n")
        assert grew(ground, "gang_refused") > 0, "a mistake changes nothing"
        assert "; the sets stay as they are" in ground.daemon.output("stderr")[0]


def test_alpha_changes_while_it_runs(bench: Bench) -> None:
    with Ground(bench, "sbco") as ground:
        ground.busy(*VMS)
        bench.host.check("cohort tune --sbco-alpha 1")
        least = grew(ground, "sbco_balanced")
        bench.host.check("cohort tune --sbco-alpha 0.01")
        most = grew(ground, "sbco_balanced")
        print(f"passed over in {SECONDS} s: {least:g} with alpha 1, {most:g} with 0.01")
        assert most > 2 * least + 10


@KERNELS
def test_pairs_that_communicate_are_found(bench: Bench) -> None:
    with Ground(bench, "partial-auto") as ground:
        guest = bench.extra_guest("four", vcpus=4)
        try:
            guest.wait_until_up()
            for name, vcpus in (("a", (0, 2)), ("b", (1, 3))):
                guest.machine.check(f"mkfifo /tmp/{name}.there /tmp/{name}.back")
                for vcpu, says in zip(vcpus, (PING, PONG), strict=True):
                    line = says.format(name=f"/tmp/{name}")
                    guest.machine.spawn(f"{name}-{vcpu}", f"exec taskset -c {vcpu} sh -c '{line}'")
            time.sleep(3)
            said = bench.host.check("cohort sets --vm four --secs 5")
            print(said)
            assert re.search(r"^sets: 0,2 1,3$", said, re.MULTILINE)
        finally:
            guest.kill()
            guest.job.wait(30)
        assert total(ground, "registry_full") == 0
