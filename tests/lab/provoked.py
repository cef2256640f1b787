# SPDX-License-Identifier: GPL-2.0-only
"""A vCPU alone on a pCPU, and what takes that from it on purpose: so often, for so long, and nothing else does."""

from __future__ import annotations

import base64
import functools
import gzip
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ground import Cgroups, end
from probe import Probe, grown

from cohortlab.lab.agent import Job, Machine

if TYPE_CHECKING:
    from conftest import Bench

SOURCE = Path(__file__).with_name("truth.c")
TRUTH = "/tmp/truth"
# Before all but the bursts, which have 50.
PRIORITY = 40
# Before all real-time tasks of the tests, bursts included: a grace period for which the kernel waits must end.
_RCU_PRIORITY = 60
_RCU_THREADS = (
    "for task in /proc/[0-9]*; do read -r name <$task/comm && case $name in rcu_*) echo ${task#/proc/};; esac; done"
)
_CFLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s")
_RT_RUNTIME = "/proc/sys/kernel/sched_rt_runtime_us"
# That of the fair class, and since Linux 7.1 that of sched_ext.
_SERVERS = "/sys/kernel/debug/sched/*_server"
_PATIENCE_S = 60


@functools.cache
def _program() -> str:
    compiler = shutil.which("gcc") or shutil.which("clang-19")
    assert compiler, "neither gcc nor clang-19"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "truth"
        subprocess.run([compiler, *_CFLAGS, "-o", str(binary), str(SOURCE)], check=True)
        return base64.b64encode(gzip.compress(binary.read_bytes())).decode()


def put(machine: Machine) -> None:
    """Bring the program of truth.c to a machine that does not have it."""
    if machine.run(f"test -x {TRUTH}").rc:
        machine.write(f"{TRUTH}.gz64", _program())
        machine.check(f"base64 -d {TRUTH}.gz64 | gzip -d >{TRUTH} && chmod +x {TRUTH} && rm {TRUTH}.gz64")


@dataclass(frozen=True)
class Span:
    """From when to when, by the host's TSC, and how long that was."""

    begin: int
    end: int
    ns: int


def spans(job: Job, tsc_offset: int = 0) -> list[Span]:
    """Return the times that truth.c has printed; ``tsc_offset``: by how much its TSC is ahead of the host's."""
    lines = [line.split() for line in job.output()[0].splitlines()]
    return [
        Span(int(begin) - tsc_offset, int(end) - tsc_offset, int(ns))
        for begin, end, ns in (line for line in lines if len(line) == 3)
    ]


@dataclass(frozen=True)
class Window:
    """A VM before and after, by the probe and by the kernel's own books of each vCPU's thread; and the bursts."""

    before: dict[str, Any]
    after: dict[str, Any]
    kernel: dict[int, dict[str, int]]
    used_ns: int
    bursts: list[Span]

    def grown(self, vcpu: int, counter: str) -> int:
        return grown(self.before["vcpus"][vcpu], self.after["vcpus"][vcpu], counter)


class Alone:
    """A VM whose vCPU 1 has pCPU 1 for itself. All else that may is on pCPU 0, and what is spawned will be."""

    def __init__(self, ground: Cgroups, probe: Probe, vm: str) -> None:
        self.ground = ground
        self.probe = probe
        self.vm = vm
        self.guest = ground.place.guests[vm].machine
        self._jobs = 0

    def keep(self, vcpu: int, sh: str) -> None:
        """Let a shell command go on in the guest, on one of its vCPUs, until the end."""
        self._jobs += 1
        job = self.guest.spawn(f"keep-{self.vm}-{self._jobs}", f"exec taskset -c {vcpu} {sh}")
        self.ground.callback(end, job)

    def look(self) -> tuple[dict[str, Any], dict[int, dict[str, int]]]:
        """Return the VM as the probe sees it now, and the kernel's books of its vCPUs."""
        vm = self.probe.vm(self.vm)
        pid = self.ground.place.guests[self.vm].pid()
        return vm, {vcpu["vcpu"]: self.probe.kernel_says(pid, vcpu["tid"]) for vcpu in vm["vcpus"]}

    def tsc_offset(self) -> int:
        """Return by how much the guest's TSC is ahead of the host's."""
        pid = self.ground.place.guests[self.vm].pid()
        return int(self.ground.host.check(f"cat /sys/kernel/debug/kvm/{pid}-*/vcpu0/tsc-offset"))

    def bursts(self, count: int, on_ms: int, off_ms: int, *, first: int | None = None) -> Window:
        """Take pCPU 1 from the vCPU so often, each time for so long, and let it have it for so long in between.

        ``first``: a vCPU that meanwhile is before all others on its pCPU.
        """
        host = self.ground.host
        stat = f"{self.ground.group('bursts')}/cpu.stat"
        thread = "" if first is None else self.probe.vm(self.vm)["vcpus"][first]["tid"]
        job = self.ground.run_in("bursts", f"exec {TRUTH} bursts 1 {count} {on_ms * 1000} {off_ms * 1000} {thread}")
        self.ground.bench.until(lambda: "ready" in job.output()[0], "the bursts are ready")

        def used_us() -> int:
            lines = dict(line.split() for line in host.read(stat).splitlines())
            return int(lines["usage_usec"])

        before, kernel_before = self.look()
        used = used_us()
        job.signal(signal.SIGUSR1)
        patience_s = self.ground.bench.patience_s(_PATIENCE_S)
        assert job.wait(count * (on_ms + off_ms) / 1000 + patience_s) == 0, job.output("stderr")[0]
        after, kernel_after = self.look()
        kernel = {
            vcpu: {name: now - kernel_before[vcpu][name] for name, now in says.items()}
            for vcpu, says in kernel_after.items()
        }
        return Window(before, after, kernel, (used_us() - used) * 1000, spans(job))


@contextmanager
def alone(bench: Bench, vm: str) -> Iterator[Alone]:
    """Give a VM's vCPU 1 pCPU 1, before all but the bursts, and all else pCPU 0, in the block."""
    with Cgroups(bench) as ground, Probe(bench) as probe, ExitStack() as undone:
        host = bench.host
        put(host)
        put(ground.place.guests[vm].machine)
        real_time_without_limit(ground)
        tid = probe.vm(vm)["vcpus"][1]["tid"]
        undone.callback(host.check, f"{TRUTH} everybody {(1 << ground.place.pcpus) - 1:#x}")
        host.check(f"{TRUTH} everybody 1")
        undone.callback(host.check, f"chrt -o -p 0 {tid}")
        # First there, then before all: on pCPU 0 it might spin for ever for a sibling that it keeps from running, and
        # nobody could move it away.
        host.check(f"taskset -p 2 {tid} && chrt -f -p {PRIORITY} {tid}")
        yield Alone(ground, probe, vm)


def real_time_without_limit(ground: Cgroups) -> None:
    """Let a real-time task take all of a pCPU, not all but a twentieth, until the end.

    All but what RCU's own threads need: whoever leaves the kernel's tracepoints waits for a grace period, and the
    thread that ends it may be behind that task.
    """
    host = ground.host
    runtime = host.read(_RT_RUNTIME).strip()
    for tid in host.run(_RCU_THREADS).stdout.split():
        ground.callback(host.run, f"chrt -o -p 0 {tid}")
        host.run(f"chrt -f -p {_RCU_PRIORITY} {tid}")
    ground.callback(host.check, f"echo {runtime} >{_RT_RUNTIME}")
    ground.callback(host.run, f"for f in {_SERVERS}/cpu*/runtime; do echo 50000000 >$f; done")
    host.check(f"echo -1 >{_RT_RUNTIME}; for f in {_SERVERS}/cpu*/runtime; do echo 0 >$f || true; done")
