# SPDX-License-Identifier: GPL-2.0-only
"""What `scripts/setup` believes of the Python environment, with a Python that a test makes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
# `-m venv --clear FOLDER` makes a pip, which does what $PIP says.
PYTHON = """#!/bin/sh
[ "$1" != --version ] || { echo "Python 3.99"; exit; }
rm -rf "$4"
mkdir -p "$4/bin"
printf '#!/bin/sh\\n%s\\n' "$PIP" >"$4/bin/pip"
chmod +x "$4/bin/pip"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("setup", "lib.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("one\n")
    (tmp_path / "build/stamps").mkdir(parents=True)
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    return tmp_path


def setup(tree: Path, pip: str = "exit 0") -> int:
    env = os.environ | {"PYTHON": str(tree / "python3"), "PIP": pip}
    ran = subprocess.run(["scripts/setup", "python"], cwd=tree, env=env, capture_output=True, text=True, check=False)
    return ran.returncode


def test_what_was_half_made_is_made_again(tree: Path) -> None:
    assert setup(tree) == 0
    simulator = tree / "build/stamps/simulator"
    simulator.write_text("what `make build` has put into the environment\n")
    assert setup(tree, "exit 1") == 0, "nothing has changed"
    assert simulator.exists()
    # Another lock, whose packages cannot be had; then the first one again.
    (tree / "requirements.lock").write_text("another\n")
    assert setup(tree, "exit 1") == 1
    assert not simulator.exists()
    (tree / "requirements.lock").write_text("one\n")
    assert setup(tree, "exit 1") == 1, "the environment was cleared meanwhile"
    assert setup(tree) == 0


def test_elsewhere_the_programs_themselves_are_looked_for(tree: Path) -> None:
    script = tree / "scripts/setup"
    script.write_text(script.read_text().replace("/etc/os-release", str(tree / "os-release")))
    (tree / "os-release").write_text("ID=other\nVERSION_ID=1\n")
    (tree / "bin").mkdir()
    for name in ("bash", "dirname", "realpath", "uname"):
        (tree / "bin" / name).symlink_to(str(shutil.which(name)))

    def asked(*programs: str) -> tuple[int, str]:
        for name in programs:
            (tree / "bin" / name).symlink_to("/bin/true")
        env = {"PATH": str(tree / "bin"), "PYTHON": str(tree / "python3")}
        argv = ["scripts/setup", "packages"]
        ran = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stderr

    status, said = asked("clang", "gcc", "make", "pkg-config", "mke2fs", "patch", "patchelf", "shellcheck")
    assert status == 1
    assert "This is other 1, " in said
    assert "please install readelf flock, the static libraries" in said
    assert asked("readelf", "flock") == (0, "")
