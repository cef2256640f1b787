# SPDX-License-Identifier: GPL-2.0-only
"""Rules of this repository that no linter knows."""

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SOURCES = {".c", ".h", ".j2", ".py", ".rs", ".sh", ".toml"}
# Written by tools, or by the licence's authors.
FOREIGN = {"Cargo.lock", "LICENSE", "requirements.lock"}
# Holds lines of somebody else's source, as they are.
QUOTING = ".patch"
LINES_MAX = 500

# Each is spelt so that it does not find itself.
FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.$}])/(root|home|work)[/]",
    "the address of a registry": r"(deb|security|snapshot)[.]debian[.]org|pypi[.]org|pythonhosted[.]|crates[.]io",
    "a note for later": r"\b(TO[D]O|FIX[M]E|XX[X])\b",
}


def files() -> list[Path]:
    """Return the files of the repository, those not committed yet included."""
    argv = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True).stdout.split("\0")
        found = [REPO / name for name in names if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        # An unpacked archive: everything but what `make` and the tools write.
        written = re.compile(r"/(build|results|target|__pycache__|\.(git|hypothesis|\w+_cache))/")
        found = [path for path in REPO.rglob("*") if not written.search(f"/{path.relative_to(REPO)}/")]
    return sorted(path for path in found if path.is_file() and not is_foreign(path) and not of_a_run(path))


def is_foreign(path: Path) -> bool:
    return path.name in FOREIGN or path.suffix == QUOTING


def of_a_run(path: Path) -> bool:
    """Return whether a comparison wrote this, wherever its --out was: its files lie in a folder with its figures."""
    return (path.parent / "measurements.parquet").exists()


def texts(paths: list[Path]) -> dict[str, str]:
    """Return name and text of those that are text."""
    contents = {str(path.relative_to(REPO)): path.read_bytes() for path in paths}
    return {name: data.decode() for name, data in contents.items() if b"\0" not in data}


def is_source(name: str, text: str) -> bool:
    return Path(name).suffix in SOURCES or Path(name).name == "Makefile" or text.startswith("#!")


def refuse(offenders: list[str]) -> None:
    assert not offenders, "\n".join(offenders)


@pytest.fixture(scope="module")
def everything() -> dict[str, str]:
    found = texts(files())
    assert "tests/style/test_house_rules.py" in found
    return found


def test_what_a_run_writes_is_no_source() -> None:
    folder = REPO / "results" / "of-a-test"
    made = [path for path in (folder, folder.parent) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.html"
    try:
        report.write_text("ends with a space \n\n")
        assert report not in files(), "results/ is what a run writes where no --out is given"
        elsewhere = REPO / "of-a-test.html"
        assert not of_a_run(elsewhere)
        (folder / "measurements.parquet").write_bytes(b"PAR1")
        assert of_a_run(report)
    finally:
        for file in (report, folder / "measurements.parquet"):
            file.unlink(missing_ok=True)
        for path in made:
            path.rmdir()


def test_every_source_file_names_its_licence(everything: dict[str, str]) -> None:
    refuse(
        [
            name
            for name, text in everything.items()
            if is_source(name, text)
            and not any("SPDX-License-Identifier: GPL-2.0-only" in line for line in text.splitlines()[:3])
        ]
    )


def test_no_file_is_longer_than_one_can_read(everything: dict[str, str]) -> None:
    assert [name for name, text in everything.items() if is_source(name, text) and text.count("\n") >= LINES_MAX] == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str, everything: dict[str, str]) -> None:
    pattern = re.compile(FORBIDDEN[what])
    refuse(
        [
            f"{name}:{number}: {line.strip()}"
            for name, text in everything.items()
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    )


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of somebody's machine", "cache = /home" + "/me/.cache"),
        ("the address of a registry", "http://deb." + "debian.org/debian"),
        ("a note for later", "# TO" + "DO: finish"),
    ],
)
def test_the_patterns_find_what_they_are_for(what: str, line: str) -> None:
    assert re.search(FORBIDDEN[what], line)


def test_the_simulated_host_knows_no_class(everything: dict[str, str]) -> None:
    # It asks what host/class.rs says, of whichever it has.
    host = {name: text for name, text in everything.items() if name.startswith("sim/src/host/")}
    assert len(host) > 5
    named = re.compile(r"\bcrate::class\b|\b(AnyClass|Ext|Fair|RoundRobin)\b")
    assert not [name for name, text in host.items() if named.search(text)]


def test_files_end_with_one_line_end_and_lines_with_no_space(everything: dict[str, str]) -> None:
    # Two spaces at the end of a line mean something in Markdown.
    ragged = re.compile(r"[ \t]\n")
    refuse(
        [
            name
            for name, text in everything.items()
            if text
            and (not text.endswith("\n") or text.endswith("\n\n") or (not name.endswith(".md") and ragged.search(text)))
        ]
    )


def test_what_is_named_of_bench_is_there(everything: dict[str, str]) -> None:
    # Nothing else runs these programs: a page would go on naming one that has gone.
    named = re.compile(r"(?<![\w./-])bench/[\w./-]+\.(?:c|py|rs|toml)\b")
    found = {path for text in everything.values() for path in named.findall(text)}
    assert len(found) > 20
    assert sorted(path for path in found if not (REPO / path).is_file()) == []
