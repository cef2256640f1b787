# SPDX-License-Identifier: GPL-2.0-only
"""``cohort audit`` on a real host with real guests: what is wrong is found, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from audit import has_cgroup_modes, hits, report
from ground import CGROUP_MODE, KERNELS, NOBODY, Cgroups

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long, KERNELS]

# Of the scenario's guests, as they are started: a named CPU model, and flags for the TLB mode.
GUESTS = {
    "pv-tlb-flush": {"work"},
    "pv-unhalt": {"work", "pv", "hyper"},
    "pv-ipi": {"work", "pv"},
    "pv-sched-yield": {"work", "pv"},
    "halt-polling": {None},
}


def audit(bench: Bench) -> dict[str, set[str | None]]:
    return hits(report(bench.host))


def test_the_guests_of_the_lab(bench: Bench) -> None:
    concur = {"cgroup-concur": {None}} if has_cgroup_modes(bench.host) else {}
    assert audit(bench) == GUESTS | concur
    found = report(bench.host)
    assert (found["vms"], found["vcpus"], found["pcpus"], found["unknown"]) == (3, 6, 2, [])
    assert bench.host.run("cohort audit").rc == 1
    assert bench.host.run("cohort audit --fail-on critical").rc == 0
    assert bench.host.run("cohort audit --fail-on much").rc == 2


def test_what_was_set_badly_is_found(bench: Bench) -> None:
    before = audit(bench)
    with Cgroups(bench) as cgroups:
        cgroups.pin("work", "1")
        cgroups.set("pv", "cpu.max", "50000 100000")
        with bench.cohort():
            found = audit(bench)
    before.pop("cgroup-concur", None)
    assert found == before | {"pinned-siblings": {"work"}, "cpu-max": {"pv"}}


def test_vms_stacked_on_each_other_by_affinity_and_by_cpuset(bench: Bench) -> None:
    before = audit(bench)
    with Cgroups(bench) as cgroups:
        cgroups.pin("work", "1")
        cgroups.cpuset("pv", "1")
        found = audit(bench)
    assert found == before | {"pinned-siblings": {"work", "pv"}, "pinned-over-others": {None}}
    assert audit(bench) == before


def test_too_many_vcpus_and_a_vm_that_is_too_wide(bench: Bench) -> None:
    before = audit(bench)
    guest = bench.extra_guest("wide", vcpus=3)
    try:
        bench.until(lambda: report(bench.host)["vcpus"] == 9, "its vCPUs are there")
        found = audit(bench)
    finally:
        guest.kill()
        guest.job.wait(bench.patience_s(30))
    told = {rule: before[rule] | {"wide"} for rule in GUESTS if rule != "halt-polling"}
    assert found == before | told | {"wider-than-host": {"wide"}, "overcommit": {None}}


def test_what_is_set_well_is_no_finding(bench: Bench) -> None:
    before = audit(bench)
    knobs = {"/sys/module/kvm/parameters/halt_poll_ns": "0"}
    if has_cgroup_modes(bench.host):
        knobs[CGROUP_MODE] = "smp"
    kept = {knob: bench.host.read(knob).strip() for knob in knobs}
    try:
        for knob, value in knobs.items():
            bench.host.check(f"echo {value} >{knob}")
        found = audit(bench)
    finally:
        for knob, text in kept.items():
            chosen = text.partition("(")[2].partition(")")[0] or text
            bench.host.check(f"echo {chosen} >{knob}")
    assert found == {rule: vms for rule, vms in before.items() if rule not in ("halt-polling", "cgroup-concur")}
    assert audit(bench) == before


def test_what_a_command_line_does_not_say_kvm_does(bench: Bench) -> None:
    """The guests' CPUID, read in the kernel, is what QEMU was told: the findings are the same."""
    told = audit(bench)
    pids = " ".join(str(guest.pid()) for guest in bench.place.guests.values())
    hide = f"printf vmm >/tmp/vmm; for pid in {pids}; do mount --bind /tmp/vmm /proc/$pid/cmdline; done"
    hidden = f"unshare --mount sh -c '{hide}; exec cohort audit --json %s'"
    found = report(bench.host, hidden % "")
    assert (found["vms"], found["unknown"]) == (3, [])
    assert hits(found) == told
    # Where it is not asked, it is not known.
    found = report(bench.host, hidden % "--root /")
    assert set(hits(found)) & set(GUESTS) == {"halt-polling"}
    assert any("--root may be another machine" in line for line in found["unknown"])


def test_a_user_sees_less_and_is_told_so(bench: Bench) -> None:
    done = bench.host.run(f"{NOBODY} $(command -v cohort) audit --json")
    assert done.rc == 0, done.stderr
    found = json.loads(done.stdout)
    # The lab's QEMU gives its threads no names, so that nothing tells its guests from other processes.
    assert found["vms"] == 0
    assert any("processes of other users" in line for line in found["unknown"])
