# SPDX-License-Identifier: GPL-2.0-only
"""What ``cohort record`` writes on the lab's host, beside what the probe and the kernel have counted."""

from __future__ import annotations

import base64
import gzip
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from ground import Cgroups
from probe import Probe

from cohortlab import scenario as scenarios
from cohortlab.recorded.advice import advise
from cohortlab.recorded.commands import import_recording
from cohortlab.recorded.recording import Recording, load

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = pytest.mark.lab

EXACT = 0.02
# Loading the probe takes long on a busy machine; who is too slow is no failure.
PATIENCE_S = 300
# What the recording is made of, and what the probe counts; both are of the same time.
SAME = {
    "run_ns": "run_ns",
    "ready_ns": "ready_ns",
    "preemptions": "preemptions",
    "ple": "ple",
    "yields_asked": "yields_asked",
    "yields_granted": "yields_granted",
    "ipis_sent": "ipis_sent",
    "halts": "halts",
}


def fetch(bench: Bench, remote: str, to: Path) -> Path:
    """Bring a file of the host here."""
    to.write_bytes(gzip.decompress(base64.b64decode(bench.host.check(f"gzip -c {remote} | base64 -w0", 300))))
    return to


def recorded(bench: Bench, name: str, seconds: float, to: Path) -> tuple[Recording, dict[int, dict[str, int]]]:
    """Record while the VM goes on for so long; it is stopped before and after. Return also what the kernel says."""
    host, pid, says = bench.host, bench.place.guests[name].pid(), Probe(bench).kernel_says
    tids = [int(tid) for tid in host.check(f"ls /proc/{pid}/task").split()]
    host.check(f"kill -STOP {pid}")
    job = host.spawn("record", "exec cohort record --out /tmp/lab.rec")
    bench.until(lambda: "recording" in job.output("stderr")[0], "it records", PATIENCE_S)
    before = {tid: says(pid, tid) for tid in tids}
    host.check(f"kill -CONT {pid}; sleep {seconds}; kill -STOP {pid}; sleep 1")
    after = {tid: says(pid, tid) for tid in tids}
    host.check(f"kill -CONT {pid}")
    job.signal(signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 0, job.output("stderr")[0]
    grown = {tid: {key: after[tid][key] - before[tid][key] for key in after[tid]} for tid in tids}
    return load(fetch(bench, "/tmp/lab.rec", to)), grown


def test_a_recording_adds_up(bench: Bench, tmp_path: Path) -> None:
    with Cgroups(bench) as ground:
        ground.busy("pv")
        job = bench.place.guests["work"].machine.spawn("record-work", "hackbench -g 2 -l 100000 -f 5")
        try:
            recording, kernel = recorded(bench, "work", 6, tmp_path / "lab.rec")
        finally:
            job.signal(9)
    assert recording.lost == 0
    about = recording.about
    figures = recording.figures().about["figures"]
    counted = {vm["name"]: vm["total"] for vm in about["end"]["counted"]["vms"]}
    for vm in figures["vms"]:
        got = {theirs: vm[ours] for ours, theirs in SAME.items()}
        wanted = {name: counted[vm["name"]][name] for name in got}
        print(vm["name"], got, wanted, sep="\n")
        assert got == {name: pytest.approx(value, rel=EXACT) for name, value in wanted.items()}
    # The kernel's own books, of the VM that was stopped before and after.
    index = about["names"].index("work")
    for vcpu, row in zip(about["end"]["vms"][index]["vcpus"], figures["vms"][index]["vcpus"], strict=True):
        says = kernel[vcpu["tid"]]
        print(row, says)
        assert row["run_ns"] == pytest.approx(says["run_ns"], rel=EXACT, abs=2e6)
        # It waited once more before it was stopped and after it was let go.
        assert row["ready_ns"] == pytest.approx(says["ready_ns"], rel=EXACT, abs=20e6)
        assert row["switches"] == pytest.approx(says["switches"], abs=4)

    folder = tmp_path / "imported"
    done = CliRunner().invoke(import_recording, [str(recording.path), "--out", str(folder), "--hardware", "lab"])
    assert done.exit_code == 0, done.output
    assert (folder / "trace.perfetto").stat().st_size > 10_000
    found = advise(scenarios.load(folder / "recorded.toml"), "eevdf,cohort", 2)
    print(*found.sentences(), sep="\n")
    assert found.slowdown("cohort", "work") > 1
    bench.host.check("rm /tmp/lab.rec")


def test_a_ring_that_is_too_small_says_what_it_lost(bench: Bench, tmp_path: Path) -> None:
    with Cgroups(bench) as ground:
        ground.busy("pv")
        job = bench.host.spawn("record-small", "exec cohort record --ring-mb 1 --max-size 1 --out /tmp/small.rec")
        bench.until(lambda: "recording" in job.output("stderr")[0], "it records", PATIENCE_S)
        # Nobody empties the ring buffer meanwhile. A stopped recorder is as good as one that is too slow.
        job.signal(signal.SIGSTOP)
        work = bench.place.guests["work"].machine.run("hackbench -g 2 -l 1000 -f 5", 300)
        assert work.rc == 0
        job.signal(signal.SIGCONT)
        job.signal(signal.SIGTERM)
        assert job.wait(PATIENCE_S) == 0, job.output("stderr")[0]
    recording = load(fetch(bench, "/tmp/small.rec", tmp_path / "small.rec"))
    told = job.output("stderr")[0]
    print(told, recording.about["counts"])
    assert f"{recording.about['end']['dropped']} lost" in told
    bench.host.check("rm /tmp/small.rec")
