# SPDX-License-Identifier: GPL-2.0-only
"""A trace of the lab's host merged with one of a guest, by trace-cmd, and imported.

Host and guest record by the TSC, which both have but for an offset that KVM knows; `trace-cmd attach` writes that into
the guest's file. `trace-cmd record -A` finds it out by itself, but its agent did not survive in the lab's guests.
"""

from __future__ import annotations

import bisect
import re
import signal
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from ground import Cgroups, end
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from probe import Probe
from test_tracecmd import EVENTS, PATIENCE_S, traced

from cohortlab.lab.agent import Job, Machine
from cohortlab.lab.place import LabPlace
from cohortlab.recorded.commands import import_recording
from cohortlab.recorded.recording import load
from conftest import Bench

pytestmark = [pytest.mark.lab, pytest.mark.long]

__all__ = ["traced"]

TRACED_S = 1
# Of a host's and of its guest's file: whose, on which CPU, when.
LINE = re.compile(r"\s*(\S+\.dat): +(.+)-(\d+) +\[(\d+)\] \S* *(\d+\.\d+): +(\w+): +(.*)")
INSIDE_MIN = 0.99
# By so much, and as much back, a wrong clock would be seen.
SHIFT_S = 0.001
TRACING_ON = "/sys/kernel/tracing/tracing_on"


def trace(ground: Cgroups, machine: Machine, options: str, event: str) -> Job:
    """Start trace-cmd on the host or in a guest; return when it records. It ends with the block at the latest."""
    bench = ground.bench
    job = machine.spawn("merged-trace", f"cd /tmp && exec trace-cmd record {options}")
    ground.callback(end, job)
    enabled = f"/sys/kernel/tracing/events/{event}/enable"
    bench.until(
        lambda: machine.read(enabled).startswith("1") and machine.read(TRACING_ON).startswith("1"),
        f"{machine.name}: trace-cmd records",
        PATIENCE_S,
    )
    return job


def ended(bench: Bench, job: Job) -> None:
    job.signal(signal.SIGINT)
    bench.until(lambda: job.wait(0) is not None, "trace-cmd ends", PATIENCE_S)
    assert job.wait(0) == 0, job.output("stderr")[0]


def share_inside(text: str, tids: list[int], shift_s: float = 0) -> tuple[float, int]:
    """Return which part of the guest's lines is of times at which its vCPU was inside, and how many lines it has."""
    entries: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    guest: list[tuple[int, float]] = []
    for line in text.splitlines():
        if not (found := LINE.match(line)):
            continue
        file, _, pid, cpu, at, name, _ = found.groups()
        if file != "trace.dat":
            guest.append((int(cpu), float(at) + shift_s))
        elif name in ("kvm_entry", "kvm_exit") and int(pid) in tids:
            entries[tids.index(int(pid))].append((float(at), name == "kvm_entry"))
    inside = 0
    for cpu, at in guest:
        known = bisect.bisect_right(entries[cpu], (at, True)) - 1
        inside += known >= 0 and entries[cpu][known][1]
    return inside / len(guest), len(guest)


def test_a_hosts_trace_merged_with_its_guests(traced: LabPlace, tmp_path: Path) -> None:
    bench = Bench(traced)
    host, guest = bench.host, traced.guests["work"]
    with Probe(bench) as probe:
        tids = [vcpu["tid"] for vcpu in probe.vm("work")["vcpus"]]
    with Cgroups(bench) as ground:
        ground.busy("hog")
        work = guest.machine.spawn("merged-work", "hackbench -g 2 -l 100000 -f 5")
        try:
            # The guest's lies within the host's.
            of_host = trace(ground, host, f"-C tsc2nsec -b 16384 {EVENTS} -o trace.dat", "kvm/kvm_exit")
            of_guest = trace(
                ground, guest.machine, "-C x86-tsc -b 8192 -e sched_switch -o trace-work.dat", "sched/sched_switch"
            )
            host.check(f"sleep {TRACED_S}")
            ended(bench, of_guest)
            ended(bench, of_host)
        finally:
            work.signal(signal.SIGKILL)
    host.put("/tmp/trace-work.dat", guest.machine.get("/tmp/trace-work.dat"))
    (offset,) = set(host.check(f"cat /sys/kernel/debug/kvm/{guest.pid()}-*/vcpu*/tsc-offset").split())
    # The guest's TSC is the host's and this.
    ahead = int(offset)
    attach = f"trace-cmd attach -c {len(tids)} -s {-ahead},1,0 trace.dat trace-work.dat {' '.join(map(str, tids))}"
    host.check(f"cd /tmp && {attach} && trace-cmd report -t -i trace.dat -i trace-work.dat >merged.txt", PATIENCE_S)
    text = tmp_path / "merged.txt"
    text.write_bytes(host.get("/tmp/merged.txt"))
    host.check("rm /tmp/trace.dat /tmp/trace-work.dat /tmp/merged.txt")

    lines = text.read_text(errors="replace")
    share, count = share_inside(lines, tids)
    shifted = [share_inside(lines, tids, shift_s)[0] for shift_s in (-SHIFT_S, SHIFT_S)]
    print(f"{share:.2%} of {count} lines of the guest are of times at which its vCPU was inside; shifted {shifted}")
    assert count > 1000
    assert share >= INSIDE_MIN
    assert max(shifted) < share

    notes = load(text).about["header"]["notes"]
    print(*notes, sep="\n")
    assert any(note.startswith("trace-work.dat: is the VM work") for note in notes)
    done = CliRunner().invoke(import_recording, [str(text), "--out", str(tmp_path / "out"), "--hardware", "lab"])
    assert done.exit_code == 0, done.output
    print(done.output)
    found = tasks(tmp_path / "out" / "trace.perfetto")
    print({track: sorted(names)[:5] for track, names in found.items()})
    assert found.keys() == {"vCPU 0, tasks", "vCPU 1, tasks"}
    assert all("hackbench" in names for names in found.values())


def tasks(perfetto: Path) -> dict[str, set[str]]:
    """Return the names of the guests' tasks by the track that they are on."""
    names: dict[int, str] = {}
    tracks: dict[int, str] = {}
    found: dict[str, set[str]] = defaultdict(set)
    for packet in Trace.FromString(perfetto.read_bytes()).packet:
        names |= {name.iid: name.name for name in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        track = tracks.get(packet.track_event.track_uuid, "")
        if packet.track_event.type == TrackEvent.TYPE_SLICE_BEGIN and track.endswith(", tasks"):
            found[track].add(names[packet.track_event.name_iid])
    return found
