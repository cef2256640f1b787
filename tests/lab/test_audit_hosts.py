# SPDX-License-Identifier: GPL-2.0-only
"""``cohort audit`` on a host that was booted badly, and of guests that were started badly: they are never run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from audit import has_cgroup_modes, hits, report

from cohortlab.lab import binaries
from cohortlab.lab.agent import Machine
from cohortlab.lab.command import MACHINE

if TYPE_CHECKING:
    from conftest import BareBoot, BareHost

pytestmark = [pytest.mark.lab, pytest.mark.long]

QEMU = f"qemu-system-x86_64 -machine {MACHINE} -accel kvm -m 32 -display none -nodefaults -no-user-config -S"
# By their names: pCPUs, vCPUs, what QEMU is told.
GUESTS = {
    "promised": ("0,1", 2, "-cpu qemu64,kvm-hint-dedicated=on -overcommit cpu-pm=on"),
    "narrow": ("0,1", 3, "-cpu qemu64"),
    "isolated": ("2,3", 2, "-cpu qemu64"),
    "blind": ("0,1", 2, "-cpu qemu64,-kvm-steal-time"),
}
ALL = set(GUESTS)


@pytest.fixture(scope="module")
def host(bare: BareBoot) -> Iterator[BareHost]:
    files = {"cohort": binaries.find("cohort")}
    options = {"pcpus": 4, "ple": False, "spare_mb": 512, "extra_cmdline": "isolcpus=2,3"}
    with closing(bare(start_guests, files=files, **options)) as host:
        yield host


def start_guests(host: Machine) -> None:
    for name, (pcpus, vcpus, told) in GUESTS.items():
        host.spawn(
            f"bad-{name}",
            f"exec taskset -c {pcpus} {QEMU} -name {name},debug-threads=on -smp {vcpus} {told}",
        )
    made = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c anon_inode:kvm-vcpu:"
    host.check(f"until [ $({made}) = 9 ]; do sleep 1; done", 300)


def test_all_of_it_is_found(host: Machine) -> None:
    told = ("pv-tlb-flush", "pv-unhalt", "pv-ipi", "pv-sched-yield")
    wanted = dict.fromkeys(told, ALL) | {
        "hint-dedicated": {"promised"},
        "cpu-pm": {"promised"},
        "stacked-by-cpuset": {"narrow"},
        "isolated-cpus": {"isolated"},
        "steal-time": {"blind"},
        "ple-off": {None},
        "halt-polling": {None},
    }
    if has_cgroup_modes(host):
        wanted["cgroup-concur"] = {None}
    found = report(host)
    assert (found["vms"], found["vcpus"], found["pcpus"], found["unknown"]) == (4, 9, 4, [])
    assert hits(found) == wanted
    assert host.run("cohort audit --fail-on critical").rc == 1


def test_what_libvirt_needs_and_is_off(host: Machine) -> None:
    folder = "/run/libvirt/qemu"
    pid = host.check("pgrep -f '[n]ame narrow,'").strip()
    status = f"<domstatus pid='{pid}'><domain><name>shop</name><vcpu>3</vcpu></domain></domstatus>"
    knob = "/proc/sys/kernel/sched_schedstats"
    host.check(f'mkdir -p {folder} && echo "{status}" >{folder}/shop.xml && echo 0 >{knob}')
    try:
        found = hits(report(host))
        assert (found["schedstats-off"], found["stacked-by-cpuset"]) == ({None}, {"shop"})
        host.check(f"echo 1 >{knob}")
        assert "schedstats-off" not in hits(report(host))
    finally:
        host.check(f"rm -r {folder}; echo 0 >{knob}")
