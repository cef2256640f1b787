# SPDX-License-Identifier: GPL-2.0-only
"""Talks to the agent in the host under test, and through it to the agents in its guests."""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import os
import random
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cohortlab.lab.patience import Deadline

# How often a waiting caller looks whether the machine behind the agent still lives.
_LOOK_S = 0.5
# How long who sends waits when there is no room for more.
_FULL_S = 0.01
# How much of a file is asked for or sent at a time: all of a program in one piece may take longer than an answer may.
_PART_BYTES = 1 << 19


class AgentError(Exception):
    """The agent answered that it could not do what was asked."""


@dataclass(frozen=True)
class Sample:
    """Files' contents at one time of the machine's CLOCK_MONOTONIC; None for a file that could not be read."""

    time_ns: int
    files: dict[str, str | None]


@dataclass(frozen=True)
class Answer:
    """What an operation returned, and the files sampled right before and right after it."""

    value: dict[str, Any]
    before: Sample | None = None
    after: Sample | None = None


@dataclass(frozen=True)
class Done:
    """A command that ended. ``rc`` is minus the signal if one killed it."""

    rc: int
    stdout: str
    stderr: str
    wall_s: float
    timed_out: bool


class Channel(Protocol):
    """Something that carries an operation to an agent."""

    def call(self, op: dict[str, Any], sample: Sequence[str] = (), timeout_s: float = 60) -> Answer: ...


class Connection:
    """The first level's port. Calls from several threads overlap; answers find their caller by id."""

    def __init__(self, port: Path | socket.socket, check: Callable[[], None]) -> None:
        """``check`` raises if the machine is known to be dead; it is called now and then while somebody waits."""
        self._check = check
        self._socket = port if isinstance(port, socket.socket) else connected(port)
        # An answer meant for an earlier connection to the same port must not look like one of ours.
        self._ids = itertools.count(random.getrandbits(40))
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._send_lock = threading.Lock()
        self.last_heard = time.monotonic()
        threading.Thread(target=self._read, name="lab agent", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def call(self, op: dict[str, Any], sample: Sequence[str] = (), timeout_s: float = 60) -> Answer:
        """Perform ``op``.

        Raises:
            AgentError: it could not be done.
            TimeoutError: no answer came within ``timeout_s``, in which this process was not stopped.
            and what ``check`` raises.
        """
        number, future = next(self._ids), Future[dict[str, Any]]()
        self._waiting[number] = future
        line = json.dumps({"id": number, "op": op, "sample": list(sample)}) + "\n"
        deadline = Deadline(timeout_s)

        def look() -> None:
            self._check()
            if deadline.is_over():
                raise TimeoutError(f"no answer within {timeout_s:g} s to {line[:200].strip()}")

        try:
            self._send(line.encode(), look)
            while True:
                try:
                    return _answer(future.result(timeout=_LOOK_S))
                except FutureTimeoutError:
                    look()
        finally:
            self._waiting.pop(number, None)

    def _send(self, line: bytes, look: Callable[[], None]) -> None:
        """Send a request; call ``look`` now and then while the machine takes no more of it, as one that hangs."""
        while not self._send_lock.acquire(timeout=_LOOK_S):
            look()
        left = memoryview(line)
        try:
            while left:
                try:
                    left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    time.sleep(_FULL_S)
                    look()
                except OSError as error:
                    self._check()
                    raise AgentError(f"the lab's port is closed: {error.strerror}") from None
        except BaseException:
            if 0 < len(left) < len(line):
                # The next request shall not be taken for the other half of this one.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            raise
        finally:
            self._send_lock.release()

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                chunk = self._socket.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                break
            self.last_heard = time.monotonic()
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._deliver(line)
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_result({"error": "the lab's port was closed"})

    def _deliver(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
        except ValueError:
            return  # the second half of an answer to an earlier connection
        future = self._waiting.get(answer.get("id", 0)) if isinstance(answer, dict) else None
        if future is not None and not future.done():
            future.set_result(answer)


def connected(path: Path) -> socket.socket:
    """Return a connection to a Unix socket."""
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    try:  # by this detour the path may be longer than a socket's address
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


class GuestChannel:
    """A guest's agent, reached through the host's."""

    def __init__(self, host: Channel, socket_path: str) -> None:
        self._host = host
        self.socket_path = socket_path

    def call(self, op: dict[str, Any], sample: Sequence[str] = (), timeout_s: float = 60) -> Answer:
        return self.call_sampled(op, sample, (), timeout_s)[0]

    def call_sampled(
        self, op: dict[str, Any], sample: Sequence[str], host_sample: Sequence[str], timeout_s: float = 60
    ) -> tuple[Answer, Answer]:
        """Perform ``op`` in the guest; return the guest's answer and the host's, which holds the host's files."""
        forward = {"forward": {"socket": self.socket_path, "op": op, "sample": list(sample)}}
        outer = self._host.call(forward, host_sample, timeout_s)
        return _answer(outer.value), outer


def _answer(answer: dict[str, Any]) -> Answer:
    if (error := answer.get("error")) is not None:
        raise AgentError(error)
    pair = answer.get("sample")
    if pair is None:
        return Answer(answer["ok"])
    return Answer(answer["ok"], Sample(**pair["before"]), Sample(**pair["after"]))


class Machine:
    """A host or guest of the lab, by what its agent can do."""

    def __init__(self, name: str, channel: Channel) -> None:
        self.name = name
        self.channel = channel

    def ping(self, timeout_s: float = 60) -> None:
        self.channel.call({"ping": {}}, timeout_s=timeout_s)

    def run(self, sh: str, timeout_s: float = 60) -> Done:
        """Run a shell command to its end."""
        # The agent keeps the time limit; a little more than that is for the way there and back.
        answer = self.channel.call({"exec": {"sh": sh, "timeout_s": timeout_s}}, timeout_s=timeout_s + 30)
        return done(answer)

    def check(self, sh: str, timeout_s: float = 60) -> str:
        """Run a shell command that must succeed; return what it printed."""
        ended = self.run(sh, timeout_s)
        if ended.rc != 0 or ended.timed_out:
            why = f"took more than {timeout_s:g} s" if ended.timed_out else f"ended with {ended.rc}"
            raise AgentError(f"{self.name}: `{sh}` {why}: {(ended.stderr or ended.stdout).strip()[-500:]}")
        return ended.stdout

    def read(self, path: str) -> str:
        return str(self.channel.call({"read_file": {"path": path}}).value["text"])

    def write(self, path: str, text: str) -> None:
        self.channel.call({"write_file": {"path": path, "text": text}})

    def put(self, path: str, program: bytes) -> None:
        """Write an executable file."""
        text = base64.b64encode(program).decode()
        part, coded, new, whole = (shlex.quote(f"{path}{end}") for end in (".part", ".base64", ".new", ""))
        self.check(f"rm -f {coded}")
        for at in range(0, len(text), _PART_BYTES):
            self.write(f"{path}.part", text[at : at + _PART_BYTES])
            self.check(f"cat {part} >>{coded}")
        # Not written in place: it may be running.
        self.check(f"base64 -d {coded} >{new} && chmod +x {new} && mv {new} {whole}")
        self.check(f"rm {coded} {part}")

    def get(self, path: str, timeout_s: float = 300) -> bytes:
        """Return what a file has; raise AgentError if it cannot be read."""
        coded = shlex.quote(f"{path}.base64")
        # A pipe fails with its last command alone, and a file that is not there would be an empty one.
        self.check(f": <{shlex.quote(path)} && gzip -c {shlex.quote(path)} | base64 -w0 >{coded}", timeout_s)
        text = ""
        # Of what a command prints, the agent keeps the end only.
        while part := self.check(f"tail -c +{len(text) + 1} {coded} | head -c {_PART_BYTES}", timeout_s):
            text += part
        self.check(f"rm {coded}")
        return gzip.decompress(base64.b64decode(text))

    def at_end(self, name: str, sh: str | None) -> None:
        """Have a shell command run when nobody asks this machine any more, however that comes; None takes it back.

        Only the agent of a host without a level in between comes to such an end.
        """
        self.channel.call({"at_end": {"name": name, "sh": sh}})

    def spawn(self, name: str, sh: str) -> Job:
        """Start a shell command that goes on running."""
        return Job(self, name, int(self.channel.call({"spawn": {"name": name, "sh": sh}}).value["pid"]))


@dataclass(frozen=True)
class Job:
    """A command that was spawned, by its name there."""

    machine: Machine
    name: str
    pid: int

    def signal(self, number: int, *, leader_only: bool = False) -> None:
        op = {"signal": {"name": self.name, "signal": int(number), "leader_only": leader_only}}
        self.machine.channel.call(op)

    def wait(self, timeout_s: float, answer_s: float = 30) -> int | None:
        """Return the exit code, or None if it still runs after ``timeout_s``; the answer may be ``answer_s`` late."""
        op = {"wait": {"name": self.name, "timeout_s": timeout_s}}
        rc = self.machine.channel.call(op, timeout_s=timeout_s + answer_s).value["rc"]
        return None if rc is None else int(rc)

    def output(self, stream: str = "stdout", offset: int = 0) -> tuple[str, int]:
        """Return what it printed from ``offset`` on, and the offset to go on from."""
        text = ""
        while True:
            op = {"output": {"name": self.name, "stream": stream, "offset": offset}}
            value = self.machine.channel.call(op).value
            if not value["text"]:
                return text, offset
            text, offset = text + value["text"], int(value["next"])


def done(answer: Answer) -> Done:
    """Return the answer to ``exec``."""
    value = answer.value
    return Done(value["rc"], value["stdout"], value["stderr"], value["wall_ns"] / 1e9, value["timed_out"])
