# SPDX-License-Identifier: GPL-2.0-only
"""The simulator as a place where a scenario runs (see cohortlab.places)."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType

from cohortlab.errors import BadInput
from cohortlab.native import native
from cohortlab.places import Measurement, PlaceError
from cohortlab.policies import KERNEL, Policy, kernel_settings
from cohortlab.scenario import Scenario, Turn
from cohortlab.sim import hardware as hardwares
from cohortlab.sim.hardware import Hardware
from cohortlab.sim.model import Run, check, check_ple, guests_kernel
from cohortlab.sim.policy import KERNEL_DEFAULT, fair_class, host_class
from cohortlab.sim.result import MEASURED, Result
from cohortlab.workloads import WorkloadError

# Policy, its arguments, the loads, the programs, both by VM, and how many times that was asked before.
_Key = tuple[str, tuple[str, ...], Turn, Turn, int]

# Runs that are simulated, or done and not yet asked for, at most.
AHEAD_MAX = 32


def check_policy(scenario: Scenario, name: str, args: Sequence[str], kernel: str) -> None:
    """Refuse a policy that the simulator cannot have, or not with this scenario.

    Raises:
        PlaceError: the line says what, and what is allowed.
    """
    host_class(name, args, kernel)
    if name != KERNEL or kernel_settings(args).vm_cgroups:
        return
    for vm in scenario.vms:
        for field, default in (("weight", 100), ("cap_pcpus", None)):
            if getattr(vm, field) != default:
                raise PlaceError(
                    f'--vm-cgroups: "no" is not allowed: VM "{vm.name}" has a {field}, as only cgroups have'
                )


class SimPlace:
    """A simulated host. Rounds differ in their seeds: the n-th measurement of the same thing has seed n."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        kernel: str | None = None,
        hardware: Hardware | None = None,
        policies: Sequence[Policy] = (),
        rounds: int = 0,
    ) -> None:
        """``policies``, ``rounds``: what will probably be asked for; it is simulated ahead, on all CPUs."""
        self.scenario = scenario
        self.pcpus = scenario.host.pcpus
        self._kernel = kernel or scenario.defaults.kernel or KERNEL_DEFAULT
        self._hardware = hardware or hardwares.of(scenario)
        self._policy: tuple[str, tuple[str, ...]] = (KERNEL, ())
        self._loads: dict[str, str] = {}
        self._asked: Counter[_Key] = Counter()
        self._coming = deque(self._expected(policies, rounds))
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
            check_ple(self.scenario, self._hardware, self._kernel)
            if self.scenario.guest.kernel is not None:
                self.description["guests' kernel"] = guests_kernel(self.scenario, self._kernel)
        except BadInput as error:
            raise PlaceError(str(error)) from None
        self._pool = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)), thread_name_prefix="sim")
        self._run_ahead()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    @contextmanager
    def policy(self, name: str, args: Sequence[str] = ()) -> Iterator[None]:
        chosen = (name, tuple(args))
        try:
            check_policy(self.scenario, name, args, self._kernel)
        except PlaceError:
            self._give_up(lambda key: _is_under(key, chosen))
            raise
        before, self._policy = self._policy, chosen
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
        return self.measure_together({vm: workload})[vm]

    def measure_together(self, turn: Mapping[str, str]) -> dict[str, Measurement]:
        """Simulate programs, by VM, beside loads that have settled; several begin anew until all have ended.

        Raises:
            WorkloadError: a program did not end in its time, or would not end at all.
            PlaceError: the simulated scheduler did what a kernel would eject it for.
            BadInput: the simulator refuses what the scenario and the hardware file say.
        """
        if self._pool is None:
            raise RuntimeError("the simulator is not open: use SimPlace in a `with` statement")
        programs = tuple(turn.items())
        number = self._asked[self._key(programs, 0)]
        self._asked[self._key(programs, 0)] += 1
        wanted = self._key(programs, number)
        if wanted not in self._ahead:
            self._ahead[wanted] = self._pool.submit(Result.of, self._run(wanted), MEASURED)
        try:
            result = self._ahead.pop(wanted).result()
            measured = {vm: result.measurement(vm) for vm in turn}
        except PlaceError as error:
            whole_policy = not isinstance(error, WorkloadError)
            self._give_up(lambda key: _is_out(key, wanted, whole_policy=whole_policy))
            raise
        self._run_ahead()
        return measured

    def _expected(self, policies: Sequence[Policy], rounds: int) -> Iterator[_Key]:
        """Return the measurements of a comparison, about in the order in which they are asked for."""
        loads = tuple(sorted((other.name, other.load) for other in self.scenario.neighbours if other.load is not None))
        for number in range(rounds):
            for turn in self.scenario.turns:
                for task in turn:
                    yield KERNEL, (), (), (task,), number
                for policy in policies:
                    yield policy.name, policy.args, loads, turn, number

    def _run_ahead(self) -> None:
        """Keep the CPUs busy with what will be asked for, but do not pile up results."""
        while self._pool is not None and self._coming and len(self._ahead) < AHEAD_MAX:
            key = self._coming.popleft()
            if key not in self._ahead and self._asked[*key[:-1], 0] <= key[-1]:
                self._ahead[key] = self._pool.submit(Result.of, self._run(key), MEASURED)

    def _give_up(self, is_out: Callable[[_Key], bool]) -> None:
        """Drop what is not asked for any more: else it fills the room of what is simulated ahead.

        With it goes what would run alone and has no policy left under which it is compared.
        """
        left = {key for key in (*self._ahead, *self._coming) if not is_out(key)}
        compared = {task for key in left if not _is_alone(key) for task in key[3]}
        kept = {key for key in left if not _is_alone(key) or compared.issuperset(key[3])}
        self._coming = deque(key for key in self._coming if key in kept)
        for key in [key for key in self._ahead if key not in kept]:
            self._ahead.pop(key).cancel()
        self._run_ahead()

    def _key(self, programs: Turn, number: int) -> _Key:
        return (*self._policy, tuple(sorted(self._loads.items())), programs, number)

    def _run(self, key: _Key) -> Run:
        policy, args, loads, programs, number = key
        running = dict(loads) | dict(programs)
        return Run(self.scenario, running, policy, args, number + 1, self._kernel, self._hardware)

    def reset(self) -> None:
        """Nothing to do: a simulated host does not crash."""


def _is_alone(key: _Key) -> bool:
    """Return whether a program runs alone, to be compared with."""
    policy, args, loads, programs, _ = key
    return (policy, args, loads, len(programs)) == (KERNEL, (), (), 1)


def _is_under(key: _Key, policy: tuple[str, tuple[str, ...]]) -> bool:
    """Return whether a turn runs under a policy with these arguments."""
    return key[:2] == policy and not _is_alone(key)


def _is_out(key: _Key, failed: _Key, *, whole_policy: bool) -> bool:
    """Return whether a comparison leaves ``key`` out once ``failed`` has failed: its turn, or its ``whole_policy``."""
    if _is_alone(failed):
        # Under no policy is there anything to compare its turns with.
        return set(failed[3]) <= set(key[3])
    return _is_under(key, failed[:2]) if whole_policy else key[:-1] == failed[:-1]
