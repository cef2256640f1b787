# SPDX-License-Identifier: GPL-2.0-only
"""The emulator's own control (QMP): its state saved into a file, a restored one set going, one that hangs asked."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from qemu.qmp import QMPClient, QMPError

from cohortlab.lab.agent import connected
from cohortlab.lab.patience import Deadline
from cohortlab.places import PlaceCrashed

SOCKET = "control.sock"
# A state of 500 MB takes half a second; a slow disk and a busy machine, much longer.
_PATIENCE_S = 120
# For one answer, of a QEMU whose own loop may be stuck.
_ANSWER_S = 30
# It listens a moment after it has started.
_CONNECT_S = 5
# How often who waits for an answer looks whether it is late.
_CHECK_S = 1.0
_LOOK_S = 0.02
# QEMU's own limit, 128 MB/s, is one for networks.
_BYTES_PER_S = 10**11
_ENDED = ("completed", "failed", "cancelled", None)

T = TypeVar("T")


def save(folder: Path, file: str) -> None:
    """Write the state of the emulator that runs in ``folder`` into a file; it stands still meanwhile and goes on.

    ``file``: relative to ``folder``, as ",offset=" in a path would end it for QEMU.

    Raises:
        PlaceCrashed: it could not, or is gone. Whether it goes on is then to be seen.
    """

    async def talk(qmp: QMPClient) -> None:
        await _ask(qmp, "stop")
        try:
            await _ask(qmp, "migrate-set-parameters", {"max-bandwidth": _BYTES_PER_S})
            await _ask(qmp, "migrate", {"uri": f"file:{file}"})
            await _until(qmp, "query-migrate", ("completed",))
            # It says that a little before it may go on.
            await _until(qmp, "query-status", ("postmigrate",))
        except BaseException:
            # One that went on writing would stop it again at its end.
            with suppress(QMPError, TimeoutError, PlaceCrashed):
                await _ask(qmp, "migrate_cancel")
                await _until(qmp, "query-migrate", _ENDED)
            raise
        finally:
            await _ask(qmp, "cont")
            await _until(qmp, "query-status", ("running",))

    _session(folder, talk)


def go_on(folder: Path) -> None:
    """Set the emulator in ``folder`` going, once it has read the state that it was started with.

    Raises:
        PlaceCrashed: it cannot read that, or is gone.
    """

    async def talk(qmp: QMPClient) -> None:
        await _until(qmp, "query-status", ("paused",))
        await _ask(qmp, "cont")

    _session(folder, talk)


def monitor(folder: Path, commands: Sequence[str]) -> list[str]:
    """Return what the monitor of the emulator in ``folder`` answers to each command, under the command itself.

    Raises:
        PlaceCrashed: it does not answer, or is gone.
    """
    answers = []

    async def talk(qmp: QMPClient) -> None:
        for command in commands:
            answer = await _ask(qmp, "human-monitor-command", {"command-line": command})
            answers.append(f"{command}:\n{answer}")

    _session(folder, talk)
    return answers


async def _ask(qmp: QMPClient, command: str, arguments: dict[str, Any] | None = None) -> Any:
    return await _in_time(qmp.execute(command, arguments))


async def _in_time(doing: Awaitable[T]) -> T:
    """Return what ``doing`` comes to.

    Raises:
        TimeoutError: that takes longer than an answer may, without the time in which this process was stopped.
    """
    deadline = Deadline(_ANSWER_S)
    task = asyncio.ensure_future(doing)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_CHECK_S)
            if not task.done() and deadline.is_over():
                raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return task.result()


async def _until(qmp: QMPClient, query: str, wanted: tuple[str | None, ...]) -> None:
    """Return when the answer to ``query`` has one of these statuses; a migration that is being set up has none."""
    deadline = Deadline(_PATIENCE_S)
    while (status := (answer := await _ask(qmp, query)).get("status")) not in wanted:
        if status in _ENDED[1:-1]:
            raise PlaceCrashed(f"its state is not saved: {answer.get('error-desc', status)}")
        if deadline.is_over():
            raise PlaceCrashed(f"{query} says {status} for {_PATIENCE_S} s instead of {wanted[0]}")
        await asyncio.sleep(_LOOK_S)


def _session(folder: Path, talk: Callable[[QMPClient], Awaitable[None]]) -> None:
    async def session() -> None:
        qmp = QMPClient("lab")
        await _in_time(qmp.connect(_connected(folder)))
        try:
            await talk(qmp)
        finally:
            await _in_time(qmp.disconnect())

    try:
        asyncio.run(session())
    except TimeoutError:
        raise PlaceCrashed(f"the lab's emulator gives no answer within {_ANSWER_S} s") from None
    except (QMPError, OSError, EOFError) as error:
        raise PlaceCrashed(f"the lab's emulator is not in control: {error}") from None


def _connected(folder: Path) -> socket.socket:
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            return connected(folder / SOCKET)
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(_LOOK_S)
