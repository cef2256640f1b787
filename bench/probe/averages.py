# SPDX-License-Identifier: GPL-2.0-only
"""What the lab's kernel balances by, and what it then moves: averages of its queues, threads' times, migrations.

    build/venv/bin/python bench/probe/averages.py FOLDER     four minutes

VMs of 2 vCPUs on 2 pCPUs, as bench/probe/stays.py has them, under EEVDF with both ways to divide a cgroup's weight.
Prints Markdown tables: for each way and program what cut a look for work short (medians of samples, a value for each
pCPU) and by whom threads were moved in ten seconds; and for how long each thread ran and waited in ten seconds, the
host's own threads too. FOLDER, which is made, gets what these are from: samples of /sys/kernel/debug/sched/debug,
migrations with their stacks, /proc/schedstat before and after, the host's features and caches.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import queues

from cohortlab.lab.agent import Machine
from cohortlab.lab.place import LabPlace
from cohortlab.policies import KERNEL

PROGRAMS = ("pbzip2", "hackbench", "cpu-hog")
MODES = ("concur", "smp")
# Threads' times are read under this one: what the host's own threads do is the same under both.
TIMED = "concur"
WATCHED_S = 10
PATIENCE_S = 300
DEBUG = "/sys/kernel/debug/sched/debug"
QUEUES = r"cfs_rq\[|runnable_avg|tg_load_avg|se->load.weight|h_nr_runnable|  \.load  "
SAMPLES = (
    "for i in $(seq 40); do"
    " echo \"== $(cut -d' ' -f1 /proc/uptime)\";"
    f" grep -A60 machine.slice {DEBUG} | grep -E '{QUEUES}';"
    f" grep -E 'avg_idle|max_idle' {DEBUG}; sleep 0.2; done"
)
THREADS = (
    "for d in /proc/[0-9]*/task/[0-9]*; do read r w n <$d/schedstat;"
    " echo \"$d $(cat $d/comm | tr ' ' _) $r $w $n\"; done 2>/dev/null"
)
ABOUT = (
    "cat /sys/devices/system/cpu/cpu*/cache/index*/level /sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list"
    " || true; cat /sys/kernel/debug/sched/features"
)
TRACING = "/sys/kernel/tracing"
MIGRATIONS = f"{TRACING}/events/sched/sched_migrate_task"
# Who moves a thread, by the function that its stack has; the first that fits.
MOVERS = {
    "going idle": "sched_balance_newidle",
    "stopper": "migration_cpu_stop",
    "balancing": "sched_balance_domains",
    "waking up": "try_to_wake_up",
}
# A thread's name and folder in /proc; for how long it ran and waited so far, ns, and how often it was given a pCPU.
Times = dict[tuple[str, str], tuple[int, int, int]]


def threads(host: Machine) -> Times:
    found: Times = {}
    for line in host.check(THREADS, PATIENCE_S).splitlines():
        words = line.split()
        # One that ends meanwhile has fewer.
        if len(words) == 5:
            run_ns, wait_ns, turns = map(int, words[2:])
            found[words[1], words[0]] = run_ns, wait_ns, turns
    return found


def timed(host: Machine, case: str) -> Iterator[str]:
    """Yield rows of the threads that had a turn in the next ten seconds, and in what it takes to read them."""
    before, begin_s = threads(host), time.monotonic()
    time.sleep(WATCHED_S)
    after, took_s = threads(host), time.monotonic() - begin_s
    for thread, now in after.items():
        run_ns, wait_ns, turns = (new - old for new, old in zip(now, before.get(thread, (0, 0, 0)), strict=True))
        if turns:
            times = f"{run_ns / 1e6:.2f} | {wait_ns / 1e6:.1f} | {turns}"
            yield f"| {case} | {took_s:.1f} | {thread[0]} | {thread[1]} | {times} |"


def traced(host: Machine) -> str:
    """Return the migrations of the next ten seconds, with the stack of each."""
    host.check(
        f"echo >{TRACING}/trace; echo stacktrace >{MIGRATIONS}/trigger;"
        f" echo 1 >{MIGRATIONS}/enable; echo 1 >{TRACING}/tracing_on"
    )
    time.sleep(WATCHED_S)
    host.check(f"echo 0 >{MIGRATIONS}/enable; echo '!stacktrace' >{MIGRATIONS}/trigger")
    return host.check(f"cat {TRACING}/trace")


def movers(trace: str) -> Counter[tuple[bool, str]]:
    """Return how often whom moved a thread, VMs' (True) and others apart."""
    counted: Counter[tuple[bool, str]] = Counter()
    for moved in trace.split("sched_migrate_task: ")[1:]:
        stack = set(re.findall(r"^ => (\w+)", moved, re.MULTILINE))
        by = next((name for name, function in MOVERS.items() if function in stack), "others")
        counted[moved.startswith("comm=qemu"), by] += 1
    return counted


def medians_ms(samples: str, name: str) -> str:
    """Return the median of what each pCPU has of ``name``, in the samples' order."""
    each = [re.findall(rf"^  \.{name} +: (\d+)", sample, re.MULTILINE) for sample in samples.split("== ")[1:]]
    return ", ".join(f"{median(map(int, of_pcpu)) / 1e6:.2f}" for of_pcpu in zip(*each, strict=True))


def of_case(mode: str, program: str, samples: str, trace: str) -> str:
    moved = movers(trace)
    counts = [f"{moved[True, by]}, {moved[False, by]}" for by in (*MOVERS, "others")]
    limits = [medians_ms(samples, name) for name in ("avg_idle", "max_idle_balance_cost")]
    return f"| {mode} | {program} | {' | '.join([*limits, *counts])} |"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cases: list[str] = []
    times: list[str] = []
    of = queues.scenario(2, 2, PROGRAMS, "7.3")
    with LabPlace(of, probe=False, progress=lambda text, _: print(text, file=sys.stderr)) as place:
        host = place.host
        (folder / "host.txt").write_text(host.check(ABOUT, PATIENCE_S))
        host.check("sysctl -w kernel.sched_schedstats=1")
        with place.policy(KERNEL):
            time.sleep(queues.SETTLE_S)
            times += timed(host, "idle guests")
        for mode in MODES:
            for program in PROGRAMS:
                print(f"{mode}: {program}", file=sys.stderr)
                with place.policy(KERNEL, ("--cgroup-mode", mode)), queues.busy(place, program):
                    samples = host.check(SAMPLES, PATIENCE_S)
                    if mode == TIMED:
                        times += timed(host, program)
                    before = host.check("cat /proc/schedstat")
                    trace = traced(host)
                    after = host.check("cat /proc/schedstat")
                (folder / f"averages-{mode}-{program}.txt").write_text(samples)
                (folder / f"migrations-{mode}-{program}.txt").write_text(trace)
                (folder / f"schedstat-{mode}-{program}.txt").write_text(f"{before}\n{after}")
                cases.append(of_case(mode, program, samples, trace))
    heads = ("idle on average, ms", "greatest cost of a look, ms", *MOVERS, "others")
    print("Moves: vCPUs' and other threads of VMs, the host's own.\n")
    print(f"| cgroup mode | program | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    print("\n".join(cases))
    print(f"\n| case | s | thread | its folder | ran, ms | waited, ms | turns |\n|{'---|' * 7}")
    print("\n".join(times))


if __name__ == "__main__":
    if len(sys.argv) != 2 or (Path(sys.argv[1]).exists() and not Path(sys.argv[1]).is_dir()):
        print(f"{sys.argv[0]}: {' '.join(sys.argv[1:])!r} is not allowed: must be a folder", file=sys.stderr)
        sys.exit(2)
    main(Path(sys.argv[1]))
