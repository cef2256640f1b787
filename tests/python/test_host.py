# SPDX-License-Identifier: GPL-2.0-only
"""`--on host`: what is refused, in one sentence each, before anything starts; and on which CPUs guests run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohortlab import kvm
from cohortlab.errors import BadInput
from cohortlab.host import checks
from cohortlab.host.agent import LocalAgent
from cohortlab.host.place import HostPlace
from cohortlab.lab.agent import Answer, Sample
from cohortlab.lab.sampling import host_counters, kernels_share
from cohortlab.places import PlaceError
from cohortlab.policies import parse_policies
from cohortlab.scenario import Scenario


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that can do everything, as far as it is looked at; the folders of it that are files."""
    cgroups, sched_ext = tmp_path / "cgroup", tmp_path / "sched_ext"
    cgroups.mkdir()
    sched_ext.mkdir()
    (cgroups / "cgroup.controllers").write_text("cpuset cpu io\n")
    (sched_ext / "state").write_text("disabled\n")
    monkeypatch.setattr(checks, "CGROUPS", cgroups)
    monkeypatch.setattr(checks, "SCHED_EXT", sched_ext)
    monkeypatch.setattr(kvm, "probe", lambda: kvm.Kvm(True, True, False, ""))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/usr/bin/{name}")
    return tmp_path


def test_a_host_that_has_all_of_it(host: Path, two: Scenario) -> None:
    assert checks.can_measure(two) == "/usr/bin/qemu-system-x86_64"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda mp, _: mp.setattr(os, "geteuid", lambda: 1000), "run as root"),
        (
            lambda mp, _: mp.setattr(kvm, "probe", lambda: kvm.Kvm(False, False, False, "/dev/kvm does not exist")),
            "needs KVM: /dev/kvm does not exist: enable virtualization",
        ),
        (lambda mp, _: mp.setattr(checks.shutil, "which", lambda _: None), "install the package qemu-system-x86"),
        (lambda _, at: (at / "cgroup/cgroup.controllers").unlink(), "needs cgroup v2"),
        (lambda _, at: (at / "cgroup/cgroup.controllers").write_text("io\n"), "needs the cpu controller"),
        (
            lambda mp, _: mp.setattr(os, "sched_getaffinity", lambda _: {0}),
            "host.pcpus = 2 is not possible here: CPU 1",
        ),
        (lambda _, at: (at / "sched_ext/state").write_text("enabled\n"), "is loaded on this host: stop it first"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(
    host: Path, two: Scenario, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Path], None], said: str
) -> None:
    change(monkeypatch, host)
    with pytest.raises(PlaceError) as refused:
        checks.can_measure(two)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_guests_that_need_more_memory_than_there_is(host: Path, two: Scenario) -> None:
    vms = tuple(vm.model_copy(update={"memory_mb": 1 << 24}) for vm in two.vms)
    with pytest.raises(PlaceError, match="give the VMs less memory_mb"):
        checks.can_measure(dataclasses.replace(two, vms=vms))


def test_without_sched_ext_the_kernels_own_scheduler_is_compared(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = parse_policies("eevdf,eevdf@short,cohort", ())
    assert checks.policies(both) == ""
    (host / "sched_ext/state").unlink()
    assert "no sched_ext: without cohort, only eevdf, eevdf@short can be compared" in checks.policies(both)
    monkeypatch.setattr(checks, "SCHED_EXT", host / "none")
    assert "no sched_ext: without cohort, only eevdf, eevdf@short can be compared" in checks.policies(both)
    assert checks.policies(parse_policies("eevdf", ())) == ""
    with pytest.raises(BadInput, match="has no sched_ext: must be of eevdf"):
        checks.policies(parse_policies("cohort", ()))


def test_options_that_make_no_sense_here(cohortlab: Callable[..., Any]) -> None:
    for option, said in (
        (("--kernel", "6.18"), "--kernel: this host runs the kernel that it runs"),
        (("--hardware", "lab"), "--hardware: only a simulated host can be chosen"),
    ):
        ran = cohortlab("compare", "smp-2x2", "--on", "host", *option)
        assert ran.code == 2
        assert said in ran.err


def test_a_refusal_is_one_line(cohortlab: Callable[..., Any], host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SCHED_EXT", host / "none")
    monkeypatch.setattr(checks.shutil, "which", lambda _: None)
    ran = cohortlab("compare", "smp-2x2", "--on", "host")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "needs qemu-system-x86_64" in ran.err


def test_guests_stay_on_as_many_cpus_as_the_scenario_has(host: Path, two: Scenario) -> None:
    pinned = two.vms[1].model_copy(update={"affinity": (1,)})
    place = HostPlace(dataclasses.replace(two, vms=(two.vms[0], pinned)))
    assert [config.affinity for config in place._configs] == [(0, 1), (1,)]


def test_on_a_host_of_that_size_nobody_is_confined(two: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert [config.affinity for config in HostPlace(two)._configs] == [None, None]


def test_idle_time_is_that_of_the_cpus_that_guests_may_use() -> None:
    def stat(*idle: int) -> str:
        rows = [f"cpu{number} 0 0 0 {ticks} 0 0 0 0" for number, ticks in enumerate(idle)]
        return "\n".join([f"cpu 0 0 0 {sum(idle)} 0 0 0 0", *rows])

    answer = Answer({}, Sample(0, {"/proc/stat": stat(0, 0, 0)}), Sample(1, {"/proc/stat": stat(100, 200, 400)}))
    assert host_counters(answer)["idle_s"] == 7
    assert host_counters(answer, range(2))["idle_s"] == 3


def test_what_is_left_of_the_dead_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cohortlab.host import agent

    run, cgroups = tmp_path / "run", tmp_path / "cgroup"
    # Of one that had our number before us there may be something left, too.
    dead, alive = ("cohortlab-999999999", f"cohortlab-{os.getpid()}"), "cohortlab-1"
    for who in (*dead, alive):
        (run / f"{who}-abc").mkdir(parents=True)
        (cgroups / f"{who}.slice" / "agent").mkdir(parents=True)
    monkeypatch.setattr(agent, "_RUN", run)
    monkeypatch.setattr(agent, "CGROUPS", cgroups)
    monkeypatch.setattr(agent, "_TRIES", 1)
    monkeypatch.setattr(LocalAgent, "_start", lambda *_: (_ for _ in ()).throw(PlaceError("not today")))
    with pytest.raises(PlaceError, match="not today"):
        LocalAgent(tmp_path / "agent")
    assert [path.name for path in run.iterdir()] == [f"{alive}-abc"]
    # In a real cgroup the files do not keep a folder from being removed.
    assert [path.parent.name for path in cgroups.glob("*/agent")] == [f"{alive}.slice"]


def test_what_the_kernel_used_between_two_looks_is_told_in_cpus() -> None:
    # 0.2 s apart, in ticks of 10 ms: 10 of the system, 1 of interrupts and 1 of their soft part. Programs' are not it.
    looks = "cpu  10 0 20 100 0 3 0 0 0 0\ncpu  20 0 30 110 5 4 1 2 0 0\n"
    assert kernels_share(looks) == pytest.approx(0.6)
    assert kernels_share("cpu  10 0 20 100 0 3 0 0 0 0\ncpu  40 0 20 130 0 3 0 0 0 0\n") == 0
