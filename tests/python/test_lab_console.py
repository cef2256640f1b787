# SPDX-License-Identifier: GPL-2.0-only
"""The console of the lab's host, read while it grows: no line is read by halves, and none twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.python.silent import silent_port

from cohortlab.lab.console import Growing
from cohortlab.lab.emulator import Emulator
from cohortlab.places import PlaceCrashed


class Console:
    """A console to which a test prints."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def prints(self, said: bytes) -> None:
        with self.file.open("ab") as file:
            file.write(said)


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path / "console.log")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Emulator]:
    """A lab behind whose port nobody answers."""
    with silent_port(tmp_path):
        made = Emulator(tmp_path, None)
        yield made
        made.close()


def test_half_a_line_comes_again_until_it_is_whole(console: Console) -> None:
    growing = Growing(console.file)
    assert growing.read() == ("", "")
    console.prints(b"one\r\ntw")
    assert growing.read() == ("one\r\n", "tw")
    assert growing.read() == ("", "tw")
    # Cut in the middle of a character.
    console.prints(b"o\nk\xc3")
    assert growing.read() == ("two\n", "k\ufffd")
    console.prints(b"\xa4se\n")
    assert growing.read() == ("käse\n", "")
    assert growing.read() == ("", "")


def test_a_complaint_that_is_cut_in_two_is_heard_once(console: Console, lab: Emulator) -> None:
    assert lab.new_complaints() == []
    console.prints(b"all is well\n[1.0] WARN")
    assert lab.new_complaints() == []
    console.prints(b"ING: x\n")
    assert lab.new_complaints() == ["[1.0] WARNING: x"]
    assert lab.new_complaints() == []


def test_of_a_lab_that_is_closed_half_a_line_is_heard(console: Console, lab: Emulator) -> None:
    console.prints(b"[1.0] WARNING: x\n[2.0] BUG: y")
    assert lab.new_complaints() == ["[1.0] WARNING: x"]
    assert lab.new_complaints(last=True) == ["[2.0] BUG: y"]


def test_a_death_is_seen_wherever_the_console_is_cut_and_it_lasts(console: Console, lab: Emulator) -> None:
    console.prints(b"all is well\n" * 1000)
    lab.check()
    console.prints(b"[1.0] Kernel pan")
    lab.check()
    # It may not come to the end of its line.
    console.prints(b"ic - not syncing")
    for _ in range(2):
        with pytest.raises(PlaceCrashed, match=r"the lab's host crashed; .*Kernel panic - not syncing"):
            lab.check()
    console.prints(b": x\nrebooting\n" * 100)
    with pytest.raises(PlaceCrashed, match="the lab's host crashed"):
        lab.check()


def test_what_was_looked_at_is_not_read_again(console: Console, lab: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    console.prints(b"all is well\n" * 1000)
    lab.check()
    read: list[int] = []
    real = Growing.read

    def counted(growing: Growing) -> tuple[str, str]:
        whole, begun = real(growing)
        read.append(len(whole + begun))
        return whole, begun

    monkeypatch.setattr(Growing, "read", counted)
    monkeypatch.setattr(Emulator, "console_text", lambda _: pytest.fail("all of it is read"))
    lab.check()
    console.prints(b"more\n")
    lab.check()
    assert read == [0, 5]
