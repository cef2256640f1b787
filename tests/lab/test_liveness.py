# SPDX-License-Identifier: GPL-2.0-only
"""Whose turn it is, which emulators live, who is at work with them, how long a host is silent: with none that runs."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.python.silent import silent_port

from cohortlab.lab import agent, emulator, evidence, turn
from cohortlab.lab.agent import AgentError
from cohortlab.lab.emulator import Emulator
from cohortlab.places import PlaceCrashed, PlaceError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a port behind which nobody answers."""
    made = tmp_path / "lab"
    made.mkdir()
    (made / "console.log").touch()
    with silent_port(made):
        yield made


def test_who_boots_again_after_a_crash_keeps_the_turn(tmp_path: Path) -> None:
    ours, told = turn.Turn(), threading.Event()
    os.close(ours.take(tmp_path, lambda *_: None))
    got: list[int] = []
    other = threading.Thread(target=lambda: got.append(turn.take(tmp_path, lambda *_: told.set())))
    other.start()
    assert told.wait(60)
    # No emulator has it now, and the next one does at once.
    os.close(ours.take(tmp_path, lambda *_: None))
    assert not got
    ours.end()
    other.join(60)
    os.close(got.pop())


def test_who_shares_a_turn_does_not_say_that_it_is_his(tmp_path: Path) -> None:
    first = turn.take(tmp_path, lambda *_: None)
    turn.announce(first, "the first")
    shares = turn.take(tmp_path, lambda *_: None, share=True)
    turn.announce(shares, "who shares")
    assert (tmp_path / "turn").read_text() == "the first"
    os.close(first)
    os.close(shares)


def test_those_that_come_to_share_do_not_keep_out_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "_LOOK_S", 0.01)

    def share() -> int:
        return turn.take(tmp_path, lambda *_: None, share=True)

    first, earlier, told = turn.take(tmp_path, lambda *_: None), share(), threading.Event()
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(turn.take(tmp_path, lambda *_: told.set())), daemon=True)
    waiter.start()
    assert told.wait(60)
    os.close(first)
    # The turn is his from now on, once the one that shares the first's has ended.
    end = time.monotonic() + 60
    while (tmp_path / "shared-turn").exists():
        assert time.monotonic() < end, "those that come later would be waited for as well"
        time.sleep(0.01)
    later = share()
    assert not got
    os.close(earlier)
    # Were it waited for, there might be such a one at any time.
    waiter.join(60)
    assert got, "who came to share while he waited keeps him out"
    os.close(got.pop())
    # But it is waited for by whoever comes next, also if that one gives up.
    assert not turn.is_free(tmp_path)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            turn.take(tmp_path, interrupted)
        assert not turn.is_free(tmp_path)
    os.close(later)
    assert turn.is_free(tmp_path)
    os.close(turn.take(tmp_path, interrupted))
    assert [file.name for file in tmp_path.iterdir()] == ["turn"], "no file stays of those that shared"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_who_comes_to_share_when_a_turn_begins_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_opened, begun = turn._opened, []

    def opened(file: Path) -> int:
        descriptor = real_opened(file)
        if not begun:
            # Right after it has opened the file of those that share, somebody's turn begins, who sets that aside.
            begun.append(file)
            os.close(turn.take(tmp_path, interrupted))
        return descriptor

    monkeypatch.setattr(turn, "_opened", opened)
    shares = turn.take(tmp_path, interrupted, share=True)
    assert begun == [tmp_path / "shared-turn"]
    assert not turn.is_free(tmp_path)
    os.close(shares)


def old(folder: Path) -> None:
    (folder / "pid").write_text("1\n")
    os.utime(folder, (0, 0))


def test_a_lab_whose_emulator_is_another_containers_is_not_removed(folder: Path) -> None:
    old(folder)
    # As that emulator holds it: of its process there is nothing to see.
    with (folder / "alive").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        emulator._remove_dead(folder.parent)
        assert folder.is_dir()
    emulator._remove_dead(folder.parent)
    assert not folder.exists()


def test_a_lab_has_one_client_at_a_time(folder: Path) -> None:
    first = Emulator.attach(folder)
    with pytest.raises(PlaceError, match="another cohortlab is at work with this lab: wait until it has ended"):
        Emulator.attach(folder)
    first.close()
    Emulator.attach(folder).close()


def test_nothing_is_left_in_a_folder_where_no_lab_runs(tmp_path: Path) -> None:
    for none in (tmp_path, tmp_path / "none"):
        with pytest.raises(PlaceError, match="no lab runs there"):
            Emulator.attach(none)
    assert not list(tmp_path.iterdir())


def test_a_host_that_nobody_has_asked_is_not_silent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "take", lambda *_: None)
    lab = Emulator.attach(folder)
    # As after Ctrl-Z, some time, and fg.
    lab.connection.last_heard = time.monotonic() - 10 * emulator._SILENCE_S
    lab._asked = lab.connection.last_heard - 1
    lab.check()
    lab._asked = lab.connection.last_heard + 1
    with pytest.raises(PlaceCrashed, match="does not answer for"):
        lab.check()
    lab.close()


def test_who_sends_to_a_host_that_reads_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_LOOK_S", 0.01)
    ours, theirs = socket.socketpair()
    connection = agent.Connection(ours, lambda: None)
    told: list[str] = []

    def sends(op: dict[str, object], timeout_s: float) -> None:
        try:
            connection.call(op, timeout_s=timeout_s)
        except TimeoutError as error:
            told.append(str(error))

    # The second has to wait until the first one has sent all.
    calls = (({"write_file": {"path": "x", "text": "x" * (1 << 22)}}, 2), ({"ping": {}}, 0.2))
    senders = [threading.Thread(target=sends, args=call, daemon=True) for call in calls]
    for sender in senders:
        sender.start()
        time.sleep(0.2)
    for sender in senders:
        sender.join(20)
    assert [text.partition(" to ")[0] for text in told] == ["no answer within 0.2 s", "no answer within 2 s"]
    # Of the first a part was sent: nobody may send any more.
    with pytest.raises(AgentError, match="the lab's port is closed"):
        connection.call({"ping": {}})
    connection.close()
    theirs.close()


def test_evidence_is_taken_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def take(*_: object) -> Path:
        taken.append(1)
        time.sleep(0.1)
        return Path("lost/it.txt")

    monkeypatch.setattr(evidence, "take", take)
    lab = Emulator.attach(folder)
    said: list[str] = []
    both = [threading.Thread(target=lambda: said.append(lab._evidence())) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    lab.close()
    assert len(taken) == 1
    assert said == ["; its processors' state: lost/it.txt"] * 2
