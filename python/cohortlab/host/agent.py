# SPDX-License-Identifier: GPL-2.0-only
"""The lab's agent as a process of this host, in a cgroup with all that it starts.

It lives as long as the socket between us. However we end, killed included, it then kills what it started, puts back
what was changed, and removes the cgroups. Should it be killed itself, whoever of us comes next removes what is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from cohortlab.host.checks import CGROUPS
from cohortlab.lab.agent import AgentError, Connection, Machine
from cohortlab.places import PlaceCrashed, PlaceError, PlaceFailed

_PREFIX = "cohortlab-"
# In the folder of one that has switched the host's cpu controller on.
_ADDED = "added-cpu"
_RUN = Path("/run")
# What a cgroup has of the cpu controller if nobody has told it anything else.
_UNTOLD = {"cpu.weight": "100", "cpu.max": "max 100000"}
# Guests' memory takes a while to be freed, and a scheduler to be unloaded.
_END_S = 120
_DYING_S = 5
_TRIES = 200
_TRY_S = 0.05


class LocalAgent:
    """A started agent, with a folder for its files and a cgroup for the guests."""

    def __init__(self, program: Path) -> None:
        self._turn = _take_turn()
        try:
            _clean_up_after_the_dead()
            self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_RUN))
        except BaseException:
            os.close(self._turn)
            raise
        self.slice = CGROUPS / f"{_PREFIX}{os.getpid()}.slice"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        try:
            self._start(program)
        except BaseException:
            self.close()
            raise

    def _start(self, program: Path) -> None:
        own = self.slice / "agent"
        had = "cpu" in (CGROUPS / "cgroup.subtree_control").read_text().split()
        if not had:
            # Whoever clears up knows by that.
            (self.folder / _ADDED).touch()
            _have_cpu("+cpu")
        self.slice.mkdir()
        (self.slice / "cgroup.subtree_control").write_text("+cpu")
        own.mkdir()
        (own / "cpu.weight").write_text("10000")  # it must not wait behind what it measures
        ours, theirs = socket.socketpair()
        # Before there is a process, which lives as long as this is open: whoever is interrupted from now on closes it.
        self._connection = Connection(ours, self.check)
        command = f"echo $$ >{own}/cgroup.procs && exec {shlex.join([str(program), 'host', str(self.folder)])}"
        with theirs, (self.folder / "agent.err").open("wb") as err:
            # A session of its own: Ctrl-C is for us, who then clean up.
            self._process = subprocess.Popen(
                ["sh", "-c", command],
                stdin=theirs.fileno(),
                stdout=err,
                stderr=err,
                start_new_session=True,
                pass_fds=(self._turn,),  # until it has put back what was changed
            )
        self.machine = Machine("host", self._connection)
        try:
            self.machine.ping()
            self.machine.at_end("what is left", self._removal(keep_cpu=had))
        except (AgentError, TimeoutError, PlaceCrashed) as error:
            why = str(error)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_DYING_S)
                why = self.last_words()
            raise PlaceFailed(f"the agent on this host does not start: {why}") from None

    def _removal(self, *, keep_cpu: bool) -> str:
        """Return the shell command with which the agent removes its cgroups and files, itself out of them first."""
        root = f"{CGROUPS}/cgroup.procs"
        lines = [
            f"echo $$ >{root}; echo $PPID >{root}; echo 1 >{self.slice}/cgroup.kill; n=0",
            f"while [ -d {self.slice} ] && [ $n -lt {_TRIES} ]",
            f"do rmdir {self.slice}/*/ {self.slice} 2>/dev/null || sleep {_TRY_S}; n=$((n + 1)); done",
            f"rm -rf {self.folder}",
        ]
        if not keep_cpu:
            # What _somebody_uses_cpu() looks at, by a shell.
            said = " ".join(f"{CGROUPS}/*/{name}" for name in _UNTOLD)
            untold = " ".join(f"-e '{value}'" for value in _UNTOLD.values())
            used = f"cat {said} 2>/dev/null | grep -qvx {untold}"
            lines.append(f"{used} || echo -cpu >{CGROUPS}/cgroup.subtree_control")
        return "\n".join(lines)

    def check(self) -> None:
        """Raise PlaceCrashed if the agent has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise PlaceCrashed(f"the agent on this host ended with {code}; {self.last_words()}")

    def last_words(self) -> str:
        try:
            return (self.folder / "agent.err").read_text(errors="replace").strip()[-300:] or "it printed nothing"
        except OSError:
            return "its files are gone"

    def close(self) -> None:
        """Return when all is gone that was started."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                # It holds this host, and is in no cgroup that is removed below.
                self._process.kill()
                self._process.wait()
        _remove(self.slice)
        _remove_files(self.folder)
        os.close(self._turn)


def _take_turn() -> int:
    """Return a descriptor that holds this host for one comparison: two would measure, and change, each other.

    The agent of one that was killed has it too, for as long as it puts back what was changed: that is waited for.
    """
    # Of a folder that is there anyway, and the same for all of this host.
    turn = os.open(CGROUPS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + _END_S
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # One that only ends, or begins, has no cgroup of its own.
            if not _slices(alive=True) and time.monotonic() < deadline:
                time.sleep(_TRY_S)
                continue
            os.close(turn)
            raise PlaceFailed("another comparison runs on this host: wait until it has ended") from None
        return turn


def _slices(*, alive: bool) -> list[Path]:
    """Return the cgroups of those of us that run, or that have ended."""
    slices = CGROUPS.glob(f"{_PREFIX}*.slice")
    number = {path: path.name.removeprefix(_PREFIX).removesuffix(".slice") for path in slices}
    return [path for path, pid in number.items() if Path(f"/proc/{pid}").exists() == alive]


def _clean_up_after_the_dead() -> None:
    """Remove what is left of others of us whose agent was killed, too. We must have the turn, and nothing yet."""
    ours = str(os.getpid())
    # What has our own number is of one that had it before us.
    for path in (*_slices(alive=False), CGROUPS / f"{_PREFIX}{ours}.slice"):
        _remove(path)
    for path in _RUN.glob(f"{_PREFIX}*-*"):
        number = path.name.split("-")[1]
        if number == ours or not Path(f"/proc/{number}").exists():
            _remove_files(path)


def _have_cpu(which: str) -> None:
    """Have the host's cgroups compete for CPU time, or no longer."""
    file = CGROUPS / "cgroup.subtree_control"
    try:
        file.write_text(which)
    except OSError as error:
        why = f"the cpu controller cannot be switched ({which}): {error.strerror}"
        raise PlaceError(f"{file}: {why}: run outside of containers, where this is the root of all cgroups") from None


def _somebody_uses_cpu() -> bool:
    """Return whether a cgroup at the top has a weight or a quota: without the cpu controller it would lose both."""
    for name, untold in _UNTOLD.items():
        for file in CGROUPS.glob(f"*/{name}"):
            with contextlib.suppress(OSError):  # its cgroup has just been removed
                if file.read_text().strip() != untold:
                    return True
    return False


def _remove_files(folder: Path) -> None:
    """Remove a folder of ours, and put back what its mark says was changed, unless somebody else has use for it now."""
    if (folder / _ADDED).exists() and not _somebody_uses_cpu():
        # The kernel refuses where somebody has passed it on to cgroups below by now.
        with contextlib.suppress(PlaceError):
            _have_cpu("-cpu")
    shutil.rmtree(folder, ignore_errors=True)


def _remove(group: Path) -> None:
    """Kill all processes in a cgroup, and remove it with those below it."""
    if not group.is_dir():
        return
    with contextlib.suppress(OSError):  # before Linux 5.14, where it must be empty by itself
        (group / "cgroup.kill").write_text("1")
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):  # somebody in it still ends
            for child in group.iterdir():
                if child.is_dir():
                    child.rmdir()
            group.rmdir()
            return
        time.sleep(_TRY_S)
