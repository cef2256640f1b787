# SPDX-License-Identifier: GPL-2.0-only
"""The cache folder: what stays in it, and where it can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohortlab.lab import cache
from cohortlab.places import PlaceError


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))


def test_what_is_left_of_a_build_that_was_killed_is_removed_and_none_that_goes_on() -> None:
    for name in (".building-root-a~dead", ".building-other-a~dead"):
        (cache.root() / name).mkdir()

    def build(folder: Path) -> None:
        cache.tidy("root-", 1)
        (folder / "whole").touch()

    assert [path.name for path in cache.built("root-b", build, durable=False).iterdir()] == ["whole"]
    assert [path.name for path in cache.root().glob(".building-*")] == [".building-other-a~dead"]


@pytest.mark.parametrize("name", ["a:b", "a;b", 'a"b'])
def test_a_cache_that_the_emulator_would_not_find_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / name))
    with pytest.raises(PlaceError, match=f"cannot be used as cache folder: must have no {name[1]} in its path; set"):
        cache.root()
    assert not list(tmp_path.iterdir())
