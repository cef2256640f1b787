# SPDX-License-Identifier: GPL-2.0-only
"""Traces of a simulated run, read as their readers do: slices nest, strings are known, flows arrive, times add up."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

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
Message = dict[int, list[int | bytes]]


@pytest.fixture(scope="module", params=["eevdf", "cohort"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    path = tmp_path_factory.mktemp("traced") / "traced.toml"
    path.write_text(SCENARIO)
    run = Run(Scenario.load(path), {"work": "tlb-flush", "hog": "cpu-hog"}, request.param)
    # The first 150 ms are enough, and quickly read.
    result = Result.of_dict(run, run.as_dict() | {"duration_ns": 150_000_000}, Traces(1 << 28, 1 << 28, 0))
    assert not result.is_truncated
    return result


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
    for row in traced.vcpus.to_pylist():
        assert ran[str(1000 + traced.task_of(row["vm"], row["vcpu"]))] == row["run_ns"]


def fields(data: bytes) -> Message:
    """Return a protobuf message's fields by number."""
    found: Message = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            found.setdefault(key >> 3, []).append(varint())
            continue
        length = {1: 8, 2: None}[kind] or varint()
        found.setdefault(key >> 3, []).append(data[at : at + length])
        at += length
    assert at == len(data)
    return found


def messages(message: Message, number: int) -> Iterator[Message]:
    return (fields(data) for data in message.get(number, []) if isinstance(data, bytes))


def number(message: Message, field_number: int) -> int | None:
    values = message.get(field_number, [])
    return values[0] if values and isinstance(values[0], int) else None


@dataclass
class Read:
    """What a reader makes of a trace."""

    tracks: dict[int, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    slices: list[tuple[str, str, int]] = field(default_factory=list)
    instants: dict[str, int] = field(default_factory=dict)
    flows: dict[bytes, int] = field(default_factory=dict)
    open: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def packet(self, packet: Message) -> None:
        for track in messages(packet, 60):
            process = next(messages(track, 3), None)
            name = process[6][0] if process else track[2][0]
            assert isinstance(name, bytes)
            uuid = number(track, 1)
            assert uuid is not None
            assert uuid not in self.tracks
            self.tracks[uuid] = name.decode()
        for interned in messages(packet, 12):
            for entry in messages(interned, 2):
                iid, name = number(entry, 1), entry[2][0]
                assert iid is not None
                assert isinstance(name, bytes)
                self.names[iid] = name.decode()
        for event in messages(packet, 11):
            now_ns = number(packet, 8)
            assert now_ns is not None
            self.event(event, now_ns)

    def event(self, event: Message, now_ns: int) -> None:
        track, iid = number(event, 11), number(event, 10)
        assert track in self.tracks
        open_here = self.open.setdefault(track, [])
        match number(event, 9):
            case 1:
                assert iid is not None
                open_here.append((self.names[iid], now_ns))
            case 2:
                name, start_ns = open_here.pop()
                self.slices.append((self.tracks[track], name, now_ns - start_ns))
            case 3:
                assert iid is not None
                self.instants[self.names[iid]] = self.instants.get(self.names[iid], 0) + 1
        for flow in event.get(47, []):
            assert isinstance(flow, bytes)
            assert flow not in self.flows
            self.flows[flow] = 0
        for flow in event.get(48, []):
            assert isinstance(flow, bytes)
            self.flows[flow] += 1


def test_the_perfetto_trace_is_whole_and_adds_up(traced: Result) -> None:
    read = Read()
    last_ns = 0
    for packet in messages(fields(traced.perfetto), 1):
        now_ns = number(packet, 8) or 0
        assert now_ns >= last_ns or 60 in packet
        last_ns = max(last_ns, now_ns)
        read.packet(packet)
    assert not any(read.open.values())
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
    assert shootdowns - work["shootdown"]["count"] in (0, 1)  # one may be under way at the end
    # A flow ends at most once; only what was under way at the end has not.
    assert set(read.flows.values()) <= {0, 1}
    assert sum(ends == 0 for ends in read.flows.values()) <= 0.02 * len(read.flows) + 8
