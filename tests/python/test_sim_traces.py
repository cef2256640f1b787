# SPDX-License-Identifier: GPL-2.0-only
"""Traces of a simulated run, read by others' readers: Perfetto's message definitions, and TRAPpy for `sched_switch`.

Slices nest, tracks and strings are known before they are used, flows arrive, times add up.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trappy
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor, TrackEvent

from cohortlab.sim import Scenario
from cohortlab.sim.model import Run
from cohortlab.sim.result import Result, Traces

NS = 1_000_000_000
SCENARIO = """
name = "traced"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 4
memory_mb = 512
programs = ["tlb-flush"]
[[vm]]
name = "hog"
vcpus = 4
memory_mb = 256
load = "cpu-hog"
"""


def at_once(run: Run, duration_ns: int) -> dict[str, Any]:
    """Return a short run in which the program starts together with the load."""
    described = run.as_dict()
    vms = [{key: value for key, value in vm.items() if key != "start_ns"} for vm in described["vms"]]
    return described | {"duration_ns": duration_ns, "vms": vms}


@pytest.fixture(scope="module", params=["eevdf", "cohort"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    path = tmp_path_factory.mktemp("traced") / "traced.toml"
    path.write_text(SCENARIO)
    run = Run(Scenario.load(path), {"work": "tlb-flush", "hog": "cpu-hog"}, request.param)
    # Long enough for what follows the program's beginning.
    result = Result.of_dict(run, at_once(run, 1_200_000_000), Traces(1 << 28, 1 << 28, 0))
    assert not result.is_truncated
    return result


def run_ns_by_pid(traced: Result) -> dict[int, int]:
    """Return what the vCPUs' threads ran by the simulator's own books."""
    rows = traced.vcpus.to_pylist()
    return {1000 + traced.task_of(row["vm"], row["vcpu"]): row["run_ns"] for row in rows}


def test_sched_switch_text_adds_up(traced: Result) -> None:
    line = re.compile(r"^ *\S+-\d+ +\[(\d+)\] +(\d+)\.(\d{9}): sched_switch: .*prev_pid=(\d+).* ==> .*next_pid=(\d+)")
    on_cpu: dict[str, tuple[str, int]] = {}
    ran: dict[str, int] = {}
    for found in filter(None, map(line.match, traced.ftrace.splitlines())):
        cpu, seconds, nanos, prev, following = found.groups()
        now_ns = int(seconds) * NS + int(nanos)
        if cpu in on_cpu:
            pid, since_ns = on_cpu[cpu]
            assert pid == prev
            ran[pid] = ran.get(pid, 0) + now_ns - since_ns
        on_cpu[cpu] = (following, now_ns)
    for pid, since_ns in on_cpu.values():
        ran[pid] = ran.get(pid, 0) + traced.end_ns - since_ns
    for pid, run_ns in run_ns_by_pid(traced).items():
        assert ran[str(pid)] == run_ns


# It speaks to pandas as one did before 4.
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_trappy_reads_the_text_and_its_times_add_up(traced: Result, tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_text(traced.ftrace)
    with pytest.warns(UserWarning, match="Reading from .txt file"):
        trace = trappy.FTrace(str(path), normalize_time=False)
    switches = trace.sched_switch.data_frame
    lines = traced.ftrace.splitlines()
    assert len(switches) == sum(" sched_switch: " in line for line in lines)
    assert len(trace.sched_wakeup.data_frame) == sum(" sched_wakeup: " in line for line in lines)
    on_cpu: dict[int, tuple[int, int]] = {}
    ran: dict[int, int] = {}
    for now_s, switch in zip(switches.index, switches.to_dict("records"), strict=True):
        # A double holds these times to the nanosecond.
        cpu, now_ns = switch["__cpu"], round(now_s * NS)
        if cpu in on_cpu:
            pid, since_ns = on_cpu[cpu]
            assert (pid, pid) == (switch["prev_pid"], switch["__pid"])
            ran[pid] = ran.get(pid, 0) + now_ns - since_ns
        on_cpu[cpu] = (switch["next_pid"], now_ns)
    for pid, since_ns in on_cpu.values():
        ran[pid] = ran.get(pid, 0) + traced.end_ns - since_ns
    assert {pid: ran[pid] for pid in run_ns_by_pid(traced)} == run_ns_by_pid(traced)


def unknown(message: Message) -> list[str]:
    """Return what Perfetto's definitions do not know in a message, however deep."""
    found = [f"{message.DESCRIPTOR.full_name}: {item.field_number}" for item in UnknownFieldSet(message)]
    for about, value in message.ListFields():
        if about.message_type is not None:
            for inner in value if about.is_repeated else [value]:
                found += unknown(inner)
    return found


@dataclass
class Read:
    """What a reader makes of a trace, packet by packet."""

    tracks: dict[int, str] = field(default_factory=dict)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    slices: list[tuple[str, str, int]] = field(default_factory=list)
    instants: dict[str, int] = field(default_factory=dict)
    flows: dict[int, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    # Flows of pause-loop exits of which no yield is known.
    exits: set[int] = field(default_factory=set)
    open: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    last_ns: dict[int, int] = field(default_factory=dict)

    def packet(self, packet: TracePacket) -> None:
        sequence = packet.trusted_packet_sequence_id
        assert sequence > 0
        cleared = packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        # A sequence begins with its state cleared, once.
        assert bool(cleared) == (sequence not in self.last_ns)
        now_ns = packet.timestamp if packet.HasField("timestamp") else self.last_ns.get(sequence, 0)
        assert now_ns >= self.last_ns.get(sequence, 0)
        self.last_ns[sequence] = now_ns
        if packet.HasField("track_descriptor"):
            self.track(packet.track_descriptor)
        for table in ("event_categories", "event_names", "debug_annotation_names"):
            for entry in getattr(packet.interned_data, table):
                assert (table, entry.iid) not in self.names
                self.names[table, entry.iid] = entry.name
        if packet.HasField("track_event"):
            assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            self.event(packet.track_event, now_ns)

    def track(self, track: TrackDescriptor) -> None:
        assert track.uuid not in self.tracks
        assert not track.HasField("parent_uuid") or track.parent_uuid in self.tracks
        self.tracks[track.uuid] = track.process.process_name if track.HasField("process") else track.name
        assert self.tracks[track.uuid]

    def event(self, event: TrackEvent, now_ns: int) -> None:
        assert event.track_uuid in self.tracks
        assert all(("event_categories", iid) in self.names for iid in event.category_iids)
        assert all(("debug_annotation_names", about.name_iid) in self.names for about in event.debug_annotations)
        open_here, name = self.open.setdefault(event.track_uuid, []), ""
        if event.type == TrackEvent.TYPE_SLICE_END:
            ended, start_ns = open_here.pop()
            self.slices.append((self.tracks[event.track_uuid], ended, now_ns - start_ns))
        else:
            name = self.names["event_names", event.name_iid]
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                open_here.append((name, now_ns))
            else:
                assert event.type == TrackEvent.TYPE_INSTANT
                self.instants[name] = self.instants.get(name, 0) + 1
        for flow in event.flow_ids:
            # A pause-loop exit's goes on from its yield, once.
            assert flow not in self.flows or (flow in self.exits and name == "yield")
            self.exits.discard(flow)
            if name == "PAUSE exit":
                self.exits.add(flow)
            self.flows[flow] = now_ns
        for flow in event.terminating_flow_ids:
            assert self.flows[flow] <= now_ns
            self.ended.append(flow)


def test_the_perfetto_trace_is_whole_and_adds_up(traced: Result) -> None:
    trace = Trace.FromString(traced.perfetto)
    # All of it is known, and nothing is written twice or in a roundabout way.
    assert set(unknown(trace)) == set()
    assert trace.ByteSize() == len(traced.perfetto)
    read = Read()
    for packet in trace.packet:
        read.packet(packet)
    # Every slice is closed.
    assert not any(read.open.values())
    assert max(read.last_ns.values()) <= traced.end_ns
    busy_ns = sum(length for track, _, length in read.slices if track.startswith("pCPU "))
    assert busy_ns == traced.about["figures"]["host"]["busy_ns"]
    work = traced.about["figures"]["vms"][0]
    hog = traced.about["figures"]["vms"][1]
    for name, key in (("running", "run_ns"), ("waiting", "ready_ns")):
        assert sum(length for _, what, length in read.slices if what == name) == work[key] + hog[key]
    assert read.instants.get("IPI sent", 0) == work["ipis_sent"] + hog["ipis_sent"]
    assert read.instants.get("PAUSE exit", 0) == work["ple"] + hog["ple"]
    shootdowns = sum(what == "TLB shootdown" for _, what, _ in read.slices)
    assert shootdowns > 0
    assert shootdowns - work["shootdown"]["count"] in range(5)  # one of each vCPU may be under way at the end
    # A flow ends at most once; only what was under way at the end has not, and exits at which nobody yielded.
    assert len(set(read.ended)) == len(read.ended)
    assert read.exits.isdisjoint(read.ended)
    assert len(read.flows) - len(read.exits) - len(read.ended) <= 0.02 * len(read.flows) + 8


@pytest.mark.parametrize("bytes_max", [0, 1, 700, 5_000, 60_000])
def test_a_trace_that_stops_at_its_size_is_whole(bytes_max: int, tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text(SCENARIO)
    run = Run(Scenario.load(path), {"work": "tlb-flush", "hog": "cpu-hog"}, "cohort")
    result = Result.of_dict(run, at_once(run, 30_000_000), Traces(bytes_max, bytes_max, 0))
    read = Read()
    for packet in Trace.FromString(result.perfetto).packet:
        read.packet(packet)
    assert not any(read.open.values())
    assert result.ftrace == "" or result.ftrace.endswith("\n")
    # But for the line that it was in.
    assert len(result.ftrace) <= bytes_max + 500
    assert result.is_truncated or not 0 < bytes_max <= 700
