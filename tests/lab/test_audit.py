# SPDX-License-Identifier: GPL-2.0-only
"""``cohort audit`` on a real host with real guests: what is wrong is found, and nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
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
    """Return the names of the VMs that each rule hits; None is the host."""
    done = bench.host.run("cohort audit --json")
    assert done.rc in (0, 1), done.stderr
    hits = defaultdict(set)
    for finding in json.loads(done.stdout)["findings"]:
        hits[finding["rule"]].add(finding["vm"] and finding["vm"]["name"])
    return dict(hits)


def has_cgroup_modes(bench: Bench) -> bool:
    return bench.host.run(f"test -e {CGROUP_MODE}").rc == 0


def test_the_guests_of_the_lab(bench: Bench) -> None:
    concur = {"cgroup-concur": {None}} if has_cgroup_modes(bench) else {}
    assert audit(bench) == GUESTS | concur
    report = json.loads(bench.host.run("cohort audit --json").stdout)
    assert (report["vms"], report["vcpus"], report["pcpus"], report["unknown"]) == (3, 6, 2, [])
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


def test_a_user_sees_less_and_is_told_so(bench: Bench) -> None:
    done = bench.host.run(f"{NOBODY} $(command -v cohort) audit --json")
    assert done.rc == 0, done.stderr
    report = json.loads(done.stdout)
    # The lab's QEMU gives its threads no names, so that nothing tells its guests from other processes.
    assert report["vms"] == 0
    assert any("processes of other users" in line for line in report["unknown"])
