# SPDX-License-Identifier: GPL-2.0-only
"""The emulator's own control (QMP): its state saved into a file, and a restored one set going."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from qemu.qmp import QMPClient, QMPError

from cohortlab.lab.agent import connected
from cohortlab.places import PlaceCrashed

T = TypeVar("T")

SOCKET = "control.sock"
# A state of 500 MB takes half a second; a slow disk and a busy machine, much longer.
_PATIENCE_S = 120
_LOOK_S = 0.02
# QEMU's own limit, 128 MB/s, is one for networks.
_BYTES_PER_S = 10**11


def save(folder: Path, file: Path) -> None:
    """Write the state of the emulator that runs in ``folder`` into ``file``; it stands still meanwhile and goes on.

    Raises:
        PlaceCrashed: it could not, or is gone.
    """

    async def talk(qmp: QMPClient) -> None:
        await qmp.execute("stop")
        try:
            await qmp.execute("migrate-set-parameters", {"max-bandwidth": _BYTES_PER_S})
            await qmp.execute("migrate", {"uri": f"file:{file}"})
            await _until(qmp, "query-migrate", "completed")
        finally:
            await qmp.execute("cont")

    _session(folder, talk)


def go_on(folder: Path) -> None:
    """Set the emulator in ``folder`` going, once it has read the state that it was started with.

    Raises:
        PlaceCrashed: it cannot read that, or is gone.
    """

    async def talk(qmp: QMPClient) -> None:
        await _until(qmp, "query-status", "paused")
        await qmp.execute("cont")

    _session(folder, talk)


async def _until(qmp: QMPClient, query: str, wanted: str) -> None:
    """Return when the answer to ``query`` has this status."""
    while True:
        answer = await qmp.execute(query)
        # Of a migration that is being set up there is none yet.
        status = answer.get("status") if isinstance(answer, dict) else None
        if status == wanted:
            return
        if status in ("failed", "cancelled"):
            said = answer.get("error-desc", "it does not say why") if isinstance(answer, dict) else ""
            raise PlaceCrashed(f"its state is not saved: {said}")
        await asyncio.sleep(_LOOK_S)


def _session(folder: Path, talk: Callable[[QMPClient], Awaitable[T]]) -> T:
    async def session() -> T:
        qmp = QMPClient("lab")
        await qmp.connect(connected(folder / SOCKET))
        try:
            return await talk(qmp)
        finally:
            await qmp.disconnect()

    try:
        return asyncio.run(asyncio.wait_for(session(), _PATIENCE_S))
    except TimeoutError:
        raise PlaceCrashed(f"the lab's emulator did not get done within {_PATIENCE_S} s") from None
    except (QMPError, OSError, EOFError) as error:
        raise PlaceCrashed(f"the lab's emulator is not in control: {error}") from None
