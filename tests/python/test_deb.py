# SPDX-License-Identifier: GPL-2.0-only
"""Which version `scripts/deb` gives the package, with a git of the test's own and programs that pack nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
# It writes down what it is told to run; `cargo deb` makes a package.
IN_TOOLCHAIN = """#!/bin/sh
mkdir -p build
echo "$*" >>build/told
[ "$2" != deb ] || touch build/cohort_1.deb
"""
# 2001-09-09 01:46:40 UTC.
COMMIT_S = 1_000_000_000
COMMITTED = "1+20010909014640"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="this machine has no git")


def environment(tree: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SOURCE_DATE_EPOCH"))}
    who = {f"GIT_{role}_{what}": "x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    when = {f"GIT_{role}_DATE": f"{COMMIT_S} +0000" for role in ("AUTHOR", "COMMITTER")}
    # Of the user's settings none, and no repository but the test's.
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    return kept | who | when | own


def git(tree: Path, *argv: str) -> None:
    subprocess.run(["git", *argv], cwd=tree, env=environment(tree), check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a clone, so to say, without changes."""
    (tmp_path / "scripts").mkdir()
    for name in ("deb", "lib.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    for name, text in (("in-toolchain", IN_TOOLCHAIN), ("install", "#!/bin/sh\n")):
        path = tmp_path / "scripts" / name
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / ".gitignore").write_text("/build/\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def revision(tree: Path, **env: str) -> str:
    """Return the end of the version of the package that is packed."""
    done = subprocess.run(
        ["scripts/deb"], cwd=tree, env=environment(tree) | env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "build/cohort_1.deb\n"), done.stderr
    words = (tree / "build/told").read_text().splitlines()[-1].split()
    assert words[:2] == ["cargo", "deb"]
    return words[words.index("--deb-revision") + 1]


def test_the_same_commit_has_the_same_version(tree: Path) -> None:
    assert [revision(tree), revision(tree)] == [COMMITTED, COMMITTED]


@pytest.mark.parametrize("change", ["scripts/install", "new"])
def test_what_is_in_no_commit_is_newer_than_the_commit(tree: Path, change: str) -> None:
    with (tree / change).open("a") as file:
        file.write("# changed\n")
    assert COMMITTED < "1+2020" < revision(tree)


def test_an_unpacked_archive_has_the_time_of_its_packing(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    assert revision(tree) > "1+2020"
    assert revision(tree, SOURCE_DATE_EPOCH=str(COMMIT_S)) == COMMITTED
