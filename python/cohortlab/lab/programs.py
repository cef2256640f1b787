# SPDX-License-Identifier: GPL-2.0-only
"""What runs in real guests: programs as their files say them, and loads that arrive late, sleep, begin anew."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cohortlab.errors import BadInput, one_line
from cohortlab.lab.agent import Job
from cohortlab.lab.guest import Guest
from cohortlab.places import PlaceCrashed, PlaceError
from cohortlab.scenario import Scenario, Vm
from cohortlab.workloads import Workload, WorkloadError, WorkloadTimeout

# A background load that is wrong (unknown option, missing program) ends at once.
LOAD_SETTLE_S = 0.5
LOAD_END_S = 90
_WORDS_MAX = 300
# Where a workload's files are in a guest: a folder of its name, in which its commands run.
FILES = "srv"


def unknown(scenario: Scenario) -> str | None:
    """Return which field asks for something that cannot run on a real kernel; None if all can."""
    for row, vm in zip(scenario.rows, scenario.vms, strict=True):
        for name in (*vm.programs, *([] if vm.load is None else [vm.load])):
            if scenario.workloads[name].command is None:
                field = "load" if name == vm.load else f"programs[{vm.programs.index(name)}]"
                return f'{scenario.path}: vm[{row}].{field}: "{name}" has no command: must be simulated (--on sim)'
    return None


def packages(scenario: Scenario) -> dict[str, str]:
    """Return the Debian packages that workloads need beside those that every guest has, and who needs each."""
    return {
        package: f"{scenario.path}: workload {workload.name}"
        for workload in scenario.workloads.values()
        for package in workload.packages
    }


def files(scenario: Scenario) -> dict[str, Path]:
    """Return the files that the workloads bring, by their path in a guest's root.

    Raises:
        BadInput: two of them have the same path there.
    """
    found: dict[str, Path] = {}
    for workload in scenario.workloads.values():
        for file in map(Path, workload.files):
            there = f"{FILES}/{workload.name}/{file.name}"
            other = found.setdefault(there, file)
            # An rt-app file is a workload that is called by its name without the folder.
            if other.resolve() != file.resolve():
                wrong = f"{other} and {file} are both /{there} in a guest: must have different names"
                raise BadInput(one_line(f"{scenario.path}: vm: {wrong}"))
    return found


def command(workload: Workload, line: str) -> str:
    """Return a workload's command line, in the folder of its files."""
    # Not `cd … && line`: of a line with & in it, the `cd` would be a part of what runs in the background.
    return f"cd {shlex.quote(f'/{FILES}/{workload.name}')} || exit; {line}" if workload.files else line


def rhythm(freeze: str, start_s: float, run_s: float, sleep_s: float) -> str:
    """Return what writes 1 and 0 into a file in turn, from ``start_s`` on.

    When it does is told by the host's clock: VMs of one rhythm sleep at the same time (docs/metrics.md), whoever was
    started first, and stay together.
    """
    period_s = run_s + sleep_s

    def sleep(left_s: str) -> str:
        return f"sleep $(date +%s.%N | LC_ALL=C awk '{{ at = ($1 - {start_s}) % {period_s}; print ({left_s}) }}')"

    run = sleep(f"at < {run_s} ? {run_s} - at : 0")
    stop = sleep(f"at < {run_s} ? 0 : {period_s} - at")
    return f"sleep {start_s}; while :; do {run}; echo 1 >{freeze}; {stop}; echo 0 >{freeze}; done"


def _over_and_over(line: str) -> str:
    """Return what runs a command line until it fails, and then ends with its exit code.

    The line may end in & or in a comment, and may exit: each time it has a shell of its own.
    """
    return f"while :; do ( {line}\n) >/dev/null || exit; done"


class Programs:
    """The programs and loads of a scenario, in guests that are up."""

    def __init__(self, scenario: Scenario, guests: Mapping[str, Guest]) -> None:
        self._scenario = scenario
        self._guests = guests
        self._vms = {vm.name: vm for vm in scenario.vms}
        self._spawned = 0
        # Loads of VMs that arrive with or after the programs: what is to be started when these are.
        self._late: list[tuple[Vm, str, ExitStack]] = []

    def prepare(self, vm: str, name: str) -> None:
        """Run a workload's setup.

        Raises:
            WorkloadError: it failed; its own words say why.
        """
        workload, machine = self._scenario.workloads[name], self._guests[vm].machine
        if workload.packages:
            # Servers talk to their clients.
            machine.check("busybox ip link set lo up")
        if workload.setup is None:
            return
        ended = machine.run(command(workload, workload.setup), workload.setup_timeout_s)
        if ended.timed_out:
            raise WorkloadTimeout(f"the setup of {name} in {vm} did not end in {workload.setup_timeout_s} s")
        if ended.rc != 0:
            said = one_line(ended.stderr or ended.stdout)[-_WORDS_MAX:]
            raise WorkloadError(f"the setup of {name} in {vm} ended with {ended.rc}: {said}")

    @contextmanager
    def load(self, vm: str, name: str) -> Iterator[None]:
        """Keep a load running for the duration of the block; one that arrives later from ``begin`` on.

        Raises:
            PlaceError: it ended by itself.
        """
        try:
            self.prepare(vm, name)
        except WorkloadError as error:
            raise PlaceError(str(error)) from None
        known = self._vms[vm]
        with ExitStack() as running:
            if known.start_s > 0:
                self._late.append((known, name, running))
            else:
                self._start(known, name, running)
            try:
                yield
            except PlaceCrashed:
                running.pop_all()  # nobody is left who could end it
                raise
            finally:
                self._late = [late for late in self._late if late[0].name != vm]

    def begin(self) -> bool:
        """The programs begin: so do, some time later, the loads of VMs that arrive later; return whether any do."""
        late, self._late = self._late, []
        for vm, name, running in late:
            self._start(vm, name, running)
        return bool(late)

    @contextmanager
    def again(self, vm: str, name: str) -> Iterator[None]:
        """Keep a program that has ended running, over and over, for the duration of the block.

        Raises:
            WorkloadError: it failed meanwhile, so that who ran beside it had the host for itself.
        """
        workload = self._scenario.workloads[name]
        job = self._spawn(vm, _over_and_over(command(workload, workload.command or "")))
        rc = None
        try:
            yield
            rc = job.wait(0)
        finally:
            job.signal(9)
            job.wait(LOAD_END_S)
        if rc is not None:
            said = one_line(job.output("stderr")[0])[-_WORDS_MAX:]
            raise WorkloadError(f"{name} in {vm}, begun anew, ended with {rc}: {said}")

    def _start(self, vm: Vm, name: str, running: ExitStack) -> None:
        workload = self._scenario.workloads[name]
        line = command(workload, workload.command or "")
        if not workload.background:
            line = _over_and_over(line)
        job = self._spawn(vm.name, f"sleep {vm.start_s}; {line}" if vm.start_s else line)
        # A late one is looked at when it is ended: meanwhile the programs, and other late ones, would wait.
        if not vm.start_s and (rc := job.wait(LOAD_SETTLE_S)) is not None:
            raise PlaceError(f"{name} ended with {rc} in {vm.name}: {job.output('stderr')[0].strip()[-_WORDS_MAX:]}")
        running.callback(self._end, job, vm.name, name)
        if vm.run_s is not None and vm.sleep_s is not None:
            running.enter_context(self._rhythm(vm, vm.run_s, vm.sleep_s))

    def _end(self, job: Job, vm: str, name: str) -> None:
        if (rc := job.wait(0)) is not None:
            said = job.output("stderr")[0].strip()[-_WORDS_MAX:]
            raise PlaceError(f"{name} in {vm} ended by itself with {rc}: {said}")
        job.signal(9)
        job.wait(LOAD_END_S)

    @contextmanager
    def _rhythm(self, vm: Vm, run_s: float, sleep_s: float) -> Iterator[None]:
        """Freeze the VM's cgroup now and then."""
        guest = self._guests[vm.name]
        freeze = f"{guest.cgroup}/cgroup.freeze"
        self._spawned += 1
        job = guest.host.spawn(f"rhythm-{self._spawned}", rhythm(freeze, vm.start_s, run_s, sleep_s))
        try:
            yield
        finally:
            job.signal(9)
            job.wait(LOAD_END_S)
            # Its agent is asked next.
            guest.host.check(f"echo 0 >{freeze}")

    def _spawn(self, vm: str, line: str) -> Job:
        self._spawned += 1  # a new name each: the one before may still be ending
        return self._guests[vm].machine.spawn(f"load-{self._spawned}", line)
