# SPDX-License-Identifier: GPL-2.0-only
"""What a sweep costs beside its simulations, and that it gives the same file on any number of workers.

    build/venv/bin/python bench/sweep.py RUNS [WORKERS...]

Prints the runs per second of a bare loop over the simulator, of `cohortlab sweep` on one thread, and of --dask on so
many workers in turn, one of which is killed half-way and replaced; and the CPU time per run, of workers too.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from alone import number, refuse

from cohortlab.native import native
from cohortlab.sweep import axes, plan

SCENARIO = """
name = "short"
[host]
pcpus = 2
[[vm]]
name = "work"
vcpus = 2
memory_mb = 256
programs = ["short"]
[[vm]]
name = "hog"
vcpus = 2
memory_mb = 256
load = "cpu-hog"
"""
MODEL = """
name = "short"
[[thread]]
name = "t"
count = 2
times = 20
steps = [{ compute = { exp = "1ms" } }, { kernel = "5us" }, { shootdown = { pages = 4 } }]
"""


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measured(what: str, runs: int, do: Callable[[], None]) -> None:
    began_s, used_s = time.monotonic(), cpu_s()
    do()
    took_s, used_s = time.monotonic() - began_s, cpu_s() - used_s
    print(f"{what}: {runs / took_s:.1f} runs/s, {used_s / runs * 1e3:.3f} ms of CPU time per run", flush=True)


def bare(folder: Path, values: list[str], runs: int) -> None:
    planned = plan.make(folder / "short.toml", axes.of_options(values, None))
    texts = [json.dumps(planned.run(planned.values(number)).as_dict(), sort_keys=True) for number in range(runs)]
    module = native()
    measured("bare loop, 1 thread", runs, lambda: [module.run(text) for text in texts] and None)


def spawn(folder: Path, *args: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", *map(str, args)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finish(sweep: subprocess.Popen[bytes], where: str) -> None:
    if sweep.wait() != 0:
        raise SystemExit(f"the sweep {where} failed")


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):
        process.terminate()
        process.wait()


def on_dask(folder: Path, sweep: list[str], workers: int, runs: int) -> None:
    file = folder / f"scheduler-{workers}.json"
    where = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file)
    processes = [spawn(folder, "distributed.cli.dask_scheduler", *where)]
    worker = (
        "distributed.cli.dask_worker",
        "--scheduler-file",
        file,
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    )
    parts = folder / f"dask-{workers}" / "parts"

    def run() -> None:
        address = json.loads(file.read_text())["address"]
        going = spawn(folder, "cohortlab", *sweep, "--out", parts.parent, "--dask", address)
        while going.poll() is None and len(list(parts.glob("*.parquet"))) < runs // 16 // 2:
            time.sleep(0.2)
        processes[1].kill()
        processes[1].wait()
        processes.append(spawn(folder, *worker))
        finish(going, f"on {workers} workers")
        # The CPU time of those that have ended is counted.
        end(processes)

    try:
        while not file.exists():
            if processes[0].poll() is not None:
                raise SystemExit("Dask's scheduler ended")
            time.sleep(0.1)
        processes += [spawn(folder, *worker) for _ in range(workers)]
        measured(f"{workers} Dask workers, one killed half-way", runs, run)
    finally:
        end(processes)


def main() -> None:
    if len(sys.argv) < 2:
        refuse("RUNS is missing: must be RUNS [WORKERS...]")
    runs, workers = number(sys.argv[1], "RUNS"), [number(text, "WORKERS") for text in sys.argv[2:]]
    if runs % 2:
        # Each seed is one of two policies'.
        refuse(f"RUNS: {runs} is not allowed: must be even")
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    try:
        models = folder / "workloads" / "models"
        models.mkdir(parents=True)
        (models / "short.toml").write_text(MODEL)
        (folder / "short.toml").write_text(SCENARIO)
        values = ["policy=eevdf,cohort", f"seed=1..{runs // 2}"]
        bare(folder, values, runs)
        sweep = ["sweep", "short.toml", *(word for text in values for word in ("--axis", text))]
        local = [*sweep, "--workers", "1", "--out", str(folder / "local")]
        measured("sweep, 1 thread", runs, lambda: finish(spawn(folder, "cohortlab", *local), "on one thread"))
        for count in workers:
            on_dask(folder, sweep, count, runs)
        files = [(folder / "local").joinpath("sweep.parquet"), *folder.glob("dask-*/sweep.parquet")]
        same = len({path.read_bytes() for path in files}) == 1
        print(f"{len(files)} files, {'all the same' if same else 'NOT THE SAME'}, on {os.cpu_count()} CPUs")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
