# SPDX-License-Identifier: GPL-2.0-only
"""Recordings: read, imported, simulated again. They are made by the simulator, which knows what is true."""

from __future__ import annotations

import json
import pickle
import statistics
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from tests.python.two_vms import two_vms

from cohortlab import policies
from cohortlab import scenario as scenarios
from cohortlab.errors import BadInput
from cohortlab.recorded import advice, recording
from cohortlab.recorded import scenario as makes
from cohortlab.recorded.shape import Shape, in_order, shape
from cohortlab.sim.model import Run as Simulated
from cohortlab.sim.result import Result, Traces

Run = Callable[..., Any]
REPO = Path(__file__).parents[2]
SCENARIO = REPO / "scenarios" / "smp-2x2.toml"
# The goal is 20 %.
ERROR_MAX = 0.2


def simulated(program: str, policy: str, seed: int = 1, *, alone: bool = False) -> Result:
    running = {"work": program} | ({} if alone else {"hog": "cpu-hog"})
    return Result.of(Simulated(scenarios.load(SCENARIO), running, policy, (), seed), Traces(recording=True))


@pytest.fixture(scope="module")
def truth() -> Result:
    return simulated("tlb-flush", "eevdf")


@pytest.fixture
def file(truth: Result, tmp_path: Path) -> Path:
    path = tmp_path / "host.rec"
    path.write_bytes(truth.recording)
    return path


def part(result: Result, vm: int = 0) -> makes.Part:
    """Return when the program ran."""
    program = next(program for program in result.about["programs"] if program["vm"] == vm)
    return makes.Part(program["start_ns"], program["end_ns"])


def refused(ran: Any, expected: str) -> None:
    """One line, that says it."""
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert expected in ran.err


def took_s(result: Result) -> float:
    return result.measurement("work").wall_s


def test_the_figures_of_a_recording_are_those_of_what_was_recorded(truth: Result, file: Path) -> None:
    read = recording.load(file)
    figures = read.figures(Traces(perfetto_bytes_max=1 << 28, timeline_rows_max=1 << 20))
    sent = pickle.loads(pickle.dumps(figures))
    assert (sent.about, sent.perfetto) == (figures.about, figures.perfetto)
    assert sent.timeline.equals(figures.timeline)
    exact = (
        *("run_ns", "ready_ns", "costop_ns", "stacked_ns", "skew", "skew_max_ns"),
        *("halted_ns", "halts", "halt_polled_ns"),
        *("switches", "migrations", "preemptions", "preemptions_kernel", "ple", "ple_kernel"),
        *("yields_asked", "yields_granted", "ipis_sent", "ipis_preempted", "ipi_wait_ns"),
        *("lag_behind_ns", "lag_ahead_ns", "lag_spread_ns"),
        *("wait_after_wakeup", "wait_after_preemption", "wait_in_kernel"),
    )
    for vm, wanted in zip(figures.about["figures"]["vms"], truth.about["figures"]["vms"], strict=True):
        assert {name: vm.get(name) for name in exact} == {name: wanted.get(name) for name in exact}
        # Spins are counted by the exits alone: two of them may follow each other too fast to be told apart.
        assert 0 < vm["ple_chains"] <= wanted["ple"] or not wanted["ple"]
        assert sum(vm["ple_chain_lengths"]) == vm["ple_chains"]
        # What nobody saw is no zero.
        assert not vm.keys() & {"spin_ns", "guest_switches", "lock_wait", "shootdown", "exits", "cpu_ns"}
        for vcpu, of_truth in zip(vm["vcpus"], wanted["vcpus"], strict=True):
            assert (vcpu["run_ns"], vcpu["ready_ns"]) == (of_truth["run_ns"], of_truth["ready_ns"])
    counts = read.about["counts"]
    assert read.lost == 0
    assert counts["run"] > 100
    assert counts["ipi"] > 100
    assert read.events.num_rows == sum(counts.values())
    costop_ns = _spans(figures.perfetto, "co-stop")
    assert costop_ns == sum(vm["costop_ns"] for vm in truth.about["figures"]["vms"])


def _spans(trace: bytes, wanted: str) -> int:
    """Return how long all slices of that name are, together; there are tracks, and flows arrive."""
    names: dict[int, str] = {}
    tracks: list[str] = []
    opened: dict[int, list[tuple[str, int]]] = {}
    begun: set[int] = set()
    total = 0
    for packet in Trace.FromString(trace).packet:
        names |= {name.iid: name.name for name in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks.append(packet.track_descriptor.name)
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        begun |= set(event.flow_ids)
        assert set(event.terminating_flow_ids) <= begun
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            opened.setdefault(event.track_uuid, []).append((names[event.name_iid], packet.timestamp))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, since_ns = opened[event.track_uuid].pop()
            total += packet.timestamp - since_ns if name == wanted else 0
    assert not any(opened.values())
    assert begun
    assert {"pCPU 0", "pCPU 1", "vCPU 0", "vCPU 1, co-stop"} <= set(tracks)
    return total


def test_import_writes_a_trace_tables_and_a_scenario(file: Path, cohortlab: Run, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    ran = cohortlab("import", str(file), "--hardware", "lab", "--from-s", "1", "--for-s", "0.5")
    assert ran.code == 0, ran.err
    assert "0 lost" in ran.out
    assert "measured is what work did" in ran.out
    tables = {path.stem for path in (folder / "tables").glob("*.parquet")}
    assert tables == {"vms", "vcpus", "distributions", "histograms", "timeline", "events"}
    assert "spin_ns" not in pq.read_table(folder / "tables" / "vms.parquet").column_names
    whats = set(pq.read_table(folder / "tables" / "distributions.parquet")["what"].to_pylist())
    assert "wait_in_kernel" in whats
    assert "lock_wait" not in whats
    events = pq.read_table(folder / "tables" / "events.parquet").to_pylist()
    assert {"run", "preempted", "ipi"} <= {event["kind"] for event in events}
    assert {event["vm"] for event in events} <= {0, 1, None}
    chosen = scenarios.load(folder / "recorded.toml")
    assert [(vm.name, vm.vcpus, vm.weight) for vm in chosen.vms] == [("work", 2, 100), ("hog", 2, 100)]
    assert [vm.programs for vm in chosen.vms] == [("work",), ()]
    assert (chosen.defaults.hardware, chosen.host.pcpus) == ("hardware.toml", 2)

    out = tmp_path / "compared"
    imported = str(folder / "recorded.toml")
    ran = cohortlab("compare", imported, "--on", "sim", "--policies", "eevdf,cohort", "--out", str(out))
    assert ran.code == 0, ran.err
    ran = cohortlab("advise", imported, "--policies", "eevdf,cohort", "--rounds", "2")
    assert ran.code == 0, ran.err
    sentences = ran.out.splitlines()
    assert len(sentences) == 3
    assert all(sentence.endswith(".") for sentence in sentences)
    assert sentences[0].startswith("Under eevdf, ")
    assert "95 %" in sentences[2]
    ran = cohortlab("advise", imported, "--policies", "cohort", "--rounds", "2", "--json")
    assert json.loads(ran.out)["slowdown"].keys() == {"eevdf", "cohort"}


def test_what_the_host_kept_from_the_probe_is_not_0(file: Path, tmp_path: Path) -> None:
    def imported(missing: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the first VM's figures, and the scenario, of a recording that says so."""
        read = recording.load(file)
        read.about["header"]["missing"] = missing
        makes.write(read, tmp_path, makes.Part(0, read.length_ns), "server")
        text = (tmp_path / "recorded.toml").read_text(encoding="utf-8")
        return read.figures().about["figures"]["vms"][0], tomllib.loads(text)

    whole, scenario = imported([])
    assert scenario["guest"]["ple"] is True
    calls = ["ipis_sent", "ipis_preempted", "ipi_wait_ns"]
    spins = ["ple", "ple_kernel", "ple_chains", "yields_asked", "yields_granted"]
    assert {*calls, *spins, "ipi", "ple_chain_lengths"} <= whole.keys()
    without, scenario = imported(calls)
    assert whole.keys() - without.keys() == {*calls, "ipi"}
    assert scenario["guest"]["ple"] is True
    without, scenario = imported([*spins, "ple_chain_max"])
    assert whole.keys() - without.keys() >= {*spins, "ple_chain_lengths"}
    assert without.keys() >= set(calls)
    assert scenario["guest"]["ple"] is False


def test_every_policy_can_be_tried_on_a_recording(file: Path, cohortlab: Run, tmp_path: Path) -> None:
    assert cohortlab("import", str(file), "--hardware", "lab", "--from-s", "1", "--for-s", "0.3").code == 0
    imported, out = str(tmp_path / "host" / "recorded.toml"), str(tmp_path / "compared")
    arguments = ("--on", "sim", "--policies", "all", "--rounds", "1", "--json", "--out", out)
    ran = cohortlab("compare", imported, *arguments)
    assert ran.code == 0, ran.err
    found = {row["policy"]: row for row in json.loads(ran.out)}
    assert list(found) == list(policies.KNOWN)
    for policy, row in found.items():
        assert row["error"] is None, policy
        assert row["slowdown"] > 0.9, policy
        # And what it was lost to, of each VM.
        for vm in ("work", "hog"):
            why = row["why"][vm]
            assert sum(why[state] for state in ("run", "ready", "halted")) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("program", ["tlb-flush", "hackbench", "tlb-shootdown"])
def test_what_was_recorded_under_one_policy_predicts_another(program: str, tmp_path: Path) -> None:
    recorded = simulated(program, "eevdf")
    path = tmp_path / "host.rec"
    path.write_bytes(recorded.recording)
    read = recording.load(path)
    written = makes.write(read, tmp_path, part(recorded), "lab")
    found = advice.advise(scenarios.load(written.path), "eevdf,cohort", 2)
    seeds = (1, 2, 3)
    alone = statistics.median(took_s(simulated(program, "eevdf", seed, alone=True)) for seed in seeds)
    beside = statistics.median(took_s(simulated(program, "cohort", seed)) for seed in seeds)
    print(program, found.slowdown("cohort", "work"), beside / alone)
    assert found.slowdown("cohort", "work") == pytest.approx(beside / alone, rel=ERROR_MAX)


def test_a_program_whose_time_is_fixed_is_judged_by_what_it_did(cohortlab: Run, tmp_path: Path) -> None:
    tasks = {"a": {"instance": 2, "run": 1000, "sleep": 100}}
    (tmp_path / "app.json").write_text(json.dumps({"global": {"duration": 1}, "tasks": tasks}))
    (tmp_path / "small.toml").write_text(two_vms("app.json"))
    args = ("--policies", "eevdf@same,vtime", "--rounds", "2", "--json")
    ran = cohortlab("advise", str(tmp_path / "small.toml"), *args)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    # The kernel's own is there to compare with, whatever a variant of it is called.
    assert found["slowdown"].keys() == {"eevdf", "eevdf@same", "vtime"}
    assert found["times_s"]["eevdf"] == found["times_s"]["eevdf@same"]
    assert all(slowdown["work"] > 1.3 for slowdown in found["slowdown"].values())
    both = (found["alone_s"], found["times_s"]["vtime"])
    alone, under = (statistics.median(1 / s for s in times["work"]) for times in both)
    assert found["slowdown"]["vtime"]["work"] == pytest.approx(alone / under)


def test_what_the_loads_get_is_of_all_programs(tmp_path: Path) -> None:
    loads = []
    for programs in (("tlb-flush", "mmapfork"), ("mmapfork", "tlb-flush"), ("tlb-flush",)):
        path = tmp_path / "small.toml"
        path.write_text(two_vms(*programs))
        loads.append(advice.advise(scenarios.load(path), "eevdf", 1).loads["eevdf"]["hog"])
    assert loads[0] == pytest.approx(loads[1])
    assert loads[0] != loads[2]


def test_the_same_recording_is_the_same_scenario(file: Path, cohortlab: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert cohortlab("import", str(file), "--out", str(tmp_path / name)).code == 0
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.suffix == ".toml"]
    assert len(files) == 6
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()


def test_what_is_wrong_is_one_line(file: Path, cohortlab: Run, tmp_path: Path) -> None:
    whole = file.read_bytes()
    cases = {
        "cut off": whole[:-1],
        "does not fit its check sum": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
        "must be a file of": b"\xff\xfe\x00",
        "trace-cmd record": b"nothing of the kind",
        "is of format 7": whole[:8] + b"\x07" + whole[9:],
    }
    for expected, content in cases.items():
        bad = tmp_path / "bad.rec"
        bad.write_bytes(content)
        ran = cohortlab("import", str(bad))
        refused(ran, expected)
        assert "bad.rec: " in ran.err
        assert not (tmp_path / "bad").exists()
    for options, expected in (
        (("--from-s", "1e6"), "--from-s: 1e+06 is not allowed"),
        (("--from-s", "1e300"), "--from-s: 1e+300 is not allowed"),
        (("--from-s", "inf"), "'--from-s': inf is not a finite number"),
        (("--for-s", "nan"), "'--for-s': nan is not a finite number"),
        (("--hardware", "none"), "--hardware"),
        (("--out", str(file)), "is a file"),
    ):
        ran = cohortlab("import", str(file), *options)
        refused(ran, expected)
    assert cohortlab("import", str(tmp_path / "no.rec")).code == 2


def test_a_file_of_trace_cmd_needs_trace_cmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.dat"
    path.write_bytes(b"\x17\x08\x44tracing6\x00")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="trace-cmd, which is not installed here: install it"):
        recording.load(path)
    script = tmp_path / "trace-cmd"
    line = "CPU 0/KVM-101   [000]  {}: kvm_entry: vcpu 0, rip 0x0"
    switch = "sched_switch: prev_comm=x prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=y next_pid=101"
    text = "\n".join([line.format("1.5"), f"x-9 [000] 1.6: {switch}", f"x-9 [001] 1.7: {switch}"])
    script.write_text(f"#!/bin/sh\necho '{text}'\n")
    script.chmod(0o755)
    read = recording.load(path)
    assert read.about["names"] == ["vm0"]
    assert read.about["counts"] == {"run": 2}
    # A vCPU of nobody's has no VM's number. A name that is cut within a character is as good as any, saved as text too.
    assert read.events["vm"].to_pylist() == [0, 0]
    report = tmp_path / "report.txt"
    report.write_bytes(text.replace("prev_comm=x", "prev_comm=\xc3").encode("latin-1"))
    assert recording.load(report).about["counts"] == {"run": 2}
    script.write_text("#!/bin/sh\necho 'no such version' >&2\nexit 3\n")
    with pytest.raises(BadInput, match="trace-cmd cannot read it: no such version"):
        recording.load(path)


# A host with a VM that runs all of the time, and what `trace-cmd report` prints of its guest; both on CPU 0.
HOST_LINES = [
    "CPU 0/KVM-101 [000] 1.500000000: kvm_entry: vcpu 0 rip 0x0",
    "x-9 [000] 1.600000000: sched_switch: x:9 [120] S ==> CPU 0/KVM:101 [120]",
    "CPU 0/KVM-101 [000] 1.900000000: sched_switch: CPU 0/KVM:101 [120] R ==> x:9 [120]",
]
GUEST_LINES = [
    f"make-{pid} [000] 1.{700 + at}000000: sched_switch: {name}:{pid} [120] S ==> {other}:{other_pid} [120]"
    for at in range(30)
    for name, pid, other, other_pid in [("make", 7, "cc1\udcff", 8) if at % 2 else ("cc1\udcff", 8, "make", 7)]
]


def test_host_and_guests_are_merged(cohortlab: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, guest = tmp_path / "trace.dat", tmp_path / "trace-work.dat"
    for file in (host, guest):
        file.write_bytes(b"\x17\x08\x44tracing6\x00")
    merged = [f"     trace.dat: {line}" for line in ("cpus=1", *HOST_LINES)]
    merged += [f"trace-work.dat: {line}" for line in ("cpus=1", *GUEST_LINES)]
    text = tmp_path / "merged.txt"
    text.write_bytes("\n".join(merged).encode(errors="surrogateescape"))
    script = tmp_path / "trace-cmd"
    script.write_text(f'#!/bin/sh\n[ "$*" = "report -t -i {host} -i {guest}" ] && exec cat {text}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ran = cohortlab("import", str(host), str(guest), "--hardware", "lab")
    assert ran.code == 0, ran.err
    assert "trace-work.dat: is the VM work; 30 switches of its tasks are in the trace, its other 0 lines" in ran.out
    # What its tasks were called, and on which track.
    names: dict[int, str] = {}
    tracks: dict[int, str] = {}
    told = []
    for packet in Trace.FromString((tmp_path / "trace" / "trace.perfetto").read_bytes()).packet:
        names |= {name.iid: name.name for name in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        if packet.track_event.type == TrackEvent.TYPE_SLICE_BEGIN:
            told.append((tracks[packet.track_event.track_uuid], names[packet.track_event.name_iid]))
    of_tasks = [name for track, name in told if track == "vCPU 0, tasks"]
    assert of_tasks == ["make", "cc1\ufffd"] * 15
    # The text alone is as good.
    read = recording.load(host, guest)
    assert read.about["names"] == ["work"]
    text.write_text("\n".join(merged).encode(errors="replace").decode())
    assert recording.load(text).about["names"] == ["work"]


def test_files_that_cannot_be_merged_are_one_line(cohortlab: Run, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    host, twin = tmp_path / "trace.dat", folder / "trace.dat"
    for path in (host, twin):
        path.write_bytes(b"\x17\x08\x44tracing6\x00")
    refused(cohortlab("import", str(host), str(file)), "host.rec: is no file of `trace-cmd record`: several files must")
    refused(cohortlab("import", str(file), str(host)), "host.rec: is no file of `trace-cmd record`")
    refused(cohortlab("import", str(host), str(twin)), f"has the same name as {host}")
    refused(cohortlab("import", str(host), str(host)), "has the same name as")
    refused(cohortlab("import", str(host), str(tmp_path / "none.dat")), "none.dat: cannot be read")


def test_a_thread_stays_on_its_vcpu(tmp_path: Path) -> None:
    folder = tmp_path / "workloads" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(
        'name = "mine"\n[[thread]]\nname = "t"\nvcpu = 1\nsteps = [{ compute = "70ms" }]\n'
    )
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\n[host]\npcpus = 2\n[[vm]]\nname = "work"\nvcpus = 2\nmemory_mb = 256\nprograms = ["mine"]\n'
    )
    vcpus = Result.of(Simulated(scenarios.load(path), {"work": "mine"})).vcpus.to_pylist()
    assert vcpus[1]["run_ns"] > 65_000_000 > 2 * vcpus[0]["run_ns"]


def test_neighbours_of_a_host_are_neighbours_in_its_scenario() -> None:
    # Two nodes of two cores, whose second threads come after all the first ones; pCPU 3 is offline.
    nodes, cores = [0, 1, 0, 1, 0, 1, 0, 1], [0, 2, 1, 3, 0, 2, 1, 3]
    pcpus = [{"cpu": cpu, "core": cores[cpu], "llc": nodes[cpu], "node": nodes[cpu]} for cpu in range(8) if cpu != 3]
    assert in_order(pcpus) == {0: 0, 4: 1, 2: 2, 6: 3, 1: 4, 5: 5, 7: 6}


def test_shapes_of_hosts() -> None:
    def pcpus(nodes: int, caches: int, cores: int, threads: int) -> list[dict[str, int]]:
        count = nodes * caches * cores * threads
        per_node = count // nodes
        return [
            {"cpu": cpu, "core": cpu // threads, "llc": cpu // (cores * threads), "node": cpu // per_node}
            for cpu in range(count)
        ]

    assert shape(pcpus(1, 1, 4, 1)) == Shape(1, 4, 1)
    assert shape(pcpus(2, 1, 6, 2)) == Shape(2, 6, 2)
    assert shape(pcpus(2, 4, 2, 2)) == Shape(2, 8, 2, 2)
    assert shape([*pcpus(2, 1, 4, 2), {"cpu": 16, "core": 9, "llc": 1, "node": 1}]) == Shape(1, 17, 1)
    for text in (
        "",
        "[kvm]\nipi = 1\n",
        "[machine]\nx = 1\n",
        "[ machine ] # mine\nx = 1\n",
        "[machine.costs]\nx = 1\n[kvm]\n",
    ):
        made = tomllib.loads(Shape(2, 8, 2, 2).into(text))
        assert made["machine"]["cores_per_cache"] == 2
        assert made["machine"]["sockets"] == 2
        assert made.get("kvm") == tomllib.loads(text).get("kvm")
