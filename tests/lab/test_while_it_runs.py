# SPDX-License-Identifier: GPL-2.0-only
"""What changes while a policy runs: the sets of gang partial, by their file or as they are found; sbco's alpha."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ground import KERNELS, Ground
from provoked import TRUTH, put

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
SHARED_PAGES = 400
HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"


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


def test_a_set_has_a_pcpu_for_one_that_sleeps_if_asked(bench: Bench) -> None:
    # The other VM's vCPUs are in no set, so that each may have what is left.
    bench.host.write(FILE, "pv: all\n")
    idle = {}
    for gang in ("partial", "partial-held"):
        with Ground(bench, "partial", "--gang", gang, "--sets", FILE) as ground:
            ground.busy("work")
            ground.busy("pv", vcpus=1)
            ground.got("work", "pv")
            idle[gang] = ground.idle
    assert idle["partial"] < 0.3, f"who sleeps has no pCPU: {idle}"
    assert idle["partial-held"] > 0.4, f"beside one that wants to run its sibling has one: {idle}"


def test_alpha_changes_while_it_runs(bench: Bench) -> None:
    with Ground(bench, "sbco") as ground:
        ground.busy(*VMS)
        bench.host.check("cohort tune --sbco-alpha 1")
        least = grew(ground, "sbco_balanced")
        bench.host.check("cohort tune --sbco-alpha 0.01")
        most = grew(ground, "sbco_balanced")
        print(f"passed over in {SECONDS} s: {least:g} with alpha 1, {most:g} with 0.01")
        assert most > 2 * least + 10


def test_alpha_of_another_order_is_refused(bench: Bench) -> None:
    with Ground(bench, "balance"):
        done = bench.host.run("cohort tune --sbco-alpha 1")
        assert done.rc == 2
        assert "--sbco-alpha needs --order sbco" in done.stderr


def found(bench: Bench, ground: Ground, commands: dict[int, str]) -> str:
    """Let a guest's vCPUs execute these, and return what `cohort sets` says of them."""
    guest = bench.extra_guest("four", vcpus=4)
    try:
        guest.wait_until_up()
        put(guest.machine)
        for name in "ab":
            guest.machine.check(f"mkfifo /tmp/{name}.there /tmp/{name}.back")
        for vcpu, command in commands.items():
            guest.machine.spawn(f"pair-{vcpu}", f"exec taskset -c {vcpu} {command}")
        time.sleep(3)
        said = bench.host.check("cohort sets --vm four --secs 5")
        print(said)
        return said
    finally:
        guest.kill()
        guest.job.wait(bench.patience_s(30))
        assert total(ground, "registry_full") == 0


@KERNELS
def test_pairs_that_communicate_are_found(bench: Bench) -> None:
    says = {0: ("a", PING), 2: ("a", PONG), 1: ("b", PING), 3: ("b", PONG)}
    commands = {vcpu: f"sh -c '{line.format(name=f'/tmp/{name}')}'" for vcpu, (name, line) in says.items()}
    with Ground(bench, "partial-auto") as ground:
        assert re.search(r"^sets: 0,2 1,3$", found(bench, ground, commands), re.MULTILINE)


@KERNELS
def test_pairs_that_share_memory_are_found_by_faults_alone(bench: Bench) -> None:
    file = {0: "a", 2: "a", 1: "b", 3: "b"}
    commands = {vcpu: f"{TRUTH} shares {vcpu} /dev/shm/{name} {SHARED_PAGES}" for vcpu, name in file.items()}
    with Ground(bench, "partial-auto", "--traffic", "faults") as ground:
        # By 2 MiB all four would share everything.
        before = re.search(r"\[(\w+)\]", bench.host.read(HUGE))
        assert before
        bench.host.check(f"echo never >{HUGE}")
        ground.callback(bench.host.check, f"echo {before[1]} >{HUGE}")
        assert re.search(r"^sets: 0,2 1,3$", found(bench, ground, commands), re.MULTILINE)
        assert ground.daemon is not None
        assert "cannot" not in ground.daemon.output("stderr")[0]
