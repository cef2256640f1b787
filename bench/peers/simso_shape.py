# SPDX-License-Identifier: GPL-2.0-only
"""SimSo: a partitioned round-robin scheduler against its Scheduler class; tasks of one endless job, no overheads."""

import warnings
from collections import deque
from typing import Any

from shape import CPUS, TASKS, Lcg, measure

warnings.simplefilter("ignore")

from simso.configuration import Configuration  # noqa: E402
from simso.core import Model, Scheduler, Timer  # noqa: E402


class RoundRobin(Scheduler):  # type: ignore[misc]
    """First in, first out, on each CPU."""

    def init(self) -> None:
        """Begin."""
        self.decisions = 0
        self.queue: dict[Any, deque[Any]] = {cpu: deque() for cpu in self.processors}
        self.lcg = {cpu: Lcg(number) for number, cpu in enumerate(self.processors)}
        by_number = list(self.processors)
        for number, task in enumerate(self.task_list):
            task.cpu = by_number[number % CPUS]

    def on_activate(self, job: Any) -> None:
        """Queue a new job."""
        self.queue[job.task.cpu].append(job)
        if not job.task.cpu.running:
            job.task.cpu.resched()

    def on_terminated(self, job: Any) -> None:
        """Go on with the next."""
        job.task.cpu.resched()

    def quantum(self, cpu: Any) -> None:
        """End a slice."""
        if cpu.running:
            self.queue[cpu].append(cpu.running)
        cpu.resched()

    def schedule(self, cpu: Any) -> tuple[Any, Any] | None:
        """Pick the next job, unless a slice is under way."""
        if not self.queue[cpu] or (cpu.running and cpu.running not in self.queue[cpu]):
            return None
        job = self.queue[cpu].popleft()
        self.decisions += 1
        cycles = self.lcg[cpu].slice_us() * self.sim.cycles_per_ms // 1000
        Timer(self.sim, RoundRobin.quantum, (self, cpu), cycles, cpu=cpu, in_ms=False).start()
        return (job, cpu)


def run(sim_s: int) -> int:
    """Simulate."""
    config = Configuration()
    config.cycles_per_ms = 1000
    config.duration = sim_s * 1000 * config.cycles_per_ms
    for number in range(TASKS):
        config.add_task(
            name=f"T{number}",
            identifier=number,
            period=sim_s * 2000,
            activation_date=0,
            wcet=sim_s * 1000,
            deadline=sim_s * 2000,
        )
    for number in range(CPUS):
        config.add_processor(name=f"CPU{number}", identifier=number)
    config.scheduler_info.clas = RoundRobin
    config.check_all()
    model = Model(config)
    model.run_model()
    return int(model.scheduler.decisions)


if __name__ == "__main__":
    measure("peer_simso", run, 5)
