# SPDX-License-Identifier: GPL-2.0-only
"""`cohortlab lab --stop`: whoever is told that a lab has ended finds its memory and its turn free."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohortlab.lab import emulator, turn
from cohortlab.places import PlaceError, PlaceFailed


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    """The folder of a lab that was left running, which has its turn."""
    folder = tmp_path / "lab"
    folder.mkdir()
    descriptor = turn.take(tmp_path, lambda *_: None)
    process = subprocess.Popen(["sleep", "1000"], cwd=folder, pass_fds=(descriptor,))
    os.close(descriptor)
    (folder / "pid").write_text(f"{process.pid}\n")
    yield folder
    process.kill()
    process.wait()


def test_a_lab_that_is_stopped_has_ended(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[threading.Timer] = []

    def send(handle: int, number: int) -> None:
        # As when the kernel takes its time.
        late.append(threading.Timer(0.3, real_send, (handle, number)))
        late[-1].start()

    real_send = signal.pidfd_send_signal
    monkeypatch.setattr(emulator.signal, "pidfd_send_signal", send)
    emulator.stop_kept(kept)
    assert [timer.args[1] for timer in late] == [signal.SIGKILL]
    assert turn.is_free(kept.parent)
    assert not kept.exists()
    with pytest.raises(PlaceError, match="no lab runs there"):
        emulator.stop_kept(kept)


def test_a_lab_that_does_not_end_is_told_and_can_be_stopped_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(emulator.signal, "pidfd_send_signal", lambda *_: None)
        patched.setattr(emulator, "_END_S", 0.1)
        with pytest.raises(PlaceFailed) as told:
            emulator.stop_kept(kept)
    process = (kept / "pid").read_text().strip()
    said = f"{kept}: process {process} was killed, and has not ended within 0.1 s"
    assert str(told.value) == f"{said}: until it has, its memory is not free and other labs wait"
    emulator.stop_kept(kept)
    assert not kept.exists()
