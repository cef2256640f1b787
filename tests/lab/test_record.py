# SPDX-License-Identifier: GPL-2.0-only
"""What ``cohort record`` writes on the lab's host, beside what the probe and the kernel have counted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from ground import RR_MS, Cgroups
from provoked import real_time_without_limit
from recorder import PATIENCE_S, recorder
from recount import Recount

from cohortlab import scenario as scenarios
from cohortlab.lab.probe import ProbeRun
from cohortlab.recorded.advice import advise
from cohortlab.recorded.commands import import_recording
from cohortlab.recorded.recording import Recording, load

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = pytest.mark.lab

EXACT = 0.02
NS_SLACK = 5_000_000
# A recorder ends in its own turn, which is an event. To take its programs out of the kernel lasts longer.
END_NS = 50_000_000
TURNS_NS = 30_000_000
# What the probe counts, and what its events say by the definitions alone.
RECOUNTED = (
    *("run_ns", "ready_ns", "costop_ns", "preemptions_kernel", "ple", "ple_chains", "yields_asked", "yields_granted"),
    *("ipis_sent", "ipis_preempted", "ipi_wait_ns"),
)
# What the recording is made of, and what the probe counts; both are of the same time.
SAME = (
    *("run_ns", "ready_ns", "costop_ns", "switches", "migrations", "preemptions", "preemptions_kernel", "halts"),
    *("ple", "ple_kernel", "ple_chains", "yields_asked", "yields_granted"),
    *("ipis_sent", "ipis_preempted", "ipi_wait_ns"),
)


def kernel_says(bench: Bench, pid: int) -> dict[int, tuple[int, int, int]]:
    """Return by thread what the kernel has counted by itself: time that it ran and was ready, and turns."""
    text = bench.host.check(f"cd /proc/{pid}/task && grep -s . */schedstat || true")
    lines = [line.split(":") for line in text.splitlines()]
    figures = {int(name.split("/")[0]): tuple(map(int, rest.split())) for name, rest in lines}
    return {tid: (run_ns, ready_ns, turns) for tid, (run_ns, ready_ns, turns) in figures.items()}


def recorded(bench: Bench, name: str, seconds: float, to: Path) -> tuple[Recording, dict[int, list[int]]]:
    """Record while the VM goes on for so long; it is stopped before and after. Return also what the kernel says."""
    host, pid = bench.host, bench.place.guests[name].pid()
    with recorder(host, "cohort record", to) as job:
        host.check(f"kill -STOP {pid}; sleep 1")
        try:
            before = kernel_says(bench, pid)
            host.check(f"kill -CONT {pid}; sleep {seconds}; kill -STOP {pid}; sleep 1")
            after = kernel_says(bench, pid)
            job.signal(signal.SIGTERM)
            bench.until(lambda: job.wait(0) is not None, "the recorder ends", PATIENCE_S)
        finally:
            host.check(f"kill -CONT {pid}")
    # A VMM's helper threads come and go; its vCPUs stay.
    stayed = before.keys() & after.keys()
    grown = {tid: [now - then for now, then in zip(after[tid], before[tid], strict=True)] for tid in stayed}
    return load(to), grown


Span = tuple[str, int, int]


def spans(events: list[dict[str, Any]]) -> list[Span]:
    """Return what a vCPU did, by the event that began it, and from when to when; at last it sleeps, for long."""
    doing, since_ns = "blocked", 0
    found: list[Span] = []
    for event in events:
        if event["kind"] in ("run", "preempted", "woken", "halted", "blocked"):
            found.append((doing, since_ns, event["time_ns"]))
            doing, since_ns = event["kind"], event["time_ns"]
    return [*found, (doing, since_ns, events[-1]["time_ns"] + 3_600_000_000_000)]


def ran_and_ready(found: list[Span]) -> tuple[int, int]:
    """Return how long a vCPU ran and was ready in these."""
    ran_ns = sum(end - start for kind, start, end in found if kind == "run")
    return ran_ns, sum(end - start for kind, start, end in found if kind in ("preempted", "woken"))


def between_stops(events: list[dict[str, Any]]) -> tuple[int, int]:
    """Return how long a vCPU ran and was ready between its two longest sleeps, in which its process was stopped."""
    found = spans(events)
    asleep = sorted((end - start, start, end) for kind, start, end in found if kind in ("halted", "blocked"))
    (_, _, first), (_, last, _) = sorted(asleep[-2:], key=lambda sleep: sleep[1])
    return ran_and_ready([(kind, start, end) for kind, start, end in found if first <= start and end <= last])


def recounted(recording: Recording, events: list[dict[str, Any]]) -> None:
    """Count the events anew, and compare that with what the probe has counted and the import has found."""
    counted = {vm["name"]: vm for vm in recording.about["end"]["counted"]["vms"]}
    recount = Recount(events, recording.length_ns)
    for number, (name, vm) in enumerate(
        zip(recording.about["names"], recording.figures().about["figures"]["vms"], strict=True)
    ):
        got = {counter: counted[name]["total"][counter] for counter in RECOUNTED}
        wanted = {counter: recount.totals[number][counter] for counter in RECOUNTED}
        more = [counted[name]["ple_chain_max"], vm["distances"], vm["distances_far"]]
        again = [recount.chain_max[number], *recount.distances.get(number, (0, 0))]
        skew = [counted[name]["skew_ns"], recount.skew_ns[number]]
        print(f"{name}: counted {got}, recounted {wanted}; longest chain, distances {more}, recounted {again}; {skew=}")
        # A VM that idles has a few ms of everything; what either misses at an end may be as much.
        slack = {counter: NS_SLACK if counter.endswith("_ns") else 1 for counter in wanted}
        assert got == {
            counter: pytest.approx(value, rel=EXACT, abs=slack[counter]) for counter, value in wanted.items()
        }
        assert more == [pytest.approx(value, rel=EXACT, abs=1) for value in again]
        # A difference of sums that are a hundred times as large: what either misses at an end is all in it.
        assert skew[0] == pytest.approx(skew[1], rel=EXACT, abs=NS_SLACK)
        if name == "work":
            assert min(wanted.values()) > 0
            assert vm["distances"] > 100


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
    stacked_ns = {vm["name"]: vm["stacked_ns"] for vm in about["end"]["counted"]["vms"]}
    for vm in figures["vms"]:
        got = {name: vm[name] for name in SAME} | {"stacked_ns": vm["stacked_ns"]}
        wanted = {name: counted[vm["name"]][name] for name in SAME} | {"stacked_ns": stacked_ns[vm["name"]]}
        print(vm["name"], got, wanted, sep="\n")
        # At either end a vCPU may be in the middle of something. An interrupt that only one of the two has seen waited
        # for up to some turns.
        unseen = abs(got["ipis_preempted"] - wanted["ipis_preempted"])
        slack = dict.fromkeys(SAME, 2) | {name: NS_SLACK for name in wanted if name.endswith("_ns")}
        slack["ipi_wait_ns"] += unseen * TURNS_NS
        assert got == {name: pytest.approx(value, rel=EXACT, abs=slack[name]) for name, value in wanted.items()}
    events = recording.events.to_pylist()
    assert recording.length_ns - max(event["time_ns"] for event in events) < END_NS
    recounted(recording, events)
    # The kernel's own books, of the time between the two stops: the recording is cut there.
    index = about["names"].index("work")
    for vcpu, row in enumerate(about["end"]["vms"][index]["vcpus"]):
        ran_ns, ready_ns, turns = kernel[row["tid"]]
        own = [event for event in events if (event["vm"], event["vcpu"]) == (index, vcpu)]
        got = between_stops(own)
        print(f"vCPU {vcpu}: recorded {got}, kernel {ran_ns, ready_ns, turns}")
        assert got[0] == pytest.approx(ran_ns, rel=EXACT, abs=2e6)
        assert got[1] == pytest.approx(ready_ns, rel=EXACT, abs=20e6)

    folder = tmp_path / "imported"
    done = CliRunner().invoke(import_recording, [str(recording.path), "--out", str(folder), "--hardware", "lab"])
    assert done.exit_code == 0, done.output
    assert (folder / "trace.perfetto").stat().st_size > 10_000
    found = advise(scenarios.load(folder / "recorded.toml"), "eevdf,cohort", 2)
    print(*found.sentences(), sep="\n")
    assert found.slowdown("cohort", "work") > 1


def vcpu_threads(bench: Bench) -> dict[str, list[int]]:
    """Return the vCPUs' threads by VM, as the probe knows them."""
    probe = ProbeRun.start(bench.host, "/tmp", name="threads")
    try:
        sample = probe.sample_in(bench.host.channel.call({"ping": {}}, [probe.socket]).after)
    finally:
        probe.stop()
    assert sample is not None, "the probe answers"
    return {vm["name"]: [vcpu["tid"] for vcpu in vm["vcpus"]] for vm in sample["vms"]}


@contextmanager
def one_queue(bench: Bench, others: tuple[str, ...], far_priority: int = 10) -> Iterator[tuple[Cgroups, int]]:
    """Let a vCPU of "work" wait on pCPU 0 with all of these VMs', in turns of 12 ms; its sibling has pCPU 1.

    Yield its thread. With a priority below the others' 10 it has no turn at all.
    """
    host = bench.host
    with Cgroups(bench) as ground:
        ground.busy("work", *others)
        threads = vcpu_threads(bench)
        near, far = threads["work"]
        ground.callback(host.check, f"echo {host.read(RR_MS).strip()} >{RR_MS}")
        host.check(f"echo 12 >{RR_MS}; taskset -c -p 1 {near}")
        ground.callback(host.check, f"taskset -c -p {ground.everywhere} {near}")
        for tid in (far, *(tid for name in others for tid in threads[name])):
            ground.callback(host.check, f"chrt -o -p 0 {tid}; taskset -c -p {ground.everywhere} {tid}")
            priority = far_priority if tid == far else 10
            host.check(f"taskset -c -p 0 {tid}; chrt -r -p {priority} {tid}")
        yield ground, far


def distances(
    bench: Bench, seconds: int, to: Path, meanwhile: str = ":", *, alone: Cgroups | None = None
) -> tuple[int, int]:
    """Record for so long, while the host runs a command: return how often "work" was looked at, and found far apart.

    ``alone``: the other VMs' idle vCPUs have no turns there, in the twentieth of the time that is theirs. Not before it
    records: what loads the recorder's programs may need a turn on that pCPU.
    """
    with recorder(bench.host, f"nice -n -20 cohort record --seconds {seconds}", to):
        if alone is not None:
            real_time_without_limit(alone)
        bench.host.check(meanwhile)
    recording = load(to)
    (vm,) = (vm for vm in recording.figures().about["figures"]["vms"] if vm["name"] == "work")
    print(vm["distances"], vm["distances_far"])
    return vm["distances"], vm["distances_far"]


@pytest.mark.long
def test_how_far_siblings_are_from_each_other_in_a_queue_of_five(bench: Bench, tmp_path: Path) -> None:
    # They have turns one after the other: for a fifth of the time the one is four turns from its own. Looks are 10 ms
    # apart, and come at each 2 ms of five turns as often.
    with one_queue(bench, ("pv", "hyper")):
        looks, far = distances(bench, 30, tmp_path / "far.rec")
    assert looks > 1000
    # Nearer than that no queue of the lab's host is to round robin: its other threads have turns as well, now and then.
    assert far / looks == pytest.approx(0.2, abs=0.04)


@pytest.mark.long
def test_in_a_queue_of_three_nobody_is_far(bench: Bench, tmp_path: Path) -> None:
    with one_queue(bench, ("hyper",)) as (ground, _):
        looks, far = distances(bench, 10, tmp_path / "far.rec", alone=ground)
    assert looks > 300
    assert far <= EXACT * looks


@pytest.mark.long
def test_who_has_no_turn_while_others_have_many_is_far(bench: Bench, tmp_path: Path) -> None:
    with one_queue(bench, ("pv", "hyper"), far_priority=9) as (ground, tid):
        # How far is known when its turn comes: for a moment, 8 s after all is set up, and never again. By then, and for
        # a while after that, it records.
        turn = f"sleep 8; chrt -r -p 11 {tid}; sleep 0.03; chrt -r -p 9 {tid}"
        looks, far = distances(bench, 20, tmp_path / "far.rec", turn, alone=ground)
    assert looks > 300
    assert far >= (1 - EXACT) * looks


@pytest.mark.long
def test_a_ring_that_is_too_small_says_what_it_lost(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "small.rec"
    with Cgroups(bench) as ground:
        ground.busy("pv")
        with recorder(bench.host, "cohort record --ring-kb 4 --max-size 1", file) as job:
            # Nobody empties the ring buffer meanwhile. A stopped recorder is as good as one that is too slow.
            job.signal(signal.SIGSTOP)
            work = bench.place.guests["work"].machine.run("hackbench -g 2 -l 1000 -f 5", 300)
            assert work.rc == 0
            job.signal(signal.SIGCONT)
            job.signal(signal.SIGTERM)
    recording = load(file)
    told = job.output("stderr")[0]
    print(told, recording.about["counts"])
    dropped = recording.about["end"]["dropped"]
    assert dropped > 100
    assert f"{dropped} lost" in told
    # What is there is read as it is: nobody runs twice, times add up.
    for vm in recording.figures().about["figures"]["vms"]:
        for vcpu in vm["vcpus"]:
            assert vcpu["run_ns"] + vcpu["ready_ns"] <= recording.length_ns
