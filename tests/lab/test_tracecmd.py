# SPDX-License-Identifier: GPL-2.0-only
"""A trace that trace-cmd records on the lab's host, imported, beside what the kernel has counted meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from ground import Cgroups, end
from probe import counted
from test_probe import PAUSE_EXITS
from test_record import kernel_says, ran_and_ready, spans

from cohortlab import scenario as scenarios
from cohortlab.lab.place import LabPlace
from cohortlab.recorded.commands import import_recording
from cohortlab.recorded.recording import load
from conftest import Bench, booted, say

pytestmark = [pytest.mark.lab, pytest.mark.long]

SCENARIO = """
name = "traced"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 2
memory_mb = 320
programs = ["trace-cmd"]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
load = "cpu-hog"
"""
# One image is the host's and the guests': by a guest's program the host gets it, too.
WORKLOAD = """
name = "trace-cmd"
title = "what the host needs"
packages = ["trace-cmd"]
command = "true"
[metric]
kind = "elapsed"
"""
EVENTS = "-e sched_switch -e sched_wakeup -e sched_migrate_task -e kvm_entry -e kvm_exit"
TRACED_S = 5
EXACT = 0.02
PATIENCE_S = 300


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabPlace]:
    folder = tmp_path_factory.mktemp("traced")
    (folder / "workloads").mkdir()
    (folder / "workloads" / "trace-cmd.toml").write_text(WORKLOAD)
    path = folder / "traced.toml"
    path.write_text(SCENARIO)
    with ExitStack() as stack:
        yield booted(stack, lambda: LabPlace(scenarios.load(path), probe=False, progress=say))


def test_a_trace_of_trace_cmd_adds_up(traced: LabPlace, tmp_path: Path) -> None:
    bench = Bench(traced)
    host = bench.host
    pids = {name: guest.pid() for name, guest in traced.guests.items()}
    everybody = " ".join(map(str, pids.values()))
    with Cgroups(bench) as ground:
        ground.busy("hog")
        work = traced.guests["work"].machine.spawn("traced-work", "hackbench -g 2 -l 100000 -f 5")
        try:
            # Nobody leaves his guest while the trace begins and ends, so both are of the same time.
            host.check(f"kill -STOP {everybody}; sleep 1")
            trace = host.spawn("trace", f"cd /tmp && exec trace-cmd record -b 16384 {EVENTS} -o /tmp/trace.dat")
            ground.callback(end, trace)
            enabled = "/sys/kernel/tracing/events/kvm/kvm_exit/enable"
            bench.until(
                lambda: host.read(enabled).startswith("1") and host.read("/sys/kernel/tracing/tracing_on")[0] == "1",
                "trace-cmd records",
                PATIENCE_S,
            )
            before = kernel_says(bench, pids["work"])
            with counted(bench, "kvm/kvm_exit", where=PAUSE_EXITS) as pauses:
                host.check(f"kill -CONT {everybody}; sleep {TRACED_S}; kill -STOP {everybody}; sleep 1", PATIENCE_S)
            after = kernel_says(bench, pids["work"])
            trace.signal(signal.SIGINT)
            bench.until(lambda: trace.wait(0) is not None, "trace-cmd ends", PATIENCE_S)
        finally:
            host.check(f"kill -CONT {everybody}")
            work.signal(signal.SIGKILL)
    print(trace.output("stderr")[0], trace.output()[0][-2000:])
    assert trace.wait(0) == 0
    host.check("cd /tmp && trace-cmd report -t -i trace.dat >trace.txt && rm trace.dat", PATIENCE_S)
    text = tmp_path / "trace.txt"
    text.write_bytes(host.get("/tmp/trace.txt"))
    host.check("rm /tmp/trace.txt")

    recording = load(text)
    about = recording.about
    reasons = {line.split("reason ")[1].split()[0] for line in text.read_text().splitlines() if "reason " in line}
    print(f"pause-loop exits: {about['counts'].get('ple')}, the kernel counted {pauses}; reasons {sorted(reasons)}")
    assert recording.lost == 0
    # The lab's VMs begin at the same time.
    assert all("is a guess" in note for note in about["header"]["notes"])
    assert pauses[0] > 100
    assert about["counts"]["ple"] == pytest.approx(pauses[0], rel=EXACT)
    # The text does not say which VM a thread is of; their number is known.
    assert [len(vm["vcpus"]) for vm in about["end"]["vms"]] == [2, 2]
    events = recording.events.to_pylist()
    stayed = before.keys() & after.keys()
    kernel = {tid: [now - then for now, then in zip(after[tid], before[tid], strict=True)] for tid in stayed}
    places = [
        (at, vcpu, row["tid"]) for at, vm in enumerate(about["end"]["vms"]) for vcpu, row in enumerate(vm["vcpus"])
    ]
    # All were stopped before the trace began: what it has of a vCPU is of the time between the stops.
    known = [(at, vcpu, kernel[tid]) for at, vcpu, tid in places if tid in kernel]
    assert len(known) == 2
    for at, vcpu, (ran_ns, ready_ns, _) in known:
        got = ran_and_ready(spans([event for event in events if (event["vm"], event["vcpu"]) == (at, vcpu)]))
        print(f"VM {at}, vCPU {vcpu}: traced {got}, kernel {ran_ns, ready_ns}")
        assert got[0] == pytest.approx(ran_ns, rel=EXACT, abs=2e6)
        assert got[1] == pytest.approx(ready_ns, rel=EXACT, abs=20e6)

    done = CliRunner().invoke(import_recording, [str(text), "--out", str(tmp_path / "out"), "--hardware", "lab"])
    assert done.exit_code == 0, done.output
    print(done.output)
