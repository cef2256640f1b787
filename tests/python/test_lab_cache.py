# SPDX-License-Identifier: GPL-2.0-only
"""What of the cache folder goes: what was used last before others of its kind, and by nobody now."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from cohortlab.lab import cache, image, kernels, qemu, qemu_build


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))
    monkeypatch.setattr(cache.os, "sync", lambda: None)


def make(*names: str) -> None:
    """Make folders of the cache that were used long ago, each a moment after the one before."""
    for second, name in enumerate(names):
        (cache.root() / name).mkdir(exist_ok=True)
        os.utime(cache.root() / name, (second, second))


def left(pattern: str) -> set[str]:
    return {path.name for path in cache.root().glob(pattern)}


def test_what_somebody_uses_stays(capsys: pytest.CaptureFixture[str]) -> None:
    used = cache.built("kernel-6.12", lambda _: None)
    make("kernel-6.1", "kernel-6.9", "kernel-6.12", "kernels", ".building-kernel-6.3~dead")
    cache.tidy("kernel-", 0)
    assert {name for name in left("*") if not name.startswith(".")} == {used.name, "kernels"}
    assert not left(".building-*")
    why = "unused for an hour or more, and 0 of the kind were used later"
    assert capsys.readouterr().err == f"{cache.root()}: removed kernel-6.9, kernel-6.1: {why}\n"
    # A lab that is kept uses it on, when the process that has started it is gone.
    lock = cache._in_use.pop(used)
    kept = subprocess.Popen(["sleep", "1000"], pass_fds=(lock,))
    os.close(lock)
    try:
        cache.tidy("kernel-", 0)
        assert used.is_dir()
    finally:
        kept.kill()
        kept.wait()
    cache.tidy("kernel-", 0)
    assert not used.exists()


def test_emulators_and_kernels_of_other_versions_go(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"qemu-{qemu_build.recipe().key}"
    make(ours, *(f"qemu-{number}" for number in range(9)), *(f"cured-root-{number}" for number in range(9)))
    monkeypatch.setattr(qemu, "_choose", lambda *_: qemu_build.built())
    assert qemu.choose(None, "tcg") == cache.root() / ours
    assert time.time() - (cache.root() / ours).stat().st_mtime < 600
    assert left("qemu-*") == {ours, "qemu-6", "qemu-7", "qemu-8"}
    assert left("cured-*") == {f"cured-root-{number}" for number in (5, 6, 7, 8)}
    make("kernel-6.12", *(f"kernel-5.{number}" for number in range(20)))
    (cache.root() / "kernel-6.12/boot").mkdir()
    (cache.root() / "kernel-6.12/boot/vmlinuz-x").touch()
    os.utime(cache.root() / "kernel-6.12", (0, 0))
    monkeypatch.setattr(kernels, "release_of", lambda _: "6.12.1")
    assert kernels.kernel("6.12").release == "6.12.1"
    assert left("kernel-*") == {"kernel-6.12", *(f"kernel-5.{number}" for number in range(9, 20))}


def test_a_kernel_that_is_named_by_its_file_stays_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernels, "release_of", lambda *_: "6.12.1")
    make("kernel-6.1", "kernel-6.12", "kernel-6.18")
    by_link = tmp_path / "vmlinuz"
    by_link.symlink_to(cache.root() / "kernel-6.18/vmlinuz")
    for file in (cache.root() / "kernel-6.12/boot/vmlinuz-x", by_link, cache.root(), tmp_path.parent / "vmlinuz"):
        kernels.kernel(str(file))
    # As if that had been long ago.
    make("kernel-6.12", "kernel-6.18")
    cache.tidy("kernel-", 0)
    assert left("kernel-*") == {"kernel-6.12", "kernel-6.18"}


def test_images_of_another_debian_go_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_build", lambda _: None)
    monkeypatch.setattr(image, "_ROOM_MB", 0)
    make(*(f"root-elder-{number}" for number in range(9)))
    there = image.image()
    assert left("root-*") == {there.disk.parent.name, *(f"root-elder-{number}" for number in range(2, 9))}


def test_an_emulator_that_is_not_there_makes_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "none"))
    assert qemu_build.built() is None
    assert not (tmp_path / "none").exists()
