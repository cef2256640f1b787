# SPDX-License-Identifier: GPL-2.0-only
"""SimPy: one process for each CPU, the cheapest form; and one for each task, the form that its tutorials teach."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import simpy
from shape import CPUS, TASKS, Lcg, measure


def per_cpu(sim_s: int) -> int:
    """Simulate with a process for each CPU."""
    env, decisions = simpy.Environment(), [0]

    def cpu(number: int) -> Iterator[Any]:
        lcg, queue = Lcg(number), deque(task for task in range(TASKS) if task % CPUS == number)
        while True:
            task = queue.popleft()
            decisions[0] += 1
            yield env.timeout(lcg.slice_us())
            queue.append(task)

    for number in range(CPUS):
        env.process(cpu(number))
    env.run(until=sim_s * 1_000_000)
    return decisions[0]


def per_task(sim_s: int) -> int:
    """Simulate with a process for each task."""
    env, decisions = simpy.Environment(), [0]
    cpus = [simpy.Resource(env, 1) for _ in range(CPUS)]
    lcgs = [Lcg(number) for number in range(CPUS)]

    def task(number: int) -> Iterator[Any]:
        cpu = number % CPUS
        while True:
            with cpus[cpu].request() as request:
                yield request
                decisions[0] += 1
                yield env.timeout(lcgs[cpu].slice_us())

    for number in range(TASKS):
        env.process(task(number))
    env.run(until=sim_s * 1_000_000)
    return decisions[0]


if __name__ == "__main__":
    measure("peer_simpy_per_cpu", per_cpu, 60)
    measure("peer_simpy_per_task", per_task, 20)
