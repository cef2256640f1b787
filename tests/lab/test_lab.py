# SPDX-License-Identifier: GPL-2.0-only
"""The lab itself: two levels up, programs measured, PLE and TLB modes as the scenario asks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pauses import exits_of

from cohortlab.lab import binaries
from cohortlab.lab import guest as guests
from cohortlab.lab.agent import AgentError
from cohortlab.lab.place import LabPlace
from cohortlab.places import PlaceError

pytestmark = pytest.mark.lab


def test_host_and_guests_run_the_same_stock_kernel(place: LabPlace) -> None:
    release = place.description["kernel"]
    assert place.emulator.host.check("uname -r").strip() == release
    for vm in place.scenario.vms:
        machine = place.guests[vm.name].machine
        assert machine.check("uname -r").strip() == release
        assert int(machine.check("nproc")) == vm.vcpus
    assert int(place.emulator.host.check("nproc")) == place.pcpus


def test_each_guest_is_in_a_cgroup_with_its_weight(place: LabPlace) -> None:
    for vm in place.scenario.vms:
        scope = f"{guests.SLICE}/{vm.name}.scope"
        assert int(place.emulator.host.read(f"{scope}/cpu.weight")) == vm.weight
        threads = place.emulator.host.read(f"{scope}/cgroup.threads").split()
        assert len(threads) > vm.vcpus, "vCPUs and VMM threads"


def test_each_guest_announces_its_tlb_mode(place: LabPlace) -> None:
    texts = ("KVM setup pv remote TLB flush", "Hyper-V: Using hypercall for remote TLB flush")
    said = {name: tuple(guest.announces(text) for text in texts) for name, guest in place.guests.items()}
    assert said == {"work": (False, False), "pv": (True, False), "hyper": (False, True)}


def test_a_programs_figure_is_read(place: LabPlace) -> None:
    with place.policy("eevdf"):
        measured = place.measure("work", "hackbench")
    assert 0 < measured.value <= measured.wall_s <= measured.window_s
    assert set(measured.cpu_s) == {"work", "pv", "hyper"}
    assert 0 < sum(measured.cpu_s.values()) <= 1.1 * place.pcpus * measured.window_s
    assert measured.stats == {}


def test_flushes_go_by_interrupt_only_where_they_should(place: LabPlace) -> None:
    # How many depends on how often the other vCPU happens to run: the kernel flushes lazily where nobody does.
    assert place.measure("work", "tlb-shootdown").guest["tlb_shootdowns"] > 0
    assert place.measure("hyper", "tlb-shootdown").guest["tlb_shootdowns"] == 0


def test_background_load_takes_its_share_and_ends(place: LabPlace) -> None:
    with place.background("pv", "cpu-hog"):
        measured = place.measure("work", "hackbench")
        assert measured.cpu_s["pv"] > 0.2 * measured.window_s
    assert place.guests["pv"].machine.run("pgrep stress-ng").rc == 1


def test_a_spin_exits_when_its_window_is_over(place: LabPlace, tmp_path: Path) -> None:
    said = re.fullmatch(r"after (\d+) us \((\d+) PAUSEs of \d+ ns\)", place.description["ple"])
    # Where the emulator has no filter, each exits; where it has one, KVM doubles the window with each exit of a turn.
    least, most, pauses = 2_000, None, 2_000
    if said:
        assert 90 <= int(said[1]) <= 110, "the default is what hardware has"
        # Every other exit starts the count anew, too; a window that has grown may not be reached before the next tick.
        pauses = 5_000_000
        least, most = 3, pauses // int(said[2]) + 500
    elif place.description["accelerator"] == "kvm":
        pytest.skip("how many PAUSEs a real processor counts is not known here")
    found, counted = exits_of(place, pauses, tmp_path)
    # The kernels of both levels spin now and then, too.
    assert least <= found, counted
    assert most is None or found <= most, counted


def test_nothing_of_the_labs_own_weighs_in_what_the_kernel_balances_by(place: LabPlace) -> None:
    place.measure(place.scenario.program_vm.name, "tlb-shootdown")
    tasks = [line.split() for line in place.emulator.host.check("ps -eLo class=,nice=,ppid=,comm=").splitlines()]
    # Children of kthreadd are the kernel's own. A real-time task has no nice value.
    ours = [(how, nice, name) for how, nice, parent, *name in tasks if parent != "2"]
    assert [task for task in ours if task[1] != "-" and int(task[1]) < 0] == []
    assert {how for how, _, name in ours if name == ["cohort"]} == {"FF"}, "the probe, at once"


def test_the_hosts_timers_do_not_wait_behind_its_own_pcpus(place: LabPlace) -> None:
    emulator = place.emulator
    if place.description.get("timers") != "on time":
        pytest.skip("no right to real-time threads, or the processor's own timers")
    ours = {}
    for task in Path(f"/proc/{emulator.pid}/task").iterdir():
        with suppress(ProcessLookupError):
            ours[int(task.name)] = os.sched_getscheduler(int(task.name))
    main = ours.pop(emulator.pid)
    assert main == os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    # What emulates the pCPUs would have this machine's CPUs for itself.
    assert len(ours) > place.pcpus
    assert set(ours.values()) == {os.SCHED_OTHER}


def test_requests_overlap(place: LabPlace) -> None:
    machine = place.guests["work"].machine
    begun = f"/tmp/overlap-{time.monotonic_ns()}"
    slow = threading.Thread(target=machine.run, args=(f"touch {begun}; sleep 3; rm {begun}",))
    slow.start()
    while machine.run(f"test -e {begun}").rc:
        assert slow.is_alive(), "it ended before anybody else was answered"
    begin = time.monotonic()
    machine.ping()
    quick_s = time.monotonic() - begin
    assert slow.is_alive(), f"the ping took {quick_s:.1f} s, as long as the sleep"
    slow.join()


def test_a_bad_request_gets_an_error_and_no_more(place: LabPlace) -> None:
    for machine in (place.emulator.host, place.guests["work"].machine):
        for op in ({"fly": {}}, {"exec": {"argv": []}}, {"read_file": {"path": "/nope"}}, {"spawn": {"name": "x"}}):
            with pytest.raises(AgentError):
                machine.channel.call(op)
        with pytest.raises(AgentError):
            machine.channel.call({"wait": {"name": "nobody", "timeout_s": 1}})
        machine.ping()


def test_a_command_that_takes_too_long_is_ended_with_its_children(place: LabPlace) -> None:
    machine = place.guests["work"].machine
    ended = machine.run("sleep 1234 & echo begun; sleep 1234", timeout_s=5)
    assert (ended.timed_out, ended.rc, ended.stdout) == (True, -9, "begun\n")
    assert machine.run("pgrep -f '[s]leep 1234'").rc == 1


def test_an_unknown_policy_is_one_line(place: LabPlace) -> None:
    with pytest.raises(PlaceError, match="nonsense") as error, place.policy("nonsense"):
        pytest.fail("it started")
    assert "\n" not in str(error.value)


def test_policies_alternate_under_living_guests(place: LabPlace) -> None:
    before = list(place.complaints)
    for policy in ("cohort", "eevdf", "cohort"):
        with place.policy(policy), place.background("pv", "cpu-hog"):
            measured = place.measure("work", "hackbench")
        assert measured.value > 0
        assert bool(measured.stats) == (policy != "eevdf"), json.dumps(measured.stats)
    assert place.complaints == before


def test_another_cohort_runs_in_place_of_the_one_that_is_built(place: LabPlace, tmp_path: Path) -> None:
    built, copy = binaries.build(binaries.find("cohort")).content, tmp_path / "copy"
    # A byte more, behind all that is loaded of it.
    copy.write_bytes(built + b"\0")
    copy.chmod(0o755)
    ran = []
    for args in ((), ("--binary", str(copy)), ()):
        with place.policy("cohort", args), place.background("pv", "cpu-hog"):
            assert place.measure("work", "hackbench").stats
            # The probe is another process, of the one that is built.
            pid = place.emulator.host.check("pgrep -f '[r]un --policy cohort'").strip()
            ran.append(place.emulator.host.check(f"sha256sum /proc/{pid}/exe").split()[0])
    assert ran == [hashlib.sha256(content).hexdigest() for content in (built, copy.read_bytes(), built)]
