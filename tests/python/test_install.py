# SPDX-License-Identifier: GPL-2.0-only
"""`make install`, `make uninstall`: what lies where; docs/install.md and the Debian package say the same."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SERVICES = {"cohort": "run", "cohort-metrics": "top"}
SETTINGS = [f"/etc/default/{service}" for service in SERVICES]

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / "build/bin/cohort").exists(), reason="the program is not built: `make build`"
)


def make(target: str, root: Path | None, prefix: str, *more: str) -> str:
    """Run a target of the Makefile, with or without DESTDIR."""
    argv = ["make", "--no-print-directory", target, f"DESTDIR={root or ''}", f"PREFIX={prefix}", *more]
    # Perhaps another make runs the tests.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    done = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(root: Path) -> set[str]:
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if not path.is_dir()}


def documented(prefix: str) -> list[str]:
    """Return the paths of docs/install.md's table of what lies where; one that ends with / is a folder."""
    page = (REPOSITORY / "docs/install.md").read_text()
    places = [row.split("|")[2] for row in page.split("| what | where |")[1].split("\n\n")[0].splitlines()[2:]]
    return [path.replace("PREFIX", prefix) for place in places for path in re.findall(r"`((?:PREFIX)?/[^`]+)`", place)]


def is_at(path: str, place: str) -> bool:
    return path.startswith(place) if place.endswith("/") else fnmatch.fnmatchcase(path, place)


@pytest.mark.parametrize("prefix", ["/usr/local", "/usr"])
def test_what_is_installed_is_documented_and_removed_again(tmp_path: Path, prefix: str) -> None:
    make("install", tmp_path, prefix)
    installed, places = files(tmp_path), documented(prefix)
    assert len(installed) > 15
    assert [path for path in installed if not any(is_at(path, place) for place in places)] == []
    # The completions of zsh lie in one of two folders.
    unused = {place for place in places if not any(is_at(path, place) for path in installed)}
    assert len(unused) == 1
    assert "/zsh/" in unused.pop()
    for service, verb in SERVICES.items():
        unit = (tmp_path / prefix[1:] / f"lib/systemd/system/{service}.service").read_text()
        assert f"\nExecStart={prefix}/bin/cohort {verb} " in unit
        assert f"\nEnvironmentFile=-/etc/default/{service}\n" in unit

    left = [f"left as it is: {tmp_path}{path}\n" for path in SETTINGS]
    assert make("uninstall", tmp_path, prefix) == "".join(left)
    assert files(tmp_path) == set(SETTINGS)
    assert not (tmp_path / prefix[1:] / "share/doc/cohort").exists()
    assert not (tmp_path / prefix[1:] / "share/cohort").exists()


def test_what_the_installed_pages_refer_to_is_installed(tmp_path: Path) -> None:
    make("install", tmp_path, "/usr")
    folder = tmp_path / "usr/share/doc/cohort"
    links = {
        (page.name, link)
        for page in folder.glob("*.md")
        for found in re.findall(r"""\]\(([^)#\s]+)|(?:src|href)=["']([^"'#]+)""", page.read_text())
        for link in found
        if link and not re.match("[a-z]+:", link)
    }
    assert ("top.md", "top-screens.md") in links
    assert {(page, link) for page, link in links if not (folder / link).is_file()} == set()


def test_the_operators_settings_stay(tmp_path: Path) -> None:
    make("install", tmp_path, "/usr/local")
    settings = [tmp_path / path[1:] for path in SETTINGS]
    for path in settings:
        path.write_text("mine\n")
    make("install", tmp_path, "/usr/local")
    assert [path.read_text() for path in settings] == ["mine\n"] * len(settings)


def test_pages_of_an_older_version_go(tmp_path: Path) -> None:
    make("install", tmp_path, "/usr/local")
    share = tmp_path / "usr/local/share"
    older = [share / "man/man1/cohort-older.1.gz", share / "doc/cohort/older.md"]
    for path in older:
        path.touch()
    make("install", tmp_path, "/usr/local")
    assert [path.exists() for path in (*older, share / "man/man1/cohort-run.1.gz")] == [False, False, True]


def test_what_else_is_there_stays(tmp_path: Path) -> None:
    others = {"/usr/local/bin/other", "/usr/local/share/man/man1/cohorts.1.gz", "/usr/local/share/doc/other/x.md"}
    for other in others:
        (tmp_path / other[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other[1:]).touch()
    make("install", tmp_path, "/usr/local")
    make("uninstall", tmp_path, "/usr/local")
    assert files(tmp_path) == others | set(SETTINGS)


def test_the_debian_package_has_all_of_it(tmp_path: Path) -> None:
    make("install", tmp_path, "/usr")
    packed = tomllib.loads((REPOSITORY / "host/Cargo.toml").read_text())["package"]["metadata"]["deb"]
    patterns = [source.removeprefix("../build/deb") for source, _, _ in packed["assets"]]
    # This one scripts/deb makes.
    patterns.remove("/usr/share/doc/cohort/THIRD-PARTY")
    assert packed["conf-files"] == SETTINGS
    # By itself cargo-deb finds the unit that is called like the package, and no other.
    patterns.append(packed["systemd-units"]["unit-scripts"].removeprefix("../build/deb") + "/cohort.service")
    installed = files(tmp_path)
    assert [path for path in installed if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatch.fnmatchcase(path, pattern) for path in installed)] == []


def test_what_debian_reads_of_the_package_is_as_debian_asks() -> None:
    package = tomllib.loads((REPOSITORY / "host/Cargo.toml").read_text())["package"]
    # cargo-deb cuts what is longer.
    assert len(package["description"]) < 80
    assert package["description"].split()[0] not in ("A", "An", "The")
    text = (REPOSITORY / "host" / package["metadata"]["deb"]["license-file"][0]).read_text()
    head, *parts = text.split("\n\n")
    assert head.startswith("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n")
    assert "/usr/share/doc/cohort/THIRD-PARTY" in head
    (fields,) = ([line.split(":")[0] for line in part.splitlines() if not line.startswith(" ")] for part in parts)
    assert fields == ["Files", "Copyright", "License"]
    assert "/usr/share/common-licenses/GPL-2" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
@pytest.mark.parametrize("service", SERVICES)
def test_systemd_understands_the_unit(tmp_path: Path, service: str) -> None:
    # Where it says: what it starts has to be there.
    make("install", None, f"{tmp_path}/usr", f"SYSCONFDIR={tmp_path}/etc")
    unit = tmp_path / f"usr/lib/systemd/system/{service}.service"
    argv = ["systemd-analyze", "verify", "--man=no", unit]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    # What it does not know it only remarks.
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


@pytest.mark.parametrize(
    ("argv", "environment", "said"),
    [
        (["--remov"], {}, "install: '--remov' is unknown; allowed: --remove"),
        ([], {"DESTDIR": "root"}, "install: 'root': PREFIX, SYSCONFDIR and DESTDIR must begin with /"),
        (
            [],
            {"PREFIX": "/opt/a b"},
            "install: '/opt/a b': PREFIX and SYSCONFDIR must have no space, no quote, and none of \\ % $ & |",
        ),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], environment: dict[str, str], said: str, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DESTDIR": str(tmp_path), **environment}
    script = [REPOSITORY / "scripts/install", *argv]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode != 0, done.stderr) == (True, f"{said}\n")
    assert files(tmp_path) == set()
