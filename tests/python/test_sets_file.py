# SPDX-License-Identifier: GPL-2.0-only
"""The file of ``--sets`` among a policy's arguments: found, read, and named anew where a real kernel's host has it."""

import pytest

from cohortlab.policies import sets_file, with_sets_file


@pytest.mark.parametrize(
    ("args", "file"),
    [
        ((), None),
        (("--sets", "a b"), "a b"),
        (("--sets=x=1", "--slice-us", "5000"), "x=1"),
        (("--sets", "a", "--sets=b"), "b"),
    ],
)
def test_the_last_one_counts(args: tuple[str, ...], file: str | None) -> None:
    assert sets_file(args) == file


def test_another_takes_its_place() -> None:
    args = ("--sets=a", "--slice-us", "5000", "--sets", "b")
    assert with_sets_file(args, "/there") == ("--slice-us", "5000", "--sets", "/there")
