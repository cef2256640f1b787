# SPDX-License-Identifier: GPL-2.0-only
"""Measure a scenario's programs alone and, with the host loaded, under each policy in turn.

A round is of one program: alone under the kernel's own scheduler, then under each policy in turn, with the
neighbours' load running. What is compared is so measured within seconds, and the order of the policies is
reversed from round to round (A B, B A, …): a drift of the machine hits all alike. A round is also what a crash
of the host under test costs. The programs take turns, a round each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from cohortlab.errors import BadInput, one_line
from cohortlab.places import Measurement, Place, PlaceCrashed, PlaceError, ProgressFn
from cohortlab.policies import KERNEL, Policy
from cohortlab.progress import Progress, Step
from cohortlab.results import ALONE, Crash, Results, Row
from cohortlab.scenario import Scenario
from cohortlab.workloads import WorkloadError, WorkloadTimeout

INTERRUPTED = "interrupted"


class OpenPlace(Protocol):
    """Brings a scenario up in a place; one call per TLB mode."""

    def __call__(
        self, scenario: Scenario, *, kernel: str | None, progress: ProgressFn
    ) -> AbstractContextManager[Place]: ...


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        modes: the scenario to run for each TLB mode, by the mode's name; they differ in nothing else.
        warm_up: run each program once, unrecorded, after every boot: first runs pay for page cache and such.
        crashes_max: how many crashes of the host under test to bear before giving up.
    """

    policies: tuple[Policy, ...]
    rounds: int
    modes: Mapping[str, Scenario]
    kernel: str | None = None
    warm_up: bool = True
    crashes_max: int = 3

    @property
    def programs(self) -> tuple[str, ...]:
        return next(iter(self.modes.values())).program_vm.programs

    def steps(self, tlb: str, number: int) -> list[Step]:
        """Return the measurements of round ``number``, in no particular order."""
        labels = (ALONE, *(policy.label for policy in self.policies))
        return [Step(tlb, number, label, program) for label in labels for program in self.programs]

    def in_order(self, number: int) -> tuple[Policy, ...]:
        """Return the policies in the order of round ``number``."""
        return self.policies if number % 2 else self.policies[::-1]


def run(
    plan: Plan,
    open_place: OpenPlace,
    progress: Progress,
    results: Results,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Carry out ``plan`` and fill ``results``; ``keep`` is called after every complete round.

    Ends early, with ``results.stopped`` set and all complete rounds in place, when the user interrupts, the place
    fails, or the host under test crashes too often.

    Raises:
        BadInput: the place refused, before anything was measured.
    """
    progress.plan([s for tlb in plan.modes for n in range(1, plan.rounds + 1) for s in plan.steps(tlb, n)])
    try:
        for tlb in plan.modes:
            _Mode(plan, tlb, progress, results, keep).run(open_place)
    except KeyboardInterrupt:
        results.stopped = INTERRUPTED
    except (PlaceError, PlaceCrashed, OSError) as error:
        # An OSError is this machine's: a full disk, say. What was measured before it is as good.
        interrupted = _behind(error, KeyboardInterrupt) is not None
        results.stopped = INTERRUPTED if interrupted else one_line(str(error))


class _Mode:
    """The comparison in one TLB mode: one place, from boot to end."""

    def __init__(self, plan: Plan, tlb: str, progress: Progress, results: Results, keep: Callable[[], None]) -> None:
        self.plan = plan
        self.tlb = tlb
        self.scenario = plan.modes[tlb]
        self.progress = progress
        self.results = results
        self.keep = keep
        self.doing = "booting"

    def run(self, open_place: OpenPlace) -> None:
        with ExitStack() as stack:
            place = self._open(stack, open_place)
            if place.pcpus != self.scenario.host.pcpus:
                raise PlaceError(f"the place has {place.pcpus} pCPUs, the scenario wants {self.scenario.host.pcpus}")
            self.results.places[self.tlb] = dict(place.description)
            self._ready(place, fresh=True)
            for number in range(1, self.plan.rounds + 1):
                for program in self.plan.programs:
                    self._round_until_it_survives(place, number, program)
                self.keep()

    def _open(self, stack: ExitStack, open_place: OpenPlace) -> Place:
        while True:
            try:
                return stack.enter_context(
                    open_place(self.scenario, kernel=self.plan.kernel, progress=self.progress.place)
                )
            except PlaceCrashed as error:
                crash = _crash_behind(error)
            except PlaceError as error:
                if self.results.rows or _behind(error, KeyboardInterrupt):
                    raise
                raise BadInput(one_line(str(error))) from None
            self._crashed(crash, 0, 1)

    def _ready(self, place: Place, *, fresh: bool) -> None:
        """Bring the place to the state in which a round may start."""
        while True:
            try:
                if not fresh:
                    self.doing = "booting again"
                    place.reset()
                if self.plan.warm_up:
                    self._warm_up(place)
                return
            except (PlaceCrashed, PlaceError) as error:
                crash = _crash_behind(error)
            fresh = False
            self._crashed(crash, 0, 1)

    def _warm_up(self, place: Place) -> None:
        with place.policy(KERNEL):
            for program in self.plan.programs:
                self.doing = f"warming up: {program}"
                self.progress.place(self.doing, None)
                _alone(place, self.scenario.program_vm.name, program)

    def _round_until_it_survives(self, place: Place, number: int, program: str) -> None:
        attempt = 1
        while True:
            try:
                self.results.rows += _Round(self, place, program, number, attempt).rows()
                return
            except (PlaceCrashed, PlaceError) as error:
                crash = _crash_behind(error)
            self.progress.again(self._open_steps(number, program))
            self._crashed(crash, number, attempt)
            self._ready(place, fresh=False)
            attempt += 1

    def _open_steps(self, number: int, program: str) -> list[Step]:
        failed = self.results.failed
        steps = [step for step in self.plan.steps(self.tlb, number) if step.program == program]
        return [step for step in steps if (self.tlb, step.policy, program) not in failed]

    def _crashed(self, crash: PlaceCrashed, number: int, attempt: int) -> None:
        """Record a crash; give up after too many."""
        reason = one_line(str(crash))
        self.results.crashes.append(Crash(self.tlb, number, attempt, self.doing, reason))
        crashes = len(self.results.crashes)
        what = f"round {number} is void" if number else "nothing was lost"
        self.progress.note(f"the host under test crashed while {self.doing}: {reason}; {what}, trying again")
        if crashes > self.plan.crashes_max:
            raise PlaceError(f"gave up after {crashes} crashes of the host under test; the last one: {reason}")

    def left(self, policy: Policy) -> list[str]:
        """Return the programs that still take part under ``policy``."""
        failed = self.results.failed
        return [program for program in self.plan.programs if (self.tlb, policy.label, program) not in failed]

    def drop(self, policy: Policy, programs: Sequence[str], error: PlaceError) -> None:
        """Take a program that failed under a policy, or the policy as a whole, out of the remaining rounds."""
        reason = one_line(str(error))
        what = f"{programs[0]} under {policy.label}" if isinstance(error, WorkloadError) else policy.label
        self.progress.note(f"{what} is out of the comparison: {reason}")
        for program in programs:
            self.results.failed[self.tlb, policy.label, program] = reason
            for number in range(1, self.plan.rounds + 1):
                self.progress.skip(Step(self.tlb, number, policy.label, program))
        if not any(self.left(other) for other in self.plan.policies):
            raise PlaceError(f"no policy is left to compare; {policy.label}: {reason}")


class _Round:
    """One attempt at one round of a program."""

    def __init__(self, mode: _Mode, place: Place, program: str, number: int, attempt: int) -> None:
        self.mode = mode
        self.place = place
        self.program = program
        self.number = number
        self.attempt = attempt
        self.order = 0

    def rows(self) -> list[Row]:
        """Return the round's measurements; that of a policy under which it fails is left out."""
        # A program that fails alone tells nothing about any policy: there is nothing to compare with.
        rows = [self._under(Policy(ALONE, KERNEL))]
        for policy in self.mode.plan.in_order(self.number):
            if self.program not in self.mode.left(policy):
                continue
            try:
                rows.append(self._under(policy))
            except PlaceError as error:
                if _behind(error, PlaceCrashed) or _behind(error, KeyboardInterrupt):
                    raise
                failure = error
            else:
                continue
            what = [self.program] if isinstance(failure, WorkloadError) else self.mode.left(policy)
            self.mode.drop(policy, what, failure)
        return rows

    def _under(self, policy: Policy) -> Row:
        self.mode.doing = f"switching to {policy.name}"
        with self.place.policy(policy.name, policy.args), ExitStack() as loads:
            if policy.label != ALONE:
                for vm in self.mode.scenario.neighbours:
                    assert vm.load is not None, "the schema gives every VM without programs a load"
                    loads.enter_context(self.place.background(vm.name, vm.load))
            return self._measure(policy)

    def _measure(self, policy: Policy) -> Row:
        mode, program = self.mode, self.program
        step = Step(mode.tlb, self.number, policy.label, program)
        where = "alone" if policy.label == ALONE else f"under {policy.label}"
        mode.doing = f"round {self.number} of {mode.plan.rounds}: {program} {where}"
        if len(mode.plan.modes) > 1:
            mode.doing += f", TLB flush by {mode.tlb}"
        mode.progress.start(step, mode.doing)
        vm = mode.scenario.program_vm.name
        measured = _alone(self.place, vm, program) if policy.label == ALONE else self.place.measure(vm, program)
        mode.progress.done(step)
        workload = mode.scenario.workloads[program]
        row = Row(
            scenario=mode.scenario.name,
            tlb=mode.tlb,
            round=self.number,
            attempt=self.attempt,
            order=self.order,
            policy=policy.label,
            scheduler=policy.name,
            policy_args=policy.args,
            program=program,
            vm=vm,
            value=measured.value,
            unit=workload.unit,
            rate=workload.is_rate,
            wall_s=measured.wall_s,
            window_s=measured.window_s,
            cpu_s=measured.cpu_s,
            stats=measured.stats,
            guest=measured.guest,
            host=measured.host,
            why=measured.why,
            ended=datetime.now(UTC),
            kernel=mode.results.places[mode.tlb].get("kernel", ""),
        )
        self.order += 1
        return row


def _alone(place: Place, vm: str, program: str) -> Measurement:
    """Measure with nothing else on the host: what then does not end in time is a machine that hangs."""
    try:
        return place.measure(vm, program)
    except WorkloadTimeout as error:
        raise PlaceCrashed(str(error)) from None


def _behind(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """Return the exception of ``kind`` that ``error`` is, or was raised while handling.

    Leaving a block after a crash may fail in its own way; what counts is why it was left.
    """
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _crash_behind(error: PlaceCrashed | PlaceError) -> PlaceCrashed:
    """Return the crash behind ``error``; raise ``error`` again when there is none."""
    if _behind(error, KeyboardInterrupt):
        raise KeyboardInterrupt from error
    crash = _behind(error, PlaceCrashed)
    if not isinstance(crash, PlaceCrashed):
        raise error
    return crash
