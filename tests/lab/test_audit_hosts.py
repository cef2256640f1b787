# SPDX-License-Identifier: GPL-2.0-only
"""``cohort audit`` on a host that was booted badly, and of guests that were started badly: they are never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from audit import has_cgroup_modes, hits, report

from cohortlab.lab import binaries
from cohortlab.lab.agent import Machine
from cohortlab.lab.bringup import Lab
from cohortlab.lab.command import MACHINE

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
def host(bare: Callable[..., Lab]) -> Iterator[Machine]:
    files = {"cohort": binaries.find("cohort")}
    emulator = bare(files=files, pcpus=4, ple=False, spare_mb=512, extra_cmdline="isolcpus=2,3").emulator
    try:
        yield emulator.host
    finally:
        emulator.close()


@pytest.fixture(scope="module")
def guests(host: Machine) -> Iterator[dict[str, int]]:
    """The process numbers of the guests by name."""
    jobs = {
        name: host.spawn(
            f"bad-{name}",
            f"exec taskset -c {pcpus} {QEMU} -name {name},debug-threads=on -smp {vcpus} {told}",
        )
        for name, (pcpus, vcpus, told) in GUESTS.items()
    }
    try:
        made = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c anon_inode:kvm-vcpu:"
        host.check(f"until [ $({made}) = 9 ]; do sleep 1; done", 300)
        yield {name: job.pid for name, job in jobs.items()}
    finally:
        for job in jobs.values():
            job.signal(9)


def test_all_of_it_is_found(host: Machine, guests: dict[str, int]) -> None:
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


def test_what_libvirt_needs_and_is_off(host: Machine, guests: dict[str, int]) -> None:
    folder = "/run/libvirt/qemu"
    status = f"<domstatus pid='{guests['narrow']}'><domain><name>shop</name><vcpu>3</vcpu></domain></domstatus>"
    knob = "/proc/sys/kernel/sched_schedstats"
    host.check(f'mkdir -p {folder} && echo "{status}" >{folder}/shop.xml && echo 0 >{knob}')
    try:
        found = hits(report(host))
        assert (found["schedstats-off"], found["stacked-by-cpuset"]) == ({None}, {"shop"})
        host.check(f"echo 1 >{knob}")
        assert "schedstats-off" not in hits(report(host))
    finally:
        host.check(f"rm -r {folder}; echo 0 >{knob}")
