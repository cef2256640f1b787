# SPDX-License-Identifier: GPL-2.0-only
"""Measure a scenario's programs alone and, with the host loaded, under each policy in turn.

A round is of one program, or of one in each VM that has any: alone under the kernel's own scheduler, then under each
policy in turn, all together and with the neighbours' load running. What is compared is so measured within seconds, and
the order of the policies is reversed from round to round (A B, B A, …): a drift of the machine hits all alike. A round
is also what a crash of the host under test costs. The programs take turns, a round each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from cohortlab import __version__
from cohortlab.errors import BadInput, one_line
from cohortlab.lab import kinds
from cohortlab.places import LATER, Measurement, Place, PlaceCrashed, PlaceError, PlaceFailed, ProgressFn
from cohortlab.policies import KERNEL, Policy
from cohortlab.progress import Progress, Step
from cohortlab.results import ALONE, Crash, Results, Row
from cohortlab.scenario import Scenario, Turn
from cohortlab.workloads import WorkloadError, WorkloadTimeout

INTERRUPTED = "interrupted"


class OpenPlace(Protocol):
    """Brings a scenario up in a place; one call per TLB mode."""

    def __call__(
        self, scenario: Scenario, *, kernel: str | None, progress: ProgressFn
    ) -> AbstractContextManager[Place]: ...


# What a place says of itself that may be otherwise after a crash.
_MAY_CHANGE = {"accelerator", "emulator", "ple", "ple_window_us", "probe", "started", "timers"}
# Of these, what each boot measures anew: all figures are kept, for whoever takes their median.
_OF_EACH_BOOT = {"ple_window_us"}


class _NothingLeft(PlaceError):
    """All has failed in this TLB mode; it need not in another."""


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Attributes:
        modes: the scenario to run for each TLB mode, by the mode's name; host, VMs and programs are the same in all.
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
    def _scenario(self) -> Scenario:
        return next(iter(self.modes.values()))

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs' labels."""
        return self._scenario.labels

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self._scenario.turns

    @property
    def tasks(self) -> dict[tuple[str, str], str]:
        """What each program in each VM is called, by VM and program: once, in however many turns it runs."""
        return {task: self._scenario.called(*task) for turn in self.turns for task in turn}

    def labels(self, turn: Turn) -> tuple[str, ...]:
        return self._scenario.labels_of(turn)

    def together(self, turn: Turn) -> str:
        """Return what a turn's programs are called as one step."""
        return " + ".join(self._scenario.called(*task) for task in turn)

    def steps(self, tlb: str, number: int, turn: Turn) -> list[Step]:
        """Return the measurements of a turn in round ``number``, in no particular order."""
        alone = [Step(tlb, number, ALONE, label) for label in self.labels(turn)]
        return alone + [Step(tlb, number, policy.label, self.together(turn)) for policy in self.policies]

    def results(self, command: str) -> Results:
        """Return what is measured so far: nothing."""
        return Results(
            scenario=self._scenario.name,
            scenario_text=self._scenario.text,
            pcpus=self._scenario.host.pcpus,
            command=command,
            version=__version__,
            policies=tuple(policy.label for policy in self.policies),
            programs=self.programs,
            tlb_modes=tuple(self.modes),
            rounds=self.rounds,
            files=self._scenario.own_files(),
        )

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
    fails, the host under test crashes too often, or nothing is left to compare in any TLB mode.

    Raises:
        BadInput: the place refused, before anything was measured.
    """
    rounds = range(1, plan.rounds + 1)
    steps = {tlb: [s for n in rounds for turn in plan.turns for s in plan.steps(tlb, n, turn)] for tlb in plan.modes}
    progress.plan([step for of_mode in steps.values() for step in of_mode])
    ended: list[str] = []
    try:
        for tlb in plan.modes:
            try:
                _Mode(plan, tlb, progress, results, keep).run(open_place)
            except _NothingLeft as error:
                ended.append(one_line(str(error)))
                for step in steps[tlb]:
                    progress.skip(step)
    except KeyboardInterrupt:
        results.stopped = INTERRUPTED
    except (PlaceError, PlaceCrashed, OSError) as error:
        # An OSError is this machine's: a full disk, say. What was measured before it is as good.
        interrupted = _behind(error, KeyboardInterrupt) is not None
        results.stopped = INTERRUPTED if interrupted else one_line(str(error))
    else:
        # Where other modes are complete, `results.failed` says all there is to say.
        if len(ended) == len(plan.modes):
            results.stopped = ended[-1]


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
        # How often a program did not end by itself, alone.
        self._hung: Counter[tuple[str, str]] = Counter()

    def run(self, open_place: OpenPlace) -> None:
        with ExitStack() as stack:
            place = self._open(stack, open_place)
            if place.pcpus != self.scenario.host.pcpus:
                raise PlaceError(f"the place has {place.pcpus} pCPUs, the scenario wants {self.scenario.host.pcpus}")
            self._describe(place)
            self._ready(place, fresh=True)
            for number in range(1, self.plan.rounds + 1):
                for turn in self.plan.turns:
                    if any(turn in self.left(policy) for policy in self.plan.policies):
                        self._round_until_it_survives(place, number, turn)
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
                if isinstance(error, PlaceFailed) or self.results.rows or _behind(error, KeyboardInterrupt):
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
                    self._describe(place)
                if self.plan.warm_up:
                    self._warm_up(place)
                return
            except (PlaceCrashed, PlaceError) as error:
                crash = _crash_behind(error)
            fresh = False
            self._crashed(crash, 0, 1)

    def _describe(self, place: Place) -> None:
        """Keep what the place, just booted, says of itself; of what it says otherwise after a crash, both.

        Raises:
            PlaceFailed: it has another emulator than before.
        """
        before = [name for other in self.results.places.values() for name in kinds.of_place(other)]
        for name in kinds.of_place(place.description):
            if before and name not in before:
                raise PlaceFailed(
                    f"the emulator was {before[0]} and is now {name}: they are not compared; run it again"
                )
        kept = self.results.places.get(self.tlb)
        if kept is None:
            self.results.places[self.tlb] = dict(place.description)
            return
        # In one order: what is new stands in the file of results in the order in which it is found here.
        for name in sorted(_MAY_CHANGE & place.description.keys()):
            now, was = place.description[name], kept.get(name, "")
            if name in _OF_EACH_BOOT or now not in was.split(LATER):
                kept[name] = f"{was}{LATER}{now}" if was else now

    def _warm_up(self, place: Place) -> None:
        with place.policy(KERNEL):
            for (vm, program), name in self.plan.tasks.items():
                self.doing = f"warming up: {name}"
                self.progress.place(self.doing, None)
                try:
                    self.alone(place, vm, program)
                except WorkloadError as error:
                    self.drop_alone(vm, program, error)

    def _round_until_it_survives(self, place: Place, number: int, turn: Turn) -> None:
        attempt = 1
        while True:
            try:
                self.results.rows += _Round(self, place, turn, number, attempt).rows()
                return
            except (PlaceCrashed, PlaceError) as error:
                crash = _crash_behind(error)
            self.progress.again(self._open_steps(number, turn))
            self._crashed(crash, number, attempt)
            self._ready(place, fresh=False)
            attempt += 1

    def _open_steps(self, number: int, turn: Turn) -> list[Step]:
        left = {policy.label for policy in self.plan.policies if turn in self.left(policy)}
        return [step for step in self.plan.steps(self.tlb, number, turn) if step.policy in {ALONE, *left}]

    def _crashed(self, crash: PlaceCrashed, number: int, attempt: int) -> None:
        """Record a crash; give up after too many."""
        reason = one_line(str(crash))
        self.results.crashes.append(Crash(self.tlb, number, attempt, self.doing, reason))
        crashes = len(self.results.crashes)
        what = f"round {number} is void" if number else "nothing was lost"
        self.progress.note(f"the host under test crashed while {self.doing}: {reason}; {what}, trying again")
        if crashes > self.plan.crashes_max:
            raise PlaceError(f"gave up after {crashes} crashes of the host under test; the last one: {reason}")

    def left(self, policy: Policy) -> list[Turn]:
        """Return the turns that still take part under ``policy``."""
        failed = self.results.failed
        out = {label for tlb, name, label in failed if (tlb, name) == (self.tlb, policy.label)}
        return [turn for turn in self.plan.turns if not out.issuperset(self.plan.labels(turn))]

    def drop(self, policy: Policy, turns: Sequence[Turn], error: PlaceError) -> None:
        """Take a turn that failed under a policy, or the policy as a whole, out of the remaining rounds."""
        reason = one_line(str(error))
        alone = isinstance(error, WorkloadError)
        what = f"{self.plan.together(turns[0])} under {policy.label}" if alone else policy.label
        self.progress.note(f"{what} is out of the comparison: {reason}")
        self._fail(policy, turns, reason)
        if not any(self.left(other) for other in self.plan.policies):
            raise _NothingLeft(f"no policy is left to compare; {policy.label}: {reason}")

    def alone(self, place: Place, vm: str, program: str) -> Measurement:
        """Measure with nothing else on the host: what then does not end in time is a machine that hangs.

        Unless the same program did so before, on a machine that has been booted since: then it is the program.
        """
        try:
            measured = place.measure(vm, program)
        except WorkloadTimeout as error:
            self._hung[vm, program] += 1
            if self._hung[vm, program] > 1:
                raise WorkloadError(f"{error}, twice in a row") from None
            raise PlaceCrashed(str(error)) from None
        del self._hung[vm, program]
        return measured

    def drop_alone(self, vm: str, program: str, error: WorkloadError) -> None:
        """Take a program that fails alone out of the comparison: there is nothing to compare with."""
        reason, name = one_line(str(error)), self.scenario.called(vm, program)
        self.progress.note(f"{name} is out of the comparison, it fails alone: {reason}")
        turns = [turn for turn in self.plan.turns if (vm, program) in turn]
        for policy in self.plan.policies:
            self._fail(policy, turns, f"{name} fails alone: {reason}")
        for number in range(1, self.plan.rounds + 1):
            for each in (each for turn in turns for each in self.plan.labels(turn)):
                self.progress.skip(Step(self.tlb, number, ALONE, each))
        if not any(self.left(policy) for policy in self.plan.policies):
            raise _NothingLeft(f"no program is left to compare; {name} fails alone: {reason}")

    def _fail(self, policy: Policy, turns: Sequence[Turn], reason: str) -> None:
        for turn in turns:
            for label in self.plan.labels(turn):
                self.results.failed.setdefault((self.tlb, policy.label, label), reason)
            for number in range(1, self.plan.rounds + 1):
                self.progress.skip(Step(self.tlb, number, policy.label, self.plan.together(turn)))


class _Round:
    """One attempt at one round of a turn."""

    def __init__(self, mode: _Mode, place: Place, turn: Turn, number: int, attempt: int) -> None:
        self.mode = mode
        self.place = place
        self.turn = turn
        self.number = number
        self.attempt = attempt
        self.order = 0

    def rows(self) -> list[Row]:
        """Return the round's measurements; that of a policy under which it fails is left out."""
        rows = []
        for vm, program in self.turn:
            try:
                rows += self._alone(vm, program)
            except WorkloadError as error:
                self.mode.drop_alone(vm, program, error)
                return []
        for policy in self.mode.plan.in_order(self.number):
            if self.turn not in self.mode.left(policy):
                continue
            try:
                rows += self._under(policy)
            except PlaceError as error:
                if _behind(error, PlaceCrashed) or _behind(error, KeyboardInterrupt):
                    raise
                failure = error
            else:
                continue
            what = [self.turn] if isinstance(failure, WorkloadError) else self.mode.left(policy)
            self.mode.drop(policy, what, failure)
        return rows

    def _alone(self, vm: str, program: str) -> list[Row]:
        self.mode.doing = f"switching to {KERNEL}"
        with self.place.policy(KERNEL):
            doing, label = f"{self.mode.scenario.called(vm, program)} alone", self.mode.scenario.label(self.turn, vm)

            def measure() -> Mapping[str, Measurement]:
                return {vm: self.mode.alone(self.place, vm, program)}

            return self._measure(Policy(ALONE, KERNEL), doing, label, measure)

    def _under(self, policy: Policy) -> list[Row]:
        self.mode.doing = f"switching to {policy.name}"
        turn, place = dict(self.turn), self.place
        with place.policy(policy.name, policy.args), ExitStack() as loads:
            for vm in self.mode.scenario.neighbours:
                assert vm.load is not None, "the schema gives every VM without programs a load"
                loads.enter_context(place.background(vm.name, vm.load))

            def measure() -> Mapping[str, Measurement]:
                if len(turn) > 1:
                    return place.measure_together(turn)
                return {vm: place.measure(vm, program) for vm, program in turn.items()}

            what = self.mode.plan.together(self.turn)
            return self._measure(policy, f"{what} under {policy.label}", what, measure)

    def _measure(
        self, policy: Policy, doing: str, what: str, measure: Callable[[], Mapping[str, Measurement]]
    ) -> list[Row]:
        mode = self.mode
        step = Step(mode.tlb, self.number, policy.label, what)
        mode.doing = f"round {self.number} of {mode.plan.rounds}: {doing}"
        if len(mode.plan.modes) > 1:
            mode.doing += f", TLB flush by {mode.tlb}"
        mode.progress.start(step, mode.doing)
        found = measure()
        mode.progress.done(step)
        rows = [self._row(policy, vm, dict(self.turn)[vm], measured) for vm, measured in found.items()]
        self.order += 1
        return rows

    def _row(self, policy: Policy, vm: str, program: str, measured: Measurement) -> Row:
        mode = self.mode
        workload = mode.scenario.workloads[program]
        return Row(
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
