# SPDX-License-Identifier: GPL-2.0-only
"""The simulator as a place where a scenario runs (see cohortlab.places)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType

from cohortlab.errors import BadInput
from cohortlab.places import Measurement, PlaceError
from cohortlab.policies import KERNEL
from cohortlab.scenario import Scenario
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.hardware import Hardware
from cohortlab.sim.model import Run, check
from cohortlab.sim.native import native
from cohortlab.sim.policy import KERNEL_DEFAULT, fair_class, host_class
from cohortlab.sim.result import Result

# Policy, its arguments, the loads, the VM, the program, and how many times that was asked before.
_Key = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...], str, str, int]


class SimPlace:
    """A simulated host. Rounds differ in their seeds: the n-th measurement of the same thing has seed n."""

    def __init__(self, scenario: Scenario, *, kernel: str | None = None, hardware: Hardware | None = None) -> None:
        self.scenario = scenario
        self.pcpus = scenario.host.pcpus
        self._kernel = kernel or KERNEL_DEFAULT
        self._hardware = hardware or hardwares.load(hardwares.DEFAULT)
        self._policy: tuple[str, tuple[str, ...]] = (KERNEL, ())
        self._loads: dict[str, str] = {}
        self._asked: Counter[_Key] = Counter()
        # Whoever measures a program will want the others next: they run on the other CPUs meanwhile.
        self._ahead: dict[_Key, Future[Result]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.description = {
            "place": "simulator",
            "kernel": f"simulated, fair class as in {self._kernel}: {fair_class(self._kernel)['variant']}",
            "hardware": self._hardware.name,
            "ple": "on" if scenario.guest.ple else "off",
        }

    def __enter__(self) -> SimPlace:
        try:
            self.description["simulator"] = native().__version__
            check(self.scenario)
        except BadInput as error:
            raise PlaceError(str(error)) from None
        self._pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="sim")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    @contextmanager
    def policy(self, name: str, args: Sequence[str] = ()) -> Iterator[None]:
        host_class(name, args, self._kernel)
        before, self._policy = self._policy, (name, tuple(args))
        try:
            yield
        finally:
            self._policy = before

    @contextmanager
    def background(self, vm: str, workload: str) -> Iterator[None]:
        """Keep ``workload`` running in ``vm`` for the duration of the block."""
        self._loads[vm] = workload
        try:
            yield
        finally:
            del self._loads[vm]

    def measure(self, vm: str, workload: str) -> Measurement:
        """Simulate one run of ``workload`` in ``vm``, from the moment when everything starts.

        Raises:
            WorkloadError: the program did not end in its time.
            PlaceError: the simulated scheduler did what a kernel would eject it for.
        """
        if self._pool is None:
            raise RuntimeError("the simulator is not open: use SimPlace in a `with` statement")
        number = self._asked[self._key(vm, workload, 0)]
        self._asked[self._key(vm, workload, 0)] += 1
        wanted = self._key(vm, workload, number)
        if wanted not in self._ahead:
            for other in (workload, *self.scenario.program_vm.programs):
                key = self._key(vm, other, number)
                if key not in self._ahead:
                    self._ahead[key] = self._pool.submit(Result.of, self._run(key))
        try:
            return self._ahead.pop(wanted).result().measurement(vm)
        except BadInput as error:
            raise PlaceError(str(error)) from None

    def _key(self, vm: str, workload: str, number: int) -> _Key:
        return (*self._policy, tuple(sorted(self._loads.items())), vm, workload, number)

    def _run(self, key: _Key) -> Run:
        policy, args, loads, vm, workload, number = key
        running = dict(loads) | {vm: workload}
        return Run(self.scenario, running, policy, args, number + 1, self._kernel, self._hardware)

    def reset(self) -> None:
        """Nothing to do: a simulated host does not crash."""
