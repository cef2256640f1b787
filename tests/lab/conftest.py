# SPDX-License-Identifier: GPL-2.0-only
"""A booted lab for the tests that need one, and a bench on which they do harm to it."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import slow
from again import (
    ATTEMPTS,
    DISTURBED,
    Elsewhere,
    booted,
    may_be_lost,
    may_be_void,
    repeat,
    repeated,
    say,
    second_chance,
    set_chances,
    spent,
    until_up,
)
from disturbance import Disturbance
from ground import ended_after

from cohortlab import scenario as scenarios
from cohortlab.lab import guest as guests
from cohortlab.lab.agent import AgentError, Channel, Job, Machine
from cohortlab.lab.bringup import bring_up
from cohortlab.lab.guest import Guest, GuestConfig
from cohortlab.lab.place import LabPlace
from cohortlab.lab.policy import sched_ext_state
from cohortlab.places import PlaceCrashed

SCENARIO = Path(__file__).with_name("scenario.toml")
# Lines of a kernel log that tell of damage.
DAMAGE = re.compile(r"BUG|WARNING|Oops|\bstall|lockup|blocked for more than|hung|sched_ext: .*(error|stall|watchdog)")
# Locks, wake-ups and TLB flushes for some ten seconds on a busy lab.
WORK = "hackbench -g 2 -l 1500 -f 5 && stress-ng --quiet --tlb-shootdown 1 --tlb-shootdown-ops 500"
WORK_TIMEOUT_S = 180
# So long may `cohort run` take to end.
STOP_S = 30
# Small enough for the memory that the host has beside its scenario.
EXTRA_GUEST_MB = 192

Boot = Callable[..., AbstractContextManager[LabPlace]]
BareBoot = Callable[..., "BareHost"]

# A mark in a kernel's log is there once.
_marks = itertools.count()
# The tests of the lab that were run.
used: set[str] = set()
# The lab that tests share, by its kernel.
held: dict[str | None, LabPlace] = {}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how often that was, after a session with tests of the lab."""
    if used:
        terminalreporter.line(f"lab: {len(repeated)} tests or boots were repeated")
        terminalreporter.line(f"lab: {spent()}")
        for why in repeated:
            terminalreporter.line(f"lab: repeated: {why}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell at once why a test in the lab has failed: the run's end may be an hour away, or never come."""
    report = yield
    if report.failed and item.get_closest_marker("lab"):
        tell(item.config, report.longreprtext)
    return report


def tell(config: pytest.Config, text: str) -> None:
    """Print now, not at the session's end; in the middle of a test as well, of which what is printed is kept back."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if not terminal:
        return
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        terminal.ensure_newline()
        terminal.write_line(text)


def printed(config: pytest.Config) -> str:
    """Return what the test has printed so far, which is lost if it passes at last."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    return "".join(capture.read_global_capture()) if capture and capture.is_globally_capturing() else ""


@pytest.fixture(scope="session")
def place(request: pytest.FixtureRequest) -> Iterator[LabPlace]:
    """One boot for all tests that leave it as they found it, and one for each other kernel that some ask for."""
    kernel = getattr(request, "param", None)
    with ExitStack() as stack:
        held[kernel] = booted(stack, lambda: LabPlace(scenarios.load(SCENARIO), kernel=kernel, progress=say))
        yield held[kernel]
        held.clear()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Under the kernel's own scheduler a test shows of itself that it measures right: on one kernel that is enough."""
    callspec = getattr(item, "callspec", None)
    if callspec and callspec.params.get("policy") == "eevdf" and callspec.params.get("place"):
        item.add_marker("kernels")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that share a lab one after the other, by kernel, and then those that would have it closed.

    The more tests of the lab there are, the more of them may fail once.
    """
    set_chances(sum(item.get_closest_marker("lab") is not None for item in items))

    def shared(item: pytest.Item) -> tuple[bool, str]:
        callspec = getattr(item, "callspec", None)
        kernel = callspec.params.get("place") if callspec else None
        return "place" not in item.fixturenames, kernel or ""

    # What is not of the lab keeps its place: such a run has no lab, or is one of few tests by name.
    if all(item.get_closest_marker("lab") for item in items):
        items.sort(key=shared)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Close the lab that tests share before one that boots its own: labs take turns. Bring it up again for the next."""
    if not item.get_closest_marker("lab"):
        return
    wanted = getattr(item, "callspec", None) and item.callspec.params.get("place")
    for kernel, lab in held.items():
        if "place" not in item.fixturenames:
            lab.__exit__(None, None, None)
        elif kernel == wanted and not lab.guests:
            bring_up_again(lab)


class BareHost(Machine):
    """A host without guests of the lab's own. Whoever holds this object has the new host after a reset.

    Attributes:
        emulator, guests: as those of a ``LabPlace``.
    """

    def __init__(self, ready: Callable[[Machine], object], **options: Any) -> None:
        """``ready`` is done to the host after each boot."""
        self.guests: dict[str, Guest] = {}
        self._ready = ready
        self._options = {"pcpus": 2, "ple": True, **options}
        super().__init__("host", until_up(self._booted))

    def _booted(self) -> Channel:
        self.emulator = bring_up([], fresh=True, progress=say, **self._options).emulator
        try:
            self._ready(self.emulator.host)
        except (AgentError, TimeoutError) as error:
            self.close()
            raise PlaceCrashed(f"the host is not ready: {error}") from error
        except BaseException:
            self.close()
            raise
        return self.emulator.host.channel

    def reset(self) -> None:
        """Boot it anew."""
        self.close()
        self.channel = self._booted()

    def close(self) -> None:
        self.emulator.close()


def boot_again(lab: LabPlace | BareHost) -> None:
    """Boot the lab after a crash, in which it may crash as well: the tests that follow need it."""
    until_up(lab.reset, "booting again")


@pytest.fixture(scope="session")
def bare() -> BareBoot:
    """Boots of a host alone: ``host = bare(ready, files=...)``, to be closed by who asks."""
    return BareHost


def bring_up_again(lab: LabPlace) -> None:
    """Bring the lab up that was closed for another."""
    try:
        lab.__enter__()
    except PlaceCrashed as crash:
        repeat(f"crashed while it came up again: {crash}")
        boot_again(lab)


@pytest.fixture
def up_again() -> Callable[[LabPlace], None]:
    return boot_again


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Void a test of the lab in which the emulated host died, as `compare` voids a round: boot again, run it again.

    A test that fails while this machine was elsewhere for long is void as well. Its lab is known if a fixture has it; a
    test that boots one in its own body boots another. A host alone is booted for each try: what the test has done to it
    would still be there.
    """
    if not pyfuncitem.get_closest_marker("lab"):
        return None
    used.add(pyfuncitem.nodeid)
    labs = (value for value in pyfuncitem.funcargs.values() if isinstance(value, LabPlace | BareHost))
    lab = next(labs, None)
    if isinstance(lab, LabPlace) and not lab.guests:
        # Its last boot, for a test before, was given up.
        boot_again(lab)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for attempt in range(1, ATTEMPTS + 1):
        disturbance = Disturbance(lab) if lab else None
        said = len(lab.emulator.console_text()) if lab else 0
        try:
            pyfuncitem.obj(**arguments)
            return True
        except Exception as failure:
            part = disturbance.by_others() if disturbance else 0.0
            crashed = isinstance(failure, PlaceCrashed)
            # A place says that it has crashed of a command that failed as well.
            lost = crashed if lab is None else not answers(lab)
            console = lab.emulator.console_text()[said:] if lab else str(failure)
            may_repeat = isinstance(failure, (AssertionError, AgentError, TimeoutError, PlaceCrashed))
            again = attempt < ATTEMPTS and may_repeat and is_void(pyfuncitem, failure, console if lost else None, part)
            if lab is not None and (lost or crashed or (again and isinstance(lab, BareHost))):
                # Also for the tests that follow.
                boot_again(lab)
                if "bench" in arguments and isinstance(lab, LabPlace):
                    arguments["bench"] = Bench(lab)
            if not again:
                raise
    return True


def is_void(test: pytest.Function, failure: Exception, console: str | None, part: float) -> bool:
    """Return whether a test that did not pass is run again, and say why.

    Args:
        console: what the host's kernel has said, if a machine was lost.
        part: of the time for which others kept the lab waiting.
    """
    what = str(failure).split("\n", 1)[0]
    if console is not None:
        if not may_be_lost(test.nodeid, console):
            return False
        repeat(f"{test.name} is void, a machine was lost: {failure}")
    elif isinstance(failure, Elsewhere) or part >= DISTURBED:
        if not may_be_void(test.nodeid):
            return False
        why = "" if isinstance(failure, Elsewhere) else f", this machine kept the lab waiting for {part:.0%} of it"
        repeat(f"{test.name} is void{why}: {what}")
    elif second_chance(test.nodeid):
        tell(test.config, f"{failure}\n{printed(test.config)}")
        repeat(f"{test.name} has failed once: {what}")
    else:
        return False
    return True


def answers(lab: LabPlace | BareHost) -> bool:
    """Return whether the host and all its guests are alive."""
    try:
        for machine in (lab.emulator.host, *(guest.machine for guest in lab.guests.values())):
            machine.ping()
    except (AgentError, TimeoutError, PlaceCrashed):
        return False
    return True


@pytest.fixture
def boot() -> Boot:
    """Boots of a test's own: ``with boot(kernel="6.18") as place``."""

    @contextmanager
    def lab(*, ple: bool = True, guest_kernel: str | None = None, **options: str) -> Iterator[LabPlace]:
        scenario = scenarios.load(SCENARIO)
        guest = scenario.guest.model_copy(update={"ple": ple, "kernel": guest_kernel})
        with ExitStack() as stack:
            yield booted(
                stack,
                lambda: LabPlace(dataclasses.replace(scenario, guest=guest), probe=False, progress=say, **options),
            )

    return lab


@pytest.fixture
def bench(place: LabPlace) -> Bench:
    return Bench(place)


class Bench:
    """A lab at work, to be disturbed: says afterwards whether anybody was hurt."""

    def __init__(self, place: LabPlace) -> None:
        self.place = place
        self.host: Machine = place.emulator.host

    @property
    def guests(self) -> list[Machine]:
        return [guest.machine for guest in self.place.guests.values()]

    def state(self) -> str:
        """Return the kernel's word for who schedules: "enabled" is a sched_ext scheduler, "disabled" EEVDF."""
        return sched_ext_state(self.host)

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        """Wait until ``condition`` holds; a bench is slow, so only never is a failure."""
        slow.until(self.place.emulator, condition, what, timeout_s)

    def patience_s(self, limit_s: float) -> float:
        """Return how long to wait here for what takes less than that on a machine of usual speed."""
        return slow.patience_s(self.place.emulator, limit_s)

    @contextmanager
    def cohort(self, *args: str, name: str = "cohort") -> Iterator[Job]:
        """Have ``cohort run ARGS`` schedule inside the block; the job's process is the daemon itself."""
        job = self.host.spawn(name, f"exec {shlex.join(['cohort', 'run', *args])}")
        try:
            self.until(lambda: self.state() == "enabled" or job.wait(0) is not None, "cohort run schedules")
            assert job.wait(0) is None, f"cohort run ended: {job.output('stderr')[0]}"
            yield job
        finally:
            job.signal(signal.SIGCONT)
            job.signal(signal.SIGTERM)
            stop_s = self.patience_s(STOP_S)
            stuck = job.wait(stop_s) is None
            if stuck:
                job.signal(signal.SIGKILL)
            self.until(lambda: self.state() == "disabled", "the kernel schedules again")
        # Only of a block that has ended well: what else went wrong comes first.
        assert not stuck, f"cohort run did not end within {stop_s:g} s of SIGTERM: {job.output('stderr')[0][-600:]}"

    def extra_guest(self, name: str, vcpus: int) -> Guest:
        """Start one more guest than the scenario has, to be killed; do not wait for its boot."""
        return guests.start(self.host, GuestConfig(name, vcpus, EXTRA_GUEST_MB, 100, "ipi"))

    @contextmanager
    def nobody_is_hurt(self, *, but: tuple[str, ...] = ()) -> Iterator[None]:
        """Run WORK in all guests during the block: it must end well, and no kernel may complain.

        ``but``: guests that the block kills.
        """
        guests = [guest for guest in self.guests if guest.name not in but]
        with (
            self.silence(but=but),
            ended_after([guest.spawn(f"work-{next(_marks)}", WORK) for guest in guests]) as jobs,
        ):
            yield
            for job in jobs:
                rc = job.wait(self.patience_s(WORK_TIMEOUT_S))
                assert rc == 0, f"{job.machine.name}: its work {'did not end' if rc is None else f'ended with {rc}'}"

    @contextmanager
    def silence(self, *, but: tuple[str, ...] = ()) -> Iterator[None]:
        """No kernel may complain in the block, nor of what happened in it."""
        machines = (self.host, *(guest for guest in self.guests if guest.name not in but))
        # Not by how many lines there were: a log that is full loses a line for each that comes.
        mark = f"lab: silence {next(_marks)}"
        _everywhere(machines, f"echo '{mark}' >/dev/kmsg")
        yield
        for machine, log in _everywhere(machines, "dmesg").items():
            before, found, new = log.partition(mark)
            assert found, f"{machine.name}: its kernel says so much that the beginning is lost: {before[:1000]}"
            damage = [line for line in new.splitlines() if DAMAGE.search(line)]
            if damage:
                print(machine.name, new, sep="\n")
            assert not damage, f"{machine.name}: its kernel says: {damage}"


def _everywhere(machines: tuple[Machine, ...], sh: str) -> dict[Machine, str]:
    """Return what a command prints on each machine."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(machines, pool.map(lambda machine: machine.check(sh), machines), strict=True))
