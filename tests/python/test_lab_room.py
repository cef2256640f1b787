# SPDX-License-Identifier: GPL-2.0-only
"""Memory and disk that the lab needs are looked at before its image is built, which takes minutes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohortlab.lab import bringup, image, turn
from cohortlab.lab.emulator import TooLittleMemory
from cohortlab.places import PlaceFailed


class Building(Exception):
    """An image is built."""


@pytest.fixture
def bring_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """What brings a lab up on a machine with 100 MB of memory left."""

    def build(*_: object) -> None:
        raise Building

    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(bringup.memory, "whole_mb", lambda: 16_000)
    monkeypatch.setattr(bringup.memory, "left_mb", lambda: 100)
    monkeypatch.setattr(bringup.binaries, "find", lambda name: tmp_path / name)
    monkeypatch.setattr(bringup.image, "image", build)
    return lambda **how: bringup.bring_up([], pcpus=2, ple=True, **how)


def test_too_little_memory_is_told_before_an_image_is_built(bring_up: Callable[..., object]) -> None:
    with pytest.raises(TooLittleMemory, match="need 768 MB of memory, this machine has 100 MB left: give the VMs less"):
        bring_up()


def test_what_another_lab_has_is_nobodys_lack(bring_up: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    other = turn.take(tmp_path / "run", lambda *_: None)
    with pytest.raises(Building):
        bring_up()
    # But who does not wait for its end has no more than is left now.
    with pytest.raises(TooLittleMemory):
        bring_up(share=True)
    os.close(other)
    with pytest.raises(TooLittleMemory):
        bring_up()


def test_who_asks_whether_the_turn_is_free_does_not_take_it(tmp_path: Path) -> None:
    assert turn.is_free(tmp_path)
    assert not list(tmp_path.iterdir())
    ours = turn.take(tmp_path, lambda *_: None)
    assert not turn.is_free(tmp_path)
    os.close(ours)
    assert turn.is_free(tmp_path)
    assert turn.is_free(tmp_path)


def test_who_has_the_turn_is_not_called_by_the_one_before(tmp_path: Path) -> None:
    first = turn.take(tmp_path, lambda *_: None)
    turn.announce(first, "process 7")
    assert turn._holder(first) == "process 7"
    os.close(first)
    second = turn.take(tmp_path, lambda *_: None)
    assert turn._holder(second) == "unknown"
    os.close(second)


def test_too_little_disk_is_told_before_an_image_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    free_mb = image._ROOM_MB - 1
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(image.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_mb << 20))
    monkeypatch.setattr(image, "_build", made.append)
    monkeypatch.setattr(image.cache.os, "sync", lambda: None)
    said = f"{tmp_path}: the lab's image needs {image._ROOM_MB} MB of disk while it is made, {free_mb} MB are left: "
    with pytest.raises(PlaceFailed) as refused:
        image.image()
    assert str(refused.value) == f"{said}make room, or set COHORT_CACHE"
    assert not made
    # One that is there needs no more.
    free_mb += 1
    there = image.image()
    free_mb = 0
    assert image.image() == there
    assert len(made) == 1


def test_what_is_left_of_an_image_that_was_not_finished_goes_with_the_next_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(image.shutil, "disk_usage", lambda _: SimpleNamespace(free=image._ROOM_MB << 20))
    monkeypatch.setattr(image, "_build", lambda _: None)
    monkeypatch.setattr(image.cache.os, "sync", lambda: None)
    there = image.image()
    left = tmp_path / f".building-root-{image.SUITE}-0~dead"
    left.mkdir()
    # Nothing is built now.
    assert image.image() == there
    assert not left.exists()
    assert there.disk.parent.is_dir()
