# SPDX-License-Identifier: GPL-2.0-only
"""The first level: a QEMU process with the host under test in it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cohortlab import memory
from cohortlab.lab import cache, control, evidence, lastwords, turn
from cohortlab.lab.agent import AgentError, Connection, Machine
from cohortlab.lab.command import Boot, Command
from cohortlab.lab.console import Growing
from cohortlab.lab.lastwords import DEATH, Vmm
from cohortlab.lab.patience import STOOD_S, BootTimes, Deadline, OwnTime, Patience, boot_times
from cohortlab.lab.qemu import Qemu
from cohortlab.places import PlaceCrashed, PlaceError, PlaceFailed, ProgressFn

# The host under test goes on after these, but somebody should know.
COMPLAINT = re.compile(
    r"BUG:|WARNING:|\bstall|lockup|hung_task|blocked for more than|sched_ext: .*(error|disabled \()|Call Trace"
)
# How often a host that boots is looked at.
_LOOK_S = 2
# A host that was up and is without an answer for this long is taken for hung. Its agent is an ordinary process: a
# scheduler under test may starve it, and the kernel's watchdog needs 30 s to end that.
_SILENCE_S = 120
_PING_S = 5
_AGENT = "agent.sock"
_CONSOLE = "console.log"
_ERRORS = "emulator.err"
_MEMORY = "memory"
# What the emulator calls the folder of its saved state, whose path QEMU would end at ",offset=".
_STATE = "state"
# Locked by the emulator for as long as it lives, and by who talks to its agent.
_ALIVE = "alive"
_CLIENT = "client"
# It listens at its agent's port at once; a machine that is very busy, or reads it from a slow disk, takes a while.
_START_S = 60
# One that was killed ends when the kernel has freed its memory, gigabytes of it.
_END_S = 60
# A folder is filled, and its emulator started, within this time.
_FILLED_S_MAX = 3600


class TooLittleMemory(PlaceError):
    """What the lab needs is not left: that is no reason to try another accelerator."""


class Emulator:
    """A running first level."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None, qemu: Qemu | None = None) -> None:
        self.folder = folder
        self.qemu = qemu
        self._evidence_at: Path | None = None
        self._evidence_asked = False
        self._evidence_lock = threading.Lock()
        # When the first of the pings was sent that are not answered yet, and when somebody last looked for its answer.
        self._asked = self._looked = 0.0
        self._silence_lock = threading.Lock()
        # What a boot of such a host takes on this machine, if that is known.
        self.boot_s: float | None = None
        self.console = folder / _CONSOLE
        # Of the console: what nobody has looked at for complaints yet, and what not for the host's death.
        self._complaints, self._deaths = Growing(self.console), Growing(self.console)
        self._died = False
        self._death_lock = threading.Lock()
        self._process = process
        self._closing = threading.Event()
        self._up = process is None  # one that was left running is
        self._pid = process.pid if process else _emulator_in(folder)
        self._client = _only_client(folder)
        try:
            self.connection = Connection(folder / _AGENT, self.check)
        except BaseException:
            self._client.close()
            raise
        self.host = Machine("host", self.connection)

    @classmethod
    def start(cls, command: Command, boot: Boot, progress: ProgressFn, state: Path | None = None) -> Emulator:
        """Boot, or go on from a folder that ``save`` has filled; return when the agent answers."""
        runs = cache.root() / "run"
        runs.mkdir(exist_ok=True)
        take = boot.turn.take if boot.turn else turn.take
        own_turn = take(runs, progress, share=boot.share)
        folder = process = None
        try:
            _remove_dead(runs)
            check_memory(boot.memory_mb, memory.left_mb(), "left")
            if gone := [file for file in command.files if not file.exists()]:
                raise PlaceFailed(f"{gone[0]}: was removed while this lab waited for its turn: start it again")
            folder = Path(tempfile.mkdtemp(dir=runs))
            if state is not None:
                shutil.copyfile(state / _CONSOLE, folder / _CONSOLE)
            process = _launch(command, folder, own_turn, boot.keep, state)
            if boot.accel == "tcg":
                _tell_timers_at_once(process.pid)
            if state is not None:
                _go_on(folder)
            emulator = cls(folder, process, command.qemu)
        except BaseException:
            if process is not None:
                process.kill()
                process.wait()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(own_turn)  # the emulator has it now
        try:
            release = boot.kernel.release
            how = f"{boot.accel}, {command.qemu.name}, Linux {release}, host of {boot.pcpus} pCPUs"
            times = boot_times()
            emulator.wait_until_up(times, how if state is None else f"{how}, from a saved state")
            emulator.boot_s = times.usual_s(how)
        except BaseException:
            emulator.close()
            raise
        emulator._keep_hearing()
        return emulator

    @classmethod
    def attach(cls, folder: Path) -> Emulator:
        """Return a first level that was started with ``keep``.

        Raises:
            PlaceError: there is none, or somebody else is at work with it.
        """
        if not (folder / _AGENT).exists():
            raise PlaceError(f"{folder}: no lab runs there")
        try:
            emulator = cls(folder, None)
        except OSError as error:
            raise PlaceError(f"{folder}: no lab runs there: {error.strerror}") from None
        emulator._keep_hearing()
        return emulator

    def save(self, into: Path) -> None:
        """Save the first level's state, from which another one can go on, into a folder."""
        link = self.folder / _STATE
        link.unlink(missing_ok=True)
        link.symlink_to(into)
        try:
            control.save(self.folder, f"{_STATE}/{_MEMORY}")
        finally:
            link.unlink(missing_ok=True)
        shutil.copyfile(self.console, into / _CONSOLE)

    def wait_until_up(self, times: BootTimes, what: str) -> None:
        """Return when the agent answers; ``what`` is booted here, for the next time."""
        patience = Patience(times.usual_s(what), self.clock())
        while True:
            try:
                self.host.ping(_LOOK_S)
                break
            except TimeoutError:
                why = patience.lost(len(self.console_text()))
            except AgentError as error:
                self._closing.wait(_LOOK_S)  # its emulator's port is gone a moment before its process is
                self.check()
                why = f"cannot be reached while it boots ({error})"
            if why:
                raise PlaceCrashed(f"the lab's host {why}; {self.last_words()}{self._evidence()}")
        self._up = True
        times.add(what, patience.elapsed_s)

    def check(self) -> None:
        """Raise PlaceCrashed if the host under test is dead or does not answer."""
        if self._closing.is_set():
            return
        if self._process is not None and self._process.poll() is not None:
            raise PlaceCrashed(f"the lab's emulator ended; {self.last_words()}")
        if self._has_died():
            raise PlaceCrashed(f"the lab's host crashed; {self.last_words()}")
        silence_s = self._silence_s()
        if self._up and silence_s > _SILENCE_S:
            raise PlaceCrashed(
                f"the lab's host does not answer for {silence_s:.0f} s; {self.last_words()}{self._evidence()}"
            )

    def _has_died(self) -> bool:
        """Return whether the console tells of the host's death. All who wait for an answer ask that, all the time."""
        with self._death_lock:
            if not self._died:
                whole, begun = self._deaths.read()
                # A host that dies may not come to the end of a line.
                self._died = DEATH.search(whole + begun) is not None
            return self._died

    def _silence_s(self) -> float:
        """Return for how many seconds a question is unanswered, of those in which this process was not stopped.

        By Ctrl-Z, say: nobody asks then, nor reads the answer to what was asked before.
        """
        with self._silence_lock:
            now = time.monotonic()
            # Whoever asked looks all the time.
            not_looked_s = now - max(self._looked, self._asked)
            self._looked = now
            if self._asked <= self.connection.last_heard:
                return 0.0
            if not_looked_s > STOOD_S:
                self._asked += not_looked_s
            return now - self._asked

    def console_text(self) -> str:
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def new_complaints(self, *, last: bool = False) -> list[str]:
        """Return the console's lines, since the last call, that tell of a bug, a stall or an ejected scheduler.

        Half a line waits for its other half, unless this is the ``last`` call.
        """
        whole, begun = self._complaints.read()
        new = whole + begun if last else whole
        return [line.strip() for line in new.splitlines() if COMPLAINT.search(line)]

    def close(self) -> None:
        """End the first level, if this process started it, and remove its files."""
        self._closing.set()
        self.connection.close()
        self._client.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The emulator's process, and its main loop's thread.

        Raises:
            PlaceError: it has ended.
        """
        if self._pid is None:
            raise PlaceError(f"{self.folder}: no lab runs there")
        return self._pid

    @property
    def timers_wait(self) -> bool:
        """Whether the emulator's main loop, which tells the machine that a timer is up, may have to wait for a CPU."""
        try:
            return os.sched_getscheduler(self.pid) & ~os.SCHED_RESET_ON_FORK != os.SCHED_FIFO
        except (OSError, PlaceError):
            return True

    def clock(self) -> OwnTime:
        """Return a clock that passes as fast as the emulator gets the CPUs that it wants."""
        return OwnTime(self._pid)

    def last_words(self) -> str:
        """Return how the host and its emulator are, and what both printed last."""
        errors = self.folder / _ERRORS
        printed = errors.read_text(errors="replace") if errors.exists() else ""
        code = self._process.poll() if self._process else None
        return lastwords.of(Vmm(code, lastwords.cpu_s(self._pid or 0), printed), self.console_text())

    def _evidence(self) -> str:
        """Keep the state of an emulator that runs while its host hangs; return where it is, as the end of a message."""
        with self._evidence_lock:
            # Once: an emulator that does not answer is not asked again and again.
            if not self._evidence_asked:
                self._evidence_asked = True
                self._evidence_at = evidence.take(self.folder, self.console_text())
        return f"; its processors' state: {self._evidence_at}" if self._evidence_at else ""

    def _keep_hearing(self) -> None:
        threading.Thread(target=self._ping_now_and_then, name="lab ping", daemon=True).start()

    def _ping_now_and_then(self) -> None:
        """Have the host say that it lives, also while all callers wait for long commands."""
        while not self._closing.wait(_PING_S):
            with self._silence_lock:
                if self._asked <= self.connection.last_heard:
                    self._asked = time.monotonic()
            try:
                self.host.ping(_SILENCE_S)
            except (TimeoutError, AgentError, PlaceCrashed):
                continue  # whoever calls next is told


def check_memory(needed_mb: int, there_mb: int, how: str) -> None:
    """Raise TooLittleMemory if the lab's host, with its guests, needs more than there is ``how``; 0: nothing tells."""
    if 0 < there_mb < needed_mb:
        what = f"the lab's host and guests need {needed_mb} MB of memory"
        raise TooLittleMemory(f"{what}, this machine has {there_mb} MB {how}: give the VMs less memory_mb")


def _only_client(folder: Path) -> IO[bytes]:
    """Return what, while it is open, says that we are at work with that lab: its agent's port has one client.

    Another one's connection would wait there, without a word.
    """
    client = (folder / _CLIENT).open("wb")
    try:
        fcntl.flock(client, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        client.close()
        raise PlaceError(f"{folder}: another cohortlab is at work with this lab: wait until it has ended") from None
    return client


def _launch(command: Command, folder: Path, own_turn: int, keep: bool, state: Path | None) -> subprocess.Popen[bytes]:
    (folder / "initrd").write_bytes(command.initrd)
    argv = list(command.argv)
    if state is not None:
        (folder / _STATE).symlink_to(state)
        argv += ["-incoming", f"file:{_STATE}/{_MEMORY}"]
    if not keep:
        argv = _tied(argv, os.getpid())
    with (folder / _ERRORS).open("wb") as err, (folder / _ALIVE).open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=err,
            stderr=err,
            env=os.environ | dict(command.qemu.env),
            pass_fds=(own_turn, alive.fileno(), *cache.locks()),
            start_new_session=True,  # Ctrl-C is for us, who then clean up
        )
    try:
        (folder / "pid").write_text(f"{process.pid}\n")
        turn.announce(own_turn, f"process {process.pid}, started by {os.getpid()}, in {folder}")
        deadline = Deadline(_START_S)
        while not (folder / _AGENT).exists():
            if process.poll() is not None:
                raise PlaceFailed(f"the lab's emulator does not start: {_last_error(folder)}")
            if deadline.is_over():
                raise PlaceFailed(f"the lab's emulator does not start within {_START_S} s: {_last_error(folder)}")
            time.sleep(0.02)
    except BaseException:
        # Nobody else knows of it yet.
        process.kill()
        process.wait()
        raise
    return process


def _tied(argv: Sequence[str], starter: int) -> list[str]:
    """Return a command that the kernel ends with the process ``starter``, which runs it, however that one ends.

    With the thread that runs it, to be exact. Of a starter that was killed before the kernel was told nothing is heard
    any more, and the emulator would keep the turn, which it inherits, for ever: so it does not begin without one.
    """
    begin = f'[ "$PPID" = {starter} ] && exec "$@"'
    return ["setpriv", "--pdeathsig", "KILL", "sh", "-c", begin, "sh", *argv]


def _tell_timers_at_once(pid: int) -> None:
    """Let the emulator's main loop have a CPU whenever it wants one.

    A host of as many pCPUs as there are CPUs keeps them all busy, and the main loop, an ordinary thread among theirs,
    waited for the end of their slices now and then (`bench/emulator/timers.py`): timers were late, and so were the ends
    of turns. Hardware interrupts at once. The threads that are the pCPUs, and those to come, stay ordinary.
    """
    with suppress(OSError):  # mostly for want of the right; who it was is told by Emulator.timers_wait
        os.sched_setscheduler(pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _go_on(folder: Path) -> None:
    try:
        control.go_on(folder)
    except PlaceCrashed as error:
        raise PlaceCrashed(f"{error}: {_last_error(folder)}") from None


def _last_error(folder: Path) -> str:
    lines = (folder / _ERRORS).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason given"


def stop_kept(folder: Path) -> None:
    """End a first level that was started with ``keep``; return when its memory and its turn are free.

    Raises:
        PlaceError: there is none.
        PlaceFailed: it was killed, and has not ended.
    """
    process = _emulator_in(folder)
    if process is None:
        raise PlaceError(f"{folder}: no lab runs there")
    if not _end(process, folder):
        what = f"process {process} was killed, and has not ended within {_END_S} s"
        raise PlaceFailed(f"{folder}: {what}: until it has, its memory is not free and other labs wait")
    shutil.rmtree(folder, ignore_errors=True)


def _end(process: int, folder: Path) -> bool:
    """Kill the emulator that runs in ``folder``; return whether it has ended within ``_END_S`` seconds."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        # From now on nobody else is meant by it; until then, its number might have become another process's.
        if _emulator_in(folder) != process:
            return True
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        # Not by its files, which it closes one after the other: all of them are closed when it has ended.
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return bool(ended.poll(_END_S * 1000))
    except ProcessLookupError:
        return True
    finally:
        os.close(handle)


def _emulator_in(folder: Path) -> int | None:
    """Return the emulator that runs in ``folder``. Its number alone may by now be somebody else's."""
    try:
        process = int((folder / "pid").read_text())
        return process if Path(f"/proc/{process}/cwd").readlink() == folder.resolve() else None
    except (OSError, ValueError):
        return None


def _remove_dead(runs: Path) -> None:
    """Remove what labs left behind whose Python process was killed, and their emulator with it."""
    for folder in runs.iterdir():
        # One that is being filled has no emulator yet.
        with suppress(OSError):
            is_new = not (folder / "pid").exists() and time.time() - folder.stat().st_mtime < _FILLED_S_MAX
            if folder.is_dir() and not is_new and not _is_alive(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(folder: Path) -> bool:
    """Return whether a folder's emulator runs, also one of another container: we may see its files alone."""
    with (folder / _ALIVE).open("ab") as alive:
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return _emulator_in(folder) is not None
