# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps: the same file whoever simulated, in whatever order, and however often it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.python.two_vms import QUICK, with_quick

from cohortlab.errors import BadInput
from cohortlab.sweep import axes, chunks, local, plan
from cohortlab.sweep.axes import Axis

Run = Callable[..., Any]
AXES = ("policy=eevdf,vtime", "scenario.vm.hog.weight=50,200", "seed=1..5")
POINTS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return with_quick(tmp_path)


def made(path: Path, *texts: str) -> plan.Plan:
    return plan.make(path, axes.of_options(texts, None))


def options(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--axis", text)]


def test_every_combination_is_a_point(path: Path) -> None:
    planned = made(path, *AXES)
    assert planned.points == POINTS
    points = [planned.point(number) for number in range(POINTS)]
    assert [point.values for point in points[:6]] == [
        *(("eevdf", 50, seed) for seed in range(1, 6)),
        ("eevdf", 200, 1),
    ]
    assert len({point.name for point in points}) == POINTS
    last = points[-1].run
    assert (last.policy, last.seed, last.scenario.vms[1].weight) == ("vtime", 5, 200)
    assert last.running == {"work": "quick", "hog": "cpu-hog"}


def test_a_points_name_is_its_content(path: Path) -> None:
    planned = made(path, *AXES)
    # The same run in another sweep has another number, and the same name.
    other = made(path, "seed=3", "policy=vtime,eevdf", "scenario.vm[1].weight=200")
    assert other.point(0).name == planned.point(17).name
    assert other.key != planned.key
    model = path.parent / "workloads" / "models" / "quick.toml"
    model.write_text(QUICK.replace("times = 10", "times = 11"))
    assert made(path, *AXES).point(17).name != planned.point(17).name


def test_any_field_of_any_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "workloads" / "quick.toml").write_text(
        'name = "quick"\ntitle = "Q"\ntimeout_s = 9\n[metric]\nkind = "elapsed"\n'
    )
    planned = made(
        path,
        "hardware.kvm.ple.mode=off,any",
        "model.quick.thread.t.count=3",
        "model.quick.thread[0].steps[0].compute='5us'",
        "workload.quick.timeout_s=7",
        "policy.slice-us=2000",
        "scenario.vm.work.vcpu_affinity=[0,1]",
        "scenario.guest.tlb=kvm-pv",
        "kernel=6.12",
        "alone=true",
    )
    point = planned.point(1).run
    described = point.as_dict()
    vm = described["vms"][0]
    assert (vm["kvm"]["ple"]["mode"], vm["vcpu_cpus"], vm["guest"]["tlb"]) == ("any", [[0], [1]], "kvm-pv")
    thread = vm["workload"]["program"]["thread"][0]
    assert (thread["count"], thread["steps"]) == (3, [{"compute": "5us"}])
    assert described["policy"]["knobs"]["slice_ns"] == 2_000_000
    assert (point.kernel, point.running) == ("6.12", {"work": "quick"})
    assert point.scenario.workloads["quick"].timeout_s == 7


def test_a_program_of_the_project_and_hardware_by_name(path: Path) -> None:
    planned = made(path, "program=quick,ep", "hardware=lab,server", "model.ep.thread.worker.steps[0].repeat.times=1")
    run = planned.point(3).run
    assert (run.running["work"], run.hardware.name) == ("ep", "server")
    for number in (0, 3):
        assert chunks.simulate_point(planned, number)[0]["value"] > 0


def test_axes_from_a_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "axes.toml").write_text('[axes]\nseed = { from = 3, to = 5 }\npolicy = ["vtime --slice-us 4000"]\n')
    found = axes.of_options(["alone=true,false"], tmp_path / "axes.toml")
    assert found == (Axis("seed", (3, 4, 5)), Axis("policy", ("vtime --slice-us 4000",)), Axis("alone", (True, False)))
    assert plan.make(path, found).point(0).run.args == ("--slice-us", "4000")


def test_one_file_for_any_number_of_workers_and_shards(cohortlab: Run, path: Path) -> None:
    files = []
    for number, more in enumerate((["--workers", 1], ["--workers", 3], ["--chunk", 3])):
        out = Path(f"out{number}")
        ran = cohortlab("sweep", path, *options(*AXES), *more, "--out", out)
        assert ran.code == 0, ran.err
        assert f"{POINTS} of {POINTS} runs" in ran.err
        files.append((out / "sweep.parquet").read_bytes())
    for shard in ("2/3", "1/3", "3/3"):
        ran = cohortlab("sweep", path, *options(*AXES), "--chunk", 4, "--shard", shard, "--out", "shards")
        assert ran.code == 0, ran.err
        assert Path("shards/sweep.parquet").exists() == (shard == "3/3")
    files.append(Path("shards/sweep.parquet").read_bytes())
    assert files[1:] == files[:1] * 3
    table = pq.read_table("out0/sweep.parquet")
    assert table["point"].to_pylist() == list(range(POINTS))
    assert table["axis scenario.vm.hog.weight"].to_pylist()[:6] == [50] * 5 + [200]
    assert all(value > 0 for value in table["value"].to_pylist())
    assert list(Path("out0").rglob("*.parquet")) == [Path("out0/sweep.parquet")]


def test_what_was_done_is_not_done_again(cohortlab: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("sweep", path, *options(*AXES), "--chunk", 4, "--workers", 1, "--out", "out")
    real, simulated = chunks.simulate, []

    def stop_at_the_third(planned: plan.Plan, chunk: int, *more: Any) -> Any:
        if len(simulated) == 2:
            raise KeyboardInterrupt
        simulated.append(chunk)
        return real(planned, chunk, *more)

    monkeypatch.setattr(chunks, "simulate", stop_at_the_third)
    ran = cohortlab(*args)
    assert ran.code == 130
    assert "interrupted: the same command goes on from here" in ran.err
    kept = sorted(int(file.stem) for file in Path("out/parts").iterdir())
    assert kept == simulated[: len(kept)]
    assert not Path("out/sweep.parquet").exists()
    monkeypatch.setattr(chunks, "simulate", lambda *of: simulated.append(of[1]) or real(*of))
    assert cohortlab(*args).code == 0
    assert sorted(set(simulated)) == [0, 1, 2, 3, 4]
    assert len(simulated) == 5 + 2 - len(kept)
    whole = Path("out/sweep.parquet").read_bytes()
    simulated.clear()
    assert cohortlab(*args).code == 0
    assert (simulated, Path("out/sweep.parquet").read_bytes()) == ([], whole)


def test_what_another_sweep_has_is_not_simulated(cohortlab: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cohortlab("sweep", path, *options("policy=eevdf,vtime", "seed=1..2"), "--out", "first").code == 0
    more = ("sweep", path, *options("seed=1..3", "policy=vtime,eevdf"), "--chunk", 2, "--workers", 1)
    assert cohortlab(*more, "--out", "anew").code == 0
    real, simulated = chunks.Result.of_dict, []

    def counted(run: Any, described: dict[str, Any], *more: Any) -> Any:
        # Not those that are only begun, to find what is wrong.
        if "events_max" not in described:
            simulated.append((run.policy, run.seed))
        return real(run, described, *more)

    monkeypatch.setattr(chunks.Result, "of_dict", counted)
    ran = cohortlab(*more, "--known", "first/sweep.parquet", "--out", "more")
    assert ran.code == 0, ran.err
    assert simulated == [("vtime", 3), ("eevdf", 3)]
    assert Path("more/sweep.parquet").read_bytes() == Path("anew/sweep.parquet").read_bytes()
    # What is sent to a worker elsewhere is what it needs.
    known, planned = chunks.read_known([Path("first/sweep.parquet")]), made(path, "seed=1..3", "policy=vtime,eevdf")
    assert [len(chunks.known_of(planned, chunk, 2, known)) for chunk in range(3)] == [2, 2, 0]
    # Another program is another run.
    model = path.parent / "workloads" / "models" / "quick.toml"
    model.write_text(QUICK.replace("times = 10", "times = 11"))
    simulated.clear()
    assert cohortlab(*more, "--known", "first/sweep.parquet", "--out", "other").code == 0
    assert len(simulated) == 6


def test_a_point_that_failed_is_simulated_again(cohortlab: Run, path: Path, tmp_path: Path) -> None:
    (tmp_path / "workloads" / "quick.toml").write_text(
        'name = "quick"\ntitle = "Q"\ntimeout_s = 1\n[metric]\nkind = "elapsed"\n'
    )
    axis = options("model.quick.thread.t.times=10,5000")
    assert cohortlab("sweep", path, *axis, "--out", "first").code == 1
    assert len(chunks.read_known([Path("first/sweep.parquet")])) == 1
    # A shard that is asked again, and has nothing left to do, knows its own.
    for shard, code in (("1/2", 0), ("2/2", 1), ("2/2", 1)):
        args = (*axis, "--chunk", 1, "--out", "shards", "--shard", shard)
        if shard == "2/2":
            (Path("shards") / "parts" / "00000000.parquet").unlink(missing_ok=True)
        assert cohortlab("sweep", path, *args).code == code


def test_points_that_are_the_same_run_are_known_once(cohortlab: Run, path: Path) -> None:
    # The version is nothing to a policy of ours, nor to KVM and the guests, between these two.
    args = ("sweep", path, *options("kernel=6.6,6.9", "policy=vtime"))
    assert cohortlab(*args, "--out", "first").code == 0
    assert len(set(pq.read_table("first/sweep.parquet")["name"].to_pylist())) == 1
    assert cohortlab(*args, "--known", "first/sweep.parquet", "--out", "again").code == 0
    assert Path("again/sweep.parquet").read_bytes() == Path("first/sweep.parquet").read_bytes()


def test_shards_that_end_together_make_one_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = made(path, "seed=1..2")

    def shards(name: str) -> list[chunks.Store]:
        stores = [chunks.Store(tmp_path / name, planned, 1) for _ in range(2)]
        stores[0].open()
        for chunk in range(2):
            stores[0].keep(chunk, chunks.simulate(planned, chunk, 1))
        return stores

    whole = shards("in turn")[0].finish().read_bytes()
    # The other one makes the file while this one looks for what is missing ...
    here, there = shards("looks")
    exists = Path.exists
    busy = [there]

    def ends_meanwhile(self: Path) -> bool:
        before = exists(self)
        if self == here.file and busy:
            busy.pop().finish()
        return before

    monkeypatch.setattr(Path, "exists", ends_meanwhile)
    assert here.missing() == []
    monkeypatch.undo()
    assert here.finish().read_bytes() == whole
    # ... and while it reads the parts.
    here, there = shards("reads")
    read = pq.read_table
    busy.append(there)

    def read_meanwhile(*args: Any, **more: Any) -> Any:
        if busy:
            busy.pop().finish()
        return read(*args, **more)

    monkeypatch.setattr(pq, "read_table", read_meanwhile)
    assert here.finish().read_bytes() == whole
    assert list(here.folder.rglob("*.parquet")) == [here.file]
    # A part that is lost otherwise is an error.
    here, _ = shards("lost")
    (here.folder / "parts" / "00000001.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        here.finish()


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read: "), (b"PAR1", "is not allowed: must be a sweep.parquet")]
)
def test_a_known_file_that_is_none(cohortlab: Run, path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        Path("known").write_bytes(content)
    ran = cohortlab("sweep", path, "--axis", "seed=1", "--known", "known", "--out", "out")
    assert (ran.code, ran.err.count("\n"), Path("out").exists()) == (2, 1, False), ran.err
    assert f"--known: known: {said}" in ran.err


def test_a_run_that_fails_is_a_row_that_says_why(cohortlab: Run, path: Path, tmp_path: Path) -> None:
    (tmp_path / "workloads" / "quick.toml").write_text(
        'name = "quick"\ntitle = "Q"\ntimeout_s = 9\n[metric]\nkind = "elapsed"\n'
    )
    # Alone each of them is possible; a VM of 4 vCPUs with 256 MB is not one of 8.
    args = ("model.quick.thread.t.times=10,5000", "workload.quick.timeout_s=1,60")
    ran = cohortlab("sweep", path, *options(*args), "--out", "out")
    assert ran.code == 1
    assert "1 of 4 runs failed: see the column error" in ran.err
    errors = pq.read_table("out/sweep.parquet")["error"].to_pylist()
    assert [error is None for error in errors] == [True, True, False, True]
    assert errors[2] == "quick in work did not end in 1 s"


def test_values_that_do_not_go_together_are_a_row_as_well(path: Path) -> None:
    planned = made(path, "scenario.vm.work.vcpus=2,4", "scenario.vm.work.memory_mb=256,192")
    rows = chunks.simulate_point(planned, 3)
    assert [row["error"].split(": ")[1] for row in rows] == ["vm[0].vcpus"]


WRONG = {
    "no field": ("speed=1", "--axis: speed: is not a field: must be one of policy, seed, program,"),
    "no values": ("seed", '--axis: "seed" is not allowed: must be FIELD=VALUES, as in "seed=1..10"'),
    "an empty range": ("seed=5..1", '--axis: seed: "5..1" is not allowed: must be A..B with A <= B'),
    "a range of too many": ("seed=1..1000001", "must be A..B with A <= B, and 1000000 of them at most"),
    "a seed that is no number": ("seed=a", '--axis: seed: "a" is not allowed: must be a whole number'),
    "a negative seed": ("seed=-1", "--axis: seed: has a seed that is not allowed"),
    "a range of many digits": (f"seed=1..{'9' * 4400}", '"1..999999'),
    "a number of many digits": (f"seed={'9' * 4400}", "is not allowed: must be numbers of at most 19 digits"),
    "a VM of many digits": (f"scenario.vm[{'9' * 4400}].weight=1", 'weight" is no field'),
    "alone, perhaps": ("alone=perhaps", '--axis: alone: "perhaps" is not allowed: must be true or false'),
    "no such VM": (
        "scenario.vm.x.weight=1",
        'scenario.vm.x.weight: "vm.x.weight" is no field: must have one of work, hog in place of "x"',
    ),
    "too few VMs": ("scenario.vm[2].weight=1", "is no field: must have a number from 0 to 1 in place of 2"),
    "a value of the scenario": ("scenario.vm.hog.weight=0", "scenario.vm.hog.weight = 0: "),
    "a field of the scenario": ("scenario.vm.hog.wait=1", 'is not a known field: did you mean "weight"?'),
    "a policy": ("policy=vtyme", 'policy = "vtyme": policy "vtyme" is not known to the simulator'),
    "a knob": ("policy.slice-us=1", "policy.slice-us = 1: --slice-us: "),
    "a program": ("program=none", '--axis: program: "none" is not allowed: must be one of'),
    "an endless program": ("program=cpu-hog", '"cpu-hog" is not allowed: must be a workload that ends'),
    "hardware": ("hardware=none", '"none" does not exist: must be one of lab'),
    "a field of the hardware": ("hardware.mashine.x=1", "mashine: is not a known field: known are"),
    "a table of the hardware": ("hardware.kvm.ple=off", 'kvm.ple: "off" is not allowed: must be a table'),
    "a number of the hardware": ("hardware.kvm.ple.window_cycles=-5", "hardware.kvm.ple.window_cycles = -5: "),
    "a cost of the machine": ("hardware.machine.costs.context_switch_ns=soon", "machine.costs.context_switch_ns"),
    "a number of a model": ("model.quick.thread.t.count=-1", "model.quick.thread.t.count = -1: "),
    "a time of a model": ("model.quick.thread[0].steps[0].compute='5 days'", "steps[0].compute"),
    "a kernel": ("kernel=2.4", 'kernel = "2.4": kernel "2.4" is not known to the simulator'),
    "no workload file": ("workload.quick.timeout_s=3", "workload.quick.timeout_s: no VM runs a workload of this name"),
    "no model": ("model.ep.name=x", "model.ep.name: no VM runs a program of this name that has a model's file"),
}


def test_a_wrong_value_is_found_wherever_it_stands(cohortlab: Run, path: Path) -> None:
    for text in ("model.quick.thread.t.count=1,2,-1", "hardware.kvm.ple.window_cycles=4000,-5"):
        ran = cohortlab("sweep", path, *options("seed=1..3", text), "--out", "out")
        assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_axes_are_one_line_and_code_2(cohortlab: Run, path: Path, text: str, said: str) -> None:
    ran = cohortlab("sweep", path, "--axis", text, "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert said in ran.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--shard", "3/2"], '--shard: "3/2" is not allowed: must be I/N'),
        (["--shard", "0/2"], '--shard: "0/2" is not allowed: must be I/N'),
        (["--dask", "localhost"], '--dask: "localhost" is not allowed: must be tcp://HOST:PORT of a scheduler'),
        (["--dask", "tls://a:1"], '--dask: "tls://a:1" is not allowed: must be tcp://HOST:PORT of a scheduler'),
        (["--dask", "slurm:0"], '--dask: "slurm:0" is not allowed'),
        (["--dask", "tcp://a:1", "--workers", "2"], "--workers: is not allowed with --dask"),
        (["--axis", "seed=1", "--axis", "seed=2"], '--axis: "seed" is named twice'),
        (["--axes", "absent.toml"], "absent.toml: cannot be read"),
        (["--axis", "seed=1..999999", "--axis", "scenario.host.pcpus=1..20"], "points: must be 10000000 or fewer"),
    ],
)
def test_wrong_options_are_one_line_and_code_2(cohortlab: Run, path: Path, args: list[str], said: str) -> None:
    ran = cohortlab("sweep", path, *args, "--out", "out")
    assert (ran.code, ran.out, ran.err.count("\n"), Path("out").exists()) == (2, "", 1, False), ran.err
    assert said in ran.err


def test_a_folder_has_one_sweep(cohortlab: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cohortlab("sweep", path, "--axis", "seed=1", "--out", "out").code == 0
    ran = cohortlab("sweep", path, "--axis", "seed=2", "--out", "out")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "--out: out: has another sweep, or this one with another --chunk" in ran.err
    # An upgrade between two calls is nothing that the user has got wrong: that it may be that is said.
    monkeypatch.setattr("cohortlab.sweep.plan.simulator", lambda: "another")
    ran = cohortlab("sweep", path, "--axis", "seed=1", "--out", "out")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.endswith(" or of another version: must be removed, or --out another folder\n")


@pytest.mark.parametrize("name", ["00000000 (1).parquet", "copy.parquet", "0.parquet"])
def test_a_strange_file_beside_its_parts(cohortlab: Run, path: Path, name: str) -> None:
    Path("out/parts").mkdir(parents=True)
    Path("out/parts", name).write_bytes(b"")
    ran = cohortlab("sweep", path, "--axis", "seed=1", "--out", "out")
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert f"--out: out/parts/{name}: is no part of a sweep: must be removed" in ran.err


def test_local_workers_stop_at_the_first_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise BadInput("no")

    monkeypatch.setattr(chunks, "simulate", fails)
    with pytest.raises(BadInput, match="no"):
        list(local.run(made(path, *AXES), range(5), 4, 2))


class Cluster:
    """A scheduler of Dask and workers of one thread, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int) -> None:
        file = self.folder / "scheduler.json"
        self._spawn("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", file)
        while not self.address:
            try:
                self.address = json.loads(file.read_text())["address"]
            except (OSError, ValueError):
                assert self.processes[0].poll() is None, "the scheduler ended"
                time.sleep(0.05)
        for _ in range(workers):
            self._spawn("worker", self.address, "--nthreads", "1", "--no-nanny")

    def _spawn(self, kind: str, *args: object) -> None:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *map(str, args), "--no-dashboard"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen(command, cwd=self.folder, **quiet))  # type: ignore[call-overload]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "dask").mkdir()
    made = Cluster(tmp_path / "dask")
    yield made
    made.stop()


def test_dask_gives_the_same_file_though_a_worker_is_killed(
    cohortlab: Run, path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cohortlab("sweep", path, *options(*AXES), "--out", "local").code == 0
    cluster.start(workers=2)
    real = chunks.Store.keep

    def kill_after_the_first(store: chunks.Store, chunk: int, simulated: bytes) -> None:
        real(store, chunk, simulated)
        if cluster.processes[1].poll() is None:
            os.kill(cluster.processes[1].pid, signal.SIGKILL)
            cluster.processes[1].wait()

    monkeypatch.setattr(chunks.Store, "keep", kill_after_the_first)
    ran = cohortlab("sweep", path, *options(*AXES), "--chunk", 1, "--dask", cluster.address, "--out", "dask")
    assert ran.code == 0, ran.err
    assert cluster.processes[1].returncode == -signal.SIGKILL
    assert Path("dask/sweep.parquet").read_bytes() == Path("local/sweep.parquet").read_bytes()


SBATCH = """#!/bin/sh
# What SLURM does: it takes the job's script, which is gone once this has ended, and runs it elsewhere, later.
script=$(cat "$1")
sh -c "$script" >/dev/null 2>&1 &
echo $! >>"$(dirname "$0")/jobs"
echo "Submitted batch job $!"
"""


def test_slurm_is_asked_for_workers(
    cohortlab: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask

    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in {"sbatch": SBATCH, "scancel": '#!/bin/sh\nkill "$1"\n'}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    jobs = {"cores": 1, "memory": "1GB", "processes": 1, "interface": "lo"}
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in jobs.items()}):
        ran = cohortlab("sweep", path, *options(*AXES), "--dask", "slurm:1", "--out", "slurm")
    assert ran.code == 0, ran.err
    assert (bin_folder / "jobs").read_text().count("\n") == 1
    assert cohortlab("sweep", path, *options(*AXES), "--out", "local").code == 0
    assert Path("slurm/sweep.parquet").read_bytes() == Path("local/sweep.parquet").read_bytes()
