# SPDX-License-Identifier: GPL-2.0-only
"""What `scripts/setup` finds and believes, with a Python, an apt and a Rust that a test makes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
# `-m venv --clear FOLDER` makes a pip, which does what $PIP says.
PYTHON = """#!/bin/sh
[ "$1" != --version ] || { echo "Python ${FAKE_VERSION:-3.99}"; exit; }
rm -rf "$4"
mkdir -p "$4/bin"
printf '#!/bin/sh\\n%s\\n' "$PIP" >"$4/bin/pip"
chmod +x "$4/bin/pip"
"""
# A Debian with all packages, of which one is too old; to the lists that it has, that one is the newest.
APT = {
    "apt-get": 'if [ "$1" = update ]; then echo >lists; elif [ -e lists ]; then echo new >keyring; fi',
    "dpkg": '[ "$2" = old ]',
    "dpkg-query": 'read -r version <keyring; echo "installed $version"',
    "id": "echo 0",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("setup", "in-toolchain", "lib.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("one\n")
    (tmp_path / "build/stamps").mkdir(parents=True)
    program(tmp_path / "python3", PYTHON)
    return tmp_path


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def run(tree: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    whole = os.environ | {"PYTHON": str(tree / "python3"), "CARGO_HOME": str(tree / "cargo"), "LC_ALL": "C"} | env
    return subprocess.run(argv, cwd=tree, env=whole, capture_output=True, text=True, check=False)


def setup(tree: Path, pip: str = "exit 0") -> int:
    return run(tree, "scripts/setup", "python", PIP=pip).returncode


def on(tree: Path, release: str) -> None:
    """Make setup believe that it is on that distribution, with little more than a shell in PATH, the folder ``bin``."""
    script = tree / "scripts/setup"
    script.write_text(script.read_text().replace("/etc/os-release", str(tree / "os-release")))
    (tree / "os-release").write_text(release)
    (tree / "bin").mkdir()
    for name in ("bash", "dirname", "env", "realpath", "seq", "true", "uname"):
        (tree / "bin" / name).symlink_to(str(shutil.which(name)))


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


@pytest.mark.parametrize("version", ["3.10.12", "2.7.18"])
def test_a_python_that_is_too_old_is_refused(tree: Path, version: str) -> None:
    ran = run(tree, "scripts/setup", "python", PIP="exit 0", FAKE_VERSION=version)
    said = f"{tree}/python3 is Python {version}: 3.11 or newer is needed, set PYTHON to one\n"
    assert (ran.returncode, ran.stderr) == (1, said)
    assert not (tree / "build/venv").exists()


def test_elsewhere_the_programs_themselves_are_looked_for(tree: Path) -> None:
    on(tree, "ID=other\nVERSION_ID=1\n")

    def asked(*programs: str) -> tuple[int, str]:
        for name in programs:
            (tree / "bin" / name).symlink_to("/bin/true")
        ran = run(tree, "scripts/setup", "packages", PATH=str(tree / "bin"), CLANG="")
        return ran.returncode, ran.stderr

    status, said = asked("clang", "gcc", "make", "pkg-config", "mke2fs", "patch", "patchelf", "shellcheck")
    assert status == 1
    assert "This is other 1, " in said
    assert "please install readelf flock, the static libraries" in said
    assert asked("readelf", "flock") == (0, "")


def test_lists_by_which_an_old_package_is_the_newest_are_read_again(tree: Path) -> None:
    on(tree, "ID=debian\nVERSION_ID=12\n")
    for name, does in APT.items():
        program(tree / "bin" / name, f"#!/bin/sh\n{does}\n")
    (tree / "keyring").write_text("old\n")
    ran = run(tree, "scripts/setup", "packages", PATH=str(tree / "bin"))
    assert ran.returncode == 0, ran.stderr
    assert "to install: debian-archive-keyring\n" in ran.stdout
    assert (tree / "keyring").read_text() == "new\n"
    (tree / "lists").unlink()
    ran = run(tree, "scripts/setup", "packages", PATH=str(tree / "bin"))
    assert ran.stdout == "all Debian packages are installed\n"
    assert not (tree / "lists").exists()


def test_a_toolchain_that_is_gone_is_named(tree: Path) -> None:
    (tree / "build/stamps/toolchain").write_text(f"{tree}/gone\n")
    ran = run(tree, "scripts/in-toolchain", "true")
    said = f"in-toolchain: there is no cargo in {tree}/gone any more: run `make setup`\n"
    assert (ran.returncode, ran.stderr) == (1, said)
    (tree / "gone").mkdir()
    program(tree / "gone/cargo", "#!/bin/sh\necho found\n")
    assert run(tree, "scripts/in-toolchain", "cargo").stdout == "found\n"


def test_without_debians_rust_it_says_which_one_to_install(tree: Path) -> None:
    on(tree, "ID=other\n")
    for name in ("cut", "sed"):
        (tree / "bin" / name).symlink_to(str(shutil.which(name)))
    (tree / "Cargo.toml").write_text('[workspace.package]\nrust-version = "1.85"\n')
    (tree / "build/venv/bin").mkdir(parents=True)
    program(tree / "build/venv/bin/python", "#!/bin/sh\necho debian-rust: no mirror >&2\nexit 1\n")
    ran = run(tree, "scripts/setup", "toolchain", PATH=str(tree / "bin"))
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == [
        "debian-rust: no mirror",
        "Without it: install Rust 1.85 or newer with clippy and rustfmt, so that its cargo is in PATH",
    ]
    assert not (tree / "build/stamps/toolchain").exists()


def test_what_is_set_for_other_environments_does_not_count(tree: Path) -> None:
    elsewhere = ("PYTHONHOME", "PYTHONPATH", "PIP_CONSTRAINT", "PIP_TARGET", "CARGO_BUILD_TARGET")
    told = dict.fromkeys(elsewhere, str(tree)) | {"PIP_USER": "1"}
    ran = run(tree, "scripts/setup", "python", PIP="env >pip.env", **told)
    assert ran.returncode == 0, ran.stderr
    lines = (tree / "pip.env").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    assert {name: seen.get(name) for name in told} == dict.fromkeys(elsewhere) | {"PIP_USER": "0"}


def test_the_makes_below_are_not_told_what_make_was(tree: Path) -> None:
    (tree / "build/stamps/toolchain").write_text("\n")
    # As `make build PREFIX=/usr` does it.
    told = {"MAKEFLAGS": " -- PREFIX=/usr", "MFLAGS": "", "MAKEOVERRIDES": "PREFIX=/usr", "PREFIX": "/usr"}

    def seen(name: str) -> tuple[int, str]:
        ran = run(tree, "scripts/in-toolchain", "printenv", name, **told)
        return ran.returncode, ran.stdout

    assert seen("PREFIX") == (0, "/usr\n")
    assert [seen(name) for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")] == [(1, "")] * 3


def test_rust_that_was_moved_with_the_cache_folder_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("debian_rust", SCRIPTS / "debian-rust.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path))

    def unpacked(folder: Path, loader: str = "/bin/sh") -> None:
        (folder / "usr/bin").mkdir(parents=True)
        program(folder / "usr/bin/cargo", f"#!{loader}\n")

    unpacked(tmp_path / module.NAME, f"{tmp_path}/where-it-was/loader")
    monkeypatch.setattr(module, "build", unpacked)
    root = module.rust()
    assert root == tmp_path / module.NAME
    assert (root / "usr/bin/cargo").read_text() == "#!/bin/sh\n"
    # One that works stays.
    monkeypatch.setattr(module, "build", None)
    assert module.rust() == root
