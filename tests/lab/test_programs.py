# SPDX-License-Identifier: GPL-2.0-only
"""Programs of somebody else, with packages and files of their own; several at a time; VMs that come late or sleep."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from again import booted, say

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.workloads import WorkloadError

pytestmark = [pytest.mark.lab, pytest.mark.long]

SCENARIO = """
name = "own"
[host]
pcpus = 2
[[vm]]
name = "a"
vcpus = 2
memory_mb = 320
programs = ["redis", "lines", "wrong", "unready"]
vcpu_affinity = [0, 1]
[[vm]]
name = "b"
vcpus = 1
memory_mb = 192
programs = ["short"]
[[vm]]
name = "late"
vcpus = 1
memory_mb = 192
load = "shell"
start_s = 1
cap_pcpus = 0.5
run_s = 0.5
sleep_s = 0.5
"""
ELAPSED = "[metric]\nkind = 'elapsed'\n"
WORKLOADS = {
    "redis": "packages = ['redis-server']\n"
    "setup = 'redis-server --save \"\" --daemonize yes; until redis-cli ping; do sleep 1; done'\n"
    "command = 'redis-benchmark -t set -n 2000 -c 4 -q'\n"
    "[metric]\nkind = 'rate'\npattern = 'SET: ([0-9.]+) requests'\nunit = 'requests/s'\n",
    "lines": "command = 'true & grep -c line words.txt'\nfiles = ['words.txt']\n"
    "[metric]\nkind = 'rate'\npattern = '([0-9]+)'\nunit = 'lines'\n",
    "wrong": f"command = 'no-such-program'\n{ELAPSED}",
    "unready": f"setup = 'echo no space for it >&2; exit 3'\ncommand = 'true'\n{ELAPSED}",
    "shell": "command = 'LOAD=1; while :; do :; done'\nbackground = true\n",
    "short": f"command = 'i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done'\n{ELAPSED}",
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPlace]:
    folder = tmp_path_factory.mktemp("own")
    (folder / "workloads").mkdir()
    (folder / "workloads" / "words.txt").write_text("line 1\nline 2\nother\n")
    for name, text in WORKLOADS.items():
        (folder / "workloads" / f"{name}.toml").write_text(f"name = '{name}'\ntitle = '{name}'\n{text}")
    path = folder / "own.toml"
    path.write_text(SCENARIO)
    with ExitStack() as stack:
        yield booted(stack, lambda: LabPlace(scenarios.load(path), probe=False, progress=say))


def test_programs_bring_their_packages_and_files(own: LabPlace) -> None:
    assert own.measure("a", "redis").value > 0
    assert own.measure("a", "lines").value == 2


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("wrong", r"wrong in a ended with 127: .*no-such-program.*not found"),
        ("unready", r"the setup of unready in a ended with 3: no space for it"),
    ],
)
def test_a_program_that_fails_says_why(own: LabPlace, program: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        own.measure("a", program)


def test_each_vcpu_has_its_pcpu_and_the_vm_its_cap(own: LabPlace) -> None:
    guest = own.guests["a"]
    find = f"grep -H . /proc/{guest.pid()}/task/*/comm; grep -H Cpus_allowed_list /proc/{guest.pid()}/task/*/status"
    lines = own.host.check(find)
    threads = dict(re.findall(r"task/(\d+)/comm:CPU (\d)/", lines))
    allowed = dict(re.findall(r"task/(\d+)/status:Cpus_allowed_list:\s*(\S+)", lines))
    assert {vcpu: allowed[thread] for thread, vcpu in threads.items()} == {"0": "0", "1": "1"}
    assert own.host.read(f"{own.guests['late'].cgroup}/cpu.max").split() == ["50000", "100000"]


def test_programs_run_together_beside_a_load_that_comes_and_goes(own: LabPlace) -> None:
    freeze = f"{own.guests['late'].cgroup}/cgroup.freeze"
    with own.background("late", "shell"):
        assert "LOAD" not in own.guests["late"].machine.check("ps -e -o args=")
        together = own.measure_together({"a": "redis", "b": "short"})
        # Its rhythm goes on for as long as the block.
        seen = {own.host.read(freeze).strip() for _ in range(40) if not time.sleep(0.05)}
        assert seen == {"0", "1"}
    assert own.host.read(freeze).strip() == "0"
    assert together.keys() == {"a", "b"}
    assert all(measured.value > 0 for measured in together.values())
    # Neither load nor program goes on.
    for name in ("a", "b", "late"):
        running = own.guests[name].machine.check("ps -e -o args=")
        assert not re.search(r"redis-benchmark|while", running), running
