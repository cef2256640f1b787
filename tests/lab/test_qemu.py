# SPDX-License-Identifier: GPL-2.0-only
"""Which emulator the lab takes, the one-byte cure, and the recipe of the built one; nothing is booted here."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cohortlab.lab import cache, ignne, image, qemu, qemu_build
from cohortlab.lab.image import Image
from cohortlab.places import PlaceError, PlaceFailed

# What the function does, in a library of our own: it clears a bit far inside what a pointer points to.
RACY = """
struct cpu { char before[11380]; unsigned hflags2; };
struct cpu cpus[2], *first_cpu = cpus;
void %s(void) { first_cpu->hflags2 &= ~%su; }
"""
IGNNE_MASK = "0x80"


def library(
    folder: Path, name: str = "cpu_clear_ignne", mask: str = IGNNE_MASK, flag: str = "-fcf-protection=full"
) -> bytes:
    source, built = folder / "racy.c", folder / "racy.so"
    source.write_text(RACY % (name, mask))
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", flag, "-o", built, source], check=True)
    return built.read_bytes()


def flags_after_the_call(folder: Path, binary: bytes) -> int:
    path = folder / f"called-{len(list(folder.iterdir()))}.so"
    path.write_bytes(binary)
    called = ctypes.CDLL(str(path))
    flags = ctypes.c_uint.from_address(ctypes.addressof(ctypes.c_char.in_dll(called, "cpus")) + 11380)
    flags.value = 0xFF
    called.cpu_clear_ignne()
    return flags.value


@pytest.mark.parametrize("flag", ["-fcf-protection=full", "-fcf-protection=none"])
def test_the_cure_is_one_byte_and_the_function_then_does_nothing(tmp_path: Path, flag: str) -> None:
    racy = library(tmp_path, flag=flag)
    cured = ignne.cure(racy)
    assert sum(a != b for a, b in zip(racy, cured, strict=True)) == 1
    assert flags_after_the_call(tmp_path, racy) == 0x7F
    assert flags_after_the_call(tmp_path, cured) == 0xFF


def test_what_is_not_the_known_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ignne.NotExpected, match="is not what was expected"):
        ignne.cure(library(tmp_path, mask="0x40"))
    with pytest.raises(ignne.NotExpected, match="is not what was expected"):
        ignne.cure(ignne.cure(library(tmp_path)).replace(b"\x7f\xff\xff\xff", b"\x3f\xff\xff\xff"))
    with pytest.raises(ignne.NotExpected, match="exports no cpu_clear_ignne"):
        ignne.cure(library(tmp_path, name="another"))


@pytest.mark.parametrize("length", [0, 4, 63, 64, 200, 5000])
def test_a_damaged_file_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ignne.NotExpected):
        ignne.cure(library(tmp_path)[:length])


# Which one is taken


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    """An image whose QEMU is a script that says its version, and that can be cured."""
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(qemu.VARIABLE, raising=False)
    folder = tmp_path / "root-x" / "root"
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/lib64").mkdir()
    # Its loader starts nothing: it says what QEMU would.
    loader = folder / "usr/lib64/ld-linux-x86-64.so.2"
    loader.write_text("#!/bin/sh\necho QEMU emulator version 10.0.99 \\(Debian\\)\n")
    loader.chmod(0o755)
    found = Image(folder.parent / "root.ext4", folder)
    found.qemu.write_bytes(b"stock")
    monkeypatch.setattr(ignne, "cure", lambda binary: b"cured" if binary == b"stock" else b"?")
    return found


def make_built() -> Path:
    folder = qemu_build.cache.root() / f"qemu-{qemu_build.recipe().key}"
    folder.mkdir()
    (folder / qemu_build.BINARY).touch()
    return folder


def test_the_best_that_is_there_is_taken(root: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = qemu.choose(root, "tcg")
    assert (chosen.kind, chosen.name, chosen.has_pause_filter) == ("cured", "QEMU 10.0.99 cured", False)
    assert "make emulator" in chosen.remark
    assert "cured-root-x" in chosen.argv[3]
    folder = make_built()
    chosen = qemu.choose(root, "tcg")
    assert (chosen.kind, chosen.has_pause_filter, chosen.remark) == ("patched", True, "")
    assert chosen.name == f"QEMU 10.0.99 patched ({qemu_build.recipe().key})"
    assert chosen.argv[3] == str(folder / qemu_build.BINARY)
    monkeypatch.setenv(qemu.VARIABLE, "stock")
    assert qemu.choose(root, "tcg").argv[3] == str(root.qemu)
    assert qemu.choose(root, "tcg").remark == "", "it was asked for"


def test_one_that_cannot_be_cured_serves_as_it_is_and_is_told(root: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(binary: bytes) -> bytes:
        raise ignne.NotExpected("it has changed")

    monkeypatch.setattr(ignne, "cure", refuses)
    chosen = qemu.choose(root, "tcg")
    assert chosen.kind == "stock"
    assert "die within minutes" in chosen.remark
    assert "it has changed" in chosen.remark
    monkeypatch.setenv(qemu.VARIABLE, "cured")
    with pytest.raises(PlaceError, match="it has changed"):
        qemu.choose(root, "tcg")


def test_under_kvm_debians_own_serves(root: Image) -> None:
    make_built()
    chosen = qemu.choose(root, "kvm")
    assert (chosen.kind, chosen.argv[3], chosen.remark) == ("stock", str(root.qemu), "")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("best", "must be one of patched, cured, stock"), ("patched", "run `make emulator`"), ("/nope", "cannot be read")],
)
def test_a_wrong_choice_is_one_line(root: Image, monkeypatch: pytest.MonkeyPatch, wanted: str, said: str) -> None:
    monkeypatch.setenv(qemu.VARIABLE, wanted)
    with pytest.raises(PlaceError, match=said) as error:
        qemu.choose(root, "tcg")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("says", ["exit 0", "echo a wrapper; exit 0", "echo no such option >&2; exit 1"])
def test_a_binary_that_is_no_emulator_is_wrong_input(
    root: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    (root.root / "usr/lib64/ld-linux-x86-64.so.2").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "mine").touch()
    monkeypatch.setenv(qemu.VARIABLE, str(tmp_path / "mine"))
    with pytest.raises(PlaceError, match="is no qemu-system-x86_64: asked for its version, it says: ") as error:
        qemu.choose(root, "tcg")
    assert not isinstance(error.value, PlaceFailed)
    monkeypatch.delenv(qemu.VARIABLE)
    with pytest.raises(PlaceFailed, match="the emulator does not start"):
        qemu.choose(root, "tcg")


def test_a_binary_of_ones_own_is_named_by_its_contents(
    root: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "mine"
    binary.write_bytes(b"1")
    monkeypatch.setenv(qemu.VARIABLE, str(binary))
    first = qemu.choose(root, "tcg")
    binary.write_bytes(b"2")
    second = qemu.choose(root, "tcg")
    assert first.kind == second.kind == "own"
    assert first.name != second.name


def test_a_build_that_is_named_by_its_path_stays(root: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in range(9):
        build = cache.root() / f"qemu-{second}"
        build.mkdir()
        (build / qemu_build.BINARY).touch()
        os.utime(build, (second, second))
    monkeypatch.setenv(qemu.VARIABLE, str(cache.root() / "qemu-0" / qemu_build.BINARY))
    assert qemu.choose(root, "tcg").kind == "own"
    assert {path.name for path in cache.root().glob("qemu-*")} == {"qemu-0", "qemu-6", "qemu-7", "qemu-8"}


# The recipe of the built one


def test_the_recipe_names_the_images_version_and_all_its_files() -> None:
    recipe = qemu_build.recipe()
    files = {path.name for path in qemu_build.RECIPE.glob("*.patch")}
    assert {path.name for path in recipe.patches} == files, "every patch is in the series"
    assert recipe.devices.is_file()
    assert any("orig" in name for name in recipe.sha256)


def test_a_change_of_anything_is_another_build(tmp_path: Path) -> None:
    recipe = qemu_build.recipe()
    patch = tmp_path / "x.patch"
    patch.write_text("1")
    with_patch = dataclasses.replace(recipe, patches=(patch,))
    keys = {recipe.key, with_patch.key, dataclasses.replace(recipe, version="2").key}
    keys.add(dataclasses.replace(recipe, configure=()).key)
    keys.add(dataclasses.replace(recipe, sha256={}).key)
    before = with_patch.key
    patch.write_text("2")
    keys.add(with_patch.key)
    assert len(keys) == 6
    assert before in keys


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "gcc" else f"/usr/bin/{name}")
    with pytest.raises(PlaceError, match="without gcc: run `make setup`"):
        qemu_build.build(lambda text, fraction: None)
    assert qemu_build.built() is None


def test_the_environments_flags_for_compilers_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS"):
        monkeypatch.setenv(name, "-O0")
    monkeypatch.setenv("PKG_CONFIG_PATH", "kept")
    build = qemu_build._Build(tmp_path, qemu_build.recipe(), lambda text, fraction: None)
    build._run(["sh", "-c", "env >env"], tmp_path)
    seen = (tmp_path / "env").read_text().splitlines()
    assert "PKG_CONFIG_PATH=kept" in seen
    assert [line for line in seen if line.endswith("=-O0")] == []


@pytest.mark.lab
def test_debians_own_qemu_is_the_one_that_the_cure_knows() -> None:
    built = image.image()
    stock = built.qemu.read_bytes()
    assert sum(a != b for a, b in zip(stock, ignne.cure(stock), strict=True)) == 1
